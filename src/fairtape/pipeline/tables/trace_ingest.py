"""Traces of sites into a Delta table, each record exactly once.

A site counts its records upward for ever, so the number is the mark, as for deliveries. Sites keep only so much: what
was dropped before anybody read it is gone, and the table goes on with what there is. Within a life of a site there is
no hole between two records that are read.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from fairtape.core.errors import UserError
from fairtape.pipeline.schemas import TABLES, Arrow
from fairtape.pipeline.source.options import journal_names
from fairtape.pipeline.source.partitions import Offset, Offsets, PartitionName, directories
from fairtape.pipeline.spark.delta import WRITTEN, WRITTEN_DDL, DeltaFolder, Written, write_parquet
from fairtape.ring.receiver.tracing import TraceKind
from fairtape.storage.trace_files import TRACES, Records, TraceFile, file_ends, starts_incarnation, trace_files

TASKS_MAX: Final = 64

_SCHEMA: Final = TABLES[TRACES].schema
_KINDS: Final = np.array(["", *(kind.name.lower() for kind in TraceKind)])
_FILES: Final = WRITTEN.append(pa.field("taken", pa.string()))
_PIECE_DDL: Final = "task INT, path STRING, stripe INT, site LONG, first LONG, last BOOLEAN, due LONG"


class TracePiece(NamedTuple):
    """A file of traces, of which everything from number `due` on is wanted."""

    task: int
    path: str
    stripe: int
    site: int
    first: int
    last: bool  # of its life: it may be growing, or torn at the end
    due: int


class Taken(NamedTuple):
    """What was read of one file."""

    lane: str
    begin: int
    end: int


def ingest_traces(spark: SparkSession, journals: Iterable[Path | str] | Path | str, table: Path | str) -> int:
    """Take in, with one commit, every record beside these journals that is not yet in the table; how many."""
    folder = DeltaFolder(Path(table).absolute(), _SCHEMA)
    marks = folder.marks()
    pieces = list(_pieces(directories(journal_names(journals)), marks))
    if not pieces:
        return 0
    wanted = spark.createDataFrame(pieces, _PIECE_DDL).repartition(min(len(pieces), TASKS_MAX), "task")
    rows = wanted.mapInArrow(_writer(folder.folder), f"{WRITTEN_DDL}, taken STRING").collect()
    taken = [Taken(*each) for row in rows for each in json.loads(row["taken"])]
    after = _after(taken, folder.folder)
    moved = {name: mark for name, mark in after.items() if name not in marks or mark.next > marks[name].next}
    if not moved:
        return 0
    files = [Written.told(row) for row in rows if row["path"] is not None]
    return sum(file.rows for file in files) if folder.commit(files, marks, {**marks, **moved}) else 0


def _pieces(journals: Iterable[Path], marks: Offsets) -> Iterator[TracePiece]:
    task = 0
    for journal in journals:
        files = trace_files(journal / TRACES)
        for file, end in zip(files, file_ends(files), strict=True):
            due = marks.get(PartitionName(file.stripe, file.site), Offset(1)).next
            last = end is None
            if end is None or end > due:
                yield TracePiece(task, str(file.path), file.stripe, file.site, file.first, last, due)
                task += 1


def _writer(folder: Path) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    """What an executor does with the pieces of its task: one file of all their records."""

    def write(tables: Iterator[Arrow]) -> Iterator[Arrow]:
        pieces = [TracePiece(**row) for table in tables for row in table.to_pylist()]
        taken: list[Taken] = []
        written = write_parquet(folder, (batch for piece in pieces for batch in _batches(piece, taken)), _SCHEMA)
        fields = dict.fromkeys(WRITTEN.names) if written is None else asdict(written)
        yield pa.RecordBatch.from_pylist([{**fields, "taken": json.dumps(taken)}], schema=_FILES)

    return write


def _batches(piece: TracePiece, taken: list[Taken]) -> Iterator[Arrow]:
    """The records of a piece; what was read is noted. A site may have dropped the file meanwhile."""
    file = TraceFile(Path(piece.path), piece.stripe, piece.site, piece.first)
    lane = str(PartitionName(piece.stripe, piece.site))
    end = piece.first
    try:
        for number, records in file.read(last=piece.last):
            end = number + len(records)
            if end > piece.due:
                skipped = max(piece.due - number, 0)
                yield _batch(piece, number + skipped, records[skipped:])
    except FileNotFoundError:
        return
    taken.append(Taken(lane, piece.first, end))


def _batch(piece: TracePiece, first: int, records: Records) -> Arrow:
    count = len(records)
    columns: dict[str, Any] = {
        "stripe": np.full(count, piece.stripe, np.int32),
        "site": np.full(count, piece.site, np.int64),
        "number": np.arange(first, first + count, dtype=np.int64),
        "kind": _KINDS[np.minimum(records["kind"], len(_KINDS) - 1)],
        **{f"{name}_ns": _instants(records[name]) for name in ("due_at", "sent_at", "came_at", "complete_at")},
        "clock_bound_ns": records["clock_bound"],
    }
    names = [field.name for field in _SCHEMA]
    arrays = [
        pa.array(columns[name] if name in columns else records[name].astype(np.int64), _SCHEMA.field(name).type)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _instants(instants: Records) -> Arrow:
    return pa.array(np.ascontiguousarray(instants), pa.int64(), mask=instants == 0)


def _after(taken: Iterable[Taken], table: Path) -> Offsets:
    """Where each site stands then. Files of one site must follow one another."""
    by_lane: dict[str, list[Taken]] = {}
    for each in sorted(taken, key=lambda each: each.begin):
        by_lane.setdefault(each.lane, []).append(each)
    for lane, pieces in by_lane.items():
        for before, behind in pairwise(pieces):
            if before.end != behind.begin and not starts_incarnation(behind.begin):
                name = PartitionName.parse(lane)
                raise UserError(
                    f"traces of stripe {name.stripe} of site {name.site} end with number {before.end - 1} and go on "
                    f"with {behind.begin}; nothing was written to table {table}. Bring the missing file back, or move "
                    "the earlier ones away"
                )
    return {PartitionName.parse(lane): Offset(pieces[-1].end) for lane, pieces in by_lane.items()}
