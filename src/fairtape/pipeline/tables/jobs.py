"""Jobs: from journals to every table of `fairtape.pipeline.schemas`.

`deliveries` gains what is new, each number exactly once (`fairtape.pipeline.tables.ingest`). Tables whose rows never
change (`INCREMENTAL`) gain the rows of the numbers that they lack. All others are recomputed whole from these: so a
correction in the evening changes the bar of the morning, a batch and a stream end with the same rows, and a job that
dies leaves nothing to repair. The newest commit of every table has the offsets of the journals that it was made from; a
table that is up to date is not made again. Recomputing costs in proportion to the history: exact percentiles need all
values, and a floor all requests.

While a stream runs, tables are recomputed from time to time, for at most a fixed share of the time.

A partition only grows at its end, and its offset is how far a table has it. So what a partition gained since lies
between two offsets. A number of the *order* is new when no partition had it before: a site that is behind the others
adds numbers that another site delivered already. What a table lacks follows from offsets, and from where partitions
begin.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from fairtape.pipeline.schemas import TABLES, Arrow
from fairtape.pipeline.source.partitions import Offsets, PartitionName
from fairtape.pipeline.spark.delta import WRITTEN, WRITTEN_DDL, DeltaFolder, Written, write_parquet
from fairtape.pipeline.spark.snapshots import folder_of, read_files
from fairtape.pipeline.tables import floor_tables as floor
from fairtape.pipeline.tables import market_tables as market
from fairtape.pipeline.tables import order_tables as order
from fairtape.pipeline.tables import ring_tables as ring
from fairtape.pipeline.tables.ingest import ingest_journals, ingest_traces, stream_journals
from fairtape.storage.trace_files import TRACES

RAW: Final = "deliveries"
REFRESH_SHARE: Final = 0.25  # of the time, at most, is spent on recomputing tables while a stream runs
REFRESH_PERIOD: Final = 10.0  # seconds at least between two refreshes
POLL_PERIOD: Final = 0.5  # seconds
TABLE_WORKERS: Final = 3  # tables that are made at once: planning a small one takes as long as making it, on one core
FILES_MAX: Final = 256  # of an incremental table: beyond it small files are compacted

_table_workers: Final = ThreadPoolExecutor(TABLE_WORKERS, thread_name_prefix="table")
"""Shared by all runs: Spark keeps threads and a connection for every thread that ever called it."""

NumberRange: TypeAlias = tuple[int, int]  # the first number, and the one after the last

_PARTITIONS_DDL: Final = "stripe INT, site LONG, begin LONG, behind LONG"
_ORDER_DDL: Final = "stripe INT, begin LONG, behind LONG"

Journals: TypeAlias = Iterable[Path | str] | Path | str
Step: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job."""

    numbers: int  # added to `deliveries`
    tables: tuple[str, ...]  # that were refreshed
    offsets: Offsets  # of `deliveries`


def run_batch(spark: SparkSession, journals: Journals, folder: Path | str, *, step: Step | None = None) -> JobOutcome:
    """Add everything that is released, and refresh all tables."""
    report = step or _ignore
    report("reading journals")
    numbers = ingest_journals(spark, journals, Path(folder) / RAW)
    refreshed = refresh(spark, folder, journals, step=report)
    return JobOutcome(numbers, refreshed, folder_of(folder, RAW).offsets())


def run_stream(
    spark: SparkSession,
    journals: Journals,
    folder: Path | str,
    *,
    checkpoint: Path | str | None = None,
    step: Step | None = None,
    ended: Callable[[], bool] = lambda: False,
    available_now: bool = False,
    **options: Any,
) -> JobOutcome:
    """Add messages as they are released until `ended` is true, and refresh tables meanwhile and at the end.

    With `available_now` the stream ends with what is there, and tables are refreshed once, after it.
    """
    report = step or _ignore
    before = _total(folder_of(folder, RAW).offsets())
    options |= {"checkpoint": checkpoint, "available_now": available_now}
    query = stream_journals(spark, journals, Path(folder) / RAW, **options)
    refreshed: set[str] = set()

    def follow_up() -> None:
        if not available_now:
            refreshed.update(refresh(spark, folder, journals, step=report))

    try:
        _follow(query, follow_up, folder, report, ended)
    finally:
        query.stop()
    refreshed.update(refresh(spark, folder, journals, step=report))
    offsets = folder_of(folder, RAW).offsets()
    return JobOutcome(_total(offsets) - before, tuple(name for name in TABLES if name in refreshed), offsets)


def _follow(
    query: StreamingQuery, make: Callable[[], None], folder: Path | str, report: Step, ended: Callable[[], bool]
) -> None:
    due_at = time.monotonic()
    while query.isActive and not ended():
        query.awaitTermination(POLL_PERIOD)  # type: ignore[arg-type]  # fractions of a second work
        report(f"streaming: {_total(folder_of(folder, RAW).offsets()):,} deliveries")
        if time.monotonic() >= due_at:
            began_at = time.monotonic()
            make()
            spent = time.monotonic() - began_at
            due_at = time.monotonic() + max(REFRESH_PERIOD, spent / REFRESH_SHARE)
    if (error := query.exception()) is not None:
        raise error


def _total(offsets: Offsets) -> int:
    return sum(offset.next - 1 for offset in offsets.values())


def refresh(
    spark: SparkSession, folder: Path | str, journals: Journals, *, step: Step | None = None
) -> tuple[str, ...]:
    """Bring every table up to date with the journals and the traces beside them; return those that were not."""
    report = step or _ignore
    refreshed = _refresh_tables(spark, folder, RAW, RECIPES, report)
    report("reading traces")
    traced = ingest_traces(spark, journals, Path(folder) / TRACES)
    return (*refreshed, *([TRACES] if traced else []), *_refresh_tables(spark, folder, TRACES, TRACE_RECIPES, report))


def _refresh_tables(spark: SparkSession, folder: Path | str, raw: str, recipes: "Recipes", report: Step) -> list[str]:
    """Bring the tables of these recipes up to date with the raw table."""
    files, offsets = _compacted(folder_of(folder, raw)).snapshot()
    if not offsets:
        return []
    sources = _Sources(spark, Path(folder), raw, files, offsets)
    pending = sources.pending
    try:
        for name, recipe in recipes.items():
            pending[name] = _table_workers.submit(_refresh_table, name, recipe, sources, report)
        return [name for name, refreshed in pending.items() if refreshed.result()]
    finally:
        for refreshed in pending.values():
            refreshed.cancel()  # those that have not begun when one fails
        wait(pending.values())


def _refresh_table(name: str, recipe: "Recipe", sources: "_Sources", report: Step) -> bool:
    """Bring this table up to date; return whether it was not."""
    target, offsets = sources.folder_of(name), sources.offsets
    before = target.offsets()
    if before == offsets:
        return False
    report(f"making {name}")
    if before and name in INCREMENTAL and is_continuation(before, offsets):
        target.extend(_written(recipe(sources.new_rows(before)), name, target), before, offsets)
        _compacted(target)
    else:
        target.replace(_written(recipe(sources), name, target), before, offsets)
    return True


def _compacted(table: DeltaFolder) -> DeltaFolder:
    """The table, compacted where it has many files: every read and every commit lists them all."""
    if len(table.files()) > FILES_MAX:
        table.compact()
    return table


class _Sources:
    """The tables that others are made of: the snapshot at the start of this run, or what the run makes.

    Reading a table that is being made waits for it. Tables are started in the order of their recipes, and a recipe
    comes after those that it needs, so a table that is waited for has been started.
    """

    def __init__(self, spark: SparkSession, folder: Path, raw: str, files: list[str], offsets: Offsets) -> None:
        self._spark = spark
        self._folder = folder
        self._raw = raw
        self._files = files
        self.offsets = offsets
        self.pending: dict[str, Future[bool]] = {}  # tables that this run refreshes

    def __getitem__(self, name: str) -> DataFrame:
        if name == self._raw:
            return read_files(self._spark, name, self._files)
        if name in self.pending:
            self.pending[name].result()
        return read_files(self._spark, name, self.folder_of(name).files())

    def folder_of(self, name: str) -> DeltaFolder:
        return folder_of(self._folder, name)

    @property
    def order(self) -> DataFrame:
        return order.one_order(self[RAW])

    def new_rows(self, before: Offsets) -> "_NewRows":
        """The same sources, without the rows that a table with these offsets was made of."""
        deliveries = self[RAW]
        partitions = new_in_partitions(before, self.offsets)
        numbers = new_in_order(before, self.offsets, self._firsts)
        return _NewRows(
            self._spark,
            self._folder,
            partition_rows(self._spark, deliveries, partitions),
            order.one_order(deliveries, order_rows(self._spark, deliveries, numbers)),
        )

    @cached_property
    def _firsts(self) -> dict[PartitionName, int]:
        """The first number of each partition."""
        found = self[RAW].groupBy("stripe", "site").agg(F.min("sequence").alias("first")).collect()
        return {PartitionName(row["stripe"], row["site"]): row["first"] for row in found}

    @property
    def entered(self) -> DataFrame:
        return order.entered(self["trades"], self["orders"])

    @property
    def token_portals(self) -> DataFrame:
        return ring.token_portals(self.order, self["formations"])


class _NewRows(_Sources):
    """The new rows of `deliveries` and of the order; other tables are whole."""

    def __init__(self, spark: SparkSession, folder: Path, deliveries: DataFrame, order: DataFrame) -> None:
        super().__init__(spark, folder, RAW, [], {})
        self._deliveries = deliveries
        self._order = order

    def __getitem__(self, name: str) -> DataFrame:
        return self._deliveries if name == RAW else super().__getitem__(name)

    @property
    def order(self) -> DataFrame:
        return self._order


Recipe: TypeAlias = Callable[[_Sources], DataFrame]
Recipes: TypeAlias = Mapping[str, Recipe]

RECIPES: Final[Recipes] = {
    "trades": lambda of: order.trades(of.order),
    "notices": lambda of: order.notices(of.order),
    "sales": lambda of: market.sales(of["trades"], of["notices"]),
    "orders": lambda of: order.orders(of.order),
    "order_events": lambda of: floor.order_events(of.order, of["orders"]),
    "executions": lambda of: floor.executions(of.order, of["orders"]),
    "bars_1s": lambda of: market.consolidated_bars(of["sales"]),
    "bars_1m": lambda of: market.consolidated_bars(of["sales"], period=market.MINUTE),
    "bars_1d": lambda of: market.consolidated_bars(of["sales"], period=market.DAY),
    "vwap": lambda of: market.vwap(of["sales"]),
    "last_sales": lambda of: market.last_sales(of["sales"]),
    "volumes": lambda of: market.volumes(of["sales"]),
    "releases": lambda of: ring.releases(of[RAW]),
    "spreads": lambda of: ring.spreads(of["releases"]),
    "spread_distribution": lambda of: ring.spread_distribution(of["spreads"]),
    "latency": lambda of: ring.latency(of.entered, of["releases"]),
    "hold": lambda of: ring.hold(of["releases"]),
    "lateness": lambda of: ring.lateness(of["releases"]),
    "pairs": lambda of: ring.pairs(of.entered),
    "clocks": lambda of: ring.clocks(of["releases"]),
    "formations": lambda of: ring.formations(of[RAW]),
    "portals": lambda of: ring.portals(of.token_portals),
    "delays": lambda of: ring.delays(of.entered, of.token_portals),
    "outages": lambda of: ring.outages(of["formations"], of["spreads"]),
    "fairness": lambda of: ring.fairness(of["spreads"], of["lateness"], of["pairs"], of.entered, of["portals"]),
}
"""How each table is made. A table comes after those that it is made of."""

TRACE_RECIPES: Final[Recipes] = {
    "links": lambda of: ring.links(of[TRACES]),
    "source_links": lambda of: ring.source_links(of[TRACES]),
    "token_losses": lambda of: ring.token_losses(of[TRACES]),
    "retries": lambda of: ring.retries(of[TRACES]),
    "requests": lambda of: ring.requests(of[TRACES]),
}
"""The same for tables that are made of traces."""

INCREMENTAL: Final = frozenset({"trades", "notices", "orders", "releases"})
"""Tables whose rows are each made of one token of `deliveries`, and so never change."""


def is_continuation(before: Offsets, now: Offsets) -> bool:
    """Whether the present journals continue those that a table was made of."""
    return all(name in now and (offset == now[name] or offset.next < now[name].next) for name, offset in before.items())


def new_in_partitions(before: Offsets, now: Offsets) -> dict[PartitionName, NumberRange]:
    """The numbers that each partition gained."""
    ranges = {name: (before[name].next if name in before else 0, offset.next) for name, offset in now.items()}
    return {name: span for name, span in ranges.items() if span[0] < span[1]}


def new_in_order(before: Offsets, now: Offsets, firsts: Mapping[PartitionName, int]) -> dict[int, list[NumberRange]]:
    """By stripe: the numbers that some partition gained and none had before, as separate ranges."""
    found: dict[int, list[NumberRange]] = {}
    for stripe in sorted({name.stripe for name in now}):
        held = _joined(
            (firsts.get(name, offset.next), offset.next) for name, offset in before.items() if name.stripe == stripe
        )
        added = _joined(span for name, span in new_in_partitions(before, now).items() if name.stripe == stripe)
        if left := list(_without(added, held)):
            found[stripe] = left
    return found


def _joined(ranges: Iterable[NumberRange]) -> list[NumberRange]:
    """The union of ranges, as ascending ranges that do not touch."""
    joined: list[NumberRange] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _without(ranges: Iterable[NumberRange], others: Iterable[NumberRange]) -> Iterator[NumberRange]:
    """The numbers of the first ranges that are in none of the others; both ascend."""
    others = list(others)
    for begin, end in ranges:
        for other_begin, other_end in others:
            if begin < other_begin < end:
                yield begin, other_begin
            if other_begin < end:
                begin = max(begin, min(other_end, end))
        if begin < end:
            yield begin, end


def partition_rows(
    spark: SparkSession, deliveries: DataFrame, ranges: Mapping[PartitionName, NumberRange]
) -> DataFrame:
    """The deliveries in these ranges of partitions. Files that end before all of them are not opened."""
    rows = [(name.stripe, name.site, *span) for name, span in ranges.items()]
    return _chosen(deliveries, spark.createDataFrame(rows, _PARTITIONS_DDL), ["stripe", "site"], rows)


def order_rows(spark: SparkSession, deliveries: DataFrame, ranges: Mapping[int, list[NumberRange]]) -> DataFrame:
    """The deliveries with these numbers, of all sites."""
    rows = [(stripe, *span) for stripe, of_stripe in ranges.items() for span in of_stripe]
    return _chosen(deliveries, spark.createDataFrame(rows, _ORDER_DDL), ["stripe"], rows)


def _chosen(deliveries: DataFrame, ranges: DataFrame, keys: list[str], rows: Sequence[tuple[int, ...]]) -> DataFrame:
    least = min((row[-2] for row in rows), default=0)
    within = (F.col("sequence") >= F.col("begin")) & (F.col("sequence") < F.col("behind"))
    recent = deliveries.where(F.col("sequence") >= least)
    return recent.join(F.broadcast(ranges), keys).where(within).drop("begin", "behind")


def _written(frame: DataFrame, name: str, target: DeltaFolder) -> list[Written]:
    """Write the rows of a table to files, on executors. The caller commits them."""
    schema = TABLES[name].schema
    chosen = frame.select(*schema.names)
    found = to_arrow_schema(chosen.schema)
    mismatches = [
        f"{field.name} is {found.field(field.name).type}"
        for field in schema
        if found.field(field.name).type != field.type
    ]
    assert not mismatches, f"{name}: {', '.join(mismatches)}"
    rows = chosen.mapInArrow(_writer(target.folder, schema), WRITTEN_DDL).collect()
    return [Written.of(row) for row in rows]


def _writer(folder: Path, schema: Arrow) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    def write(batches: Iterator[Arrow]) -> Iterator[Arrow]:
        typed = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
        written = write_parquet(folder, typed, schema)
        if written is not None:
            yield pa.RecordBatch.from_pylist([asdict(written)], schema=WRITTEN)

    return write


def _ignore(_text: str) -> None:
    pass
