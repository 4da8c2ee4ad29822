"""`fairtape pipeline report`: a page, its data, and a bundle for a regulator, from the tables of the pipeline.

    OUT/index.html     one page that stands alone
    OUT/data/          its data as CSV and as Parquet
    OUT/regulator/     clock log, latency, execution statistics, audit trail; README.txt explains each file

A *measure* is a function from tables of the pipeline to one small table. Time is cut into about as many periods as a
plot has points, so little leaves Spark, whatever the size of the tables. Only the audit trail is as long as there are
orders; it is written in pieces. Everything is counted in integers, and percentiles are exact: each is a value that was
measured.
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
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.pipeline.report import regulator as bundle
from fairtape.pipeline.report import sections
from fairtape.pipeline.report.html_page import Page, Section
from fairtape.pipeline.report.plots import format_duration
from fairtape.pipeline.report.sections import Names, Row, Rows
from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.tables.jobs import folder_of, read_files, read_table
from fairtape.pipeline.tables.ring_tables import distribution
from fairtape.ring.receiver.release import LATE_AFTER

PAGE: Final = "index.html"
TRAIL_ROWS_MAX: Final = 65_536  # of one piece of the audit trail
PERIODS_MAX: Final = 240
PERIODS: Final = tuple(SECOND * each for each in (1, 2, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 14_400, 86_400))
BUSIEST_MAX: Final = 12
MINUTE: Final = 60 * SECOND


@dataclass(frozen=True, slots=True)
class Report:
    """The files of a report."""

    page: Path
    files: tuple[Path, ...]


def make_report(spark: SparkSession, tables: Path, out: Path, *, names: Names | None = None) -> Report:
    """Make the page, its data and the bundle. Names are used in the page only; data and bundle keep numbers.

    The report is made in a temporary folder and then moved into place, so a report that fails changes nothing.
    """
    found = Tables(spark, tables)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".draft-", dir=out) as folder:
        draft = Path(folder)
        maker = _ReportMaker(found, draft, names or Names())
        page = maker.page()
        maker.write_bundle()
        (draft / PAGE).write_text(page.html(), encoding="utf-8")
        files = [path.relative_to(draft) for path in maker.files]
        _put_in_place(draft, out, files)
    return Report(out / PAGE, tuple(out / path for path in files))


def _put_in_place(draft: Path, out: Path, files: Sequence[Path]) -> None:
    """The old page is deleted first and the new one moved last, so a page never stands beside data of another."""
    (out / PAGE).unlink(missing_ok=True)
    for path in files:
        (out / path).parent.mkdir(exist_ok=True)
        (draft / path).replace(out / path)
    (draft / PAGE).replace(out / PAGE)


class Tables:
    """The tables of a folder; one that is not there, or has no rows, is None."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        if not folder.is_dir():
            raise UserError(f"--tables is {str(folder)!r}, which is no folder; name what `fairtape pipeline run` made")

    def __getitem__(self, name: str) -> DataFrame | None:
        files = folder_of(self._folder, name).files()
        return read_files(self._spark, name, files) if files else None

    def whole(self, name: str) -> DataFrame:
        """A table that may have no rows, such as executions on a floor without a trade."""
        return read_table(self._spark, self._folder, name)


class _ReportMaker:
    """Computes each measure once, writes it to the data folder, and makes sections of it."""

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
        """The result first, then the guarantees, then what explains them."""
        made = [self._fairness(), self._order(), self._completeness(), self._failover(), self._late()]
        made += [self._latency(), self._clock(), self._spread(), self._metrics()]
        made += [self._links(), self._volume(), self._bars()]
        return Page(
            title="How fair the tape was",
            opening=(self._opening(),),
            facts=self._facts(),
            sections=made,
            closing=(
                (
                    "The data of this page are in the folder data as CSV and Parquet; the folder regulator has the "
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
            f"A network of sites merged the messages of many sources into one order and released each message at all "
            f"sites at the same instant, on {first.day} {first:%B %Y} from {first:%H:%M:%S} to {ended} UTC. This page "
            "is computed from the journals of all sites. Green: as guaranteed. Orange: the operator should act. Red: a "
            "guarantee was broken."
        )

    def _facts(self) -> list[tuple[str, str]]:
        if self._span is None:
            return []
        lasted = self._span.last_at - self._span.first_at
        kept = self._guarantees()
        totals = self._totals()
        spreads = {row["delivery"]: format_duration(row["p50"]) for row in self._delivery_spreads()}
        return [
            ("release spread, p50", spreads.get("fairtape", "–")),
            ("direct delivery, p50", spreads.get("direct", "–")),
            ("guarantees kept", f"{sum(kept)} of {len(kept)}"),
            ("sites", f"{totals['sites']:,}"),
            ("messages", f"{totals['messages'] or 0:,}"),
            ("messages per second", f"{(totals['messages'] or 0) * SECOND / max(lasted, SECOND):,.0f}"),
            ("deliveries, all sites", f"{totals['deliveries'] or 0:,}"),
            ("duration", format_duration(lasted)),
        ]

    def _guarantees(self) -> list[bool]:
        """Those that the tables can show: one order, no gap, no duplicate, nothing early, late releases marked."""
        kept = []
        if order := self._order_rows():
            kept.append(not any(row["different_tokens"] for row in order))
        if complete := self._completeness_rows():
            kept += [not any(row[name] for row in complete) for name in ("missing", "repeated")]
        checks = self._release_checks()
        return kept + [not checks[name] for name in ("early", "unmarked_late")]

    def _fairness(self) -> Section:
        spreads = self._delivery_spreads()
        if self._span is None or self._tables["spreads"] is None:
            return sections.missing_section(sections.FAIRNESS, ["spreads"])
        return sections.fairness_section(spreads, self._clock_rows())

    def _order(self) -> Section:
        rows = self._order_rows()
        return sections.order_section(rows) if rows else sections.missing_section(sections.ORDER, ["deliveries"])

    def _completeness(self) -> Section:
        rows = self._completeness_rows()
        if not rows:
            return sections.missing_section(sections.COMPLETENESS, ["deliveries"])
        return sections.completeness_section(rows, self._names)

    def _failover(self) -> Section:
        formations = self._rows(
            "formations",
            self._tables["formations"],
            lambda table: table.select("stripe", "formation", "members", "plan").orderBy("stripe", "formation"),
        )
        return sections.failover_section(self._changes(), formations, self._completeness_rows(), self._names)

    def _late(self) -> Section:
        rows = self._over_time("late_over_time", "releases", late_over_time)
        if not rows:
            return sections.missing_section(sections.LATE, ["releases"])
        return sections.late_section(self._release_checks(), rows, self._changes(), self._period, self._names)

    def _latency(self) -> Section:
        rows = self._rows("latency", self._tables["latency"], lambda table: table.orderBy("stripe", "source", "site"))
        if not rows:
            return sections.missing_section(sections.LATENCY, ["latency"])
        return sections.latency_section(rows, self._names)

    def _clock(self) -> Section:
        rows = self._over_time("clock_log", "releases", clock_log)
        if not rows:
            return sections.missing_section(sections.CLOCKS, ["releases"])
        return sections.clock_section(rows, self._clock_rows(), self._period, self._names)

    def _spread(self) -> Section:
        whole = self._rows("spread_whole", self._tables["spreads"], spread_whole)
        rows = self._over_time("spread_over_time", "spreads", spread_over_time)
        return sections.spread_section(whole, rows, self._changes(), self._period)

    def _metrics(self) -> Section:
        rows = self._rows("fairness", self._tables["fairness"], lambda table: table.orderBy("stripe"))
        return sections.metrics_section(rows) if rows else sections.missing_section(sections.METRICS, ["fairness"])

    def _links(self) -> Section:
        rows = self._rows("links", self._tables["links"], lambda table: table.orderBy("stripe", "from_site", "to_site"))
        if not rows:
            return sections.missing_section(sections.LINKS, ["links"])
        sources = self._rows(
            "source_links", self._tables["source_links"], lambda table: table.orderBy("stripe", "source", "site")
        )
        retries = self._rows(
            "retries", self._tables["retries"], lambda table: table.orderBy("stripe", "site", "requests")
        )
        requests = self._tables["requests"]
        self._rows("requests", requests, lambda table: table.orderBy("stripe", "site", "asked", "wanted"))
        return sections.links_section(rows, sources, retries, self._names)

    def _volume(self) -> Section:
        rows = self._over_time("volume_over_time", "sales", volume_over_time)
        busy = self._rows("busiest", self._tables["sales"], busiest)
        if not rows or self._span is None:
            return sections.missing_section(sections.VOLUME, ["sales"])
        return sections.volume_section(rows, busy, self._span.period)

    def _bars(self) -> Section:
        busy = self._rows("busiest", self._tables["sales"], busiest)
        is_short = self._span is None or self._span.period < MINUTE
        name, period = ("bars_1s", SECOND) if is_short else ("bars_1m", MINUTE)
        if not busy or self._tables[name] is None:
            return sections.missing_section(sections.BARS, [name])
        symbol = busy[0]["symbol"]
        rows = self._rows(
            "bars", self._tables[name], lambda table: table.where(F.col("symbol") == symbol).orderBy("period_at_ns")
        )
        return sections.bars_section(rows, symbol, period)

    def _delivery_spreads(self) -> Rows:
        traces = self._tables["traces"]
        return self._rows("delivery_spreads", self._tables["spreads"], lambda table: delivery_spreads(table, traces))

    def _order_rows(self) -> Rows:
        return self._rows("order", self._tables["deliveries"], order_agreement)

    def _completeness_rows(self) -> Rows:
        return self._rows("completeness", self._tables["deliveries"], completeness)

    def _clock_rows(self) -> Rows:
        return self._rows("clocks", self._tables["clocks"], lambda table: table.orderBy("stripe", "site"))

    def _changes(self) -> Rows:
        return self._rows("outages", self._tables["outages"], lambda table: table.orderBy("stripe", "formation"))

    def _release_checks(self) -> Row:
        outages = self._tables["outages"]
        rows = self._rows("release_checks", self._tables["releases"], lambda table: release_checks(table, outages))
        return rows[0]

    def _totals(self) -> Row:
        return self._rows("totals", self._tables["releases"], totals)[0]

    @property
    def _period(self) -> Duration:
        return self._span.period if self._span is not None else SECOND

    def _over_time(self, name: str, table: str, measure: Callable[[DataFrame, "TimeSpan"], DataFrame]) -> Rows:
        span = self._span
        return [] if span is None else self._rows(name, self._tables[table], lambda found: measure(found, span))

    def _rows(self, name: str, table: DataFrame | None, measure: Callable[[DataFrame], DataFrame]) -> Rows:
        """The rows of a measure, written to the data folder; the next time they are read from there."""
        if table is None:
            return []
        path = self._out / "data" / f"{name}.parquet"
        if path not in self.files:
            found = measure(table).toArrow()
            pq.write_table(found, path)
            pacsv.write_csv(_flat(found), path.with_suffix(".csv"))
            self.files += [path, path.with_suffix(".csv")]
        rows: Rows = pq.read_table(path).to_pylist()
        return rows

    def write_bundle(self) -> None:
        """The files for a regulator: some measures of the page, and what is made of orders."""
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
        yield "orders_without_outcome", bundle.without_outcome(orders, events)
        yield "refused", bundle.refused(orders, events)


def _write_pieces(table: DataFrame, path: Path) -> None:
    """A table as CSV, in pieces: the driver never holds all of it."""
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
    """Lists, bytes and decimals as text, which CSV does not have."""
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


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time that a report is about, and the period that it is cut into."""

    first_at: Instant
    last_at: Instant

    @property
    def period(self) -> Duration:
        """The shortest round period of which there are at most PERIODS_MAX."""
        lasted = self.last_at - self.first_at
        return next((each for each in PERIODS if lasted // each < PERIODS_MAX), PERIODS[-1])

    def begins(self, instant: str) -> Column:
        """The beginning of the period that an instant is in."""
        return (F.col(instant) - F.col(instant) % F.lit(self.period)).alias("period_at_ns")


def span_of(releases: DataFrame) -> TimeSpan | None:
    """From the first to the last commit; None where nothing was released."""
    found = releases.agg(F.min("commit_at_ns"), F.max("commit_at_ns")).first()
    return None if found is None or found[0] is None else TimeSpan(int(found[0]), int(found[1]))


def totals(releases: DataFrame) -> DataFrame:
    """messages, deliveries, sites: of all stripes."""
    by_token = releases.groupBy("stripe", "token").agg(
        F.max("messages").alias("messages"), F.sum("messages").alias("deliveries")
    )
    sites = releases.agg(F.countDistinct("site").alias("sites"))
    return by_token.agg(F.sum("messages").alias("messages"), F.sum("deliveries").alias("deliveries")).crossJoin(sites)


def delivery_spreads(spreads: DataFrame, traces: DataFrame | None) -> DataFrame:
    """delivery, count, percentiles: the spread over sites, weighted by messages, for each way of delivery.

    `fairtape` is the release of tokens that no site released late, `late` that of the others. `direct` is what the same
    tokens would have had if sites had acted on arrival: the site whose turn it was multicast Ack(e) to all others, and
    their traces say when it arrived. An acknowledgment that had to be requested is left out.
    """
    shared = spreads.where("sites > 1")
    delivery = F.when(F.col("late_sites") > 0, "late").otherwise("fairtape")
    found = shared.select(delivery.alias("delivery"), "messages", "spread_ns")
    if traces is not None:
        token = ["stripe", "formation", "token"]
        arrived = traces.where("kind = 'token' AND came_at_ns IS NOT NULL AND ack_requests = 0")
        first, last = F.min(F.least("sent_at_ns", "came_at_ns")), F.max(F.greatest("sent_at_ns", "came_at_ns"))
        direct = arrived.groupBy(*token).agg((last - first).alias("direct_ns"))
        on_time = shared.where("late_sites = 0").join(direct, token)
        found = found.unionByName(
            on_time.select(F.lit("direct").alias("delivery"), "messages", F.col("direct_ns").alias("spread_ns"))
        )
    return distribution(found, ("delivery",), F.col("spread_ns"), F.col("messages")).orderBy("delivery")


def order_agreement(deliveries: DataFrame) -> DataFrame:
    """stripe, sites, messages, compared_tokens, different_tokens, first_different_token.

    A token is compared where several sites hold it. It differs where they hold other messages under its numbers.
    """
    content = F.xxhash64("sequence", "kind", "source", "incarnation", "source_number", "payload")
    by_site = _numbered(deliveries).groupBy("stripe", "token", "site")
    held = by_site.agg(F.bit_xor(content).alias("digest"), F.count(F.lit(1)).alias("messages"))
    tokens = held.groupBy("stripe", "token").agg(
        F.count(F.lit(1)).alias("sites"),
        F.max("messages").alias("messages"),
        (F.count_distinct("digest", "messages") > 1).alias("differs"),
    )
    sites = _numbered(deliveries).groupBy("stripe").agg(F.count_distinct("site").alias("sites"))
    found = tokens.groupBy("stripe").agg(
        F.sum("messages").alias("messages"),
        F.count_if(F.col("sites") > 1).alias("compared_tokens"),
        F.count_if("differs").alias("different_tokens"),
        F.min(F.when(F.col("differs"), F.col("token"))).alias("first_different_token"),
    )
    return found.join(sites, "stripe").orderBy("stripe")


def completeness(deliveries: DataFrame) -> DataFrame:
    """stripe, site, first, last, messages, missing, repeated: whether every number is there once."""
    counted = (
        _numbered(deliveries)
        .groupBy("stripe", "site")
        .agg(
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.count(F.lit(1)).alias("messages"),
            (F.max("sequence") - F.min("sequence") + 1 - F.countDistinct("sequence")).alias("missing"),
            (F.count(F.lit(1)) - F.countDistinct("sequence")).alias("repeated"),
        )
    )
    return counted.orderBy("stripe", "site")


def _numbered(deliveries: DataFrame) -> DataFrame:
    return deliveries.where(F.col("kind").isin("message", "fragment"))


def release_checks(releases: DataFrame, outages: DataFrame | None) -> DataFrame:
    """deliveries, early, late, unmarked_late, late_in_failover: messages over all sites.

    A late release waited for a new formation where its commit instant is between the last token before a change of
    formation and the first one after it.
    """
    after = F.col("released_at_ns") - F.col("commit_at_ns")
    counts = releases.agg(
        F.sum("messages").alias("deliveries"),
        _messages_where(after < 0).alias("early"),
        _messages_where(F.col("late")).alias("late"),
        _messages_where(~F.col("late") & (after > LATE_AFTER)).alias("unmarked_late"),
    )
    if outages is None:
        return counts.withColumn("late_in_failover", F.lit(0).cast("long"))
    pauses = outages.where("silence_ns IS NOT NULL").select("stripe", "last_at_ns", "first_at_ns")
    within = (
        (F.col("late.stripe") == F.col("pause.stripe"))
        & (F.col("commit_at_ns") >= F.col("last_at_ns"))
        & (F.col("commit_at_ns") <= F.col("first_at_ns"))
    )
    waited = releases.where("late").alias("late").join(F.broadcast(pauses.alias("pause")), within, "left_semi")
    return counts.crossJoin(waited.agg(F.coalesce(F.sum("messages"), F.lit(0)).alias("late_in_failover")))


def _messages_where(condition: Column) -> Column:
    return F.sum(F.when(condition, F.col("messages")).otherwise(F.lit(0)))


def spread_over_time(spreads: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, tokens, p50_ns, p99_ns, max_ns: the spread of tokens that no site released late."""
    return _on_time(spreads).groupBy(span.begins("commit_at_ns")).agg(*_spread_measures()).orderBy("period_at_ns")


def spread_whole(spreads: DataFrame) -> DataFrame:
    """tokens, p50_ns, p99_ns, max_ns: the same over all such tokens."""
    return _on_time(spreads).agg(*_spread_measures()).where("tokens > 0")


def _on_time(spreads: DataFrame) -> DataFrame:
    return spreads.where("sites > 1 AND late_sites = 0")


def _spread_measures() -> list[Column]:
    ranks = (_rank("spread_ns", part).alias(name) for part, name in ((0.5, "p50_ns"), (0.99, "p99_ns")))
    return [F.count(F.lit(1)).alias("tokens"), *ranks, F.max("spread_ns").alias("max_ns")]


def _rank(name: str, part: float) -> Column:
    """The value at this rank: exact, and one that was measured."""
    return F.expr(f"percentile_disc({part}) WITHIN GROUP (ORDER BY {name})")


def late_over_time(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, messages, late."""
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    late = _messages_where(F.col("late")).alias("late")
    return found.agg(F.sum("messages").alias("messages"), late).orderBy("period_at_ns", "site")


def clock_log(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, bound_max_ns: the greatest clock bound that a site declared."""
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    return found.agg(F.max("clock_bound_ns").alias("bound_max_ns")).orderBy("period_at_ns", "site")


def volume_over_time(sales: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, venue, trades."""
    found = sales.groupBy(span.begins("commit_at_ns"), "venue").agg(F.count(F.lit(1)).alias("trades"))
    return found.orderBy("period_at_ns", "venue")


def busiest(sales: DataFrame) -> DataFrame:
    """symbol, trades: the symbols with most trades."""
    counted = sales.groupBy("symbol").agg(F.count(F.lit(1)).alias("trades"))
    return counted.orderBy(F.desc("trades"), "symbol").limit(BUSIEST_MAX)
