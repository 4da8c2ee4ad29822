"""The readers of the data source over a replay port: planning asks the server for ends, tasks read ranges."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.source.replay_options import ReplaySourceOptions
from fairtape.pipeline.source.replay_rows import replayed
from fairtape.pipeline.source.replay_sessions import Offsets, SessionRange, Sessions, offsets_from_json, offsets_to_json


class ReplayTask(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: SessionRange) -> None:
        self.wanted = wanted


class ReplayReader(DataSourceReader):
    """Everything that was released when it is planned, through all sessions since the plan began."""

    def __init__(self, options: ReplaySourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of sessions."""
        sessions = Sessions(self._options)
        start = sessions.start()
        return [ReplayTask(each) for each in sessions.ranges(start, sessions.everything(start))]

    def read(self, partition: InputPartition) -> Iterator[Arrow]:
        """The rows of one task."""
        return _read(partition, self._options)


class ReplayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is released, as it comes."""

    def __init__(self, options: ReplaySourceOptions) -> None:
        self._options = options
        self._sessions = Sessions(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where reading begins when no checkpoint says so."""
        return offsets_to_json(self._sessions.start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Rows of a micro-batch."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets_to_json(self._sessions.latest(_offsets(start), rows_max))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read to what is there now, and then end."""
        self._sessions.settle()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        return [ReplayTask(each) for each in self._sessions.ranges(_offsets(start), _offsets(end))]

    def read(self, partition: InputPartition) -> Iterator[Arrow]:
        """The rows of one task."""
        return _read(partition, self._options)


def _offsets(kept: dict[str, Any] | str) -> Offsets:
    return offsets_from_json(json.loads(kept) if isinstance(kept, str) else kept)


def _read(partition: InputPartition | None, options: ReplaySourceOptions) -> Iterator[Arrow]:
    if isinstance(partition, ReplayTask):  # Spark makes one task of none
        yield from replayed(partition.wanted, options)
