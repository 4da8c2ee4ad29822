"""`fairtape pipeline report`: a page, its data, and files for a regulator, from the tables of the pipeline.

    OUT/index.html     one self-contained page
    OUT/data/          its data as CSV and as Parquet
    OUT/regulator/     clock log, latency, execution statistics, audit trail; README.txt explains each file

Everything is made of measures (`fairtape.pipeline.report.measures`), which are small tables. Only the audit trail is as
long as there are orders; it is written in pieces.
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration
from fairtape.pipeline.report import measures, sections
from fairtape.pipeline.report.html_page import Page, Section
from fairtape.pipeline.report.plots import format_duration
from fairtape.pipeline.report.sections import Names, Row, Rows
from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.spark.snapshots import folder_of, read_files, read_table

PAGE: Final = "index.html"
TRAIL_ROWS_MAX: Final = 65_536  # of one piece of the audit trail
MINUTE: Final = 60 * SECOND

REGULATOR_README: Final = """Files of this folder

clock_log.csv              the error bound of each site's clock, as the site declared it, in every period (ns)
latency_per_source.csv     from entry to release of the messages of each source at each site (ns, exact percentiles)
completeness.csv           for every stripe and site: first and last number, missing and repeated ones
execution_statistics.csv   orders by symbol, type and size: executed, how fast, cancelled, rejected (see below)
audit_trail.csv            every event of every order, from entry to commit or rejection, in the order of the network
orders_without_outcome.csv orders without an event after their entry; empty when the trail has no gap
refused.csv                rejected requests that are not orders: unreadable requests, deposits, reports of arbiters
SHA256SUMS                 digests of these files: `sha256sum -c SHA256SUMS`

Times are nanoseconds since 1970 UTC, prices and quantities are in units of 1e-9; all are integers. Files about orders
exist only where a trading floor was run.

Audit trail: order_number is the sequence number of the order. A request to cancel or replace, and its rejection, have
the sequence number of the request; the change itself has the order_number of the order that was changed, and the
sequence of the request. at_ns is the time of the token that caused the event; for an entry, the gateway's timestamp.

Execution statistics: quantity is the entered quantity of orders of the kind new; executed, cancelled and rejected are
the parts with that outcome, and the rest was open at the end or was replaced. The columns executed_..._s split the
executed quantity by the time from entry to trade; each class includes its first bound and excludes its second one.
executed_before_entry is the quantity that was stamped as traded before it was stamped as entered: two clocks disagreed.
mean_ns is the mean of that time over all executed quantity. Effective spread and price improvement are not included: a
floor has no national best quote to compare with.
"""


@dataclass(frozen=True, slots=True)
class FairnessReport:
    """The files of a report."""

    page: Path
    files: tuple[Path, ...]


def make_report(spark: SparkSession, tables: Path, out: Path, *, names: Names | None = None) -> FairnessReport:
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
    return FairnessReport(out / PAGE, tuple(out / path for path in files))


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
            raise UserError(
                f"--tables is {str(folder)!r}, which is not a folder; give --out of `fairtape pipeline run`"
            )

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
        self._span = None if releases is None else measures.span_of(releases)

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
                    "The folder data has the data of this page as CSV and Parquet. The folder regulator has the clock "
                    "log, latencies, execution statistics and the audit trail. Times are UTC."
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
        rows = self._over_time("late_over_time", "releases", measures.late_over_time)
        if not rows:
            return sections.missing_section(sections.LATE, ["releases"])
        return sections.late_section(self._release_checks(), rows, self._changes(), self._period, self._names)

    def _latency(self) -> Section:
        rows = self._rows("latency", self._tables["latency"], lambda table: table.orderBy("stripe", "source", "site"))
        if not rows:
            return sections.missing_section(sections.LATENCY, ["latency"])
        return sections.latency_section(rows, self._names)

    def _clock(self) -> Section:
        rows = self._over_time("clock_log", "releases", measures.clock_log)
        if not rows:
            return sections.missing_section(sections.CLOCKS, ["releases"])
        return sections.clock_section(rows, self._clock_rows(), self._period, self._names)

    def _spread(self) -> Section:
        whole = self._rows("spread_whole", self._tables["spreads"], measures.spread_whole)
        rows = self._over_time("spread_over_time", "spreads", measures.spread_over_time)
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
        rows = self._over_time("volume_over_time", "sales", measures.volume_over_time)
        busy = self._rows("busiest", self._tables["sales"], measures.busiest)
        if not rows or self._span is None:
            return sections.missing_section(sections.VOLUME, ["sales"])
        return sections.volume_section(rows, busy, self._span.period)

    def _bars(self) -> Section:
        busy = self._rows("busiest", self._tables["sales"], measures.busiest)
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
        return self._rows(
            "delivery_spreads", self._tables["spreads"], lambda table: measures.delivery_spreads(table, traces)
        )

    def _order_rows(self) -> Rows:
        return self._rows("order", self._tables["deliveries"], measures.order_agreement)

    def _completeness_rows(self) -> Rows:
        return self._rows("completeness", self._tables["deliveries"], measures.completeness)

    def _clock_rows(self) -> Rows:
        return self._rows("clocks", self._tables["clocks"], lambda table: table.orderBy("stripe", "site"))

    def _changes(self) -> Rows:
        return self._rows("outages", self._tables["outages"], lambda table: table.orderBy("stripe", "formation"))

    def _release_checks(self) -> Row:
        outages = self._tables["outages"]
        rows = self._rows(
            "release_checks", self._tables["releases"], lambda table: measures.release_checks(table, outages)
        )
        return rows[0]

    def _totals(self) -> Row:
        return self._rows("totals", self._tables["releases"], measures.totals)[0]

    @property
    def _period(self) -> Duration:
        return self._span.period if self._span is not None else SECOND

    def _over_time(self, name: str, table: str, measure: Callable[[DataFrame, measures.TimeSpan], DataFrame]) -> Rows:
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
        (folder / "README.txt").write_text(REGULATOR_README, encoding="utf-8")
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(written))
        (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
        self.files += [*written, folder / "README.txt", folder / "SHA256SUMS"]

    def _of_orders(self) -> Iterator[tuple[str, DataFrame]]:
        if self._tables["orders"] is None:
            return
        orders, events, executions = map(self._tables.whole, ("orders", "order_events", "executions"))
        yield "execution_statistics", measures.execution_statistics(orders, events, executions)
        yield "audit_trail", measures.audit_trail(orders, events)
        yield "orders_without_outcome", measures.without_outcome(orders, events)
        yield "refused", measures.refused(orders, events)


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
