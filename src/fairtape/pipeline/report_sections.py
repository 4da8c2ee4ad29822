"""The sections of a report: each takes small tables and says in words what they show, and whether that is good.

What is good is written here as limits with reasons, so that a reader can disagree with a number and not with a mood.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.market.prices import ONE
from fairtape.pipeline.pages import Section, Table, Verdict
from fairtape.pipeline.plots import (
    BarPlot,
    Candle,
    CandlePlot,
    Line,
    LinePlot,
    told_duration,
    told_instant,
    told_share,
)

Rows: TypeAlias = Sequence[Mapping[str, Any]]

SPREAD_MAX: Final = 5 * MILLISECOND  # of 99 in 100 tokens: above it a fast customer near one site gains from it
LATE_MAX: Final = 0.001  # of deliveries
WINDOW_0_MIN: Final = 0.9  # of messages: the best systems in one data centre reach 0.86 to 0.92
CLOCK_MAX: Final = 100 * MICROSECOND  # MiFID II, RTS 25, for those who trade at high frequency
OUTAGE_MAX: Final = 300 * MILLISECOND
PARTS: Final = ("p10", "p50", "p90", "p95", "p99", "p999", "p9999")


def _verdict(good: bool) -> Verdict:
    return Verdict.GOOD if good else Verdict.BAD


def fairness_section(rows: Rows) -> Section:
    """Whether anybody could know something first."""
    messages = sum(row["messages"] for row in rows)
    together = sum(row["window_0_messages"] for row in rows)
    share = together / messages if messages else 0.0
    bars = [
        (name, _mean(rows, column))
        for column, name in (
            ("window_0_share", "released together, as far as clocks can tell"),
            ("pairwise_fairness", "of two trades, the earlier one came first"),
            ("portal_equity", "sites were used alike as portals"),
        )
        if any(row[column] is not None for row in rows)
    ]
    columns = ("late_fraction", "outbound_unfairness", "inbound_unfairness", "pairwise_fairness", "portal_equity")
    table = Table(
        ("stripe", "sites", "messages", *(name.replace("_", " ") for name in columns)),
        [
            (f"{row['stripe']}", f"{row['sites']}", f"{row['messages']:,}", *(_share(row[name]) for name in columns))
            for row in rows
        ],
    )
    return Section(
        title="Fairness",
        verdict=_verdict(share >= WINDOW_0_MIN),
        finding=f"{told_share(share)} of {messages:,} messages were released at all sites so close together that no "
        "clock can show who was first.",
        told=(
            (
                "The first bar is the share of messages with delivery window 0: the spread between sites is within the "
                "error of their clocks. Published systems within one data centre reach 86 to 92 %."
            ),
            (
                "Outbound unfairness is the share of messages that some site released late or unlike the others; "
                "inbound unfairness the share that was overtaken on the way in by a message that was sent later."
            ),
        ),
        plots=[BarPlot(bars=bars, told=told_share)],
        table=table,
        is_open=True,
    )


def latency_section(rows: Rows) -> Section:
    """How long the news took."""
    totals: dict[int, list[int]] = {}
    for row in rows:
        totals.setdefault(row["source"], []).append(row["p50"])
    bars = [(f"source {source}", float(sorted(found)[len(found) // 2])) for source, found in sorted(totals.items())]
    middles = [value for _, value in bars]
    widest = max(middles, default=0.0) - min(middles, default=0.0)
    table = Table(
        ("source", "site", "messages", *PARTS),
        [
            (f"{row['source']}", f"{row['site']}", f"{row['count']:,}", *(told_duration(row[part]) for part in PARTS))
            for row in rows
        ],
    )
    return Section(
        title="Latency by source",
        verdict=Verdict.NEITHER,
        finding=f"Half of the messages of a source were released within {told_duration(max(middles, default=0.0))} of "
        f"their entry; sources differ by {told_duration(widest)}.",
        told=(
            (
                "Each bar is a source: the time from the entry of its message to the release, which is the same at all "
                "sites. It is long on purpose: a message is released when the slowest site has it. Bars of equal "
                "length mean that no source's customers are served faster."
            ),
        ),
        plots=[BarPlot(bars=bars, told=told_duration)],
        table=table,
    )


def spread_section(rows: Rows, changes: Rows) -> Section:
    """How far apart sites released the same thing."""
    worst = max((row["max_ns"] for row in rows), default=0)
    usual = sorted(row["p99_ns"] for row in rows)
    p99 = usual[len(usual) // 2] if usual else 0
    lines = [
        Line(name, [(row["period_at_ns"], row[column]) for row in rows])
        for column, name in (("max_ns", "all tokens"), ("p99_ns", "99 in 100"), ("p50_ns", "half of them"))
    ]
    return Section(
        title="Spread over time",
        verdict=_verdict(p99 <= SPREAD_MAX) if rows else Verdict.NEITHER,
        finding=f"99 in 100 tokens were released everywhere within {told_duration(p99)}; the widest spread was "
        f"{told_duration(worst)}."
        if rows
        else "Only one site's journal is here, so nothing can be compared.",
        told=(
            (
                "The spread of a token is the time from the first site that released it to the last one. Low and flat "
                "is good; a peak is a moment in which customers of one site heard the market before others."
            ),
            *(("Dashed upright lines are changes of formation.",) if changes else ()),
        ),
        plots=[LinePlot(lines=lines, told_y=told_duration, marks=_marks(changes))] if rows else (),
        table=Table(
            ("period (UTC)", "tokens", "p50", "p99", "max"),
            [
                (
                    told_instant(row["period_at_ns"]),
                    f"{row['tokens']:,}",
                    *(told_duration(row[name]) for name in ("p50_ns", "p99_ns", "max_ns")),
                )
                for row in rows
            ],
        ),
    )


def late_section(rows: Rows) -> Section:
    """What came after its instant."""
    total, late = sum(row["messages"] for row in rows), sum(row["late"] for row in rows)
    share = late / total if total else 0.0
    return Section(
        title="Late messages",
        verdict=_verdict(share <= LATE_MAX),
        finding=f"{late:,} of {total:,} deliveries were late ({told_share(share)}).",
        told=(
            (
                "A delivery is late when its instant had passed before the site could release it. Each line is a site; "
                f"up to {told_share(LATE_MAX)} is within what a network of this kind loses to the weather. A late "
                "message is marked as late wherever it is shown: nobody takes it for a fair one."
            ),
        ),
        plots=[
            LinePlot(
                lines=_by_site(rows, lambda row: row["late"] / row["messages"] if row["messages"] else 0.0),
                told_y=told_share,
            )
        ],
    )


def clock_section(rows: Rows, clocks: Rows) -> Section:
    """How far clocks can be trusted."""
    worst = max((row["bound_max_ns"] for row in rows), default=0)
    steps = sum(row["steps_back"] for row in clocks)
    stepped = f" Clocks stepped back {_times(steps)}." if steps else " No clock stepped back."
    names = ("bound_min_ns", "bound_p50_ns", "bound_max_ns", "step_max_ns")
    return Section(
        title="Clock bounds",
        verdict=_verdict(worst <= CLOCK_MAX and not steps),
        finding=f"No clock was further than {told_duration(worst)} from the common time.{stepped}",
        told=(
            (
                "Each line is a site: how wrong its clock may have been, at most, as it said itself. MiFID II (RTS 25) "
                f"asks {told_duration(CLOCK_MAX)} from those who trade at high frequency. What happened within the "
                "bound cannot be told apart by time, only by its number."
            ),
        ),
        plots=[
            LinePlot(
                lines=_by_site(rows, lambda row: row["bound_max_ns"]),
                told_y=told_duration,
                limits=[(CLOCK_MAX, "RTS 25")] if worst < 20 * CLOCK_MAX else (),
            )
        ],
        table=Table(
            ("site", "releases", "least bound", "median", "greatest", "steps back", "greatest step"),
            [
                (
                    f"{row['site']}",
                    f"{row['releases']:,}",
                    *(told_duration(row[name] or 0) for name in names[:3]),
                    f"{row['steps_back']:,}",
                    told_duration(row[names[3]] or 0),
                )
                for row in clocks
            ],
        ),
    )


def outage_section(rows: Rows) -> Section:
    """When the tape stood still."""
    silences = [row for row in rows if row["silence_ns"] is not None]
    worst = max((row["silence_ns"] for row in silences), default=0)
    broken = sum(bool(row["broken"]) for row in rows)
    finding = f"The network changed its formation {_times(len(rows))}; the longest silence was {told_duration(worst)}."
    if not silences:
        finding = "The tape never stood still: no formation changed while it ran."
    if broken:
        finding += f" It broke {_times(broken)}: numbers may have been used otherwise since."
    return Section(
        title="Outages",
        verdict=_verdict(worst <= OUTAGE_MAX and not broken),
        finding=finding,
        told=(
            (
                "Each bar is a change of formation (a site failed, left or came back): the time between the last token "
                f"before it and the first one after it. Up to {told_duration(OUTAGE_MAX)} is what a failed site costs "
                "by default. Nothing is lost in a silence: messages wait for the next token."
            ),
        ),
        plots=[
            BarPlot(
                bars=[
                    (f"{told_instant(row['first_at_ns'] or 0)} formation {row['formation']}", row["silence_ns"])
                    for row in silences[:20]
                ],
                told=told_duration,
            )
        ]
        if silences
        else (),
    )


def volume_section(rows: Rows, busy: Rows, period: int) -> Section:
    """How much was traded, and where."""
    total = sum(row["trades"] for row in rows)
    venues: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        point = (row["period_at_ns"], row["trades"] * SECOND / period)
        venues.setdefault(row["venue"] or "(no name)", []).append(point)
    return Section(
        title="Volume",
        verdict=Verdict.NEITHER,
        finding=f"{total:,} trades of {len(venues):,} venues are in the tape.",
        told=("Trades per second of each venue; below, the symbols that traded most.",),
        plots=[
            LinePlot(lines=[Line(name, points) for name, points in sorted(venues.items())][:6]),
            BarPlot(bars=[(row["symbol"], row["trades"]) for row in busy]),
        ],
    )


def bars_section(rows: Rows, symbol: str, period: int) -> Section:
    """What the price of the busiest symbol did."""
    candles = [
        Candle(row["period_at_ns"], *(row[name] / ONE for name in ("open", "high", "low", "close"))) for row in rows
    ]
    table = Table(
        ("period (UTC)", "open", "high", "low", "close", "volume", "trades"),
        [
            (
                told_instant(row["period_at_ns"]),
                *(f"{row[name] / ONE:,.4f}" for name in ("open", "high", "low", "close")),
                f"{int(row['volume']) / ONE:,.4f}",
                f"{row['trades']:,}",
            )
            for row in rows
        ],
    )
    return Section(
        title="Bars",
        verdict=Verdict.NEITHER,
        finding=f"{symbol}, the busiest symbol, in periods of {told_duration(period)}.",
        told=(
            (
                "Each candle is a period: from open to close, with the highest and the lowest price. Trades are taken "
                "when they were made; cancelled ones are left out, corrected ones are as they really were."
            ),
        ),
        plots=[CandlePlot(candles=candles)],
        table=table,
    )


def completeness_section(rows: Rows) -> Section:
    """Whether everything is there."""
    missing, repeated = sum(row["missing"] for row in rows), sum(row["repeated"] for row in rows)
    total = sum(row["messages"] for row in rows)
    good = not missing and not repeated
    finding = f"Every number is there exactly once, at {len(rows):,} journals with {total:,} deliveries in all."
    if not good:
        finding = f"{missing:,} numbers are missing and {repeated:,} stand twice."
    return Section(
        title="Completeness",
        verdict=_verdict(good),
        finding=finding,
        told=(
            "Counted from the first to the last number of each journal. A hole would be seen here, whatever it hid.",
        ),
        table=Table(
            ("stripe", "site", "first", "last", "messages", "missing", "repeated"),
            [
                tuple(
                    f"{row[name]:,}" for name in ("stripe", "site", "first", "last", "messages", "missing", "repeated")
                )
                for row in rows
            ],
        ),
        is_open=True,
    )


def missing_section(title: str, tables: Sequence[str]) -> Section:
    """What cannot be told, because the tables for it are not here."""
    return Section(
        title=title,
        verdict=Verdict.NEITHER,
        finding=f"Not told: there is no table {' or '.join(tables)} with rows here.",
    )


def _mean(rows: Rows, name: str) -> float:
    found = [row[name] for row in rows if row[name] is not None]
    return sum(found) / len(found) if found else 0.0


def _share(value: float | None) -> str:
    return "–" if value is None else told_share(value)


def _marks(changes: Rows) -> list[tuple[float, str]]:
    return [(row["first_at_ns"], f"formation {row['formation']}") for row in changes if row["first_at_ns"]]


def _by_site(rows: Rows, value: Any) -> list[Line]:
    sites: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        sites.setdefault(row["site"], []).append((row["period_at_ns"], value(row)))
    return [Line(f"site {site}", points) for site, points in sorted(sites.items())]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
