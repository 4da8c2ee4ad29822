"""What the customers heard, proved against the journal of a site: number by number, byte by byte."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from fairtape.demo.customers import CustomerReport, RegionAccounts
from fairtape.demo.world import EdgePlan
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import Step, StripeMessages, StripeSequencer
from fairtape.formats.framing import unframe
from fairtape.journal import FormationChanged, JournalReader


class CustomerVerdict(NamedTuple):
    """What the accounts of all customers prove."""

    customers: int  # that gave an account
    complete: int  # whose account is exactly what was released
    missed: int  # messages, over all customers, that they did not hear


def judge(plan: EdgePlan, journal: Path, accounts: Iterable[RegionAccounts]) -> CustomerVerdict:
    """Hold every account to what a journal says was released on each stripe."""
    given = [account for region in accounts for account in region.accounts]
    if not given:
        return CustomerVerdict(0, 0, 0)
    released = _released(plan, journal)
    complete = sum(dict(account.heard) == released for account in given)
    missed = sum(_missed(account, released) for account in given)
    return CustomerVerdict(len(given), complete, missed)


def _missed(account: CustomerReport, released: Mapping[int, tuple[int, bytes]]) -> int:
    return sum(max(count - account.heard.get(stripe, (0, b""))[0], 0) for stripe, (count, _) in released.items())


def _released(plan: EdgePlan, journal: Path) -> dict[int, tuple[int, bytes]]:
    """Of each stripe: how many messages, and the digest of their bytes, numbered once more from the journal."""
    edition = Edition(plan.settings.tag, plan.stripes, plan.settings.core)
    striper = StripeSequencer(StripePosition.fresh(edition))
    counts = [0] * len(edition.stripes)
    digests = [blake2b() for _ in edition.stripes]
    _take(striper.begin(), counts, digests)
    with JournalReader.open(journal).entries() as cursor:
        for each in cursor.everything():
            if isinstance(each, FormationChanged):
                striper.turn(each.change)
            else:
                _take(striper.deliver(each.ordered), counts, digests)
    numbers = (stripe.number for stripe in edition.stripes)
    return {number: (count, made.digest()) for number, count, made in zip(numbers, counts, digests, strict=True)}


def _take(steps: Sequence[Step], counts: list[int], digests: list[Any]) -> None:
    for step in steps:
        if isinstance(step, StripeMessages):
            counts[step.stripe] += step.count
            digests[step.stripe].update(b"".join(unframe(step.framed)))
