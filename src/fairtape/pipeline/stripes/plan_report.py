"""The report of a stripe plan: how full its stripes are, and how it compares with other plans."""

from typing import Final

import numpy as np

from fairtape.pipeline.report.html_page import HtmlTable, Page, PageVerdict, Section
from fairtape.pipeline.report.plots import BarPlot, LinePlot, PlotLine, format_number, format_share
from fairtape.pipeline.stripes.study import PlanRequest, Proposal, Study

METHOD: Final = (
    "Every window of the history counts all symbols at the same moment, so common bursts are included.",
    (
        "The probability that a stripe exceeds its rate is the mean over these windows of the tail of a count around "
        "the counted value, with the bursts of single symbols as its variance (a negative binomial, by its saddle "
        "point)."
    ),
    (
        "Groups of stocks that move together and are about as busy fill about a third of a stripe. Groups are assigned "
        "to stripes from the busiest to the calmest, busy ones with few others; those that break the bound are moved "
        "to where they do the least harm."
    ),
)


def needs_plot(proposal: Proposal) -> LinePlot:
    """The need of each stripe, the fullest first."""
    ordered = sorted(proposal.needs.tolist(), reverse=True)
    points = [(float(place), min(need, 2.0)) for place, need in enumerate(ordered, 1)]
    return LinePlot(
        lines=[PlotLine("", points)],
        format_x=format_number,
        format_y=format_share,
        limits=[(1.0, "the rate of a stripe")],
    )


def comparison(proposal: Proposal) -> HtmlTable:
    """This plan beside others, on the held-back part of the history."""
    columns = (
        "plan",
        "stripes",
        "time over, 1 s",
        "time over, 10 ms",
        "one symbol in 100, 1 s",
        "stripes / portfolio",
    )
    rows = [
        (
            each.name,
            f"{each.stripes:,}",
            *(f"{over:.1e}" for over in each.overruns),
            f"{each.worst[0]:.1e}",
            f"{each.stripes_per_portfolio:.1f}",
        )
        for each in proposal.results
    ]
    return HtmlTable(columns, rows)


def stripe_page(studied: Study, request: PlanRequest, proposal: Proposal) -> Page:
    """The page."""
    lone = len(proposal.packing.lone)
    within = [need for place, need in enumerate(proposal.needs.tolist()) if place not in proposal.packing.lone]
    facts = [
        ("symbols", f"{len(studied.symbols):,}"),
        ("edge stripes", f"{proposal.packing.stripes:,}"),
        ("core stripes", f"{len(proposal.plan.core):,}"),
        ("bound on the probability", f"{request.bound:g}"),
        ("symbols that moved", f"{proposal.moved:,}"),
        ("version", f"{proposal.plan.version}"),
    ]
    sections = [_fullness(within, lone, proposal), _sizes(proposal)]
    if proposal.results:
        sections.append(_compared(proposal, studied))
    return Page(
        title=f"Stripe plan, version {proposal.plan.version}",
        opening=(
            (
                f"Which symbols share a stripe, planned from {studied.description}. An edge stripe carries at most "
                f"{request.edge_bits_per_s:,} bits/s, a core stripe {request.core_bits_per_s:,}."
            ),
        ),
        facts=facts,
        sections=sections,
        closing=METHOD,
    )


def _fullness(within: list[float], lone: int, proposal: Proposal) -> Section:
    most = max(within, default=0.0)
    good = most <= 1.0 and not lone
    mean = np.mean(within or [0.0])
    finding = f"The fullest stripe needs {most:.0%} of its rate to keep the bound; the mean one {mean:.0%}."
    if lone:
        finding += f" {lone:,} symbols are too busy for any stripe of this rate, and each has one of its own."
    return Section(
        title="How full stripes are",
        verdict=PageVerdict.GOOD if good else PageVerdict.ATTENTION,
        finding=finding,
        explanation=(
            (
                "Each point is a stripe, the fullest first: the part of its rate that is enough to keep the bound. The "
                "rest up to 100 % is the reserve for new symbols. Above the line are only symbols that no stripe can "
                "carry."
            ),
        ),
        plots=[needs_plot(proposal)],
    )


def _sizes(proposal: Proposal) -> Section:
    sizes = sorted((len(each) for each in proposal.packing.members), reverse=True)
    rows = [
        (f"{number}", f"{len(members):,}", f"{need:.0%}")
        for number, members, need in zip(
            proposal.numbers, proposal.packing.members, proposal.needs.tolist(), strict=True
        )
    ]
    return Section(
        title="How many symbols they have",
        verdict=PageVerdict.NEUTRAL,
        finding=f"A stripe has from {sizes[-1]:,} to {sizes[0]:,} symbols, {np.median(sizes):,.0f} in the middle.",
        explanation=(
            (
                "Busy symbols share a stripe with few other busy ones: when one of them has news, few are affected. "
                "Calm symbols share a stripe with many."
            ),
        ),
        table=HtmlTable(("stripe", "symbols", "needs"), rows),
    )


def _compared(proposal: Proposal, studied: Study) -> Section:
    ours, *others = proposal.results
    heard = min((each.stripes_per_portfolio for each in others), default=0.0)
    held = studied.held.description if studied.held else "no days"
    finding = (
        f"A customer receives {ours.stripes_per_portfolio:.1f} stripes for a portfolio of related stocks; with the "
        f"best of the others {heard:.1f}."
    )
    verdict = PageVerdict.GOOD if ours.stripes_per_portfolio <= heard else PageVerdict.ATTENTION
    if studied.held is None or not studied.held.portfolios:
        finding, verdict = "The history is too short to say which stocks are related.", PageVerdict.NEUTRAL
    return Section(
        title="Beside other plans",
        verdict=verdict,
        finding=finding,
        explanation=(
            (
                f"Evaluated on {held}, which the plan was not made from. Time over is the part of the time in which a "
                "symbol's stripe exceeded its rate: the mean over symbols, and beside it the value that one symbol in "
                "a hundred exceeds. Symbols that are too busy for any stripe are left out for all plans."
            ),
        ),
        plots=[BarPlot(bars=[(each.name, each.stripes_per_portfolio) for each in proposal.results])],
        table=comparison(proposal),
        is_open=True,
    )
