"""What follows from the reports of the members after a failure: functions of values.

Decision 21, Where a formation resumes; decision 54, Uncommitted ends; decision 55, Accused members.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from fairtape.core.effects import REASONS, Reason
from fairtape.core.timing import Timing
from fairtape.nodes.coordinator.pace import slower
from fairtape.nodes.coordinator.planned_change import LAG_MAX, may_leave
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.reconfiguration import exchange, retime, with_members
from fairtape.ring.membership.topology import Remedy, Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, MembershipState, SiteReport

RETRIES_FACTOR_MAX: Final = 2  # retries are raised to at most this multiple (decision 73, Bounded patience)
ACCUSERS_MIN: Final = 2  # one alone may be the site that does not receive
SUSPICION: Final = REASONS.index(Reason.ACK_OVERDUE) + 1


def highest_complete(reports: Collection[SiteReport]) -> int:
    """The highest token up to which one of these sites holds everything."""
    return max((each.complete_through for each in reports), default=0)


def survivable(formation: Formation, answered: Collection[SiteReport]) -> int:
    """How many silent members the order survives, given what those that answered hold.

    In a formation that has come into effect, K + 1 members hold what is committed. What precedes the formation may be
    held by its keeper alone, until the others have caught up: then what counts is how many more members the formation
    before could lose (decision 54, Uncommitted ends).
    """
    if formation.first_sequence:
        in_effect = max((each.sequence for each in answered), default=0) >= formation.first_sequence
    else:
        in_effect = highest_complete(answered) >= formation.first_token - 1
    return formation.resilience if in_effect else formation.resilience_before


def commits_may_be_missing(formation: Formation, answered: Collection[SiteReport], silent: Collection[NodeId]) -> bool:
    """Whether committed messages may be held by none of the sites that have answered.

    A site that leaves held nothing that was committed in this formation, so it does not count against its K.
    """
    staying = sum(site in formation.members for site in silent)
    return len(silent) > survivable(formation, answered) or staying > formation.resilience


def survivable_after(formation: Formation, answered: Collection[SiteReport], gone: int) -> int:
    """How many more members may be lost before the next formation comes into effect, after `gone` are not in it.

    Where K + 1 members are known to hold what precedes this formation, only its own K counts. If more are gone than the
    order can lose, the keeper alone may hold the end: it is a member, and none may be lost.
    """
    settled = max((each.settled_through for each in answered), default=0) >= formation.first_token
    losses = formation.resilience if settled else min(formation.resilience, formation.resilience_before)
    return max(losses - gone, 0)


def has_declared(report: SiteReport) -> bool:
    """Whether a site has declared a failure. One that only suspects still works."""
    return report.suspect_token > 0 and report.reason != SUSPICION


def suspected_member(formation: Formation, reports: Collection[SiteReport]) -> NodeId | None:
    """The member that more than half of the others, and at least two, suspect or accuse (decision 72, Suspicion)."""
    suspects = Counter(
        report.suspect
        for report in reports
        if report.suspect_token and report.suspect != report.sender and report.suspect in formation.members
    )
    for suspect, count in suspects.most_common(1):
        if count >= ACCUSERS_MIN and 2 * count > len(formation.members) - 1:
            return suspect
    return None


def accused_member(formation: Formation, answered: Mapping[NodeId, SiteReport], *, repeated: bool) -> NodeId | None:
    """The member that most others accuse. 2001 §5.3; decision 55, Accused members.

    One accusation proves little: it may be the accuser that does not receive. So more than half of the others must
    agree, or the formation before must have ended in the same way (`repeated`). Where two are accused equally often, it
    is the one that holds less.
    """
    accused = Counter(
        report.suspect
        for site, report in answered.items()
        if report.suspect_token and report.suspect in answered and report.suspect != site
    )
    if not accused:
        return None
    worst = max(accused, key=lambda site: (accused[site], -answered[site].complete_through, site))
    agreed = 2 * accused[worst] > len(formation.members) - 1 and len(formation.members) > 2
    return worst if agreed or repeated else None


def next_layout(
    formation: Formation,
    answered: Mapping[NodeId, SiteReport],
    reports: Mapping[NodeId, SiteReport],
    topology: Topology,
    *,
    retired: Collection[NodeId],
    suspected: bool,
    excluded: Collection[NodeId] = (),
    accused: NodeId | None = None,
) -> Formation:
    """The members that stay; the others are bypassed or replaced.

    If a member was `suspected` and none has failed, retries are raised (decision 28, Retry adaptation), and the token
    is slowed where the operator allows it (decision 51, Pace).
    """
    kept = {site for site, report in answered.items() if report.membership_state is MembershipState.FENCED}
    near = highest_complete(answered.values()) - LAG_MAX
    staying = sites_that_stay(
        formation, answered, topology, retired=retired, excluded=set(excluded) - kept, accused=accused
    )
    layout = formation
    failed = [member for member in formation.members if member not in staying]
    if topology.remedy is Remedy.REPLACE:
        for member in failed:
            substitute = _substitute(member, near, layout.members, reports, topology, {*retired, *excluded})
            if substitute is not None:
                layout = exchange(layout, member, substitute)
    left = [member for member in layout.members if member not in failed]
    layout = with_members(layout, dict.fromkeys([*left, *staying]))
    layout = replace(layout, resilience=topology.resilience_of(layout.members))
    none_failed = suspected and not failed and kept == set(formation.members)
    if not none_failed:
        return layout
    return retime(layout, slower(_with_more_retries(layout.timing, topology.primary.timing), topology))


def sites_that_stay(
    formation: Formation,
    answered: Mapping[NodeId, SiteReport],
    topology: Topology,
    *,
    retired: Collection[NodeId],
    excluded: Collection[NodeId],
    accused: NodeId | None,
) -> list[NodeId]:
    """Members that kept their memory, or are nearly complete, stay, unless they are to leave.

    One that holds more than all that stay leaves only if the order survives its loss, as if it were silent: a keeper
    outside the formation might never be asked again (decision 54, Uncommitted ends). So such a site stays also where it
    was about to leave by a planned change.
    """
    kept = [site for site, report in answered.items() if report.membership_state is MembershipState.FENCED]
    near = highest_complete(answered.values()) - LAG_MAX
    able = [site for site, report in answered.items() if site in kept or report.complete_through >= near]
    members = [site for site in able if site in formation.members]
    leaving = {s for s in members if s in retired or answered[s].request is MembershipRequest.WITHDRAW}
    leaving |= {s for s in members if s == accused or s in excluded}
    leaving = {*may_leave(leaving, members, topology), *(site for site in able if site not in members)}
    staying = {site: answered[site] for site in able if site not in leaving}
    through = highest_complete([report for site, report in answered.items() if site in formation.members])
    gone = [site for site in formation.relevant_sites(through) if site not in staying]
    if commits_may_be_missing(formation, staying.values(), gone):
        held = highest_complete(staying.values())
        leaving = {site for site in leaving if answered[site].complete_through <= held}
    return [site for site in able if site not in leaving]


def _substitute(
    failed: NodeId,
    near: int,
    members: Collection[NodeId],
    reports: Mapping[NodeId, SiteReport],
    topology: Topology,
    absent: Collection[NodeId],
) -> NodeId | None:
    """An up-to-date site of the secondary loop whose junction the failed site was. 2001 §8."""
    homes = topology.homes()
    loops = {loop.number for loop in topology.loops if loop.junction == failed}
    candidates = [
        (report.complete_through, site)
        for site, report in reports.items()
        if homes.get(site) in loops and site not in members and site not in absent and report.complete_through >= near
    ]
    return max(candidates)[1] if candidates else None


def _with_more_retries(timing: Timing, wanted: Timing) -> Timing:
    raised = min(timing.retries_max + max(timing.retries_max // 4, 1), RETRIES_FACTOR_MAX * wanted.retries_max)
    return replace(timing, retries_max=max(raised, timing.retries_max))
