"""Jobs: read, transform, write. From journals to every table of `fairtape.pipeline.schemas`.

`deliveries` grows by what is new, each number exactly once (`fairtape.pipeline.tables.ingest`). Tables whose rows stay
as they are (`GROWING`) grow with it, by the numbers that they lack. All others are functions of those, and of what
formations and floors say, and are made anew, whole: so a correction that comes in the evening changes the bar of the
morning, a batch and a stream end with the same rows, and a job that dies leaves nothing to repair. Every table says in
its newest commit up to which numbers of which journals it goes; one that is up to date is not made again. What is made
whole costs in proportion to the history: exact percentiles need all values, and a floor all requests.

While a stream runs, the tables are made anew from time to time, at most as often as a fixed share of the machine's time
allows. What happens live is the business of the sites, not of a table.
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
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from fairtape.core.errors import UserError
from fairtape.pipeline.schemas import TABLES, Arrow
from fairtape.pipeline.source.partitions import Offsets, PartitionName
from fairtape.pipeline.spark.delta import WRITTEN, WRITTEN_DDL, DeltaFolder, Written, write_parquet
from fairtape.pipeline.spark.file_paths import read_parquet
from fairtape.pipeline.tables import fairness_tables as fair
from fairtape.pipeline.tables import floor_tables as floor
from fairtape.pipeline.tables import link_tables as link
from fairtape.pipeline.tables import market_tables as market
from fairtape.pipeline.tables import order_tables as order
from fairtape.pipeline.tables.ingest import ingest_journals, stream_journals
from fairtape.pipeline.tables.trace_ingest import ingest_traces
from fairtape.storage.trace_files import TRACES

# What a table lacks: the numbers that came into `deliveries` since the table was made of it.
#
# A lane only grows at its end, and its mark says how far a table has taken it in. So what a lane brought since lies
# between two marks. A number of the *order* is new when no lane had it before: a site that is behind the others brings
# numbers that another one told already. Everything here follows from marks, and from where lanes begin.

Span = tuple[int, int]  # the first number, and the one after the last

_LANES_DDL: Final = "stripe INT, site LONG, begin LONG, behind LONG"
_ORDER_DDL: Final = "stripe INT, begin LONG, behind LONG"


def has_grown(before: Offsets, now: Offsets) -> bool:
    """Whether what a table was made of is a beginning of what there is now."""
    return all(name in now and (mark == now[name] or mark.next < now[name].next) for name, mark in before.items())


def new_of_lanes(before: Offsets, now: Offsets) -> dict[PartitionName, Span]:
    """What each lane brought."""
    spans = {name: (before[name].next if name in before else 0, mark.next) for name, mark in now.items()}
    return {name: span for name, span in spans.items() if span[0] < span[1]}


def new_in_order(before: Offsets, now: Offsets, firsts: Mapping[PartitionName, int]) -> dict[int, list[Span]]:
    """By stripe: the numbers that some lane brought and none had, as spans that do not touch one another."""
    found: dict[int, list[Span]] = {}
    for stripe in sorted({name.stripe for name in now}):
        had = _joined(
            (firsts.get(name, mark.next), mark.next) for name, mark in before.items() if name.stripe == stripe
        )
        brought = _joined(span for name, span in new_of_lanes(before, now).items() if name.stripe == stripe)
        if left := list(_without(brought, had)):
            found[stripe] = left
    return found


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same numbers in spans that ascend and do not touch."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _without(spans: Iterable[Span], others: Iterable[Span]) -> Iterator[Span]:
    """What is in the first and in none of the others; both ascend."""
    others = list(others)
    for begin, end in spans:
        for other_begin, other_end in others:
            if begin < other_begin < end:
                yield begin, other_begin
            if other_begin < end:
                begin = max(begin, min(other_end, end))
        if begin < end:
            yield begin, end


def lane_rows(spark: SparkSession, deliveries: DataFrame, spans: Mapping[PartitionName, Span]) -> DataFrame:
    """The deliveries in these spans of lanes. Files that end before all of them are not opened."""
    rows = [(name.stripe, name.site, *span) for name, span in spans.items()]
    return _chosen(deliveries, spark.createDataFrame(rows, _LANES_DDL), ["stripe", "site"], rows)


def order_rows(spark: SparkSession, deliveries: DataFrame, spans: Mapping[int, list[Span]]) -> DataFrame:
    """The deliveries with these numbers, of whichever site."""
    rows = [(stripe, *span) for stripe, of_stripe in spans.items() for span in of_stripe]
    return _chosen(deliveries, spark.createDataFrame(rows, _ORDER_DDL), ["stripe"], rows)


def _chosen(deliveries: DataFrame, spans: DataFrame, keys: list[str], rows: Sequence[tuple[int, ...]]) -> DataFrame:
    least = min((row[-2] for row in rows), default=0)
    within = (F.col("sequence") >= F.col("begin")) & (F.col("sequence") < F.col("behind"))
    recent = deliveries.where(F.col("sequence") >= least)
    return recent.join(F.broadcast(spans), keys).where(within).drop("begin", "behind")


RAW: Final = "deliveries"
REFRESH_SHARE: Final = 0.25  # of the time, at most, goes into making tables anew while a stream runs
REFRESH_PERIOD: Final = 10.0  # seconds, at least, between two times
POLL_PERIOD: Final = 0.5  # seconds
HANDS: Final = 3  # tables that are made at once: to plan a small one takes as long as to make it, on one core
FILES_MAX: Final = 256  # of a table that grows: beyond it its small files are joined

_hands: Final = ThreadPoolExecutor(HANDS, thread_name_prefix="table")
"""For all runs: Spark keeps threads and a connection for every thread that ever spoke to it."""

Journals: TypeAlias = Iterable[Path | str] | Path | str
Step: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job did."""

    numbers: int  # taken in
    tables: tuple[str, ...]  # made anew
    marks: Offsets  # where `deliveries` stands


def run_batch(spark: SparkSession, journals: Journals, folder: Path | str, *, step: Step | None = None) -> JobOutcome:
    """Take in everything that is released, and make all tables."""
    say = step or _say_nothing
    say("reading journals")
    numbers = ingest_journals(spark, journals, Path(folder) / RAW)
    made = refresh(spark, folder, journals, step=say)
    return JobOutcome(numbers, made, folder_of(folder, RAW).marks())


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
    """Take in what is released as it comes, until it is `ended`; tables follow, and end complete.

    With `available_now` it ends with what is there, and tables are made once, behind it.
    """
    say = step or _say_nothing
    before = _total(folder_of(folder, RAW).marks())
    options |= {"checkpoint": checkpoint, "available_now": available_now}
    query = stream_journals(spark, journals, Path(folder) / RAW, **options)
    made: set[str] = set()

    def follow_up() -> None:
        if not available_now:
            made.update(refresh(spark, folder, journals, step=say))

    try:
        _follow(query, follow_up, folder, say, ended)
    finally:
        query.stop()
    made.update(refresh(spark, folder, journals, step=say))
    marks = folder_of(folder, RAW).marks()
    return JobOutcome(_total(marks) - before, tuple(name for name in TABLES if name in made), marks)


def _follow(
    query: StreamingQuery, make: Callable[[], None], folder: Path | str, say: Step, ended: Callable[[], bool]
) -> None:
    due_at = time.monotonic()
    while query.isActive and not ended():
        query.awaitTermination(POLL_PERIOD)  # type: ignore[arg-type]  # parts of a second are served
        say(f"streaming: {_total(folder_of(folder, RAW).marks()):,} deliveries")
        if time.monotonic() >= due_at:
            began_at = time.monotonic()
            make()
            spent = time.monotonic() - began_at
            due_at = time.monotonic() + max(REFRESH_PERIOD, spent / REFRESH_SHARE)
    if (error := query.exception()) is not None:
        raise error


def _total(marks: Offsets) -> int:
    return sum(mark.next - 1 for mark in marks.values())


def refresh(
    spark: SparkSession, folder: Path | str, journals: Journals, *, step: Step | None = None
) -> tuple[str, ...]:
    """Bring every table up to `deliveries` and to the traces beside the journals; which ones were behind."""
    say = step or _say_nothing
    made = _remade(spark, folder, RAW, RECIPES, say)
    say("reading traces")
    traced = ingest_traces(spark, journals, Path(folder) / TRACES)
    return (*made, *([TRACES] if traced else []), *_remade(spark, folder, TRACES, TRACE_RECIPES, say))


def _remade(spark: SparkSession, folder: Path | str, raw: str, recipes: "Recipes", say: Step) -> list[str]:
    """Bring every table of these recipes up to the one that they are made of."""
    files, marks = _tidied(folder_of(folder, raw)).snapshot()
    if not marks:
        return []
    sources = _Sources(spark, Path(folder), raw, files, marks)
    coming = sources.coming
    try:
        for name, recipe in recipes.items():
            coming[name] = _hands.submit(_remake, name, recipe, sources, say)
        return [name for name, made in coming.items() if made.result()]
    finally:
        for made in coming.values():
            made.cancel()  # what has not begun when another fails
        wait(coming.values())


def _remake(name: str, recipe: "Recipe", sources: "_Sources", say: Step) -> bool:
    """Bring this table up to what it is made of; whether it was behind."""
    target, marks = sources.folder_of(name), sources.marks
    before = target.marks()
    if before == marks:
        return False
    say(f"making {name}")
    if before and name in GROWING and has_grown(before, marks):
        target.extend(_written(recipe(sources.beyond(before)), name, target), before, marks)
        _tidied(target)
    else:
        target.replace(_written(recipe(sources), name, target), before, marks)
    return True


def _tidied(table: DeltaFolder) -> DeltaFolder:
    """The table, its small files joined where there are many: each look at it and each commit counts them all."""
    if len(table.files()) > FILES_MAX:
        table.compact()
    return table


class _Sources:
    """The tables that others are made of, as they stood when this run began, or as it makes them.

    Who asks for one that is being made waits for it. Tables are begun in the order of their recipes, in which nothing
    comes before what it needs, so whatever is waited for has been begun.
    """

    def __init__(self, spark: SparkSession, folder: Path, raw: str, files: list[str], marks: Offsets) -> None:
        self._spark = spark
        self._folder = folder
        self._raw = raw
        self._files = files
        self.marks = marks
        self.coming: dict[str, Future[bool]] = {}  # what this run makes

    def __getitem__(self, name: str) -> DataFrame:
        if name == self._raw:
            return read_files(self._spark, name, self._files)
        if name in self.coming:
            self.coming[name].result()
        return read_files(self._spark, name, self.folder_of(name).files())

    def folder_of(self, name: str) -> DeltaFolder:
        return folder_of(self._folder, name)

    @property
    def order(self) -> DataFrame:
        """Every number once."""
        return order.one_order(self[RAW])

    def beyond(self, before: Offsets) -> "_Beyond":
        """The same, without what a table of these marks was made of."""
        deliveries = self[RAW]
        lanes = new_of_lanes(before, self.marks)
        numbers = new_in_order(before, self.marks, self._firsts)
        return _Beyond(
            self._spark,
            self._folder,
            lane_rows(self._spark, deliveries, lanes),
            order.one_order(deliveries, order_rows(self._spark, deliveries, numbers)),
        )

    @cached_property
    def _firsts(self) -> dict[PartitionName, int]:
        """The first number of each lane."""
        found = self[RAW].groupBy("stripe", "site").agg(F.min("sequence").alias("first")).collect()
        return {PartitionName(row["stripe"], row["site"]): row["first"] for row in found}

    @property
    def entered(self) -> DataFrame:
        """When messages were entered."""
        return order.entered(self["trades"], self["orders"])

    @property
    def token_portals(self) -> DataFrame:
        """Which site put each token into the order."""
        return fair.token_portals(self.order, self["formations"])


class _Beyond(_Sources):
    """What came since, of `deliveries` and of the order."""

    def __init__(self, spark: SparkSession, folder: Path, deliveries: DataFrame, order: DataFrame) -> None:
        super().__init__(spark, folder, RAW, [], {})
        self._deliveries = deliveries
        self._order = order

    def __getitem__(self, name: str) -> DataFrame:
        return self._deliveries if name == RAW else super().__getitem__(name)

    @property
    def order(self) -> DataFrame:
        """Every new number once."""
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
    "releases": lambda of: fair.releases(of[RAW]),
    "spreads": lambda of: fair.spreads(of["releases"]),
    "spread_distribution": lambda of: fair.spread_distribution(of["spreads"]),
    "latency": lambda of: fair.latency(of.entered, of["releases"]),
    "hold": lambda of: fair.hold(of["releases"]),
    "lateness": lambda of: fair.lateness(of["releases"]),
    "pairs": lambda of: fair.pairs(of.entered),
    "clocks": lambda of: fair.clocks(of["releases"]),
    "formations": lambda of: fair.formations(of[RAW]),
    "portals": lambda of: fair.portals(of.token_portals),
    "delays": lambda of: fair.delays(of.entered, of.token_portals),
    "outages": lambda of: fair.outages(of["formations"], of["spreads"]),
    "fairness": lambda of: fair.fairness(of["spreads"], of["lateness"], of["pairs"], of.entered, of["portals"]),
}
"""What each table is made of, in an order in which nothing comes before what it needs."""

TRACE_RECIPES: Final[Recipes] = {
    "links": lambda of: link.links(of[TRACES]),
    "source_links": lambda of: link.source_links(of[TRACES]),
    "token_losses": lambda of: link.token_losses(of[TRACES]),
    "retries": lambda of: link.retries(of[TRACES]),
    "requests": lambda of: link.requests(of[TRACES]),
}
"""The same of what is made of traces."""

GROWING: Final = frozenset({"trades", "notices", "orders", "releases"})
"""Tables of which every row is made of one token of `deliveries`, and so stays as it is."""


def folder_of(folder: Path | str, name: str) -> DeltaFolder:
    """The Delta table of this name."""
    if name not in TABLES:
        raise UserError(f"table is {name!r}; there are {', '.join(TABLES)}")
    return DeltaFolder(Path(folder).absolute() / name, TABLES[name].schema)


def read_table(spark: SparkSession, folder: Path | str, name: str) -> DataFrame:
    """A table as it stands now; without rows where it was never made."""
    return read_files(spark, name, folder_of(folder, name).files())


def read_files(spark: SparkSession, name: str, files: list[str]) -> DataFrame:
    """A snapshot of a table, whose files are named."""
    schema = from_arrow_schema(TABLES[name].schema)
    return read_parquet(spark, files, schema) if files else spark.createDataFrame([], schema)


def _written(frame: DataFrame, name: str, target: DeltaFolder) -> list[Written]:
    """Executors write files; the commit that makes them the table is the caller's."""
    schema = TABLES[name].schema
    chosen = frame.select(*schema.names)
    found = to_arrow_schema(chosen.schema)
    unlike = [
        f"{field.name} is {found.field(field.name).type}"
        for field in schema
        if found.field(field.name).type != field.type
    ]
    assert not unlike, f"{name}: {', '.join(unlike)}"
    rows = chosen.mapInArrow(_writer(target.folder, schema), WRITTEN_DDL).collect()
    return [Written.told(row) for row in rows]


def _writer(folder: Path, schema: Arrow) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    def write(batches: Iterator[Arrow]) -> Iterator[Arrow]:
        typed = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
        written = write_parquet(folder, typed, schema)
        if written is not None:
            yield pa.RecordBatch.from_pylist([asdict(written)], schema=WRITTEN)

    return write


def _say_nothing(_text: str) -> None:
    pass
