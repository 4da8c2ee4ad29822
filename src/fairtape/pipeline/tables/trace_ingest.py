"""Traces of sites into a Delta table, each record exactly once.

Records of a site are numbered and numbers are never used again, so the number is the offset, as for deliveries. A site
keeps a limited amount: records that it dropped before they were read are lost, and the table continues with the next.
Within one life of a site there is no gap between two records that are read.
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
_FILES: Final = WRITTEN.append(pa.field("ingested", pa.string()))
_PIECE_DDL: Final = "task INT, path STRING, stripe INT, site LONG, first LONG, last BOOLEAN, due LONG"


class TracePiece(NamedTuple):
    """A file of traces, of which records from number `due` on are wanted."""

    task: int
    path: str
    stripe: int
    site: int
    first: int
    last: bool  # of a life of the site: it may be growing, or torn at the end
    due: int


class IngestedFile(NamedTuple):
    """The numbers that were read of one file."""

    partition: str
    begin: int
    end: int


def ingest_traces(spark: SparkSession, journals: Iterable[Path | str] | Path | str, table: Path | str) -> int:
    """Add, in one commit, every record beside these journals that is not yet in the table; return how many."""
    folder = DeltaFolder(Path(table).absolute(), _SCHEMA)
    offsets = folder.offsets()
    pieces = list(_pieces(directories(journal_names(journals)), offsets))
    if not pieces:
        return 0
    wanted = spark.createDataFrame(pieces, _PIECE_DDL).repartition(min(len(pieces), TASKS_MAX), "task")
    rows = wanted.mapInArrow(_writer(folder.folder), f"{WRITTEN_DDL}, ingested STRING").collect()
    ingested = [IngestedFile(*each) for row in rows for each in json.loads(row["ingested"])]
    after = _after(ingested, folder.folder)
    moved = {name: offset for name, offset in after.items() if name not in offsets or offset.next > offsets[name].next}
    if not moved:
        return 0
    files = [Written.of(row) for row in rows if row["path"] is not None]
    return sum(file.rows for file in files) if folder.commit(files, offsets, {**offsets, **moved}) else 0


def _pieces(journals: Iterable[Path], offsets: Offsets) -> Iterator[TracePiece]:
    task = 0
    for journal in journals:
        files = trace_files(journal / TRACES)
        for file, end in zip(files, file_ends(files), strict=True):
            due = offsets.get(PartitionName(file.stripe, file.site), Offset(1)).next
            last = end is None
            if end is None or end > due:
                yield TracePiece(task, str(file.path), file.stripe, file.site, file.first, last, due)
                task += 1


def _writer(folder: Path) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    """The function of an executor: writes one file with the records of its pieces."""

    def write(tables: Iterator[Arrow]) -> Iterator[Arrow]:
        pieces = [TracePiece(**row) for table in tables for row in table.to_pylist()]
        ingested: list[IngestedFile] = []
        written = write_parquet(folder, (batch for piece in pieces for batch in _batches(piece, ingested)), _SCHEMA)
        fields = dict.fromkeys(WRITTEN.names) if written is None else asdict(written)
        yield pa.RecordBatch.from_pylist([{**fields, "ingested": json.dumps(ingested)}], schema=_FILES)

    return write


def _batches(piece: TracePiece, ingested: list[IngestedFile]) -> Iterator[Arrow]:
    """The records of a piece; adds to `ingested`. The site may have dropped the file meanwhile."""
    file = TraceFile(Path(piece.path), piece.stripe, piece.site, piece.first)
    partition = str(PartitionName(piece.stripe, piece.site))
    end = piece.first
    try:
        for number, records in file.read(last=piece.last):
            end = number + len(records)
            if end > piece.due:
                skipped = max(piece.due - number, 0)
                yield _batch(piece, number + skipped, records[skipped:])
    except FileNotFoundError:
        return
    ingested.append(IngestedFile(partition, piece.first, end))


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


def _after(ingested: Iterable[IngestedFile], table: Path) -> Offsets:
    """The offset of each site. Files of one site must be consecutive."""
    by_partition: dict[str, list[IngestedFile]] = {}
    for each in sorted(ingested, key=lambda each: each.begin):
        by_partition.setdefault(each.partition, []).append(each)
    for partition, pieces in by_partition.items():
        for before, behind in pairwise(pieces):
            if before.end != behind.begin and not starts_incarnation(behind.begin):
                name = PartitionName.parse(partition)
                raise UserError(
                    f"traces of stripe {name.stripe} of site {name.site} end with number {before.end - 1} and continue "
                    f"with {behind.begin}; nothing was written to table {table}. Restore the missing file, or move the "
                    "earlier ones away"
                )
    return {PartitionName.parse(partition): Offset(pieces[-1].end) for partition, pieces in by_partition.items()}
