"""Reformation: what follows from the answers of the members, when something has failed. Decision 7.

Whether anything that was committed may be missing, and who is in the loop from now on.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from fairtape.core.timing import Timing
from fairtape.nodes.coordinator.planned_change import LAG_MAX
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.reconfiguration import exchange, retime, with_members
from fairtape.ring.membership.topology import Remedy, Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, MembershipState, SiteReport

PATIENCE_MAX: Final = 8  # times the retries that the charter asks for


def reached(standings: Collection[SiteReport]) -> int:
    """The highest token up to which one of these holds everything."""
    return max((each.complete_through for each in standings), default=0)


def may_be_missing(formation: Formation, answered: Collection[SiteReport], silent: int) -> bool:
    """Whether something that was committed may be held by nobody who has answered.

    In a formation K + 1 members hold what is committed. What came before it is held by its keeper alone, until the
    others have caught up: where none of those who answer has it, it is missing however few are silent.
    """
    before = max((each.sequence for each in answered), default=0) < formation.first_sequence
    return before or silent > formation.survivable(reached(answered))


def next_layout(
    formation: Formation,
    answered: Mapping[NodeId, SiteReport],
    standings: Mapping[NodeId, SiteReport],
    topology: Topology,
    *,
    retired: Collection[NodeId],
    accused: bool,
) -> Formation:
    """Who has kept its memory stays, and the places of the others are passed by or taken.

    Where one was `accused` and nobody has failed, patience is raised (decision 11).
    """
    kept = [site for site, report in answered.items() if report.membership_state is MembershipState.FENCED]
    near = reached(answered.values()) - LAG_MAX
    staying = [s for s, report in answered.items() if s in kept or report.complete_through >= near]
    leaving = {s for s in staying if s in retired or answered[s].request is MembershipRequest.WITHDRAW}
    staying = [site for site in staying if site not in leaving] or staying
    layout = formation
    failed = [member for member in formation.members if member not in staying]
    if topology.remedy is Remedy.REPLACE:
        for member in failed:
            substitute = _substitute(member, near, layout.members, standings, topology)
            if substitute is not None:
                layout = exchange(layout, member, substitute)
    left = [member for member in layout.members if member not in failed] or staying
    layout = with_members(layout, left)
    layout = replace(layout, resilience=topology.resilience_of(layout.members))
    nobody_failed = accused and not failed and len(kept) == len(formation.members)
    return retime(layout, _more_patient(layout.timing, topology.primary.timing)) if nobody_failed else layout


def _substitute(
    failed: NodeId, near: int, members: Collection[NodeId], standings: Mapping[NodeId, SiteReport], topology: Topology
) -> NodeId | None:
    """An up-to-date site of the secondary loop that the failed one joined. 2001 §8."""
    homes = topology.homes()
    loops = {loop.number for loop in topology.loops if loop.junction == failed}
    candidates = [
        (report.complete_through, site)
        for site, report in standings.items()
        if homes.get(site) in loops and site not in members and report.complete_through >= near
    ]
    return max(candidates)[1] if candidates else None


def _more_patient(timing: Timing, wanted: Timing) -> Timing:
    raised = min(timing.retries_max + max(timing.retries_max // 4, 1), PATIENCE_MAX * wanted.retries_max)
    return replace(timing, retries_max=max(raised, timing.retries_max))
