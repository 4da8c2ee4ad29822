"""Checks what the customers received against the journal of a site, byte by byte."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from fairtape.demo.customers import CustomerReport, RegionReports
from fairtape.demo.world import EdgePlan
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeMessages, StripeSequencer, StripeStep
from fairtape.formats.framing import unframe
from fairtape.journal import FormationChanged, JournalReader


class CustomerVerdict(NamedTuple):
    """The result of checking the reports of all customers."""

    customers: int  # that sent a report
    complete: int  # that received exactly what was released
    missed: int  # messages not received, summed over all customers


def check_customers(plan: EdgePlan, journal: Path, regions: Iterable[RegionReports]) -> CustomerVerdict:
    """Compare every report with what the journal says was released on each stripe."""
    reports = [report for region in regions for report in region.reports]
    if not reports:
        return CustomerVerdict(0, 0, 0)
    released = _released(plan, journal)
    complete = sum(dict(report.received) == released for report in reports)
    missed = sum(_missed(report, released) for report in reports)
    return CustomerVerdict(len(reports), complete, missed)


def _missed(report: CustomerReport, released: Mapping[int, tuple[int, bytes]]) -> int:
    return sum(max(count - report.received.get(stripe, (0, b""))[0], 0) for stripe, (count, _) in released.items())


def _released(plan: EdgePlan, journal: Path) -> dict[int, tuple[int, bytes]]:
    """Message count and digest of each stripe, recomputed from the journal."""
    edition = Edition(plan.settings.tag, plan.stripes, plan.settings.core)
    sequencer = StripeSequencer(StripePosition.fresh(edition))
    counts = [0] * len(edition.stripes)
    digests = [blake2b() for _ in edition.stripes]
    _add(sequencer.begin(), counts, digests)
    with JournalReader.open(journal).entries() as cursor:
        for each in cursor.everything():
            if isinstance(each, FormationChanged):
                sequencer.on_formation(each.change)
            else:
                _add(sequencer.deliver(each.ordered), counts, digests)
    numbers = (stripe.number for stripe in edition.stripes)
    return {number: (count, made.digest()) for number, count, made in zip(numbers, counts, digests, strict=True)}


def _add(steps: Sequence[StripeStep], counts: list[int], digests: list[Any]) -> None:
    for step in steps:
        if isinstance(step, StripeMessages):
            counts[step.stripe] += step.count
            digests[step.stripe].update(b"".join(unframe(step.framed)))
