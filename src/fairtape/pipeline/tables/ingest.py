"""Journals into a Delta table, each number exactly once.

Spark is given *stretches* (lane, first, end), not messages: an executor that gets a stretch reads it from the journal
and writes Parquet into the table's folder, and the driver names all files of a batch in one commit. So no message
passes through the JVM, and the commit is one small file whatever the batch.

A batch may come again (after a crash Spark plays its last one again), with other bounds, or from the beginning where a
checkpoint was lost. What the table holds already is dropped, what would leave a hole is refused, and a run always
starts from the table.
"""

import json
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fairtape.core.errors import UserError
from fairtape.pipeline.schemas import SCHEMAS, Arrow
from fairtape.pipeline.source.data_source import FORMAT
from fairtape.pipeline.source.options import Options, Rows, journal_names
from fairtape.pipeline.source.partitions import Offset, OffsetRange, Offsets, PartitionName, Partitions, offsets_to_json
from fairtape.pipeline.source.rows import batches, stretch_of
from fairtape.pipeline.spark.delta import WRITTEN, WRITTEN_DDL, DeltaFolder, Written, write_parquet

TRIGGER_PERIOD: Final = "500 milliseconds"

_FILES: Final = WRITTEN.append(pa.field("taken", pa.string()))  # the stretches that are in it, as JSON
_FILES_DDL: Final = f"{WRITTEN_DDL}, taken STRING"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSource:
    """What goes into which table. Travels to executors."""

    options: Options  # whose `rows` say which kind of table it is
    table: Path

    @classmethod
    def of(cls, options: Options, table: Path | str) -> "IngestSource":
        """Refuses what can be no table."""
        if options.rows == "stretches":
            raise UserError("rows is 'stretches', which are places in files; a table is made of messages or trades")
        return cls(options=options, table=Path(table).absolute())

    @property
    def folder(self) -> DeltaFolder:
        """The table."""
        return DeltaFolder(self.table, SCHEMAS[self.options.rows])

    def rest(self) -> Options:
        """What is to be streamed: stretches, from where the table ends."""
        return replace(self.options, rows="stretches", start=offsets_to_json(self.folder.marks()))


def ingest_journals(
    spark: SparkSession,
    journals: Iterable[Path | str] | Path | str,
    table: Path | str,
    *,
    rows: Rows = "messages",
    stripes: tuple[int, ...] | None = None,
    sites: tuple[int, ...] | None = None,
) -> int:
    """Take in, with one commit, everything that is released and not yet in the table; how many numbers that was."""
    options = Options(journals=journal_names(journals), rows=rows, stripes=stripes, sites=sites)
    feed = IngestSource.of(options, table)
    return take_in(spark.read.format(FORMAT).options(**feed.rest().to_texts()).load(), feed)


def stream_journals(
    spark: SparkSession,
    journals: Iterable[Path | str] | Path | str,
    table: Path | str,
    *,
    rows: Rows = "messages",
    stripes: tuple[int, ...] | None = None,
    sites: tuple[int, ...] | None = None,
    max_rows: int | None = None,
    checkpoint: Path | str | None = None,
    trigger_period: str = TRIGGER_PERIOD,
    available_now: bool = False,
) -> StreamingQuery:
    """Take in what is released, as it comes (or, with `available_now`, what is there, in several commits).

    No checkpoint is needed, as the table knows how far it is; where one is named, it may be lost.
    """
    options = Options(journals=journal_names(journals), rows=rows, stripes=stripes, sites=sites)
    options = options if max_rows is None else replace(options, max_rows=max_rows)
    feed = IngestSource.of(options, table)
    stretches = spark.readStream.format(FORMAT).options(**feed.rest().to_texts()).load()
    kept = str(checkpoint or tempfile.mkdtemp(prefix="fairtape-checkpoint-"))
    writer = stretches.writeStream.foreachBatch(_taker(feed)).option("checkpointLocation", kept)
    trigger = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger_period)
    query = trigger.start()
    if checkpoint is None:
        weakref.finalize(query, rmtree, kept, ignore_errors=True)
    return query


def _taker(feed: IngestSource) -> Callable[[DataFrame, int], None]:
    def take(stretches: DataFrame, _batch: int) -> None:
        take_in(stretches, feed)

    return take


def take_in(stretches: DataFrame, feed: IngestSource) -> int:
    """Write what these stretches hold beyond the table, and commit it; how many numbers the table gained."""
    folder = feed.folder
    marks = folder.marks()
    rows = stretches.mapInArrow(_writer(feed, marks), _FILES_DDL).collect()
    taken = [each for row in rows for each in json.loads(row["taken"])]
    before, after = _moves(taken, marks, feed)
    if not after:
        return 0
    files = [Written.told(row) for row in rows if row["path"] is not None]
    committed = folder.commit(files, before, after)
    return sum(mark.next - before[name].next for name, mark in after.items()) if committed else 0


def _writer(feed: IngestSource, marks: Offsets) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    """What an executor does with the stretches of its task: one file of all that the table does not hold yet."""

    def write(tables: Iterator[Arrow]) -> Iterator[Arrow]:
        stretches = [stretch_of(row) for table in tables for row in table.to_pylist()]
        due = list(_trimmed(stretches, marks))
        if not due:
            return
        rows = (batch for stretch in due for batch in batches(stretch, feed.options))
        written = write_parquet(feed.table, rows, SCHEMAS[feed.options.rows])
        taken = json.dumps([[str(each.name), each.first, each.end, each.digest] for each in due])
        fields = dict.fromkeys(_FILES.names) if written is None else asdict(written)
        yield pa.RecordBatch.from_pylist([{**fields, "taken": taken}], schema=_FILES)

    return write


def _trimmed(stretches: Iterable[OffsetRange], marks: Mapping[PartitionName, Offset]) -> Iterator[OffsetRange]:
    """Without what the table holds."""
    for stretch in stretches:
        mark = marks.get(stretch.name)
        if mark is None or stretch.first >= mark.next:
            yield stretch
        elif stretch.end > mark.next:
            yield replace(stretch, first=mark.next)


def _moves(taken: Sequence[list[Any]], marks: Offsets, feed: IngestSource) -> tuple[Offsets, Offsets]:
    """From where to where each lane was taken in. Stretches of one lane must follow one another, from its mark on."""
    before: Offsets = {}
    after: Offsets = {}
    begins = (
        marks
        if all(PartitionName.parse(lane) in marks for lane, *_ in taken)
        else Partitions(feed.options).start() | marks
    )
    for lane, first, end, digest in sorted(taken, key=lambda each: (each[0], each[1])):
        name = PartitionName.parse(lane)
        due = after[name].next if name in after else begins[name].next
        if first != due:
            raise UserError(
                f"stripe {name.stripe} of site {name.site} goes on with sequence {first}, and table {feed.table} needs "
                f"{due}: there would be a hole. Start from the table: forget the checkpoint and run again"
            )
        before.setdefault(name, Offset(first))
        after[name] = Offset(end, digest)
    return before, after
