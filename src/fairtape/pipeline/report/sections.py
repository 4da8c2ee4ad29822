"""The sections of a report: each takes small tables and says in words what they show, and whether that is good.

What is good is written here as limits with reasons, so that a reader can disagree with a number and not with a mood.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.market.prices import ONE
from fairtape.pipeline.report.html_page import HtmlTable, PageVerdict, Section
from fairtape.pipeline.report.plots import (
    LINES_MAX,
    BarPlot,
    Candle,
    CandlePlot,
    LinePlot,
    PlotLine,
    format_duration,
    format_instant,
    format_share,
)

# What people call the numbers in a report. Tables know numbers only; who runs the network knows the names.


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Of sites and sources; one without a name is called by its number."""

    sites: Mapping[int, str] = field(default_factory=dict)
    sources: Mapping[int, str] = field(default_factory=dict)

    def site(self, number: int) -> str:
        """Where something was released."""
        return self.sites.get(number, f"site {number}")

    def source(self, number: int) -> str:
        """Where something was entered."""
        return self.sources.get(number, f"source {number}")


Rows: TypeAlias = Sequence[Mapping[str, Any]]

SPREAD_MAX: Final = 5 * MILLISECOND  # of 99 in 100 tokens: above it a fast customer near one site gains from it
LATE_MAX: Final = 0.001  # of deliveries
WINDOW_0_MIN: Final = 0.9  # of messages: the best systems in one data centre reach 0.86 to 0.92
CLOCK_MAX: Final = 100 * MICROSECOND  # MiFID II, RTS 25, for those who trade at high frequency
OUTAGE_MAX: Final = 300 * MILLISECOND
CHANGES_SHOWN_MAX: Final = 20
ALONE: Final = "Only one site's journal is here, so nothing can be compared."
NAMELESS: Final = "(no name)"
PARTS: Final = ("p10", "p50", "p90", "p95", "p99", "p999", "p9999")


def _verdict(good: bool) -> PageVerdict:
    return PageVerdict.GOOD if good else PageVerdict.BAD


def fairness_section(rows: Rows) -> Section:
    """Whether anybody could know something first."""
    shared, together = (sum(row[name] for row in rows) for name in ("shared_messages", "window_0_messages"))
    if not shared:
        return Section(title="Fairness", verdict=PageVerdict.NEITHER, finding=ALONE, table=_fairness_table(rows))
    alone = sum(row["messages"] for row in rows) - shared
    left_out = f" {alone:,} more are in the journal of one site only, and are not judged." if alone else ""
    return Section(
        title="Fairness",
        verdict=_verdict(together / shared >= WINDOW_0_MIN),
        finding=f"{together:,} of {shared:,} messages that several sites released ({format_share(together / shared)}) "
        f"were released so close together that no clock can show who was first.{left_out}",
        told=(
            (
                "The first bar is the share of messages with delivery window 0: the spread between sites is within the "
                "error of their clocks. Published systems within one data centre reach 86 to 92 %. Where all sites run "
                "on one machine they read one clock, which hides nothing: then look at the spread below instead."
            ),
            (
                "The second bar looks at trades that two sources entered one directly after the other. Within a token "
                "the messages of a source stay together, so what was entered less than a token apart comes in either "
                "order. The third is the messages that entered at the least used site by those at the most used one."
                + (" Bars are over all stripes; in the third each counts by its messages." if len(rows) > 1 else "")
            ),
            (
                "In the table, shared messages are those that several sites released, and late is the share of "
                "deliveries. Outbound unfairness is the share of messages that some site released late or unlike the "
                "others; inbound unfairness the share that was overtaken on the way in by one that was sent later."
            ),
        ),
        plots=[BarPlot(bars=_fairness_bars(rows, together / shared), format_value=format_share)],
        table=_fairness_table(rows),
        is_open=True,
    )


def _fairness_bars(rows: Rows, together: float) -> list[tuple[str, float]]:
    """What all stripes are in one: counts are summed before they are divided."""
    bars = [("released together, as far as clocks can tell", together)]
    if pairs := sum(row["pairs"] for row in rows):
        bars.append(("of two trades, the earlier one came first", sum(row["pairs_in_order"] for row in rows) / pairs))
    used = [row for row in rows if row["portal_equity"] is not None]
    if messages := sum(row["messages"] for row in used):
        equity = sum(row["portal_equity"] * row["messages"] for row in used) / messages
        bars.append(("sites were used alike as portals", equity))
    return bars


def _fairness_table(rows: Rows) -> HtmlTable:
    columns = {
        "window_0_share": "together",
        "late_fraction": "late",
        "outbound_unfairness": "outbound unfairness",
        "inbound_unfairness": "inbound unfairness",
        "pairwise_fairness": "pairwise fairness",
        "portal_equity": "portal equity",
    }
    counts = ("sites", "messages", "shared_messages")
    return HtmlTable(
        ("stripe", "sites", "messages", "shared", *columns.values()),
        [
            (f"{row['stripe']}", *(f"{row[name]:,}" for name in counts), *(_share(row[name]) for name in columns))
            for row in rows
        ],
    )


def latency_section(rows: Rows, names: Names) -> Section:
    """How long the news took.

    Half of the messages of a source came within its median at each site, so everywhere within the longest of these.
    """
    medians: dict[tuple[int, int], list[int]] = {}
    most: dict[int, int] = {}
    for row in rows:
        medians.setdefault((row["stripe"], row["source"]), []).append(row["p50"])
        most[row["source"]] = max(row["p50"], most.get(row["source"], row["p50"]))
    bars = [(names.source(source), float(most[source])) for source in sorted(most)]
    apart = max((max(found) - min(found) for found in medians.values()), default=0)
    return Section(
        title="Latency by source",
        verdict=PageVerdict.NEITHER,
        finding=f"At every site, half of the messages of each source or more were released within "
        f"{format_duration(max(most.values(), default=0))} of their entry. Between sources this time differs by up to "
        f"{format_duration(max(most.values(), default=0) - min(most.values(), default=0))}, and for one source between "
        f"sites by up to {format_duration(apart)}.",
        told=(
            (
                "Each bar is a source: the median of the time from the entry of a message to its release, at the site "
                "where that median is longest. It is long on purpose: a message is released when the slowest site has "
                "it. Bars of equal length mean that no source's customers are served faster."
            ),
        ),
        plots=[BarPlot(bars=bars, format_value=format_duration)],
        table=HtmlTable(
            ("stripe", "source", "site", "messages", *PARTS),
            [
                (
                    f"{row['stripe']}",
                    names.source(row["source"]),
                    names.site(row["site"]),
                    f"{row['count']:,}",
                    *(format_duration(row[part]) for part in PARTS),
                )
                for row in rows
            ],
        ),
    )


def spread_section(whole: Rows, rows: Rows, changes: Rows, period: int) -> Section:
    """How far apart sites released the same thing."""
    if not whole or not rows:
        return Section(
            title="Spread over time",
            verdict=PageVerdict.NEITHER,
            finding=ALONE,
        )
    p50, p99, worst = (whole[0][name] for name in ("p50_ns", "p99_ns", "max_ns"))
    lines = [
        PlotLine(name, [(row["period_at_ns"], row[column]) for row in rows])
        for column, name in (("max_ns", "the widest"), ("p99_ns", "99 in 100 tokens"), ("p50_ns", "half of them"))
    ]
    return Section(
        title="Spread over time",
        verdict=_verdict(p99 <= SPREAD_MAX),
        finding=f"99 in 100 tokens were released everywhere within {format_duration(p99)}, half of them within "
        f"{format_duration(p50)}; the widest spread was {format_duration(worst)}.",
        told=(
            (
                "The spread of a token is the time from the first site that released it to the last one. Low and flat "
                "is good; a peak is a moment in which customers of one site heard the market before others."
            ),
            *_told_marks(changes),
        ),
        plots=[LinePlot(lines=lines, format_y=format_duration, period=period, events=_marks(changes))],
        table=HtmlTable(
            ("period (UTC)", "tokens", "p50", "p99", "max"),
            [
                (
                    format_instant(row["period_at_ns"]),
                    f"{row['tokens']:,}",
                    *(format_duration(row[name]) for name in ("p50_ns", "p99_ns", "max_ns")),
                )
                for row in rows
            ],
        ),
    )


def late_section(rows: Rows, changes: Rows, period: int, names: Names) -> Section:
    """What came after its instant."""
    total, late = sum(row["messages"] for row in rows), sum(row["late"] for row in rows)
    share = late / total if total else 0.0
    return Section(
        title="Late messages",
        verdict=_verdict(share <= LATE_MAX),
        finding=f"{late:,} of {total:,} deliveries were late ({format_share(share)}).",
        told=(
            (
                "A delivery is late when its instant had passed before the site could release it. Each line is a site; "
                f"up to {format_share(LATE_MAX)} is within what a network of this kind loses to the weather. A late "
                "message is marked as late wherever it is shown: nobody takes it for a fair one."
            ),
            *_told_marks(changes),
        ),
        plots=[
            LinePlot(
                lines=_by_site(rows, lambda row: row["late"] / row["messages"] if row["messages"] else 0.0, names),
                format_y=format_share,
                period=period,
                events=_marks(changes),
            )
        ],
    )


def clock_section(rows: Rows, clocks: Rows, period: int, names: Names) -> Section:
    """How far clocks can be trusted."""
    worst = max((row["bound_max_ns"] for row in rows), default=0)
    untrue = [row for row in clocks if _is_untrue(row)]
    bounds = ("bound_min_ns", "bound_p50_ns", "bound_max_ns")
    return Section(
        title="Clock bounds",
        verdict=_verdict(worst <= CLOCK_MAX and not untrue),
        finding=f"Sites declared that no clock was further than {format_duration(worst)} from the common time. "
        f"{_told_steps(clocks, names)}",
        told=(
            (
                "Each line is a site: how wrong its clock may have been, at most, as it said itself. MiFID II (RTS 25) "
                f"asks {format_duration(CLOCK_MAX)} from those who trade at high frequency. What happened within the "
                "bound cannot be told apart by time, only by its number."
            ),
            (
                "A clock stepped back where a release bears an earlier time than the one before it at that site. From "
                "as far ahead as was declared to as far behind is twice the bound: what is more shows that the clock "
                "was further off than its site said, whatever the lines show."
            ),
        ),
        plots=[
            LinePlot(
                lines=_by_site(rows, lambda row: row["bound_max_ns"], names),
                format_y=format_duration,
                period=period,
                limits=[(CLOCK_MAX, "RTS 25")] if worst < 20 * CLOCK_MAX else (),
            )
        ],
        table=HtmlTable(
            ("stripe", "site", "releases", "least bound", "median", "greatest", "steps back", "greatest step"),
            [
                (
                    f"{row['stripe']}",
                    names.site(row["site"]),
                    f"{row['releases']:,}",
                    *(format_duration(row[name] or 0) for name in bounds),
                    f"{row['steps_back']:,}",
                    format_duration(row["step_max_ns"] or 0),
                )
                for row in clocks
            ],
        ),
    )


def _is_untrue(clock: Mapping[str, Any]) -> bool:
    """Whether a clock stepped further back than one that is never further off than its bound can."""
    return bool((clock["step_max_ns"] or 0) > 2 * (clock["bound_max_ns"] or 0))


def _told_steps(clocks: Rows, names: Names) -> str:
    """How often clocks stepped back, and whether that agrees with what was declared."""
    steps = sum(row["steps_back"] for row in clocks)
    if not steps:
        return "No clock stepped back."
    most = max(row["step_max_ns"] or 0 for row in clocks)
    told = f"Clocks stepped back {_times(steps)}, by up to {format_duration(most)}"
    untrue = sorted({row["site"] for row in clocks if _is_untrue(row)})
    if not untrue:
        return f"{told}, which what they declared allows."
    return f"{told}: what was declared by {_listed([names.site(site) for site in untrue])} was not true."


def outage_section(rows: Rows, formations: Rows, names: Names) -> Section:
    """When the tape stood still. The first formation is how it began, and no change."""
    silences = [row for row in rows if row["silence_ns"] is not None]
    worst = max((row["silence_ns"] for row in silences), default=0)
    broken = sum(bool(row["broken"]) for row in rows)
    who = _told_rings({row["stripe"] for row in silences}) if _has_stripes(rows) else "The ring was"
    finding = f"{who} formed anew {_times(len(silences))}; the longest silence was {format_duration(worst)}."
    if not silences:
        finding = "The tape never stood still: no formation changed while it ran."
    if broken:
        finding += f" It broke {_times(broken)}: numbers may have been used otherwise since."
    whats = _whats(formations, names)
    bars = [
        (
            f"{format_instant(row['first_at_ns'] or 0)} {whats.get((row['stripe'], row['formation']), '')}".strip(),
            row["silence_ns"],
        )
        for row in silences[:CHANGES_SHOWN_MAX]
    ]
    return Section(
        title="Outages",
        verdict=_verdict(worst <= OUTAGE_MAX and not broken),
        finding=finding,
        told=(
            (
                "Each bar is a change of formation (a site failed, left or came back, or stripes were planned anew): "
                "the time between the last token before it and the first one after it. A planned change stops nothing; "
                f"a failed site costs up to {format_duration(OUTAGE_MAX)} where sites are near, and seconds where "
                "oceans are between them. Nothing is lost in a silence: messages wait for the next token."
            ),
        ),
        plots=[BarPlot(bars=bars, format_value=format_duration)] if silences else (),
    )


def _whats(formations: Rows, names: Names) -> dict[tuple[int, int], str]:
    """Of each formation of a stripe: who was no longer in it, and who was new, beside the one before it there."""
    found: dict[tuple[int, int], str] = {}
    before: dict[int, set[int] | None] = {}
    has_stripes = _has_stripes(formations)
    for row in formations:
        members = None if row["members"] is None else set(row["members"])
        told = [_formation(row, has_stripes)]
        last = before.get(row["stripe"])
        if last is not None and members is not None:
            told += [f"without {names.site(site)}" for site in sorted(last - members)]
            told += [f"with {names.site(site)}" for site in sorted(members - last)]
        found[row["stripe"], row["formation"]] = ", ".join(told)
        before[row["stripe"]] = members
    return found


def _told_rings(stripes: set[int]) -> str:
    """Each stripe has a ring of its own."""
    return (
        f"The ring of stripe {min(stripes)} was" if len(stripes) == 1 else f"The rings of {len(stripes)} stripes were"
    )


def _has_stripes(rows: Rows) -> bool:
    """Whether these are of several stripes, so that it must be said which."""
    return len({row["stripe"] for row in rows}) > 1


def _formation(row: Mapping[str, Any], has_stripes: bool) -> str:
    return f"{'stripe ' + str(row['stripe']) + ', ' if has_stripes else ''}formation {row['formation']}"


def volume_section(rows: Rows, busy: Rows, period: int) -> Section:
    """How much was traded, and where."""
    total = sum(row["trades"] for row in rows)
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["venue"] or NAMELESS] += row["trades"]
    shown = [venue for venue, _ in totals.most_common(LINES_MAX)]
    left_out = f" Of {len(totals):,} venues the {len(shown)} busiest are drawn." if len(totals) > len(shown) else ""
    lines = [PlotLine(venue, _rates(rows, venue, period)) for venue in sorted(shown)]
    venues = "1 venue" if len(totals) == 1 else f"{len(totals):,} venues"
    return Section(
        title="Volume",
        verdict=PageVerdict.NEITHER,
        finding=f"{total:,} trades of {venues} are in the tape.",
        told=(f"Lines are trades per second of each venue.{left_out} Bars are the symbols that traded most.",),
        plots=[LinePlot(lines=lines), BarPlot(bars=[(row["symbol"], row["trades"]) for row in busy])],
    )


def _rates(rows: Rows, venue: str, period: int) -> list[tuple[float, float]]:
    """Trades per second of a venue in every period, those among them in which it had none."""
    trades = {row["period_at_ns"]: row["trades"] for row in rows if (row["venue"] or NAMELESS) == venue}
    first, last = (choose(row["period_at_ns"] for row in rows) for choose in (min, max))
    return [(at, trades.get(at, 0) * SECOND / period) for at in range(first, last + 1, period)]


def bars_section(rows: Rows, symbol: str, period: int) -> Section:
    """What the price of the busiest symbol did."""
    candles = [
        Candle(row["period_at_ns"], *(row[name] / ONE for name in ("open", "high", "low", "close"))) for row in rows
    ]
    table = HtmlTable(
        ("period (UTC)", "open", "high", "low", "close", "volume", "trades"),
        [
            (
                format_instant(row["period_at_ns"]),
                *(f"{row[name] / ONE:,.4f}" for name in ("open", "high", "low", "close")),
                f"{int(row['volume']) / ONE:,.4f}",
                f"{row['trades']:,}",
            )
            for row in rows
        ],
    )
    return Section(
        title="Bars",
        verdict=PageVerdict.NEITHER,
        finding=f"{symbol}, the busiest symbol, in periods of {format_duration(period)}.",
        told=(
            (
                "Each candle is a period: from open to close, with the highest and the lowest price. Trades are taken "
                "when they were made; cancelled ones are left out, corrected ones are as they really were."
            ),
        ),
        plots=[CandlePlot(candles=candles, period=period)],
        table=table,
    )


def completeness_section(rows: Rows, names: Names) -> Section:
    """Whether everything is there."""
    missing, repeated = sum(row["missing"] for row in rows), sum(row["repeated"] for row in rows)
    total = sum(row["messages"] for row in rows)
    good = not missing and not repeated
    journals = "1 journal" if len(rows) == 1 else f"{len(rows):,} journals"
    finding = f"Every number is there exactly once, in {journals} with {total:,} deliveries in all."
    if not good:
        finding = f"{missing:,} numbers are missing and {repeated:,} stand twice."
    return Section(
        title="Completeness",
        verdict=_verdict(good),
        finding=finding,
        told=(
            (
                "Counted from the first to the last number of each journal. A hole would be seen here, whatever it "
                "hid. A journal that ends earlier than the others is of a site that failed or left."
            ),
        ),
        table=HtmlTable(
            ("stripe", "site", "first", "last", "messages", "missing", "repeated"),
            [
                (
                    f"{row['stripe']}",
                    names.site(row["site"]),
                    *(f"{row[name]:,}" for name in ("first", "last", "messages", "missing", "repeated")),
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
        verdict=PageVerdict.NEITHER,
        finding=f"Not told: there is no table {' or '.join(tables)} with rows here.",
    )


def _share(value: float | None) -> str:
    return "–" if value is None else format_share(value)


def _marks(changes: Rows) -> list[tuple[float, str]]:
    has_stripes = _has_stripes(changes)
    return [(row["first_at_ns"], _formation(row, has_stripes)) for row in changes if row["silence_ns"] is not None]


def _told_marks(changes: Rows) -> tuple[str, ...]:
    return ("Dashed upright lines are changes of formation.",) if _marks(changes) else ()


def _by_site(rows: Rows, value: Callable[[Mapping[str, Any]], float], names: Names) -> list[PlotLine]:
    """A line for each site; of more than can be told apart, for those that rise highest."""
    sites: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        sites.setdefault(row["site"], []).append((row["period_at_ns"], value(row)))
    highest = sorted(sites, key=lambda site: max(y for _, y in sites[site]), reverse=True)[:LINES_MAX]
    return [PlotLine(names.site(site), sites[site]) for site in sorted(highest)]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


# The section of a report about the links between sites: what they lose, and how long they take.

TITLE: Final = "Links between sites"
BARS_MAX: Final = 12  # of the plot: the slowest; the table has all
DELAYS: Final = ("p50", "p99", "most")


def links_section(links: Rows, sources: Rows, retries: Rows, names: Names) -> Section:
    """From the traces of sites."""
    tokens = sum(row["tokens"] for row in links)
    gone = sum(row["lost"] + row["absent"] for row in links)
    messages, missing = (sum(row[name] for row in sources) for name in ("messages", "missing"))
    unasked = sum(row["tokens"] for row in retries if row["requests"] == 0)
    timed = sorted((row for row in links if row["count"]), key=lambda row: -row["p50"])
    return Section(
        title=TITLE,
        verdict=PageVerdict.NEITHER,
        finding=f"{format_share(gone / max(tokens, 1))} of the acknowledgments between sites had to be asked for "
        f"because they were lost, and {format_share(missing / max(messages, 1))} of the messages of sources; "
        f"{format_share(unasked / max(tokens, 1))} of the tokens needed no request at all.",
        told=(
            (
                "Each bar is the median delay of one way between two sites, the slowest ones first. It is measured "
                "with the clocks of both, on acknowledgments that came by themselves. Ring order and timing are "
                "planned from these figures."
            ),
            (
                "An acknowledgment that was asked for, and of which the first copy came after all, was late and not "
                "lost. One that never came was that of a site that had failed, as a rule."
            ),
        ),
        plots=[
            BarPlot(
                bars=[(_way(row, names), float(row["p50"])) for row in timed[:BARS_MAX]],
                format_value=format_duration,
            )
        ],
        table=HtmlTable(
            ("way", "stripe", "acknowledgments", "lost", "late", "never came", *DELAYS),
            [
                (
                    _way(row, names),
                    f"{row['stripe']}",
                    *(f"{row[name]:,}" for name in ("tokens", "lost", "late", "absent")),
                    *("" if row[name] is None else format_duration(row[name]) for name in DELAYS),
                )
                for row in links
            ],
        ),
    )


def _way(row: Mapping[str, Any], names: Names) -> str:
    return f"{names.site(row['from_site'])} → {names.site(row['to_site'])}"
