"""What a stripe plan promises, as a page and a plot for those who must trust it."""

from typing import Final

import numpy as np

from fairtape.pipeline.report.html_page import HtmlTable, Page, PageVerdict, Section
from fairtape.pipeline.report.plots import BarPlot, LinePlot, PlotLine, format_number, format_share
from fairtape.pipeline.stripes.study import PlanRequest, Proposal, Study

METHOD: Final = (
    "Every window of the history counts all symbols at the same moment, so what bursts together is seen together.",
    (
        "The chance to exceed a rate is the mean over these windows of the tail of a count around what was there, with "
        "single symbols' bursts as its variance (a negative binomial, by its saddle point)."
    ),
    (
        "Families of stocks that move together and are about as busy grow to about a third of a stripe. Families get "
        "their stripes from the busiest to the calmest, the busier the fewer together; what breaks the bound then is "
        "moved to where it does the least harm."
    ),
)


def needs_plot(proposal: Proposal) -> LinePlot:
    """How full stripes are, the fullest first."""
    ordered = sorted(proposal.needs.tolist(), reverse=True)
    points = [(float(place), min(need, 2.0)) for place, need in enumerate(ordered, 1)]
    return LinePlot(
        lines=[PlotLine("", points)],
        format_x=format_number,
        format_y=format_share,
        limits=[(1.0, "the rate of a stripe")],
    )


def comparison(proposal: Proposal) -> HtmlTable:
    """This plan beside others, on days that it was not made from."""
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
        for each in proposal.verdicts
    ]
    return HtmlTable(columns, rows)


def stripe_page(studied: Study, wish: PlanRequest, proposal: Proposal) -> Page:
    """The page."""
    lone = len(proposal.packing.lone)
    within = [need for place, need in enumerate(proposal.needs.tolist()) if place not in proposal.packing.lone]
    facts = [
        ("symbols", f"{len(studied.symbols):,}"),
        ("edge stripes", f"{proposal.packing.stripes:,}"),
        ("core stripes", f"{len(proposal.plan.core):,}"),
        ("bound on the chance", f"{wish.bound:g}"),
        ("symbols that moved", f"{proposal.moved:,}"),
        ("version", f"{proposal.plan.version}"),
    ]
    sections = [_fullness(within, lone, proposal), _sizes(proposal)]
    if proposal.verdicts:
        sections.append(_compared(proposal, studied))
    return Page(
        title=f"Stripe plan, version {proposal.plan.version}",
        opening=(
            (
                f"Which symbols customers hear together, planned from {studied.told}. An edge stripe carries at most "
                f"{wish.edge_bits_per_s:,} bits/s, a core stripe {wish.core_bits_per_s:,}."
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
        finding += f" {lone:,} symbols are too busy for any stripe of this rate, and each has one for itself."
    return Section(
        title="How full stripes are",
        verdict=PageVerdict.GOOD if good else PageVerdict.ATTENTION,
        finding=finding,
        explanation=(
            (
                "Each point is a stripe, the fullest first: the part of its rate that would be enough to keep the "
                "bound. What is missing to 100 % is room for new symbols. Above the line are only symbols that no plan "
                "can help."
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
                "Busy symbols stand beside busy ones, and have few neighbours: when one of them has news, few suffer "
                "with it. Calm ones share a stripe with many."
            ),
        ),
        table=HtmlTable(("stripe", "symbols", "needs"), rows),
    )


def _compared(proposal: Proposal, studied: Study) -> Section:
    ours, *others = proposal.verdicts
    heard = min((each.stripes_per_portfolio for each in others), default=0.0)
    held = studied.held.told if studied.held else "no days"
    finding = (
        f"A customer hears {ours.stripes_per_portfolio:.1f} stripes for a portfolio of related stocks; with the best "
        f"of the others {heard:.1f}."
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
                f"Judged on {held}, which the plan was not made from. Time over is the part of the time in which the "
                "mean symbol's stripe exceeded its rate, and beside it what one symbol in a hundred suffers at least; "
                "symbols that are too busy for any stripe are left out for all plans."
            ),
        ),
        plots=[BarPlot(bars=[(each.name, each.stripes_per_portfolio) for each in proposal.verdicts])],
        table=comparison(proposal),
        is_open=True,
    )
