"""Planned changes: the next formation when nothing has failed, and the token at which it takes over.

Sites that request to join and are up to date join, in the order of the tour. Sites that withdraw, or were retired,
leave. A stripe plan that the operator ordered becomes active. The token is slowed or sped up (decision 51, Pace).
After a quiet time the number of retries is reduced again (decision 28, Retry adaptation).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.nodes.coordinator.pace import describe_change, paced
from fairtape.nodes.coordinator.roll import with_roll
from fairtape.ring.membership.formation import LEAVING_MAX, Formation
from fairtape.ring.membership.layout import proposal_digest
from fairtape.ring.membership.reconfiguration import bypass, insert_in_order, retime, take_over
from fairtape.ring.membership.topology import Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, SiteReport

STORE_DELAY: Final = 50 * MILLISECOND  # allowance for recording a formation
LAG_MAX: Final = 64  # tokens that a joining site may be behind: the ring repairs them in a few round trips
QUIET_PERIOD: Final = 600 * SECOND  # without a reformation, until retries are reduced again
PACE_LEAD: Final = 1 * SECOND  # to prepare for another pace: the sites are late already, and a failure would stop them
FAILURES_MAX: Final = 6  # failed changes in a row that double the lead time


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A formation that will take over, and why."""

    formation: Formation
    proposal: int  # the digest by which sites confirm that they are prepared for this one
    cause: str
    prepared_by: Instant  # deadline for all sites


def lead_time(timing: Timing, failures: int = 0, recording_delay: Duration = 0) -> Duration:
    """The time from a proposal to its first token: two rounds of messages, each of which may be lost, and the store.

    It doubles with each failure in a row, because sites or links are slower than they should be.
    """
    rounds = 6 * timing.retry_period << min(failures, FAILURES_MAX)
    return rounds + STORE_DELAY // 2 + max(STORE_DELAY // 2, recording_delay)


def plan_change(
    present: Formation,
    reports: Mapping[NodeId, SiteReport],
    topology: Topology,
    *,
    retired: Collection[NodeId],
    quiet_since: Instant,
    failures: int,
    recording_delay: Duration = 0,
    now: Instant,
    excluded: Collection[NodeId] = (),
    plan: int = 0,
    pace: int | None = None,
    pace_cause: str = "",
) -> PlannedChange | None:
    """The change from the present formation to what reports and operator request; None if there is none.

    `pace` is the wanted one, and `pace_cause` the reason; without one, the pace stays. The store may need
    `recording_delay` to record it.
    """
    tour = topology.primary.tour
    absent = {*retired, *excluded}
    joining = [site for site in tour if site not in absent and may_join(site, present, reports)]
    leaving = [site for site in present.members if site in retired or _withdraws(site, reports)]
    leaving = list(may_leave(leaving[:LEAVING_MAX], [*present.members, *joining], topology))
    fewer_retries = _with_fewer_retries(present.timing, topology.primary.timing, quiet_for=now - quiet_since)
    timing = fewer_retries if pace is None else paced(fewer_retries, topology, pace)
    plan = plan or present.plan
    if not joining and not leaving and timing == present.timing and plan == present.plan:
        return None
    layout = retime(present, timing)
    for site in joining:
        layout = insert_in_order(layout, site, tour)
    layout = bypass(layout, leaving)
    layout = replace(with_roll(layout, reports), resilience=topology.resilience_of(layout.members), plan=plan)
    repaced = timing.token_period != present.timing.token_period
    lead = max(lead_time(present.timing, failures, recording_delay), PACE_LEAD if repaced else 0)
    highest_complete = max(reports[member].complete_through for member in present.members)
    tokens_ahead = (
        present.current(now + lead),
        highest_complete + lead // present.timing.token_period,
        present.first_token,
    )
    planned = take_over(layout, number=present.number + 1, present=present, at_token=max(tokens_ahead) + 1)
    causes = [f"site {site} joins" for site in joining] + [f"site {site} leaves" for site in leaving]
    causes += ["retries are reduced after a quiet time"] * (fewer_retries != present.timing)
    causes += [describe_change(present.timing, timing, pace_cause)] if repaced else []
    causes += ["another stripe plan comes into force"] * (plan != present.plan)
    cause = "; ".join(causes)
    return PlannedChange(planned, proposal_digest(planned), cause, now + lead - max(STORE_DELAY // 2, recording_delay))


def may_join(site: NodeId, present: Formation, reports: Mapping[NodeId, SiteReport]) -> bool:
    """Whether a site requests to join and is near enough not to delay the token."""
    report = reports.get(site)
    if site in present.members or report is None or report.request is not MembershipRequest.JOIN:
        return False
    ahead = max((reports[each].complete_through for each in present.members if each in reports), default=0)
    return report.formation == present.number and report.complete_through >= ahead - LAG_MAX


def may_leave(leaving: Collection[NodeId], members: list[NodeId], topology: Topology) -> Collection[NodeId]:
    """Those that leave; none if too few would be left (decision 56, Least resilience)."""
    left = [member for member in members if member not in leaving]
    enough = min(topology.least_resilience, topology.resilience_of(members))
    return leaving if left and topology.resilience_of(left) >= enough else ()


def _withdraws(site: NodeId, reports: Mapping[NodeId, SiteReport]) -> bool:
    return site in reports and reports[site].request is MembershipRequest.WITHDRAW


def _with_fewer_retries(timing: Timing, wanted: Timing, *, quiet_for: Duration) -> Timing:
    if timing.retries_max <= wanted.retries_max or quiet_for < QUIET_PERIOD:
        return timing
    return replace(timing, retries_max=max(timing.retries_max * 9 // 10, wanted.retries_max))
