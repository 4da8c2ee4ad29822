"""Sections of a report: findings, verdicts, and results over several stripes."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.pipeline.report.html_page import PageVerdict
from fairtape.pipeline.report.plots import BarPlot, LinePlot, LogBarPlot
from fairtape.pipeline.report.sections import (
    PARTS,
    Names,
    clock_section,
    completeness_section,
    failover_section,
    fairness_section,
    late_section,
    latency_section,
    metrics_section,
    order_section,
    spread_section,
)

Row = dict[str, Any]


def spread(delivery: str, p50: int, p99: int) -> Row:
    return {"delivery": delivery, "count": 900, "p50": p50, "p90": p99, "p99": p99, "most": p99}


def test_the_spread_of_releases_stands_beside_that_of_direct_delivery() -> None:
    rows = [spread("direct", 140 * MILLISECOND, 170 * MILLISECOND), spread("fairtape", 700 * MICROSECOND, MILLISECOND)]
    section = fairness_section(rows, [clock(0, 1, 3 * MICROSECOND, 0, 0)])
    assert section.verdict is PageVerdict.GOOD
    assert section.finding == (
        "Sites released a message within 700 µs of one another at the median, and within 1 ms for 99 in 100 messages. "
        "Direct delivery over the same links has a spread of 140 ms at the median, 200 times as much."
    )
    assert "The spread is 700 µs; the clocks of these sites are known to 3 µs." in " ".join(section.explanation)
    (plot,) = section.plots
    assert isinstance(plot, LogBarPlot)
    assert [(name, colour) for name, _, colour in plot.bars] == [
        ("fairtape, p50", 0), ("fairtape, p99", 0), ("direct delivery, p50", 1), ("direct delivery, p99", 1),
    ]  # fmt: skip


def test_without_traces_the_comparison_says_that_they_are_missing() -> None:
    section = fairness_section([spread("fairtape", 700 * MICROSECOND, MILLISECOND)], [])
    assert section.verdict is PageVerdict.GOOD
    assert section.finding.endswith("Direct delivery cannot be compared: there are no traces.")
    assert any("trace_mib" in each for each in section.explanation)


@pytest.mark.parametrize(
    ("direct", "verdict"), [(140 * MILLISECOND, PageVerdict.GOOD), (20 * MILLISECOND, PageVerdict.ATTENTION)]
)
def test_a_wide_spread_needs_attention_unless_direct_delivery_is_wider(direct: int, verdict: PageVerdict) -> None:
    rows = [spread("direct", direct, 170 * MILLISECOND), spread("fairtape", MILLISECOND, 30 * MILLISECOND)]
    assert fairness_section(rows, []).verdict is verdict


def order(stripe: int, compared: int, different: int) -> Row:
    first = 7 if different else None
    return {"stripe": stripe, "sites": 3, "messages": 90, "compared_tokens": compared, "different_tokens": different,
            "first_different_token": first}  # fmt: skip


def test_another_order_at_some_site_is_a_broken_guarantee() -> None:
    good, bad = order_section([order(0, 9, 0), order(1, 9, 0)]), order_section([order(0, 9, 0), order(1, 9, 2)])
    assert (good.verdict, bad.verdict) == (PageVerdict.GOOD, PageVerdict.FAILED)
    assert good.finding.startswith("All 3 sites hold one sequence: 180 messages in 18 tokens")
    assert bad.finding.endswith("2 of 18 tokens differ, the first is token 7 of stripe 1.")
    assert order_section([order(0, 0, 0)]).verdict is PageVerdict.NEUTRAL


def complete(missing: int, repeated: int) -> Row:
    return {"stripe": 0, "site": 1, "first": 1, "last": 9, "messages": 9, "missing": missing, "repeated": repeated}


@pytest.mark.parametrize("counts", [(1, 0), (0, 1)])
def test_a_gap_and_a_duplicate_are_broken_guarantees(counts: tuple[int, int]) -> None:
    assert completeness_section([complete(0, 0)], Names()).verdict is PageVerdict.GOOD
    assert completeness_section([complete(*counts)], Names()).verdict is PageVerdict.FAILED


@pytest.mark.parametrize(
    ("late", "waited", "early", "unmarked", "verdict", "sentence"),
    [
        (0, 0, 0, 0, PageVerdict.GOOD, "0 of 1,000 deliveries were late (0 %). No release was early."),
        (50, 50, 0, 0, PageVerdict.GOOD, "each is marked. All of them waited for the ring to be reformed."),
        (50, 40, 0, 0, PageVerdict.ATTENTION, "need more processor time, others a longer commit delay."),
        (0, 0, 9, 0, PageVerdict.FAILED, "9 deliveries were early."),
        (0, 0, 0, 3, PageVerdict.FAILED, "3 deliveries were late and are not marked."),
    ],
)
def test_late_releases_are_a_failure_only_where_they_are_not_marked(
    late: int, waited: int, early: int, unmarked: int, verdict: PageVerdict, sentence: str
) -> None:
    checks = {"deliveries": 1_000, "late": late, "late_in_failover": waited, "early": early, "unmarked_late": unmarked}
    section = late_section(checks, [], [], SECOND, Names())
    assert section.verdict is verdict
    assert sentence in section.finding


def fairness(stripe: int, messages: int, shared: int, together: int, pairs: int, kept: int, equity: float) -> Row:
    unknown = dict.fromkeys(("late_fraction", "outbound_unfairness", "inbound_unfairness"))
    return {
        "stripe": stripe, "sites": 3, "messages": messages, "shared_messages": shared, "window_0_messages": together,
        "window_0_share": together / shared if shared else None, "pairs": pairs, "pairs_in_order": kept,
        "pairwise_fairness": kept / pairs if pairs else None, "portal_equity": equity, **unknown,
    }  # fmt: skip


def bars(plot: object) -> Mapping[str, float]:
    assert isinstance(plot, BarPlot)
    return dict(plot.bars)


def test_the_finding_of_metrics_is_their_first_bar_whatever_the_sizes_of_stripes() -> None:
    rows = [fairness(0, 1_000, 900, 900, 90, 90, 1.0), fairness(1, 3_000, 100, 0, 10, 0, 0.5)]
    section = metrics_section(rows)
    assert section.finding.startswith("For 900 of 1,000 messages that several sites released (90 %)")
    assert "3,000 more are in the journal of one site only" in section.finding
    assert list(bars(section.plots[0]).values()) == [0.9, 0.9, 0.625]
    assert section.table is not None
    assert section.table.rows[0][:5] == ("0", "3", "1,000", "900", "100 %")


def test_few_messages_of_many_are_shown_without_powers_of_ten() -> None:
    section = metrics_section([fairness(0, 223_307, 223_307, 16, 0, 0, 1.0)])
    assert section.finding.startswith("For 16 of 223,307 messages that several sites released (0.00717 %)")
    assert list(bars(section.plots[0])) == ["delivery window 0", "portal equity"]


def test_releases_of_one_site_alone_get_no_verdict() -> None:
    section = metrics_section([fairness(0, 10, 0, 0, 0, 0, 1.0)])
    assert (section.verdict, section.plots) == (PageVerdict.NEUTRAL, ())
    assert section.finding == spread_section([], [], [], SECOND).finding == fairness_section([], []).finding


def latency(stripe: int, source: int, site: int, p50: int) -> Row:
    return {"stripe": stripe, "source": source, "site": site, "count": 9, **dict.fromkeys(PARTS, p50)}


def test_half_of_the_messages_came_within_the_longest_median_at_every_site() -> None:
    rows = [latency(0, 101, 1, 5 * MILLISECOND), latency(0, 101, 2, 9 * MILLISECOND), latency(0, 102, 1, MILLISECOND)]
    section = latency_section([*rows, latency(4, 102, 1, 7 * MILLISECOND)], Names())
    assert bars(section.plots[0]) == {"source 101": 9 * MILLISECOND, "source 102": 7 * MILLISECOND}
    assert "At every site, at least half of the messages of each source were released within 9 ms" in section.finding
    assert "differs by up to 2 ms, and for one source between sites by up to 4 ms" in section.finding
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == ["0", "0", "0", "4"]


def clock(stripe: int, site: int, bound: int, steps: int, step: int) -> Row:
    bounds = dict.fromkeys(("bound_min_ns", "bound_p50_ns", "bound_max_ns"), bound)
    return {"stripe": stripe, "site": site, "releases": 9, "steps_back": steps, "step_max_ns": step, **bounds}


@pytest.mark.parametrize(
    ("step", "verdict", "sentence"),
    [
        (0, PageVerdict.GOOD, "No clock stepped back."),
        (10, PageVerdict.GOOD, "Clocks stepped back 29 times, by up to 10 µs, which is within the bounds."),
        (
            11,
            PageVerdict.ATTENTION,
            "Clocks stepped back 29 times, by up to 11 µs: the bound of Tokyo was wrong. Check its time service.",
        ),
    ],
)
def test_a_step_back_is_compared_with_the_declared_bound(step: int, verdict: PageVerdict, sentence: str) -> None:
    bound = 5 * MICROSECOND
    log = [{"period_at_ns": SECOND, "site": site, "bound_max_ns": bound} for site in (1, 3)]
    clocks = [clock(0, 1, bound, 0, 0), clock(1, 3, bound, 29 if step else 0, step * MICROSECOND)]
    section = clock_section(log, clocks, SECOND, Names(sites={3: "Tokyo"}))
    declared = "Sites declared that no clock was further than 5 µs from the common time. "
    assert (section.finding, section.verdict) == (declared + sentence, verdict)
    assert section.table is not None
    assert [row[:2] for row in section.table.rows] == [("0", "site 1"), ("1", "Tokyo")]


def test_formations_of_two_stripes_with_one_number_are_distinguished() -> None:
    members = {(0, 1): [1, 2, 3], (0, 2): [1, 3], (1, 1): [1, 2, 3], (1, 2): [1, 2, 3, 4]}
    formations = [
        {"stripe": stripe, "formation": number, "members": found} for (stripe, number), found in members.items()
    ]
    changes = [
        {"stripe": stripe, "formation": number, "broken": False, "first_at_ns": at * SECOND, "silence_ns": silence}
        for stripe, number, at, silence in ((0, 1, 1, None), (0, 2, 8, 50), (1, 1, 1, None), (1, 2, 9, 70))
    ]
    section = failover_section(changes, formations, [], Names())
    assert list(bars(section.plots[0])) == [
        "00:00:08 stripe 0, formation 2, without site 2",
        "00:00:09 stripe 1, formation 2, with site 4",
    ]
    assert section.finding == "The rings of 2 stripes were reformed 2 times; the longest pause was 70 ns."
    alone = failover_section(changes[1:3], formations, [], Names())
    assert alone.finding == "The ring of stripe 0 was reformed once; the longest pause was 50 ns."
    row = {"period_at_ns": SECOND, "tokens": 1, "p50_ns": 1, "p99_ns": 1, "max_ns": 1}
    plot = spread_section([row], [row], changes, SECOND).plots[0]
    assert isinstance(plot, LinePlot)
    assert [what for _, what in plot.events] == ["stripe 0, formation 2", "stripe 1, formation 2"]
