"""The data source `fairtape`: journals, or a retransmit server's replay port, as batch and streaming DataFrames.

    register(spark)
    spark.read.format("fairtape").option("journals", "journals/*").load()
    spark.readStream.format("fairtape").option("journals", "journals/*").option("rows", "trades").load()
    spark.read.format("fairtape").option("replay", "10.0.0.7:17001").option("plan", "plans/00001.toml").load()

Options choose what is read (`fairtape.pipeline.source.options`, `fairtape.pipeline.source.replay_source`); rows have
the schemas of `fairtape.pipeline.schemas`. An offset is the next number to be read, per stripe and site, or per session
of a replay. The driver plans from record heads; executors read offset ranges in parallel and return Arrow batches.
Executors need this package, and must see journals and plans under the same paths.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from fairtape.core.errors import UserError
from fairtape.pipeline.schemas import REPLAYED, SCHEMAS, Arrow
from fairtape.pipeline.source.journal_rows import batches, offset_ranges_batch
from fairtape.pipeline.source.options import JournalSourceOptions
from fairtape.pipeline.source.partitions import OffsetRange, Offsets, Partitions, offsets_from_json, offsets_to_json
from fairtape.pipeline.source.replay_source import ReplayBatchReader, ReplaySourceOptions, ReplayStreamReader

FORMAT = "fairtape"


def register(spark: SparkSession) -> None:
    """Make `format("fairtape")` known to this session."""
    spark.dataSource.register(TapeSource)


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, number: int, offset_ranges: Sequence[OffsetRange]) -> None:
        self.number = number
        self.offset_ranges = list(offset_ranges)


class TapeSource(DataSource):
    """Journals of sites in their order or, with the option `replay`, the sessions of a replay port."""

    @classmethod
    def name(cls) -> str:
        """The argument of `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the chosen rows."""
        chosen = self._chosen
        schemas = REPLAYED if isinstance(chosen, ReplaySourceOptions) else SCHEMAS
        return from_arrow_schema(schemas[chosen.rows])

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - the columns are ours to say
        """For `spark.read`."""
        chosen = self._chosen
        return ReplayBatchReader(chosen) if isinstance(chosen, ReplaySourceOptions) else JournalBatchReader(chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's name
        """For `spark.readStream`."""
        chosen = self._chosen
        if isinstance(chosen, ReplaySourceOptions):
            return ReplayStreamReader(chosen)
        if chosen.ordered:
            raise UserError("ordered is true, and a stream reads only what is released; leave it out, or use a batch")
        return JournalStreamReader(chosen)

    @property
    def _chosen(self) -> JournalSourceOptions | ReplaySourceOptions:
        is_replay = any(name.lower() == "replay" for name in self.options)
        return ReplaySourceOptions.of(self.options) if is_replay else JournalSourceOptions.of(self.options)


class JournalBatchReader(DataSourceReader):
    """Everything that exists at the time of planning."""

    def __init__(self, options: JournalSourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Long segments are cut into several tasks; short ones share a task."""
        partitions = Partitions(self._options)
        start = partitions.start()
        return [Task(*each) for each in enumerate(partitions.tasks(start, partitions.latest(start)))]

    def read(self, partition: InputPartition) -> Iterator[Arrow]:
        """The rows of one task."""
        return _read(partition, self._options)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages as they are released. On the driver one object follows the journals as long as the query runs."""

    def __init__(self, options: JournalSourceOptions) -> None:
        self._options = options
        self._partitions: Partitions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where reading begins without a checkpoint."""
        return offsets_to_json(self._followed().start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Rows of a micro-batch."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch, which is the end of a token."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets_to_json(self._followed().latest(_offsets(start), rows_max))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read to the present end and stop."""
        self._followed().settle()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        tasks = self._followed().tasks(_offsets(start), _offsets(end))
        return [Task(*each) for each in enumerate(tasks)]

    def read(self, partition: InputPartition) -> Iterator[Arrow]:
        """The rows of one task."""
        return _read(partition, self._options)

    def _followed(self) -> Partitions:
        self._partitions = self._partitions or Partitions(self._options)
        return self._partitions

    def __getstate__(self) -> dict[str, Any]:
        """Executors get the options; open journals stay with the driver."""
        return {"_options": self._options, "_partitions": None}


def _offsets(kept: dict[str, Any] | str) -> Offsets:
    return offsets_from_json(json.loads(kept) if isinstance(kept, str) else kept)


def _read(partition: InputPartition | None, options: JournalSourceOptions) -> Iterator[Arrow]:
    if not isinstance(partition, Task):
        return  # without partitions Spark runs one task with None
    if options.rows == "offset_ranges":
        yield offset_ranges_batch(partition.number, partition.offset_ranges)
        return
    for offset_range in partition.offset_ranges:
        yield from batches(offset_range, options)
