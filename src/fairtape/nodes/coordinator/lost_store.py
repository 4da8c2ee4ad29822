"""What follows from the reports of the sites when the store has lost formations: functions of values.

Decision 69, Lost formations. A store that was restored from a backup, or is empty, does not know the formations that
sites report. Their layouts are lost with it: who their members were, and how many of them hold what was committed.
"""

from collections.abc import Collection, Mapping
from typing import Final

from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import Remedy, Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, MembershipState, SiteReport

NUMBERS_SKIPPED: Final = 1_000  # where a site is absent that may know later formations than the others


def is_lost(report: SiteReport, recorded: Formation | None) -> bool:
    """Whether a site is in a formation that the store does not have: of a later number, or another of the same one."""
    if recorded is None:
        return report.formation > 0
    if report.formation != recorded.number:
        return report.formation > recorded.number
    acts = report.membership_state in (MembershipState.MEMBER, MembershipState.FENCED)
    known = recorded.has_member(report.sender, report.incarnation) or report.sender in recorded.leaving
    return acts and not known


def keeper_of(reports: Collection[SiteReport]) -> SiteReport:
    """The site that continues the order: the furthest one in the latest formation. Another branch may be longer.

    A site that follows the order, and has not confirmed that it has the same as the others, may be in an old branch
    though it knows the latest formation.
    """

    def branch(report: SiteReport) -> tuple[bool, int]:
        follows = report.membership_state is MembershipState.OBSERVER
        return not follows or report.request is MembershipRequest.JOIN, report.formation

    return max(
        reports,
        key=lambda each: (branch(each), each.complete_through, each.membership_state is MembershipState.FENCED),
    )


def next_number(recorded: int, reports: Collection[SiteReport], *, everyone: bool) -> int:
    """Above every number that a site or the store knows.

    A site that is absent may know a later one, and one that was restarted may have known it: its journal may have lost
    the end.
    """
    highest = max((each.formation for each in reports), default=0)
    remembered = everyone and all(each.membership_state is MembershipState.FENCED for each in reports)
    return max(highest, recorded) + 1 + (0 if remembered else NUMBERS_SKIPPED)


def is_complete(reports: Mapping[NodeId, SiteReport], topology: Topology) -> bool:
    """Whether nothing can be lost: every site that may be a member of the latest formation answers from memory."""
    tour = topology.primary.tour
    if topology.remedy is Remedy.REPLACE and len(topology.loops) > 1:
        return False  # a member may come from a secondary loop
    latest = max((each.formation for each in reports.values()), default=0)
    return all(
        site in reports
        and reports[site].formation == latest
        and reports[site].membership_state is MembershipState.FENCED
        for site in tour
    )
