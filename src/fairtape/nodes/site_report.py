"""How a site stands: where it belongs, whom it suspects, and what it wants of the reformation servers."""

from dataclasses import dataclass
from typing import Final

from fairtape.core.effects import Reason
from fairtape.core.timing import Timing
from fairtape.nodes.loop_membership import LoopMemberships
from fairtape.nodes.reconfigurable_receiver import ReconfigurableReceiver
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.membership import MembershipRequest

REASONS: Final = tuple(Reason)  # a reason crosses the wire as its place in this list, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfig:
    """Where a site belongs, and whom it answers to."""

    me: NodeId
    reformers: tuple[NodeId, ...]
    timing: Timing  # until a formation brings its own
    home: int = 0  # the loop that it is meant to be a member of
    durable: bool = True  # the journal survives whatever the site survives: it may answer for what it proves
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX


def suspicion(receiver: ReconfigurableReceiver | None, loops: LoopMemberships, loop: int) -> tuple[NodeId, int, int]:
    """Whom this site suspects in a loop, at which token, and why; zeros where nobody."""
    suspected = loops.suspicion(loop)
    if not loop and receiver is not None and receiver.reforming is not None:
        report = receiver.reforming
        suspected = report.suspect, report.token, report.reason
    if suspected is None:
        return 0, 0, 0
    site, token, reason = suspected
    return site, token, REASONS.index(reason) + 1


def requested_membership(
    receiver: ReconfigurableReceiver | None, loops: LoopMemberships, loop: int, *, in_time: bool
) -> MembershipRequest:
    """A site whose clock is good and that is up to date wants in; one whose clock is not wants out."""
    if receiver is None:
        return MembershipRequest.NOTHING
    if loop in loops.seats if loop else receiver.active:
        return MembershipRequest.NOTHING if in_time else MembershipRequest.WITHDRAW
    return MembershipRequest.JOIN if in_time and not receiver.stranded else MembershipRequest.NOTHING
