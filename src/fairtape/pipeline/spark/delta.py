"""Delta tables of sequenced rows: files first, then one commit that adds them and moves the offsets.

A table has, beside its rows, the offset of each partition: the next number is the Delta transaction version of
`fairtape/<stripe>/<site>`, and every commit repeats all offsets in its metadata, with the digest of the entry before
each. So the newest commit has the offsets, however long the history is. Rows and offsets change in the same commit, so
neither a repeated batch nor a lost checkpoint can duplicate or lose a row. A writer that dies between file and commit
leaves a file that no commit names: it is not part of the table, is never read, and `sweep` deletes it. Nothing else
deletes a file.
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
OFFSETS_KEY: Final = "fairtape.marks"  # in a commit's metadata
COMMIT_TRIES_MAX: Final = 20
HISTORIES: Final = (1, 100, 100_000)  # commits to search for offsets: compaction commits have none
ROW_GROUP_ROWS: Final = 512 << 10
COMPRESSION_LEVEL: Final = 1
COMPACT_BYTES: Final = 256 << 20
SWEEP_HOURS: Final = 168  # a week: long readers still find the files of their snapshot

_REPEATED: Final = {"kind", "event", "venue", "symbol", "late", "stripe", "site", "source", "incarnation"}
"""Columns of few distinct values, for which a dictionary is short."""


_UNUSABLE: Final = re.compile(r"[#?%*\[\]{}\\^|\x00-\x1f]")


@dataclass(frozen=True, slots=True)
class Written:
    """A file in the table's folder that is not yet in the table."""

    path: str  # from the folder
    size: int
    rows: int
    modified_at_ms: int
    stats: str

    @classmethod
    def of(cls, row: Any) -> "Written":
        """From the row that an executor returned."""
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
"""The row that an executor returns for a file: the fields of `Written`."""
WRITTEN_DDL: Final = "path STRING, size LONG, rows LONG, modified_at_ms LONG, stats STRING"


class DeltaFolder:
    """One table in one folder, created by the first write."""

    def __init__(self, folder: Path | str, schema: Arrow) -> None:
        self.folder = checked_folder(Path(folder))
        self.schema = schema

    def offsets(self) -> Offsets:
        """The offset of each partition; for a table that is made of another, the offsets of that one at the time."""
        table = self._open()
        return {} if table is None else _offsets(table)

    def commit(
        self, files: Sequence[Written], before: Mapping[PartitionName, Offset], after: Mapping[PartitionName, Offset]
    ) -> bool:
        """Add these files and move the offsets. False where the table has them already.

        An offset of the table that is neither `before` nor `after` would give a gap or a duplicate, and is refused.
        """
        for _ in range(COMMIT_TRIES_MAX):
            table = self._open() or self._created()
            found = _offsets(table)
            if all(name in found and found[name].next >= offset.next for name, offset in after.items()):
                return False
            for name, offset in before.items():
                if (there := found.get(name)) is not None and there.next != offset.next:
                    raise UserError(
                        f"table {self.folder} holds stripe {name.stripe} of site {name.site} up to sequence "
                        f"{there.next - 1}, and rows from {offset.next} on would leave a gap or be duplicates; nothing "
                        "was written. Let one job at a time fill a table, and start it from the table"
                    )
            try:
                _commit(table, files, _properties({**found, **after}, after), "append")
            except CommitFailedError:
                continue  # another commit came first: a compaction, or the same rows
            return True
        raise self._too_many()

    def extend(
        self, files: Sequence[Written], before: Mapping[PartitionName, Offset], now: Mapping[PartitionName, Offset]
    ) -> None:
        """Add the rows of what another table gained between these offsets."""
        self._follow(files, before, now, "append")

    def replace(
        self, files: Sequence[Written], before: Mapping[PartitionName, Offset], now: Mapping[PartitionName, Offset]
    ) -> None:
        """Replace all files of the table, whose offsets were `before` and become `now`.

        Readers see the old or the new rows, never a mixture.
        """
        self._follow(files, before, now, "overwrite")

    def _follow(
        self,
        files: Sequence[Written],
        before: Mapping[PartitionName, Offset],
        now: Mapping[PartitionName, Offset],
        mode: str,
    ) -> None:
        """Commit rows that were made of another table, unless another job did the same meanwhile."""
        for _ in range(COMMIT_TRIES_MAX):
            table = self._open() or self._created()
            found = _offsets(table)
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
        """The files of the present snapshot, and its offsets."""
        table = self._open()
        if table is None:
            return [], {}
        offsets = _offsets(table)  # first: it may update the view of the table
        return paths_of(table), offsets

    def compact(self) -> Mapping[str, Any]:
        """Join small files to large ones. Readers see the same rows before and after.

        Its commit may come after others, so it has no offsets: those that it knows may be outdated.
        """
        for _ in range(COMMIT_TRIES_MAX):
            table = self._open()
            if table is None:
                return {}
            try:
                return table.optimize.compact(target_size=COMPACT_BYTES)
            except CommitFailedError:
                continue  # files that it joined were replaced meanwhile
        raise self._too_many()

    def sweep(self, *, hours: int = SWEEP_HOURS, dry_run: bool = False) -> list[str]:
        """Delete files that no snapshot of the last hours names, also orphans of dead writers; return their names.

        A file that is not committed yet is in no snapshot, so no writer may take longer than these hours.
        """
        for _ in range(COMMIT_TRIES_MAX):
            table = self._open()
            if table is None:
                return []
            try:
                return table.vacuum(
                    retention_hours=hours,
                    dry_run=dry_run,
                    enforce_retention_duration=hours >= SWEEP_HOURS,
                    full=True,
                )
            except CommitFailedError:
                continue  # another sweep deleted the files; only the commit failed
        raise self._too_many()

    def _too_many(self) -> UserError:
        return UserError(f"table {self.folder} has too many concurrent writers; {COMMIT_TRIES_MAX} commits failed")

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.folder)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise UserError(f"table {self.folder} cannot be read: {error}") from None

    def _created(self) -> DeltaTable:
        make_folder(self.folder)
        return DeltaTable.create(self.folder, self.schema, mode="ignore")


def checked_folder(folder: Path) -> Path:
    """Refuse a folder with characters that readers of Delta tables, or Spark, treat as parts of a URI or a pattern.

    The history of a table there would read as empty.
    """
    if (found := _UNUSABLE.search(str(folder))) is not None:
        raise UserError(
            f"the folder of tables is {str(folder)!r}, and readers of Delta tables do not agree on names with "
            f"{found[0]!r}; choose a folder without that character"
        )
    return folder


def _offsets(table: DeltaTable) -> Offsets:
    """The offsets of the newest commit that has any, checked against the transaction versions.

    The history may have commits that are newer than this view of the table; then the view is updated.
    """
    for _ in range(COMMIT_TRIES_MAX):
        offsets = _newest_offsets(table)
        if not _has_newer(table):
            return _checked_offsets(table, offsets)
        table.update_incremental()
    raise UserError(f"table {table.table_uri} changes too often; {COMMIT_TRIES_MAX} reads of it were outdated")


def _newest_offsets(table: DeltaTable) -> Offsets:
    for length in HISTORIES:
        commits = table.history(length)
        for commit in commits:
            if OFFSETS_KEY in commit:
                return offsets_from_json(json.loads(commit[OFFSETS_KEY]))
        if not commits:
            raise UserError(f"table {table.table_uri} has version {table.version()} and no history; make it anew")
    return {}


def _has_newer(table: DeltaTable) -> bool:
    """Whether the log has commits after this view."""
    return (_folder(table) / "_delta_log" / f"{table.version() + 1:020}.json").exists()


def paths_of(table: DeltaTable) -> list[str]:
    """The files of this view of a table as paths; Delta has them as URIs."""
    return [unquote(urlparse(uri).path) or uri for uri in table.file_uris()]


def _folder(table: DeltaTable) -> Path:
    return Path(unquote(urlparse(table.table_uri).path))


def _checked_offsets(table: DeltaTable, offsets: Offsets) -> Offsets:
    for name, offset in offsets.items():
        changed = table.transaction_version(f"{APP}/{name}")
        if changed not in (None, offset.next):
            raise UserError(
                f"table {table.table_uri} continues stripe {name.stripe} of site {name.site} with sequence "
                f"{offset.next} according to its offsets, and with {changed} according to its transactions; another "
                "program changed it, so make it anew"
            )
    return offsets


def _properties(offsets: Mapping[PartitionName, Offset], changed: Mapping[PartitionName, Offset]) -> CommitProperties:
    """The metadata of a commit, which fails if another came since the table was opened."""
    return CommitProperties(
        custom_metadata={OFFSETS_KEY: json.dumps(offsets_to_json(offsets))},
        max_commit_retries=0,
        app_transactions=[Transaction(f"{APP}/{name}", offset.next) for name, offset in sorted(changed.items())],
    )


def _commit(table: DeltaTable, files: Sequence[Written], properties: CommitProperties, mode: str) -> None:
    for file in files:
        if not (path := _folder(table) / file.path).exists():
            raise UserError(f"file {path} was deleted before the commit; nothing was committed, so run it again")
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, {}, file.modified_at_ms, data_change=True, stats=file.stats) for file in files
    ]
    table.create_write_transaction(actions, mode, table.schema(), commit_properties=properties)


def make_folder(folder: Path) -> None:
    """Make the folder of a table, or raise a `UserError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"folder {folder} cannot be made ({error.strerror}); choose another for the tables") from None


def write_parquet(folder: Path | str, batches: Iterator[Arrow], schema: Arrow) -> Written | None:
    """Write batches to one file of a table; None where there are no rows. A file gets its name when it is complete."""
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
    """Dictionaries where values repeat, delta encoding for integers, plain bytes elsewhere."""
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
    """The statistics of a file in a commit, by which readers skip it: the bounds of its integers."""

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
