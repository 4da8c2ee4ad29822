"""The sections of a report. Each takes small tables and states a finding, a verdict and how to read its plot.

A verdict follows from a rule that is written here. A section has *failed* only where a guarantee was broken: the order
differs, a number is missing or repeated, a release was early, or it was late and not marked. It needs *attention* where
the operator should act. Everything else is as guaranteed, or is information.
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
    LogBarPlot,
    PlotLine,
    format_duration,
    format_instant,
    format_share,
)

FAIRNESS: Final = "Fairness"
ORDER: Final = "One order"
COMPLETENESS: Final = "Completeness"
FAILOVER: Final = "Failover"
LATE: Final = "Late releases"
LATENCY: Final = "Latency by source"
CLOCKS: Final = "Clock bounds"
SPREAD: Final = "Spread over time"
METRICS: Final = "Fairness metrics"
LINKS: Final = "Links between sites"
VOLUME: Final = "Volume"
BARS: Final = "Bars"

SPREAD_MAX: Final = 5 * MILLISECOND  # p99: above it a fast customer near one site gains from it
LATE_MAX: Final = 0.001  # of deliveries, without those that waited for a new formation
CLOCK_MAX: Final = 100 * MICROSECOND  # MiFID II, RTS 25, for high-frequency trading
CHANGES_SHOWN_MAX: Final = 20
LINKS_SHOWN_MAX: Final = 12  # of the plot: the slowest; the table has all
ALONE: Final = "Only one site's journal is here, so releases cannot be compared."
NAMELESS: Final = "(no name)"
PARTS: Final = ("p10", "p50", "p90", "p95", "p99", "p999", "p9999")
DELAYS: Final = ("p50", "p99", "most")
DELIVERIES: Final = {
    "fairtape": "fairtape",
    "direct": "direct delivery",
    "late": "fairtape, marked late",
}
"""What the rows of `delivery_spreads` are called in a page."""

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of sites and sources. Tables have numbers only; a number without a name is shown as it is."""

    sites: Mapping[int, str] = field(default_factory=dict)
    sources: Mapping[int, str] = field(default_factory=dict)

    def site(self, number: int) -> str:
        """A site for a reader."""
        return self.sites.get(number, f"site {number}")

    def source(self, number: int) -> str:
        """A source for a reader."""
        return self.sources.get(number, f"source {number}")


def missing_section(title: str, tables: Sequence[str]) -> Section:
    """A section without its tables."""
    return Section(
        title=title,
        verdict=PageVerdict.NEUTRAL,
        finding=f"Unknown: the table {' or '.join(tables)} is missing or empty.",
    )


def fairness_section(spreads: Rows, clocks: Rows) -> Section:
    """The spread of releases beside the spread of direct delivery over the same links, in the same run."""
    found = {row["delivery"]: row for row in spreads}
    ours, direct, late = (found.get(name) for name in DELIVERIES)
    if ours is None:
        return Section(title=FAIRNESS, verdict=PageVerdict.NEUTRAL, finding=ALONE)
    shown = [row for row in (ours, direct) if row is not None]
    good = ours["p99"] <= SPREAD_MAX or (direct is not None and ours["p99"] < direct["p50"])
    return Section(
        title=FAIRNESS,
        verdict=PageVerdict.GOOD if good else PageVerdict.ATTENTION,
        finding=f"Sites released a message within {format_duration(ours['p50'])} of one another at the median, and "
        f"within {format_duration(ours['p99'])} for 99 in 100 messages. {_direct_finding(ours, direct)}",
        explanation=(
            (
                "The spread of a message is the time from the first site that has it to the last one. During that time "
                "a customer near the first site could act on news that others do not have. The scale is logarithmic: "
                "each line is ten times the one before."
            ),
            *_direct_explanation(direct),
            *_clock_explanation(ours, clocks),
            *_late_explanation(late),
        ),
        plots=[
            LogBarPlot(
                bars=[
                    (f"{DELIVERIES[row['delivery']]}, {part}", row[part], number)
                    for number, row in enumerate(shown)
                    for part in ("p50", "p99")
                ],
                format_value=format_duration,
            )
        ],
        table=HtmlTable(
            ("delivery", "messages", "p50", "p90", "p99", "max"),
            [
                (
                    DELIVERIES[row["delivery"]],
                    f"{row['count']:,}",
                    *(format_duration(row[name]) for name in ("p50", "p90", "p99", "most")),
                )
                for row in (ours, direct, late)
                if row is not None
            ],
        ),
        is_open=True,
    )


def _direct_finding(ours: Row, direct: Row | None) -> str:
    if direct is None:
        return "Direct delivery cannot be compared: there are no traces."
    compared = f"Direct delivery over the same links has a spread of {format_duration(direct['p50'])} at the median"
    if ours["p50"] > 0 and (times := direct["p50"] / ours["p50"]) >= 2:
        return f"{compared}, {times:,.0f} times as much."
    return f"{compared}."


def _direct_explanation(direct: Row | None) -> tuple[str, ...]:
    if direct is None:
        return (
            (
                "The spread of direct delivery is measured from the traces of sites, and these tables have none. Sites "
                "write traces unless trace_mib is 0 in the deployment file."
            ),
        )
    return (
        (
            "Direct delivery is measured in the same run, on the acknowledgments of the same tokens: one site sends "
            "each to all others at once, over the same links. Its spread is the time from the sending to the last "
            "arrival. Acknowledgments that were lost and sent again are left out, which favours direct delivery."
        ),
    )


def _clock_explanation(ours: Row, clocks: Rows) -> tuple[str, ...]:
    """How well the spread itself is known."""
    bound = max((row["bound_max_ns"] or 0 for row in clocks), default=0)
    if not bound:
        return ()
    return (
        (
            f"The spread is {format_duration(ours['p50'])}; the clocks of these sites are known to "
            f"{format_duration(bound)}. Sites on one machine read one clock, and its bound is small."
        ),
    )


def _late_explanation(late: Row | None) -> tuple[str, ...]:
    if late is None:
        return ()
    return (
        (
            f"{late['count']:,} messages that a site released late are not in the comparison. They are marked as late, "
            f"and customers see the mark; the table has their spread, and the section {LATE} says why."
        ),
    )


def order_section(rows: Rows) -> Section:
    """Whether all sites hold the same content under the same numbers."""
    compared, different = (sum(row[name] for row in rows) for name in ("compared_tokens", "different_tokens"))
    messages = sum(row["messages"] for row in rows)
    sites = max((row["sites"] for row in rows), default=0)
    if not compared:
        return Section(title=ORDER, verdict=PageVerdict.NEUTRAL, finding=ALONE)
    finding = (
        f"All {sites} sites hold one sequence: {messages:,} messages in {compared:,} tokens, each with the same number "
        "and the same content at every site that holds it."
    )
    if different:
        first = next(row for row in rows if row["different_tokens"])
        finding = (
            f"Sites hold different sequences: {different:,} of {compared:,} tokens differ, the first is token "
            f"{first['first_different_token']:,} of stripe {first['stripe']}."
        )
    return Section(
        title=ORDER,
        verdict=PageVerdict.FAILED if different else PageVerdict.GOOD,
        finding=finding,
        explanation=(
            (
                "Number, source and content of every message were compared between all sites that hold its token. "
                "fairtape pipeline reconcile proves the same from the hash chains of the journals, and names site, "
                "token and byte of a difference."
            ),
        ),
        table=HtmlTable(
            ("stripe", "sites", "messages", "tokens compared", "tokens that differ"),
            [
                tuple(
                    f"{row[name]:,}" for name in ("stripe", "sites", "messages", "compared_tokens", "different_tokens")
                )
                for row in rows
            ],
        ),
    )


def completeness_section(rows: Rows, names: Names) -> Section:
    """Whether every number is there exactly once."""
    missing, repeated = sum(row["missing"] for row in rows), sum(row["repeated"] for row in rows)
    total = sum(row["messages"] for row in rows)
    good = not missing and not repeated
    journals = "1 journal" if len(rows) == 1 else f"{len(rows):,} journals"
    finding = f"Every number is there exactly once, in {journals} with {total:,} deliveries in all."
    if not good:
        finding = f"{missing:,} numbers are missing and {repeated:,} are repeated."
    return Section(
        title=COMPLETENESS,
        verdict=PageVerdict.GOOD if good else PageVerdict.FAILED,
        finding=finding,
        explanation=(
            (
                "Counted from the first to the last number of each journal. A journal that ends earlier than the "
                "others belongs to a site that failed or left."
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


def failover_section(rows: Rows, formations: Rows, completeness: Rows, names: Names) -> Section:
    """How long the order paused at each change of formation, and whether a number was lost.

    The first formation is the start, and not a change.
    """
    changes = [row for row in rows if row["silence_ns"] is not None]
    worst = max((row["silence_ns"] for row in changes), default=0)
    broken = sum(bool(row["broken"]) for row in rows)
    missing = sum(row["missing"] for row in completeness)
    who = _rings({row["stripe"] for row in changes}) if _has_stripes(rows) else "The ring was"
    finding = f"{who} reformed {_times(len(changes))}; the longest pause was {format_duration(worst)}."
    if not changes:
        finding = "No formation changed, so the order never paused."
    elif completeness:
        finding += f" {missing:,} numbers are missing." if missing else " No message was lost."
    if broken:
        finding += (
            f" {_times(broken).capitalize()} too many sites had failed, and the order went on without them (Break): "
            "compare their journals before they return."
        )
    titles = _change_titles(formations, names)
    bars = [
        (
            f"{format_instant(row['first_at_ns'] or 0)} {titles.get((row['stripe'], row['formation']), '')}".strip(),
            row["silence_ns"],
        )
        for row in changes[:CHANGES_SHOWN_MAX]
    ]
    verdict = PageVerdict.ATTENTION if broken else PageVerdict.GOOD
    return Section(
        title=FAILOVER,
        verdict=PageVerdict.FAILED if changes and missing else verdict,
        finding=finding,
        explanation=(
            (
                "Each bar is a change of formation: a site failed, left or came back, or the stripe plan changed. It "
                "is the time from the last token before the change to the first one after it. A planned change pauses "
                "nothing. A failed site costs the time that the others need to be sure of it and to agree, which is "
                "longer where they are far apart. Messages wait for the next token meanwhile."
            ),
        ),
        plots=[BarPlot(bars=bars, format_value=format_duration)] if changes else (),
    )


def _change_titles(formations: Rows, names: Names) -> dict[tuple[int, int], str]:
    """For each formation of a stripe: the sites that it lacks, and those that it adds, beside the one before it."""
    found: dict[tuple[int, int], str] = {}
    before: dict[int, set[int] | None] = {}
    has_stripes = _has_stripes(formations)
    for row in formations:
        members = None if row["members"] is None else set(row["members"])
        parts = [_formation(row, has_stripes)]
        last = before.get(row["stripe"])
        if last is not None and members is not None:
            parts += [f"without {names.site(site)}" for site in sorted(last - members)]
            parts += [f"with {names.site(site)}" for site in sorted(members - last)]
        found[row["stripe"], row["formation"]] = ", ".join(parts)
        before[row["stripe"]] = members
    return found


def _rings(stripes: set[int]) -> str:
    """Each stripe has a ring of its own."""
    return (
        f"The ring of stripe {min(stripes)} was" if len(stripes) == 1 else f"The rings of {len(stripes)} stripes were"
    )


def late_section(checks: Row, rows: Rows, changes: Rows, period: int, names: Names) -> Section:
    """Which releases were late or early, and whether the late ones are marked."""
    total, late, waited, early, unmarked = (
        checks[name] or 0 for name in ("deliveries", "late", "late_in_failover", "early", "unmarked_late")
    )
    share = late / total if total else 0.0
    finding = f"{late:,} of {total:,} deliveries were late ({format_share(share)})"
    finding += ", and each is marked." if late and not unmarked else "."
    if waited:
        finding += f" {'All' if waited == late else f'{waited:,}'} of them waited for the ring to be reformed."
    finding += f" {early:,} deliveries were early." if early else " No release was early."
    if unmarked:
        finding += f" {unmarked:,} deliveries were late and are not marked."
    verdict = PageVerdict.GOOD
    if total and (late - waited) / total > LATE_MAX:
        verdict = PageVerdict.ATTENTION
        finding += " Releases that are late by milliseconds need more processor time, others a longer commit delay."
    return Section(
        title=LATE,
        verdict=PageVerdict.FAILED if early or unmarked else verdict,
        finding=finding,
        explanation=(
            (
                "A delivery is late when its commit instant had passed before the site could release it, and is then "
                "marked as late for everyone who receives it. Each line is a site. The operator should act where more "
                f"than {format_share(LATE_MAX)} are late without a change of formation."
            ),
            *_event_explanation(changes),
        ),
        plots=[
            LinePlot(
                lines=_by_site(rows, lambda row: row["late"] / row["messages"] if row["messages"] else 0.0, names),
                format_y=format_share,
                period=period,
                events=_events(changes),
            )
        ],
    )


def latency_section(rows: Rows, names: Names) -> Section:
    """How long messages took from entry to release.

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
        title=LATENCY,
        verdict=PageVerdict.NEUTRAL,
        finding=f"At every site, at least half of the messages of each source were released within "
        f"{format_duration(max(most.values(), default=0))} of their entry. Between sources this time differs by up to "
        f"{format_duration(max(most.values(), default=0) - min(most.values(), default=0))}, and for one source between "
        f"sites by up to {format_duration(apart)}.",
        explanation=(
            (
                "Each bar is a source: the median time from the entry of a message to its release, at the site where "
                "that median is longest. It is long by design: a message is released when the slowest site has it. "
                "Bars of equal length mean that no source is served faster."
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


def clock_section(rows: Rows, clocks: Rows, period: int, names: Names) -> Section:
    """How accurate clocks were, as sites declared it, and whether their steps agree with that."""
    worst = max((row["bound_max_ns"] for row in rows), default=0)
    violated = [row for row in clocks if _violates_bound(row)]
    bounds = ("bound_min_ns", "bound_p50_ns", "bound_max_ns")
    return Section(
        title=CLOCKS,
        verdict=PageVerdict.ATTENTION if worst > CLOCK_MAX or violated else PageVerdict.GOOD,
        finding=f"Sites declared that no clock was further than {format_duration(worst)} from the common time. "
        f"{_steps_finding(clocks, names)}",
        explanation=(
            (
                "Each line is a site: the error bound of its clock, as the site declared it. MiFID II (RTS 25) asks "
                f"for {format_duration(CLOCK_MAX)} from high-frequency traders. Two events closer together than the "
                "bound are ordered by their numbers, not by time."
            ),
            (
                "A clock stepped back where a release has an earlier time than the one before it at that site. A clock "
                "within its bound can step back by at most twice the bound; a larger step shows that the declared "
                "bound was wrong."
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


def _violates_bound(clock: Row) -> bool:
    """Whether a clock stepped back by more than twice its bound."""
    return bool((clock["step_max_ns"] or 0) > 2 * (clock["bound_max_ns"] or 0))


def _steps_finding(clocks: Rows, names: Names) -> str:
    steps = sum(row["steps_back"] for row in clocks)
    if not steps:
        return "No clock stepped back."
    most = max(row["step_max_ns"] or 0 for row in clocks)
    text = f"Clocks stepped back {_times(steps)}, by up to {format_duration(most)}"
    violated = sorted({row["site"] for row in clocks if _violates_bound(row)})
    if not violated:
        return f"{text}, which is within the bounds."
    return f"{text}: the bound of {_listed([names.site(site) for site in violated])} was wrong. Check its time service."


def spread_section(whole: Rows, rows: Rows, changes: Rows, period: int) -> Section:
    """The spread of releases over time."""
    if not whole or not rows:
        return Section(title=SPREAD, verdict=PageVerdict.NEUTRAL, finding=ALONE)
    p50, p99, worst = (whole[0][name] for name in ("p50_ns", "p99_ns", "max_ns"))
    lines = [
        PlotLine(name, [(row["period_at_ns"], row[column]) for row in rows])
        for column, name in (("max_ns", "max"), ("p99_ns", "p99"), ("p50_ns", "p50"))
    ]
    return Section(
        title=SPREAD,
        verdict=PageVerdict.NEUTRAL,
        finding=f"99 in 100 tokens were released everywhere within {format_duration(p99)}, half of them within "
        f"{format_duration(p50)}; the widest spread was {format_duration(worst)}.",
        explanation=(
            (
                "The spread of a token is the time from the first site that released it to the last one. A peak is a "
                "moment in which customers of one site had the news before others. Tokens that a site released late, "
                "and marked so, are not in this plot."
            ),
            *_event_explanation(changes),
        ),
        plots=[LinePlot(lines=lines, format_y=format_duration, period=period, events=_events(changes))],
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


def metrics_section(rows: Rows) -> Section:
    """The fairness metrics of the literature, by their standard names."""
    shared, together = (sum(row[name] for row in rows) for name in ("shared_messages", "window_0_messages"))
    if not shared:
        return Section(title=METRICS, verdict=PageVerdict.NEUTRAL, finding=ALONE, table=_metrics_table(rows))
    alone = sum(row["messages"] for row in rows) - shared
    left_out = f" {alone:,} more are in the journal of one site only, and are not compared." if alone else ""
    return Section(
        title=METRICS,
        verdict=PageVerdict.NEUTRAL,
        finding=f"For {together:,} of {shared:,} messages that several sites released "
        f"({format_share(together / shared)}) the spread is within the error of the clocks: delivery window 0."
        f"{left_out}",
        explanation=(
            (
                "The delivery window is what remains of the spread when every clock errs by its bound. Published "
                "systems within one data centre reach a window of 0 for 86 to 92 % of messages. Where all sites run on "
                "one machine they read one clock with a bound near 0, so the window is nearly the spread itself."
            ),
            (
                "The late fraction is the share of deliveries that were late. Outbound unfairness is the share of "
                "messages that some site released late. Inbound unfairness is the share of messages that are in the "
                "order after a message that was entered later."
            ),
            (
                "Pairwise fairness is the share of pairs of messages, entered by two sources one directly after the "
                "other, that kept this order. Within a token the messages of a source stay together, so messages "
                "entered less than a token apart come in either order. Portal equity is the number of messages that "
                "entered at the least used site, divided by that of the most used one."
                + (" Bars are over all stripes; portal equity is weighted by their messages." if len(rows) > 1 else "")
            ),
        ),
        plots=[BarPlot(bars=_metrics_bars(rows, together / shared), format_value=format_share)],
        table=_metrics_table(rows),
        is_open=True,
    )


def _metrics_bars(rows: Rows, together: float) -> list[tuple[str, float]]:
    """Over all stripes: counts are summed before they are divided."""
    bars = [("delivery window 0", together)]
    if pairs := sum(row["pairs"] for row in rows):
        bars.append(("pairwise fairness", sum(row["pairs_in_order"] for row in rows) / pairs))
    used = [row for row in rows if row["portal_equity"] is not None]
    if messages := sum(row["messages"] for row in used):
        equity = sum(row["portal_equity"] * row["messages"] for row in used) / messages
        bars.append(("portal equity", equity))
    return bars


def _metrics_table(rows: Rows) -> HtmlTable:
    columns = {
        "window_0_share": "window 0",
        "late_fraction": "late fraction",
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


def links_section(links: Rows, sources: Rows, retries: Rows, names: Names) -> Section:
    """Loss and delay of the links between sites, from the traces of sites."""
    tokens = sum(row["tokens"] for row in links)
    gone = sum(row["lost"] + row["absent"] for row in links)
    messages, missing = (sum(row[name] for row in sources) for name in ("messages", "missing"))
    unasked = sum(row["tokens"] for row in retries if row["requests"] == 0)
    timed = sorted((row for row in links if row["count"]), key=lambda row: -row["p50"])
    return Section(
        title=LINKS,
        verdict=PageVerdict.NEUTRAL,
        finding=f"{format_share(gone / max(tokens, 1))} of the acknowledgments between sites were lost and sent again "
        f"on request, and {format_share(missing / max(messages, 1))} of the messages of sources; "
        f"{format_share(unasked / max(tokens, 1))} of the tokens needed no request.",
        explanation=(
            (
                "Each bar is the median one-way delay of a link between two sites, the slowest first. It is measured "
                "with the clocks of both, on acknowledgments that came without a request. Ring order and timing are "
                "planned from these delays."
            ),
            (
                "An acknowledgment that was requested, and whose first copy came after all, was late and not lost. One "
                "that never came is usually that of a site that had failed."
            ),
        ),
        plots=[
            BarPlot(
                bars=[(_link(row, names), float(row["p50"])) for row in timed[:LINKS_SHOWN_MAX]],
                format_value=format_duration,
            )
        ],
        table=HtmlTable(
            ("link", "stripe", "acknowledgments", "lost", "late", "never came", *DELAYS),
            [
                (
                    _link(row, names),
                    f"{row['stripe']}",
                    *(f"{row[name]:,}" for name in ("tokens", "lost", "late", "absent")),
                    *("" if row[name] is None else format_duration(row[name]) for name in DELAYS),
                )
                for row in links
            ],
        ),
    )


def _link(row: Row, names: Names) -> str:
    return f"{names.site(row['from_site'])} → {names.site(row['to_site'])}"


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
        title=VOLUME,
        verdict=PageVerdict.NEUTRAL,
        finding=f"{total:,} trades of {venues} are in the tape.",
        explanation=(f"Lines are trades per second of each venue.{left_out} Bars are the symbols that traded most.",),
        plots=[LinePlot(lines=lines), BarPlot(bars=[(row["symbol"], row["trades"]) for row in busy])],
    )


def _rates(rows: Rows, venue: str, period: int) -> list[tuple[float, float]]:
    """Trades per second of a venue in every period, also in those without any."""
    trades = {row["period_at_ns"]: row["trades"] for row in rows if (row["venue"] or NAMELESS) == venue}
    first, last = (choose(row["period_at_ns"] for row in rows) for choose in (min, max))
    return [(at, trades.get(at, 0) * SECOND / period) for at in range(first, last + 1, period)]


def bars_section(rows: Rows, symbol: str, period: int) -> Section:
    """The prices of the busiest symbol."""
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
        title=BARS,
        verdict=PageVerdict.NEUTRAL,
        finding=f"{symbol}, the busiest symbol, in periods of {format_duration(period)}.",
        explanation=(
            (
                "Each candle is a period: from open to close, with the highest and the lowest price. Trades count at "
                "the time at which they were made; cancelled trades are left out, corrected ones are as corrected."
            ),
        ),
        plots=[CandlePlot(candles=candles, period=period)],
        table=table,
    )


def _share(value: float | None) -> str:
    return "–" if value is None else format_share(value)


def _events(changes: Rows) -> list[tuple[float, str]]:
    """Changes of formation, as vertical lines of a plot."""
    has_stripes = _has_stripes(changes)
    return [(row["first_at_ns"], _formation(row, has_stripes)) for row in changes if row["silence_ns"] is not None]


def _event_explanation(changes: Rows) -> tuple[str, ...]:
    return ("Dashed vertical lines are changes of formation.",) if _events(changes) else ()


def _has_stripes(rows: Rows) -> bool:
    """Whether the rows belong to several stripes, so that each must name its own."""
    return len({row["stripe"] for row in rows}) > 1


def _formation(row: Row, has_stripes: bool) -> str:
    return f"{'stripe ' + str(row['stripe']) + ', ' if has_stripes else ''}formation {row['formation']}"


def _by_site(rows: Rows, value: Callable[[Row], float], names: Names) -> list[PlotLine]:
    """A line for each site; where there are too many, for those with the highest values."""
    sites: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        sites.setdefault(row["site"], []).append((row["period_at_ns"], value(row)))
    highest = sorted(sites, key=lambda site: max(y for _, y in sites[site]), reverse=True)[:LINES_MAX]
    return [PlotLine(names.site(site), sites[site]) for site in sorted(highest)]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
