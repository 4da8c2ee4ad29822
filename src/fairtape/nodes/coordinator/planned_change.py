"""Relief: what a formation should become when nothing has failed, and at which token that takes over.

Sites that want in and are up to date come in, at the place that the tour gives them; sites that want out, or were
retired, go; a stripe plan that the operator ordered comes into force; and after a quiet time patience is reduced again
(decision 28, Retry adaptation).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import LEAVING_MAX, Formation
from fairtape.ring.membership.reconfiguration import bypass, insert_in_order, retime, take_over
from fairtape.ring.membership.topology import Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, SiteReport

STORE_DELAY: Final = 50 * MILLISECOND  # what recording a formation may take before anybody waits for it
LAG_MAX: Final = 64  # tokens that a site may be behind to be let in: the ring repairs as much in a few round trips
QUIET_PERIOD: Final = 600 * SECOND  # without a reformation, after which patience is reduced again
FAILURES_MAX: Final = 6  # reliefs in a row for which not all were prepared, that make the next one wait longer


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A formation that is to take over, and why."""

    formation: Formation
    cause: str
    prepared_by: Instant  # when all must be prepared


def lead_time(timing: Timing, failures: int = 0) -> Duration:
    """From a proposal to its first token: two rounds of words, each of which may be lost, and the store.

    Twice as long after each one that failed: the sites, or the ways between them, are slower than they should be.
    """
    return (6 * timing.retry_period << min(failures, FAILURES_MAX)) + STORE_DELAY


def plan_change(
    present: Formation,
    reports: Mapping[NodeId, SiteReport],
    topology: Topology,
    *,
    retired: Collection[NodeId],
    quiet_since: Instant,
    failures: int,
    now: Instant,
    plan: int = 0,
) -> PlannedChange | None:
    """What should take over from the present formation; None where it is as it should be."""
    tour = topology.primary.tour
    joining = [site for site in tour if site not in retired and may_join(site, present, reports)]
    leaving = [site for site in present.members if site in retired or _wants_out(site, reports)]
    if len(leaving) == len(present.members):
        leaving = []
    leaving = leaving[:LEAVING_MAX]
    timing = _with_fewer_retries(present.timing, topology.primary.timing, quiet_for=now - quiet_since)
    plan = plan or present.plan
    if not joining and not leaving and timing == present.timing and plan == present.plan:
        return None
    layout = retime(present, timing)
    for site in joining:
        layout = insert_in_order(layout, site, tour)
    layout = bypass(layout, leaving)
    layout = replace(
        layout,
        resilience=topology.resilience_of(layout.members),
        roll=tuple(reports[member].incarnation for member in layout.members),
        plan=plan,
    )
    lead = lead_time(present.timing, failures)
    highest_complete = max(reports[member].complete_through for member in present.members)
    tokens_ahead = (
        present.current(now + lead),
        highest_complete + lead // present.timing.token_period,
        present.first_token,
    )
    planned = take_over(layout, number=present.number + 1, present=present, at_token=max(tokens_ahead) + 1)
    cause = _changes(joining, leaving, retimed=timing != present.timing, planned=plan != present.plan)
    return PlannedChange(planned, cause, now + lead - STORE_DELAY // 2)


def may_join(site: NodeId, present: Formation, reports: Mapping[NodeId, SiteReport]) -> bool:
    """Whether a site wants in and is near enough not to hold up the token."""
    report = reports.get(site)
    if site in present.members or report is None or report.request is not MembershipRequest.JOIN:
        return False
    ahead = max((reports[each].complete_through for each in present.members if each in reports), default=0)
    return report.formation == present.number and report.complete_through >= ahead - LAG_MAX


def _wants_out(site: NodeId, reports: Mapping[NodeId, SiteReport]) -> bool:
    return site in reports and reports[site].request is MembershipRequest.WITHDRAW


def _with_fewer_retries(timing: Timing, wanted: Timing, *, quiet_for: Duration) -> Timing:
    if timing.retries_max <= wanted.retries_max or quiet_for < QUIET_PERIOD:
        return timing
    return replace(timing, retries_max=max(timing.retries_max * 9 // 10, wanted.retries_max))


def _changes(joining: Collection[NodeId], leaving: Collection[NodeId], *, retimed: bool, planned: bool) -> str:
    said = [f"site {site} joins" for site in joining] + [f"site {site} leaves" for site in leaving]
    said += ["patience is reduced after a quiet time"] * retimed
    return "; ".join(said + ["another stripe plan comes into force"] * planned)
