"""Where the order goes on when the store has lost formations."""

from fairtape.nodes.coordinator.lost_store import NUMBERS_SKIPPED, is_complete, is_lost, keeper_of, next_number
from fairtape.ring.membership.topology import LoopTopology, Remedy, Topology
from fairtape.wire.membership import MembershipRequest, MembershipState
from unit.ring.loop_values import TIMING, formation_of, report_of

FENCED, OBSERVER, NEWBORN = MembershipState.FENCED, MembershipState.OBSERVER, MembershipState.NEWBORN
LOOP = LoopTopology(number=0, tour=(1, 2), timing=TIMING)
SECOND_LOOP = LoopTopology(number=1, tour=(3,), timing=TIMING, junction=1)


def test_a_site_in_a_later_formation_or_in_another_of_the_same_number_shows_the_loss() -> None:
    recorded = formation_of(1, 2, leaving=(4,), roll=(1_001, 1_002))
    assert is_lost(report_of(1, formation=4), recorded)
    assert is_lost(report_of(9, formation=4, membership_state=OBSERVER), recorded)
    assert is_lost(report_of(3), recorded), "a member that the recorded formation of this number does not have"
    assert is_lost(report_of(2, incarnation=5), recorded)
    assert is_lost(report_of(2, formation=1), None)


def test_what_the_store_knows_is_not_lost() -> None:
    recorded = formation_of(1, 2, leaving=(4,), roll=(1_001, 1_002))
    assert not is_lost(report_of(1), recorded)
    assert not is_lost(report_of(3, formation=2), recorded)
    assert not is_lost(report_of(3, membership_state=OBSERVER), recorded)
    assert not is_lost(report_of(4, membership_state=FENCED), recorded), "it takes its last turns"
    assert not is_lost(report_of(1, formation=0, membership_state=NEWBORN), None)


def test_the_furthest_site_of_the_latest_formation_is_the_keeper() -> None:
    """A longer branch that a later formation dropped does not win."""
    stale = report_of(1, formation=4, membership_state=NEWBORN, complete_through=120)
    behind = report_of(2, formation=5, membership_state=NEWBORN, complete_through=90)
    ahead = report_of(3, formation=5, membership_state=FENCED, complete_through=100)
    assert keeper_of([stale, behind, ahead]) is ahead
    assert keeper_of([stale, behind]) is behind


def test_a_site_that_has_confirmed_nothing_is_no_keeper() -> None:
    """It knows the latest formation, and may hold what that one dropped."""
    follower = report_of(1, formation=5, membership_state=OBSERVER, complete_through=120)
    member = report_of(2, formation=5, membership_state=FENCED, complete_through=100)
    assert keeper_of([follower, member]) is member
    joining = report_of(1, formation=6, membership_state=OBSERVER, complete_through=120, request=MembershipRequest.JOIN)
    assert keeper_of([joining, member]) is joining


def test_a_number_is_above_all_that_any_site_may_know() -> None:
    reports = [report_of(site, formation=number, membership_state=FENCED) for site, number in ((1, 5), (2, 7))]
    assert next_number(3, reports, everyone=True) == 8
    assert next_number(9, reports, everyone=True) == 10
    assert next_number(3, reports, everyone=False) == 8 + NUMBERS_SKIPPED
    restarted = report_of(3, formation=5, membership_state=MembershipState.RESTARTED)
    assert next_number(3, [*reports, restarted], everyone=True) == 8 + NUMBERS_SKIPPED, "it may have known a later one"


def test_nothing_is_lost_if_all_that_may_be_members_answer_from_memory() -> None:
    topology = Topology(loops=(LOOP,), resilience=1)
    first, second = report_of(1, membership_state=FENCED), report_of(2, membership_state=FENCED)
    assert is_complete({1: first, 2: second}, topology)
    assert not is_complete({1: first}, topology)
    assert not is_complete({1: first, 2: report_of(2, membership_state=NEWBORN)}, topology)
    assert not is_complete({1: first, 2: report_of(2, membership_state=FENCED, formation=2)}, topology)
    both = (LOOP, SECOND_LOOP)
    assert is_complete({1: first, 2: second}, Topology(loops=both, resilience=1))
    assert not is_complete({1: first, 2: second}, Topology(loops=both, resilience=1, remedy=Remedy.REPLACE))
