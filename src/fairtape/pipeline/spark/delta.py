"""Delta tables of sequenced rows: files first, then one commit that names them and moves the marks.

A table holds, beside its rows, how far each lane has been taken in: the number due next is the Delta transaction
version of `fairtape/<stripe>/<site>`, and every commit repeats all marks, with the digest of the entry before each. So
the newest commit says where the table stands, however long its history is. A commit that adds rows moves the marks, or
there is no commit; so the table alone says what is in it, and neither a batch that is played
again nor a lost checkpoint can double or lose a row. Files that no commit names are no part of a table: whoever dies
between file and commit leaves some, nobody reads them, and `sweep` takes them away. Nothing else deletes a file.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from fairtape.core.errors import UserError
from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.source.partitions import Offset, Offsets, PartitionName, offsets_from_json, offsets_to_json

APP: Final = "fairtape"
MARKS: Final = "fairtape.marks"  # in a commit's metadata
COMMIT_TRIES_MAX: Final = 20
HISTORIES: Final = (1, 100, 100_000)  # commits to look through for the marks: not all have some
ROW_GROUP_ROWS: Final = 512 << 10
COMPRESSION_LEVEL: Final = 1
COMPACT_BYTES: Final = 256 << 20
SWEEP_HOURS: Final = 168  # a week: long readers still find the files of the snapshot that they began with

_REPEATED: Final = {"kind", "event", "venue", "symbol", "late", "stripe", "site", "source", "incarnation"}
"""Columns of few values, many times over: for these a dictionary is short."""


_UNUSABLE: Final = re.compile(r"[#?%*\[\]{}\\^|\x00-\x1f]")


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is in the table's folder, and not yet in the table."""

    path: str  # from the folder
    size: int
    rows: int
    modified_at_ms: int
    stats: str

    @classmethod
    def told(cls, row: Any) -> "Written":
        """From what an executor tells."""
        return cls(*(row[name] for name in WRITTEN.names))


WRITTEN: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("modified_at_ms", pa.int64()),
        pa.field("stats", pa.string()),
    ]
)
"""What an executor tells of a file: the fields of `Written`."""
WRITTEN_DDL: Final = "path STRING, size LONG, rows LONG, modified_at_ms LONG, stats STRING"


class DeltaFolder:
    """One table, in one folder. Made by whoever writes first."""

    def __init__(self, folder: Path | str, schema: Arrow) -> None:
        self.folder = checked_folder(Path(folder))
        self.schema = schema

    def marks(self) -> Offsets:
        """How far the table holds each lane; or, of a table that is made of another, how far that one did."""
        table = self._opened()
        return {} if table is None else _marks(table)

    def commit(
        self, files: Sequence[Written], before: Mapping[PartitionName, Offset], after: Mapping[PartitionName, Offset]
    ) -> bool:
        """Add these files and move the marks. False where the table is there already: somebody did the same before.

        A mark that is neither `before` nor `after` is a hole or a double, and refused.
        """
        for _ in range(COMMIT_TRIES_MAX):
            table = self._opened() or self._made()
            found = _marks(table)
            if all(name in found and found[name].next >= mark.next for name, mark in after.items()):
                return False
            for name, mark in before.items():
                if (there := found.get(name)) is not None and there.next != mark.next:
                    raise UserError(
                        f"table {self.folder} holds stripe {name.stripe} of site {name.site} up to sequence "
                        f"{there.next - 1}, and rows from {mark.next} on would leave a hole or stand twice; nothing "
                        "was written. Let one job at a time fill a table, and start it from the table"
                    )
            try:
                _commit(table, files, _properties({**found, **after}, after), "append")
            except CommitFailedError:
                continue  # somebody else's commit came between; it may be a compaction, or what we were about to do
            return True
        raise self._too_many()

    def extend(
        self, files: Sequence[Written], before: Mapping[PartitionName, Offset], now: Mapping[PartitionName, Offset]
    ) -> None:
        """Add what another table got between these marks."""
        self._follow(files, before, now, "append")

    def replace(
        self, files: Sequence[Written], before: Mapping[PartitionName, Offset], now: Mapping[PartitionName, Offset]
    ) -> None:
        """Let these files be all of the table, which stood at the first marks and is made of what the second name.

        Readers see what was there before or what is there now.
        """
        self._follow(files, before, now, "overwrite")

    def _follow(
        self,
        files: Sequence[Written],
        before: Mapping[PartitionName, Offset],
        now: Mapping[PartitionName, Offset],
        mode: str,
    ) -> None:
        """Bring a table up to another one. Whoever did the same meanwhile has done it for both."""
        for _ in range(COMMIT_TRIES_MAX):
            table = self._opened() or self._made()
            found = _marks(table)
            if found == now:
                return
            if found != before:
                raise UserError(
                    f"table {self.folder} was changed by another job while this one made rows for it; nothing was "
                    "written. Let one job at a time make tables, and run it again"
                )
            try:
                _commit(table, files, _properties(now, {}), mode)
            except CommitFailedError:
                continue
            return
        raise self._too_many()

    def files(self) -> list[str]:
        """The files of the present snapshot, for `spark.read.parquet` and any other reader of Parquet."""
        return self.snapshot()[0]

    def snapshot(self) -> tuple[list[str], Offsets]:
        """The files of the present snapshot, and the marks that belong to them."""
        table = self._opened()
        if table is None:
            return [], {}
        marks = _marks(table)  # first: it may bring the view of the table forward
        return paths_of(table), marks

    def compact(self) -> Mapping[str, Any]:
        """Join small files to large ones. Readers see the same rows, before and after.

        Its commit goes behind whatever came meanwhile, and bears no marks: those that it knows may be old by then.
        """
        for _ in range(COMMIT_TRIES_MAX):
            table = self._opened()
            if table is None:
                return {}
            try:
                return table.optimize.compact(target_size=COMPACT_BYTES)
            except CommitFailedError:
                continue  # what it joined was replaced meanwhile
        raise self._too_many()

    def sweep(self, *, hours: int = SWEEP_HOURS, rehearse: bool = False) -> list[str]:
        """Delete files that no snapshot of the last hours names, orphans of dead writers among them; which ones.

        A file that is not committed yet is named by no snapshot: nobody may write for longer than these hours.
        """
        for _ in range(COMMIT_TRIES_MAX):
            table = self._opened()
            if table is None:
                return []
            try:
                return table.vacuum(
                    retention_hours=hours,
                    dry_run=rehearse,
                    enforce_retention_duration=hours >= SWEEP_HOURS,
                    full=True,
                )
            except CommitFailedError:
                continue  # files that it was about to delete are gone, and its commit only tells of that
        raise self._too_many()

    def _too_many(self) -> UserError:
        return UserError(f"table {self.folder} is written by too many at once; {COMMIT_TRIES_MAX} commits failed")

    def _opened(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.folder)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise UserError(f"table {self.folder} cannot be read: {error}") from None

    def _made(self) -> DeltaTable:
        make_folder(self.folder)
        return DeltaTable.create(self.folder, self.schema, mode="ignore")


def checked_folder(folder: Path) -> Path:
    """Refuse a folder that readers of Delta tables, or Spark, would look for elsewhere.

    They take these characters for parts of an address or of a pattern; the history of a table there reads as empty.
    """
    if (found := _UNUSABLE.search(str(folder))) is not None:
        raise UserError(
            f"the folder of tables is {str(folder)!r}, and readers of Delta tables do not agree on names with "
            f"{found[0]!r}; choose a folder without it"
        )
    return folder


def _marks(table: DeltaTable) -> Offsets:
    """The marks of the newest commit that has any, held against the transactions, which nobody can miss.

    The history tells of commits that are newer than this view of the table; then the view is brought up to them.
    """
    for _ in range(COMMIT_TRIES_MAX):
        marks = _newest(table)
        if not _has_newer(table):
            return _held(table, marks)
        table.update_incremental()
    raise UserError(f"table {table.table_uri} changes all the time; {COMMIT_TRIES_MAX} looks at it were too old")


def _newest(table: DeltaTable) -> Offsets:
    for length in HISTORIES:
        commits = table.history(length)
        for commit in commits:
            if MARKS in commit:
                return offsets_from_json(json.loads(commit[MARKS]))
        if not commits:
            raise UserError(f"table {table.table_uri} has version {table.version()} and tells no history; make it anew")
    return {}


def _has_newer(table: DeltaTable) -> bool:
    """Whether the log goes on behind this view."""
    return (_folder(table) / "_delta_log" / f"{table.version() + 1:020}.json").exists()


def paths_of(table: DeltaTable) -> list[str]:
    """The files of this view of a table, by the names that they have on disk; Delta tells of them as in a URI."""
    return [unquote(urlparse(uri).path) or uri for uri in table.file_uris()]


def _folder(table: DeltaTable) -> Path:
    return Path(unquote(urlparse(table.table_uri).path))


def _held(table: DeltaTable, marks: Offsets) -> Offsets:
    for name, mark in marks.items():
        moved = table.transaction_version(f"{APP}/{name}")
        if moved not in (None, mark.next):
            raise UserError(
                f"table {table.table_uri} says that stripe {name.stripe} of site {name.site} goes on with sequence "
                f"{mark.next}, and its transactions say {moved}; it was changed by somebody else, so make it anew"
            )
    return marks


def _properties(marks: Mapping[PartitionName, Offset], moved: Mapping[PartitionName, Offset]) -> CommitProperties:
    """What a commit says beside its files. It fails if any other came since the table was opened."""
    return CommitProperties(
        custom_metadata={MARKS: json.dumps(offsets_to_json(marks))},
        max_commit_retries=0,
        app_transactions=[Transaction(f"{APP}/{name}", mark.next) for name, mark in sorted(moved.items())],
    )


def _commit(table: DeltaTable, files: Sequence[Written], properties: CommitProperties, mode: str) -> None:
    for file in files:
        if not (path := _folder(table) / file.path).exists():
            raise UserError(f"file {path} is gone before it was committed; nothing was, so run it again")
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, {}, file.modified_at_ms, data_change=True, stats=file.stats) for file in files
    ]
    table.create_write_transaction(actions, mode, table.schema(), commit_properties=properties)


def make_folder(folder: Path) -> None:
    """Make the folder of a table, or say why not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"folder {folder} cannot be made ({error.strerror}); choose another for the tables") from None


def write_parquet(folder: Path | str, batches: Iterator[Arrow], schema: Arrow) -> Written | None:
    """Batches as one file of a table; None where there are no rows. A file is complete when it bears its name."""
    name = f"part-{uuid4()}.zstd.parquet"
    path = Path(folder) / name
    draft = path.with_name(f"_{name}")
    statistics = _Statistics(schema)
    make_folder(path.parent)
    waiting: list[Arrow] = []
    with pq.ParquetWriter(draft, schema, **_encoding(schema)) as writer:
        for batch in batches:
            statistics.add(batch)
            waiting.append(batch)
            if sum(each.num_rows for each in waiting) >= ROW_GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=ROW_GROUP_ROWS)
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=ROW_GROUP_ROWS)
    if not statistics.rows:
        draft.unlink()
        return None
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)
    about = path.stat()
    return Written(name, about.st_size, statistics.rows, about.st_mtime_ns // 1_000_000, statistics.to_json())


def _encoding(schema: Arrow) -> dict[str, Any]:
    """Dictionaries where values repeat, differences where integers ascend, plain bytes elsewhere."""
    repeated = [name for name in schema.names if name in _REPEATED]
    integers = [field.name for field in schema if pa.types.is_integer(field.type) and field.name not in _REPEATED]
    return {
        "compression": "zstd",
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": repeated,
        "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        "write_statistics": [field.name for field in schema if pa.types.is_integer(field.type)],
        "store_schema": False,
    }


class _Statistics:
    """What a commit says about a file, so that readers can pass over it: the bounds of its integers."""

    def __init__(self, schema: Arrow) -> None:
        self.rows = 0
        self._names = [field.name for field in schema if pa.types.is_integer(field.type)]
        self._least: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._nulls = dict.fromkeys(self._names, 0)

    def add(self, batch: Arrow) -> None:
        self.rows += batch.num_rows
        for name in self._names:
            column = batch.column(name)
            bounds = pc.min_max(column).as_py()
            self._nulls[name] += column.null_count
            if bounds["min"] is not None:
                self._least[name] = min(self._least.get(name, bounds["min"]), bounds["min"])
                self._most[name] = max(self._most.get(name, bounds["max"]), bounds["max"])

    def to_json(self) -> str:
        return json.dumps(
            {"numRecords": self.rows, "minValues": self._least, "maxValues": self._most, "nullCount": self._nulls}
        )
