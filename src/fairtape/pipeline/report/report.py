"""`fairtape pipeline report`: tables become a page to be read, files to be worked with, and a regulator's bundle.

    OUT/index.html     one page that stands alone
    OUT/data/          every figure of it as CSV and as Parquet
    OUT/regulator/     clock log, latency, execution statistics, audit trail; README.txt says what each is

Only figures leave Spark, but for the audit trail, which is as long as there are orders, and written in pieces.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.pipeline.report import regulator as bundle
from fairtape.pipeline.report import sections
from fairtape.pipeline.report.html_page import Page, Section
from fairtape.pipeline.report.plots import format_duration
from fairtape.pipeline.report.sections import TITLE as LINKS
from fairtape.pipeline.report.sections import Names, links_section
from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.tables.jobs import folder_of, read_files, read_table

PAGE: Final = "index.html"
TRAIL_ROWS_MAX: Final = 65_536  # of one piece that is written


@dataclass(frozen=True, slots=True)
class Report:
    """What was made."""

    page: Path
    files: tuple[Path, ...]


class Tables:
    """The tables of a folder, as they are found; one that is not there is None."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        if not folder.is_dir():
            raise UserError(f"--tables is {str(folder)!r}, which is no folder; name what `fairtape pipeline run` made")

    def __getitem__(self, name: str) -> DataFrame | None:
        files = folder_of(self._folder, name).files()
        return read_files(self._spark, name, files) if files else None

    def whole(self, name: str) -> DataFrame:
        """A table that may have no rows, as that of trades on a floor where nobody traded."""
        return read_table(self._spark, self._folder, name)


def make_report(spark: SparkSession, tables: Path, out: Path, *, names: Names | None = None) -> Report:
    """Make the page, its data and the bundle. Names are for the page; data and bundle keep numbers.

    All of it is made aside and then put into its place, so a report that fails leaves what was there as it was.
    """
    found = Tables(spark, tables)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".draft-", dir=out) as folder:
        draft = Path(folder)
        maker = _Maker(found, draft, names or Names())
        page = maker.page()
        maker.regulate()
        (draft / PAGE).write_text(page.html(), encoding="utf-8")
        files = [path.relative_to(draft) for path in maker.files]
        _put_in_place(draft, out, files)
    return Report(out / PAGE, tuple(out / path for path in files))


def _put_in_place(draft: Path, out: Path, files: Sequence[Path]) -> None:
    """The old page goes first and the new one comes last: no page ever stands beside the data of another."""
    (out / PAGE).unlink(missing_ok=True)
    for path in files:
        (out / path).parent.mkdir(exist_ok=True)
        (draft / path).replace(out / path)
    (draft / PAGE).replace(out / PAGE)


class _Maker:
    """Figures on their way into a report: each is worked out once, kept as files, and told in a section."""

    def __init__(self, tables: Tables, out: Path, names: Names) -> None:
        self._tables = tables
        self._out = out
        self._names = names
        self.files: list[Path] = []
        for name in ("data", "regulator"):
            (out / name).mkdir(parents=True, exist_ok=True)
        releases = tables["releases"]
        self._span = None if releases is None else span_of(releases)

    def page(self) -> Page:
        """The whole page."""
        made = [self._fairness(), self._spread(), self._late(), self._latency(), self._clock(), self._outages()]
        made += [self._links(), self._volume(), self._bars(), self._completeness()]
        return Page(
            title="What the tape did",
            opening=(self._opening(),),
            facts=self._facts(made),
            sections=made,
            closing=(
                (
                    "Every figure of this page is in the folder data as CSV and Parquet; the folder regulator has the "
                    "clock log, latencies, execution statistics and the audit trail. Times are UTC."
                ),
            ),
        )

    def _opening(self) -> str:
        if self._span is None:
            return "There is nothing in these tables yet: no message was released."
        first, last = (datetime.fromtimestamp(at / SECOND, UTC) for at in (self._span.first_at, self._span.last_at))
        same_day = first.date() == last.date()
        ended = f"{last:%H:%M:%S}" if same_day else f"{last.day} {last:%B %Y, %H:%M:%S}"
        return (
            f"A network of sites merged the messages of many sources into one order and released it everywhere at the "
            f"same instant, on {first.day} {first:%B %Y} from {first:%H:%M:%S} to {ended} UTC. This page says how "
            "well, from what every site wrote down. Green sentences are as it should be, orange ones are not."
        )

    def _facts(self, made: list[Section]) -> list[tuple[str, str]]:
        if self._span is None:
            return []
        lasted = self._span.last_at - self._span.first_at
        good = sum(section.verdict.value == "good" for section in made)
        judged = sum(section.verdict.value != "soft" for section in made)
        totals = self._small("totals", self._tables["releases"], _totals).to_pylist()[0]
        return [
            ("it lasted", format_duration(lasted)),
            ("sites", f"{totals['sites']:,}"),
            ("messages", f"{totals['messages'] or 0:,}"),
            ("messages per second", f"{(totals['messages'] or 0) * SECOND / max(lasted, SECOND):,.0f}"),
            ("deliveries, over all sites", f"{totals['deliveries'] or 0:,}"),
            ("as it should be", f"{good} of {judged}"),
        ]

    def _fairness(self) -> Section:
        rows = self._rows("fairness", self._tables["fairness"], lambda table: table.orderBy("stripe"))
        return sections.fairness_section(rows) if rows else sections.missing_section("Fairness", ["fairness"])

    def _spread(self) -> Section:
        whole = self._rows("spread_whole", self._tables["spreads"], spread_whole)
        rows = self._over_time("spread_over_time", "spreads", spread_over_time)
        return sections.spread_section(whole, rows, self._changes(), self._period)

    def _late(self) -> Section:
        rows = self._over_time("late_over_time", "releases", late_over_time)
        if not rows:
            return sections.missing_section("Late messages", ["releases"])
        return sections.late_section(rows, self._changes(), self._period, self._names)

    def _latency(self) -> Section:
        rows = self._rows("latency", self._tables["latency"], lambda table: table.orderBy("stripe", "source", "site"))
        if not rows:
            return sections.missing_section("Latency by source", ["latency"])
        return sections.latency_section(rows, self._names)

    def _clock(self) -> Section:
        rows = self._over_time("clock_log", "releases", clock_log)
        clocks = self._rows("clocks", self._tables["clocks"], lambda table: table.orderBy("stripe", "site"))
        if not rows:
            return sections.missing_section("Clock bounds", ["releases"])
        return sections.clock_section(rows, clocks, self._period, self._names)

    def _outages(self) -> Section:
        formations = self._rows(
            "formations",
            self._tables["formations"],
            lambda table: table.select("stripe", "formation", "members", "plan").orderBy("stripe", "formation"),
        )
        return sections.outage_section(self._changes(), formations, self._names)

    def _links(self) -> Section:
        rows = self._rows("links", self._tables["links"], lambda table: table.orderBy("stripe", "from_site", "to_site"))
        if not rows:
            return sections.missing_section(LINKS, ["links"])
        sources = self._rows(
            "source_links", self._tables["source_links"], lambda table: table.orderBy("stripe", "source", "site")
        )
        retries = self._rows(
            "retries", self._tables["retries"], lambda table: table.orderBy("stripe", "site", "requests")
        )
        requests = self._tables["requests"]
        self._rows("requests", requests, lambda table: table.orderBy("stripe", "site", "asked", "wanted"))
        return links_section(rows, sources, retries, self._names)

    def _changes(self) -> sections.Rows:
        return self._rows("outages", self._tables["outages"], lambda table: table.orderBy("stripe", "formation"))

    @property
    def _period(self) -> Duration:
        return self._span.period if self._span is not None else SECOND

    def _volume(self) -> Section:
        rows = self._over_time("volume_over_time", "sales", volume_over_time)
        busy = self._rows("busiest", self._tables["sales"], busiest)
        if not rows or self._span is None:
            return sections.missing_section("Volume", ["sales"])
        return sections.volume_section(rows, busy, self._span.period)

    def _bars(self) -> Section:
        busy = self._rows("busiest", self._tables["sales"], busiest)
        is_short = self._span is None or self._span.period < MINUTE
        name, period = ("bars_1s", SECOND) if is_short else ("bars_1m", MINUTE)
        if not busy or self._tables[name] is None:
            return sections.missing_section("Bars", [name])
        symbol = busy[0]["symbol"]
        rows = self._rows(
            "bars", self._tables[name], lambda table: table.where(F.col("symbol") == symbol).orderBy("period_at_ns")
        )
        return sections.bars_section(rows, symbol, period)

    def _completeness(self) -> Section:
        rows = self._rows("completeness", self._tables["deliveries"], completeness)
        if not rows:
            return sections.missing_section("Completeness", ["deliveries"])
        return sections.completeness_section(rows, self._names)

    def _over_time(self, name: str, table: str, figure: Callable[[DataFrame, "TimeSpan"], DataFrame]) -> sections.Rows:
        span = self._span
        return [] if span is None else self._rows(name, self._tables[table], lambda found: figure(found, span))

    def _rows(self, name: str, table: DataFrame | None, figure: Callable[[DataFrame], DataFrame]) -> sections.Rows:
        return [] if table is None else self._small(name, table, figure).to_pylist()

    def _small(self, name: str, table: DataFrame | None, figure: Callable[[DataFrame], DataFrame]) -> Arrow:
        """A figure, kept beside the page; asked for again it is read from there."""
        path = self._out / "data" / f"{name}.parquet"
        if path in self.files:
            return pq.read_table(path)
        assert table is not None
        found = figure(table).toArrow()
        pq.write_table(found, path)
        pacsv.write_csv(_flat(found), path.with_suffix(".csv"))
        self.files += [path, path.with_suffix(".csv")]
        return found

    def regulate(self) -> None:
        """The bundle: what the page knows already, and what only orders tell."""
        folder = self._out / "regulator"
        kept = {"clock_log": "clock_log", "latency": "latency_per_source", "completeness": "completeness"}
        written = []
        for name, title in kept.items():
            source = self._out / "data" / f"{name}.csv"
            if source in self.files:
                (folder / f"{title}.csv").write_bytes(source.read_bytes())
                written.append(folder / f"{title}.csv")
        for title, table in self._of_orders():
            path = folder / f"{title}.csv"
            _write_pieces(table, path)
            written.append(path)
        (folder / "README.txt").write_text(bundle.README, encoding="utf-8")
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(written))
        (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
        self.files += [*written, folder / "README.txt", folder / "SHA256SUMS"]

    def _of_orders(self) -> Iterator[tuple[str, DataFrame]]:
        if self._tables["orders"] is None:
            return
        orders, events, executions = map(self._tables.whole, ("orders", "order_events", "executions"))
        yield "execution_statistics", bundle.execution_statistics(orders, events, executions)
        yield "audit_trail", bundle.audit_trail(orders, events)
        yield "untold", bundle.untold(orders, events)
        yield "refused", bundle.refused(orders, events)


def _totals(releases: DataFrame) -> DataFrame:
    by_token = releases.groupBy("stripe", "token").agg(
        F.max("messages").alias("messages"), F.sum("messages").alias("deliveries")
    )
    sites = releases.agg(F.countDistinct("site").alias("sites"))
    return by_token.agg(F.sum("messages").alias("messages"), F.sum("deliveries").alias("deliveries")).crossJoin(sites)


def _write_pieces(table: DataFrame, path: Path) -> None:
    """As CSV, a piece at a time: the driver never holds all of it."""
    names = table.columns
    with path.open("wb") as file:
        file.write((",".join(f'"{name}"' for name in names) + "\n").encode())
        waiting: list[dict[str, object]] = []
        for row in table.toLocalIterator():
            waiting.append(row.asDict())
            if len(waiting) == TRAIL_ROWS_MAX:
                _append(file, waiting)
                waiting = []
        if waiting:
            _append(file, waiting)


def _append(file: "object", rows: list[dict[str, object]]) -> None:
    pacsv.write_csv(_flat(pa.Table.from_pylist(rows)), file, pacsv.WriteOptions(include_header=False))


def _flat(table: Arrow) -> Arrow:
    """Lists and bytes as text: CSV has neither."""
    for place, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            texts = [None if each is None else " ".join(map(str, each)) for each in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
        elif pa.types.is_binary(field.type):
            texts = [None if each is None else each.hex() for each in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
        elif pa.types.is_decimal(field.type):
            table = table.set_column(place, field.name, pc.cast(table.column(place), pa.string()))
    return table


# The figures of a report, each a function from tables of the pipeline to one small table.
#
# Time is cut into about as many periods as a plot has points, so whatever the size of the tables, little leaves Spark.
# Everything is counted in integers; percentiles are exact (the value at that rank, never one between two).

PERIODS_MAX: Final = 240
PERIODS: Final = tuple(SECOND * each for each in (1, 2, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 14_400, 86_400))
BUSIEST_MAX: Final = 12
MINUTE: Final = 60 * SECOND


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time that a report is about, and the period that it is cut into."""

    first_at: Instant
    last_at: Instant

    @property
    def period(self) -> Duration:
        """The shortest round period of which there are not too many."""
        lasted = self.last_at - self.first_at
        return next((each for each in PERIODS if lasted // each < PERIODS_MAX), PERIODS[-1])

    def begins(self, instant: str) -> Column:
        """The beginning of the period that an instant is in."""
        return (F.col(instant) - F.col(instant) % F.lit(self.period)).alias("period_at_ns")


def span_of(releases: DataFrame) -> TimeSpan | None:
    """From the first to the last commit; None where nothing was released."""
    found = releases.agg(F.min("commit_at_ns"), F.max("commit_at_ns")).first()
    return None if found is None or found[0] is None else TimeSpan(int(found[0]), int(found[1]))


def spread_over_time(spreads: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, tokens, p50_ns, p99_ns, max_ns: from the first site that released a token to the last one."""
    found = spreads.where(F.col("sites") > 1).groupBy(span.begins("commit_at_ns"))
    return found.agg(*_spread_measures()).orderBy("period_at_ns")


def spread_whole(spreads: DataFrame) -> DataFrame:
    """tokens, p50_ns, p99_ns, max_ns: the same over all tokens."""
    return spreads.where(F.col("sites") > 1).agg(*_spread_measures()).where("tokens > 0")


def _spread_measures() -> list[Column]:
    ranks = (_rank("spread_ns", part).alias(name) for part, name in ((0.5, "p50_ns"), (0.99, "p99_ns")))
    return [F.count(F.lit(1)).alias("tokens"), *ranks, F.max("spread_ns").alias("max_ns")]


def late_over_time(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, messages, late."""
    late = F.when(F.col("late"), F.col("messages")).otherwise(F.lit(0))
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    return found.agg(F.sum("messages").alias("messages"), F.sum(late).alias("late")).orderBy("period_at_ns", "site")


def clock_log(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, bound_max_ns: how wrong a site's clock may have been at most."""
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    return found.agg(F.max("clock_bound_ns").alias("bound_max_ns")).orderBy("period_at_ns", "site")


def volume_over_time(sales: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, venue, trades."""
    found = sales.groupBy(span.begins("commit_at_ns"), "venue").agg(F.count(F.lit(1)).alias("trades"))
    return found.orderBy("period_at_ns", "venue")


def busiest(sales: DataFrame) -> DataFrame:
    """symbol, trades: those with most, the busiest first."""
    counted = sales.groupBy("symbol").agg(F.count(F.lit(1)).alias("trades"))
    return counted.orderBy(F.desc("trades"), "symbol").limit(BUSIEST_MAX)


def completeness(deliveries: DataFrame) -> DataFrame:
    """stripe, site, first, last, messages, missing, repeated: whether every number is there once."""
    numbered = deliveries.where(F.col("kind").isin("message", "fragment"))
    counted = numbered.groupBy("stripe", "site").agg(
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.count(F.lit(1)).alias("messages"),
        (F.max("sequence") - F.min("sequence") + 1 - F.countDistinct("sequence")).alias("missing"),
        (F.count(F.lit(1)) - F.countDistinct("sequence")).alias("repeated"),
    )
    return counted.orderBy("stripe", "site")


def _rank(name: str, part: float) -> Column:
    """The value at this rank: exact, and one that was measured."""
    return F.expr(f"percentile_disc({part}) WITHIN GROUP (ORDER BY {name})")
