"""Sections of a report over several stripes: every number is told once, and with what it is a part of."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.pipeline.report.html_page import PageVerdict
from fairtape.pipeline.report.plots import BarPlot, LinePlot
from fairtape.pipeline.report.sections import (
    PARTS,
    Names,
    clock_section,
    fairness_section,
    latency_section,
    outage_section,
    spread_section,
)

Row = dict[str, Any]


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


def test_the_headline_of_fairness_is_its_first_bar_whatever_the_sizes_of_stripes() -> None:
    rows = [fairness(0, 1_000, 900, 900, 90, 90, 1.0), fairness(1, 3_000, 100, 0, 10, 0, 0.5)]
    section = fairness_section(rows)
    assert section.finding.startswith("900 of 1,000 messages that several sites released (90 %)")
    assert "3,000 more are in the journal of one site only" in section.finding
    assert list(bars(section.plots[0]).values()) == [0.9, 0.9, 0.625]
    assert section.table is not None
    assert section.table.rows[0][:5] == ("0", "3", "1,000", "900", "100 %")


def test_few_messages_of_many_are_counted_and_not_told_by_powers_of_ten() -> None:
    section = fairness_section([fairness(0, 223_307, 223_307, 16, 0, 0, 1.0)])
    assert section.finding.startswith("16 of 223,307 messages that several sites released (0.00717 %)")
    assert list(bars(section.plots[0])) == [
        "released together, as far as clocks can tell",
        "sites were used alike as portals",
    ]


def test_what_one_site_alone_released_is_not_judged() -> None:
    section = fairness_section([fairness(0, 10, 0, 0, 0, 0, 1.0)])
    assert (section.verdict, section.plots) == (PageVerdict.NEITHER, ())
    assert section.finding == spread_section([], [], [], SECOND).finding


def latency(stripe: int, source: int, site: int, p50: int) -> Row:
    return {"stripe": stripe, "source": source, "site": site, "count": 9, **dict.fromkeys(PARTS, p50)}


def test_half_of_the_messages_came_within_the_longest_median_at_every_site() -> None:
    rows = [latency(0, 101, 1, 5 * MILLISECOND), latency(0, 101, 2, 9 * MILLISECOND), latency(0, 102, 1, MILLISECOND)]
    section = latency_section([*rows, latency(4, 102, 1, 7 * MILLISECOND)], Names())
    assert bars(section.plots[0]) == {"source 101": 9 * MILLISECOND, "source 102": 7 * MILLISECOND}
    assert "At every site, half of the messages of each source or more were released within 9 ms" in section.finding
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
        (10, PageVerdict.GOOD, "Clocks stepped back 29 times, by up to 10 µs, which what they declared allows."),
        (11, PageVerdict.BAD, "Clocks stepped back 29 times, by up to 11 µs: what was declared by Tokyo was not true."),
    ],
)
def test_a_step_back_is_held_against_what_the_site_declared(step: int, verdict: PageVerdict, sentence: str) -> None:
    bound = 5 * MICROSECOND
    log = [{"period_at_ns": SECOND, "site": site, "bound_max_ns": bound} for site in (1, 3)]
    clocks = [clock(0, 1, bound, 0, 0), clock(1, 3, bound, 29 if step else 0, step * MICROSECOND)]
    section = clock_section(log, clocks, SECOND, Names(sites={3: "Tokyo"}))
    said = "Sites declared that no clock was further than 5 µs from the common time. "
    assert (section.finding, section.verdict) == (said + sentence, verdict)
    assert section.table is not None
    assert [row[:2] for row in section.table.rows] == [("0", "site 1"), ("1", "Tokyo")]


def test_formations_of_two_stripes_that_have_one_number_are_told_apart() -> None:
    members = {(0, 1): [1, 2, 3], (0, 2): [1, 3], (1, 1): [1, 2, 3], (1, 2): [1, 2, 3, 4]}
    formations = [
        {"stripe": stripe, "formation": number, "members": found} for (stripe, number), found in members.items()
    ]
    changes = [
        {"stripe": stripe, "formation": number, "broken": False, "first_at_ns": at * SECOND, "silence_ns": silence}
        for stripe, number, at, silence in ((0, 1, 1, None), (0, 2, 8, 50), (1, 1, 1, None), (1, 2, 9, 70))
    ]
    section = outage_section(changes, formations, Names())
    assert list(bars(section.plots[0])) == [
        "00:00:08 stripe 0, formation 2, without site 2",
        "00:00:09 stripe 1, formation 2, with site 4",
    ]
    assert section.finding == "The rings of 2 stripes were formed anew 2 times; the longest silence was 70 ns."
    alone = outage_section(changes[1:3], formations, Names())
    assert alone.finding == "The ring of stripe 0 was formed anew once; the longest silence was 50 ns."
    told = {"period_at_ns": SECOND, "tokens": 1, "p50_ns": 1, "p99_ns": 1, "max_ns": 1}
    plot = spread_section([told], [told], changes, SECOND).plots[0]
    assert isinstance(plot, LinePlot)
    assert [what for _, what in plot.events] == ["stripe 0, formation 2", "stripe 1, formation 2"]
