"""Formations and site reports for tests."""

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, MembershipState, SiteReport

TIMING = Timing(
    retry_period=20 * MILLISECOND,
    retries_max=8,
    token_period=10 * MILLISECOND,
    commit_delay=60 * MILLISECOND,
    clock_error_max=4 * MILLISECOND,
)


def formation_of(*members: NodeId, **changes: object) -> Formation:
    """A formation of these members."""
    given: dict[str, object] = {
        "number": 3,
        "members": members,
        "timing": TIMING,
        "starts_at": 7 * SECOND,
        "first_token": 11,
        "first_sequence": 101,
    }
    return Formation(**(given | changes))  # type: ignore[arg-type]


def report_of(site: NodeId, **changes: object) -> SiteReport:
    """The report of a healthy member."""
    given: dict[str, object] = {
        "stripe": 0,
        "formation": 3,
        "sender": site,
        "loop": 0,
        "membership_state": MembershipState.MEMBER,
        "request": MembershipRequest.NOTHING,
        "prepared": 0,
        "incarnation": 1_000 + site,
        "asked_at": 7 * SECOND,
        "clock_bound": 0,
        "complete_through": 20,
        "sequence": 150,
        "settled_through": 19,
        "late": 0,
        "suspect": 0,
        "suspect_token": 0,
        "reason": 0,
    }
    return SiteReport(**(given | changes))  # type: ignore[arg-type]
