"""Planned changes: who joins and leaves, when, and when nothing changes."""

import pytest

from fairtape.nodes.coordinator.planned_change import LAG_MAX, lead_time, plan_change
from fairtape.ring.membership.formation import LEAVING_MAX, Formation
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, MembershipState, SiteReport
from unit.ring.loop_values import TIMING, formation_of, report_of


def topology(*tour: NodeId) -> Topology:
    return Topology(loops=(LoopTopology(number=0, tour=tour, timing=TIMING),), resilience=1)


def planned(
    loop: Formation, reports: dict[NodeId, SiteReport], policy: Topology, *, retired: tuple[NodeId, ...] = ()
) -> Formation | None:
    now = loop.scheduled_at(20)
    change = plan_change(loop, reports, policy, retired=retired, quiet_since=now, failures=0, now=now)
    return None if change is None else change.formation


def members(*sites: NodeId) -> dict[NodeId, SiteReport]:
    return {site: report_of(site) for site in sites}


def test_a_loop_as_requested_is_not_changed() -> None:
    assert planned(formation_of(1, 2, 3), members(1, 2, 3), topology(1, 2, 3)) is None


def test_a_site_that_requests_to_join_and_is_up_to_date_joins_in_tour_order() -> None:
    reports = members(1, 3) | {
        2: report_of(2, membership_state=MembershipState.OBSERVER, request=MembershipRequest.JOIN)
    }
    following = planned(formation_of(1, 3), reports, topology(1, 2, 3))
    assert following is not None
    assert set(following.members) == {1, 2, 3}
    assert following.roll == tuple(1_000 + member for member in following.members)
    assert following.first_token > 20 + lead_time(TIMING) // TIMING.token_period


@pytest.mark.parametrize(
    "changes",
    [{"complete_through": 19 - LAG_MAX}, {"formation": 2}, {"request": MembershipRequest.NOTHING}],
    ids=["too far behind", "in an earlier formation", "does not request it"],
)
def test_a_site_that_is_not_ready_does_not_join(changes: dict[str, object]) -> None:
    given: dict[str, object] = {"membership_state": MembershipState.OBSERVER, "request": MembershipRequest.JOIN}
    reports = members(1, 3) | {2: report_of(2, **(given | changes))}
    assert planned(formation_of(1, 3), reports, topology(1, 2, 3)) is None


def test_a_retired_or_withdrawing_site_leaves_after_its_last_turns() -> None:
    reports = members(1, 2, 3) | {2: report_of(2, request=MembershipRequest.WITHDRAW)}
    following = planned(formation_of(1, 2, 3), reports, topology(1, 2, 3), retired=(3,))
    assert following is not None
    assert following.members == (1,)
    assert set(following.leaving) == {2, 3}


def test_a_loop_is_never_emptied_and_not_too_many_leave_at_once() -> None:
    assert planned(formation_of(1, 2), members(1, 2), topology(1, 2), retired=(1, 2)) is None
    many = tuple(range(1, LEAVING_MAX + 10))
    following = planned(formation_of(*many), members(*many), topology(*many), retired=many[1:])
    assert following is not None
    assert len(following.leaving) == LEAVING_MAX
