"""Journals and traces into Delta tables, each number exactly once.

Spark processes *offset ranges* (partition, first, end), not messages: an executor reads a range from the journal and
writes Parquet into the table's folder, and the driver adds all files of a batch in one commit. So no message passes
through the JVM, and a commit is one small file, whatever the size of the batch.

A batch may be repeated (Spark repeats its last one after a crash), with other bounds, or from the beginning where a
checkpoint was lost. Numbers that the table holds are dropped, a batch that would leave a gap is refused, and a run
always starts from the offsets of the table.

Records of a site's traces are numbered and numbers are never used again, so the number is the offset, as for
deliveries. A site keeps a limited amount: records that it dropped before they were read are lost, and the table
continues with the next. Within one incarnation of a site there is no gap between two records that are read.
"""

import json
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fairtape.core.errors import UserError
from fairtape.pipeline.schemas import SCHEMAS, TABLES, Arrow
from fairtape.pipeline.source.data_source import FORMAT
from fairtape.pipeline.source.journal_rows import batches, offset_range_of
from fairtape.pipeline.source.options import JournalSourceOptions, RowKind, journal_names
from fairtape.pipeline.source.partitions import (
    Offset,
    OffsetRange,
    Offsets,
    PartitionName,
    Partitions,
    directories,
    offsets_to_json,
)
from fairtape.pipeline.spark.delta import WRITTEN, WRITTEN_DDL, DeltaFolder, Written, write_parquet
from fairtape.ring.receiver.tracing import TraceKind
from fairtape.storage.trace_files import TRACES, Records, TraceFile, file_ends, starts_incarnation, trace_files

TRIGGER_PERIOD: Final = "500 milliseconds"

_FILES: Final = WRITTEN.append(pa.field("ingested", pa.string()))  # the offset ranges in it, as JSON
_FILES_DDL: Final = f"{WRITTEN_DDL}, ingested STRING"

TRACE_TASKS_MAX: Final = 64

_TRACE_SCHEMA: Final = TABLES[TRACES].schema
_TRACE_KINDS: Final = np.array(["", *(kind.name.lower() for kind in TraceKind)])
_PIECE_DDL: Final = "task INT, path STRING, stripe INT, site LONG, first LONG, last BOOLEAN, due LONG"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSource:
    """What is read, and the table that it is written to. Sent to executors."""

    options: JournalSourceOptions  # `rows` gives the schema of the table
    table: Path

    @classmethod
    def of(cls, options: JournalSourceOptions, table: Path | str) -> "IngestSource":
        """Refuse rows that no table is made of."""
        if options.rows == "offset_ranges":
            raise UserError("rows is 'offset_ranges'; a table is made of messages or trades")
        return cls(options=options, table=Path(table).absolute())

    @property
    def folder(self) -> DeltaFolder:
        """The table."""
        return DeltaFolder(self.table, SCHEMAS[self.options.rows])

    def remaining(self) -> JournalSourceOptions:
        """Options to read offset ranges from the offsets of the table on."""
        return replace(self.options, rows="offset_ranges", start=offsets_to_json(self.folder.offsets()))


def ingest_journals(
    spark: SparkSession,
    journals: Iterable[Path | str] | Path | str,
    table: Path | str,
    *,
    rows: RowKind = "messages",
    stripes: tuple[int, ...] | None = None,
    sites: tuple[int, ...] | None = None,
) -> int:
    """Add, in one commit, everything that is released and not yet in the table; return how many numbers that was."""
    options = JournalSourceOptions(journals=journal_names(journals), rows=rows, stripes=stripes, sites=sites)
    source = IngestSource.of(options, table)
    return ingest_offset_ranges(spark.read.format(FORMAT).options(**source.remaining().to_texts()).load(), source)


def stream_journals(
    spark: SparkSession,
    journals: Iterable[Path | str] | Path | str,
    table: Path | str,
    *,
    rows: RowKind = "messages",
    stripes: tuple[int, ...] | None = None,
    sites: tuple[int, ...] | None = None,
    max_rows: int | None = None,
    checkpoint: Path | str | None = None,
    trigger_period: str = TRIGGER_PERIOD,
    available_now: bool = False,
) -> StreamingQuery:
    """Add messages as they are released (or, with `available_now`, those that are there, in several commits).

    No checkpoint is needed, because the table has its offsets; where one is given, it may be lost.
    """
    options = JournalSourceOptions(journals=journal_names(journals), rows=rows, stripes=stripes, sites=sites)
    options = options if max_rows is None else replace(options, max_rows=max_rows)
    source = IngestSource.of(options, table)
    offset_ranges = spark.readStream.format(FORMAT).options(**source.remaining().to_texts()).load()
    kept = str(checkpoint or tempfile.mkdtemp(prefix="fairtape-checkpoint-"))
    writer = offset_ranges.writeStream.foreachBatch(_batch_function(source)).option("checkpointLocation", kept)
    trigger = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger_period)
    query = trigger.start()
    if checkpoint is None:
        weakref.finalize(query, rmtree, kept, ignore_errors=True)
    return query


def _batch_function(source: IngestSource) -> Callable[[DataFrame, int], None]:
    def ingest_batch(offset_ranges: DataFrame, _batch: int) -> None:
        ingest_offset_ranges(offset_ranges, source)

    return ingest_batch


def ingest_offset_ranges(offset_ranges: DataFrame, source: IngestSource) -> int:
    """Write and commit the numbers of these offset ranges that the table lacks; return how many there were."""
    folder = source.folder
    offsets = folder.offsets()
    rows = offset_ranges.mapInArrow(_writer(source, offsets), _FILES_DDL).collect()
    ingested = [each for row in rows for each in json.loads(row["ingested"])]
    before, after = _moves(ingested, offsets, source)
    if not after:
        return 0
    files = [Written.of(row) for row in rows if row["path"] is not None]
    committed = folder.commit(files, before, after)
    return sum(offset.next - before[name].next for name, offset in after.items()) if committed else 0


def _writer(source: IngestSource, offsets: Offsets) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    """The function of an executor: writes one file with what the table lacks of the offset ranges of a task."""

    def write(tables: Iterator[Arrow]) -> Iterator[Arrow]:
        offset_ranges = [offset_range_of(row) for table in tables for row in table.to_pylist()]
        due = list(_trimmed(offset_ranges, offsets))
        if not due:
            return
        rows = (batch for offset_range in due for batch in batches(offset_range, source.options))
        written = write_parquet(source.table, rows, SCHEMAS[source.options.rows])
        ingested = json.dumps([[str(each.name), each.first, each.end, each.digest] for each in due])
        fields = dict.fromkeys(_FILES.names) if written is None else asdict(written)
        yield pa.RecordBatch.from_pylist([{**fields, "ingested": ingested}], schema=_FILES)

    return write


def _trimmed(offset_ranges: Iterable[OffsetRange], offsets: Mapping[PartitionName, Offset]) -> Iterator[OffsetRange]:
    """The offset ranges without the numbers that the table holds."""
    for offset_range in offset_ranges:
        offset = offsets.get(offset_range.name)
        if offset is None or offset_range.first >= offset.next:
            yield offset_range
        elif offset_range.end > offset.next:
            yield replace(offset_range, first=offset.next)


def _moves(ingested: Sequence[list[Any]], offsets: Offsets, source: IngestSource) -> tuple[Offsets, Offsets]:
    """The offsets before and after. Ranges of one partition must be consecutive, from the offset of the table on."""
    before: Offsets = {}
    after: Offsets = {}
    begins = (
        offsets
        if all(PartitionName.parse(partition) in offsets for partition, *_ in ingested)
        else Partitions(source.options).start() | offsets
    )
    for partition, first, end, digest in sorted(ingested, key=lambda each: (each[0], each[1])):
        name = PartitionName.parse(partition)
        due = after[name].next if name in after else begins[name].next
        if first != due:
            raise UserError(
                f"stripe {name.stripe} of site {name.site} continues with sequence {first}, and table {source.table} "
                f"needs {due}: there would be a gap. Delete the checkpoint and run again, to start from the table"
            )
        before.setdefault(name, Offset(first))
        after[name] = Offset(end, digest)
    return before, after


class TracePiece(NamedTuple):
    """A file of traces, of which records from number `due` on are wanted."""

    task: int
    path: str
    stripe: int
    site: int
    first: int
    last: bool  # of an incarnation of the site: it may be growing, or torn at the end
    due: int


class IngestedFile(NamedTuple):
    """The numbers that were read of one file."""

    partition: str
    begin: int
    end: int


def ingest_traces(spark: SparkSession, journals: Iterable[Path | str] | Path | str, table: Path | str) -> int:
    """Add, in one commit, every record beside these journals that is not yet in the table; return how many."""
    folder = DeltaFolder(Path(table).absolute(), _TRACE_SCHEMA)
    offsets = folder.offsets()
    pieces = list(_trace_pieces(directories(journal_names(journals)), offsets))
    if not pieces:
        return 0
    wanted = spark.createDataFrame(pieces, _PIECE_DDL).repartition(min(len(pieces), TRACE_TASKS_MAX), "task")
    rows = wanted.mapInArrow(_trace_writer(folder.folder), _FILES_DDL).collect()
    ingested = [IngestedFile(*each) for row in rows for each in json.loads(row["ingested"])]
    after = _trace_offsets(ingested, folder.folder)
    moved = {name: offset for name, offset in after.items() if name not in offsets or offset.next > offsets[name].next}
    if not moved:
        return 0
    files = [Written.of(row) for row in rows if row["path"] is not None]
    return sum(file.rows for file in files) if folder.commit(files, offsets, {**offsets, **moved}) else 0


def _trace_pieces(journals: Iterable[Path], offsets: Offsets) -> Iterator[TracePiece]:
    task = 0
    for journal in journals:
        files = trace_files(journal / TRACES)
        for file, end in zip(files, file_ends(files), strict=True):
            due = offsets.get(PartitionName(file.stripe, file.site), Offset(1)).next
            last = end is None
            if end is None or end > due:
                yield TracePiece(task, str(file.path), file.stripe, file.site, file.first, last, due)
                task += 1


def _trace_writer(folder: Path) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    """The function of an executor: writes one file with the records of its pieces."""

    def write(tables: Iterator[Arrow]) -> Iterator[Arrow]:
        pieces = [TracePiece(**row) for table in tables for row in table.to_pylist()]
        ingested: list[IngestedFile] = []
        written = write_parquet(
            folder, (batch for piece in pieces for batch in _trace_batches(piece, ingested)), _TRACE_SCHEMA
        )
        fields = dict.fromkeys(WRITTEN.names) if written is None else asdict(written)
        yield pa.RecordBatch.from_pylist([{**fields, "ingested": json.dumps(ingested)}], schema=_FILES)

    return write


def _trace_batches(piece: TracePiece, ingested: list[IngestedFile]) -> Iterator[Arrow]:
    """The records of a piece; adds to `ingested`. The site may have dropped the file meanwhile."""
    file = TraceFile(Path(piece.path), piece.stripe, piece.site, piece.first)
    partition = str(PartitionName(piece.stripe, piece.site))
    end = piece.first
    try:
        for number, records in file.read(last=piece.last):
            end = number + len(records)
            if end > piece.due:
                skipped = max(piece.due - number, 0)
                yield _trace_batch(piece, number + skipped, records[skipped:])
    except FileNotFoundError:
        return
    ingested.append(IngestedFile(partition, piece.first, end))


def _trace_batch(piece: TracePiece, first: int, records: Records) -> Arrow:
    count = len(records)
    columns: dict[str, Any] = {
        "stripe": np.full(count, piece.stripe, np.int32),
        "site": np.full(count, piece.site, np.int64),
        "number": np.arange(first, first + count, dtype=np.int64),
        "kind": _TRACE_KINDS[np.minimum(records["kind"], len(_TRACE_KINDS) - 1)],
        **{f"{name}_ns": _instants(records[name]) for name in ("due_at", "sent_at", "came_at", "complete_at")},
        "clock_bound_ns": records["clock_bound"],
    }
    names = [field.name for field in _TRACE_SCHEMA]
    arrays = [
        pa.array(columns[name] if name in columns else records[name].astype(np.int64), _TRACE_SCHEMA.field(name).type)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_TRACE_SCHEMA)


def _instants(instants: Records) -> Arrow:
    return pa.array(np.ascontiguousarray(instants), pa.int64(), mask=instants == 0)


def _trace_offsets(ingested: Iterable[IngestedFile], table: Path) -> Offsets:
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
