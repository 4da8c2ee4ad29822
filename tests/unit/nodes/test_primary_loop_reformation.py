"""What follows from the reports of the members: decision 21, Where a formation resumes, as functions of values."""

from dataclasses import replace

from fairtape.nodes.coordinator.planned_change import LAG_MAX
from fairtape.nodes.coordinator.reformation import (
    RETRIES_FACTOR_MAX,
    SUSPICION,
    accused_member,
    commits_may_be_missing,
    has_declared,
    next_layout,
    survivable_after,
    suspected_member,
)
from fairtape.ring.membership.topology import Excess, LoopTopology, Remedy, Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipRequest, MembershipState, SiteReport
from unit.ring.loop_values import TIMING, formation_of, report_of

SUSPECTS_1: dict[str, object] = {"suspect": 1, "suspect_token": 21, "reason": SUSPICION}


def topology(*tour: NodeId, resilience: int = 1, remedy: Remedy = Remedy.BYPASS) -> Topology:
    secondary = LoopTopology(number=1, tour=(91, 92), timing=TIMING, junction=2)
    loops = (LoopTopology(number=0, tour=tour, timing=TIMING), secondary)
    return Topology(loops=loops, resilience=resilience, remedy=remedy)


def fenced(*sites: NodeId, **changes: object) -> dict[NodeId, SiteReport]:
    return {site: report_of(site, membership_state=MembershipState.FENCED, **changes) for site in sites}


def test_nothing_is_missing_while_at_most_k_are_silent() -> None:
    loop = formation_of(1, 2, 3, 4, resilience=1)
    assert not commits_may_be_missing(loop, fenced(1, 2, 3).values(), (4,))
    assert commits_may_be_missing(loop, fenced(1, 2).values(), (3, 4))


def test_an_end_that_only_a_lost_keeper_held_was_not_committed_while_few_members_are_lost() -> None:
    """Committed is what K + 1 members of the formation before held.  Decision 54, Uncommitted ends."""
    behind = fenced(1, 2, sequence=100, complete_through=9).values()
    assert not commits_may_be_missing(formation_of(1, 2, 3, resilience=2, resilience_before=1), behind, (3,))
    assert commits_may_be_missing(formation_of(1, 2, 3, resilience=2, resilience_before=1), behind, (2, 3))
    assert commits_may_be_missing(formation_of(1, 2, 3, resilience=2, resilience_before=0), behind, (3,))
    level = fenced(1, 2, sequence=101, complete_through=10).values()
    assert not commits_may_be_missing(formation_of(1, 2, 3, resilience=1, resilience_before=0), level, (3,))


def test_each_lost_member_reduces_what_the_next_formation_may_lose() -> None:
    settled = fenced(1, 2, settled_through=11).values()
    assert survivable_after(formation_of(1, 2, 3, 4, resilience=2), settled, gone=1) == 1
    assert survivable_after(formation_of(1, 2, 3, 4, resilience=2), settled, gone=3) == 0


def test_until_a_formation_has_settled_a_token_what_the_one_before_could_lose_counts() -> None:
    unsettled = fenced(1, 2, settled_through=10).values()
    loop = formation_of(1, 2, 3, 4, resilience=2, resilience_before=1, first_token=11)
    assert survivable_after(loop, unsettled, gone=0) == 1
    assert survivable_after(loop, unsettled, gone=1) == 0
    assert survivable_after(loop, fenced(1, settled_through=11).values(), gone=0) == 2


def test_the_member_that_most_accuse_is_bypassed_and_not_the_one_that_it_accuses() -> None:
    """2001 §5.3: site 3 hears no other site, and accuses the one whose turn it was."""
    answered = fenced(1, 2, 4, 5, suspect=3, suspect_token=23) | fenced(3, suspect=1, suspect_token=21)
    loop = formation_of(1, 2, 3, 4, 5)
    accused = accused_member(loop, answered, repeated=False)
    assert accused == 3
    layout = next_layout(loop, answered, answered, topology(1, 2, 3, 4, 5), retired=(), suspected=True, accused=accused)
    assert layout.members == (1, 2, 4, 5)
    assert layout.timing == loop.timing


def test_a_member_is_suspected_by_more_than_half_of_the_others_and_by_two_at_least() -> None:
    """Decision 72, Suspicion."""
    for members, suspecting, enough in (((1, 2, 3, 4, 5), 2, False), ((1, 2, 3, 4, 5), 3, True), ((1, 2), 1, False)):
        reports = [report_of(site, **(SUSPECTS_1 if site - 1 in range(1, suspecting + 1) else {})) for site in members]
        assert (suspected_member(formation_of(*members), reports) == 1) is enough
    assert not has_declared(report_of(2, **SUSPECTS_1))
    assert has_declared(report_of(2, suspect=1, suspect_token=21, reason=1))


def test_one_accusation_proves_nothing_until_it_is_repeated() -> None:
    answered = fenced(1, 2) | fenced(3, suspect=1, suspect_token=21)
    assert accused_member(formation_of(1, 2, 3), answered, repeated=False) is None
    assert accused_member(formation_of(1, 2, 3), answered, repeated=True) == 1


def test_of_two_that_accuse_each_other_the_one_that_holds_less_is_bypassed() -> None:
    answered = fenced(1, suspect=2, suspect_token=21) | fenced(2, suspect=1, suspect_token=20, complete_through=19)
    assert accused_member(formation_of(1, 2), answered, repeated=False) is None
    assert accused_member(formation_of(1, 2), answered, repeated=True) == 2


def test_a_member_that_fails_again_and_again_does_not_stay_with_its_journal() -> None:
    answered = fenced(1, 2) | {3: report_of(3, membership_state=MembershipState.RESTARTED)}
    loop, policy = formation_of(1, 2, 3), topology(1, 2, 3)
    assert next_layout(loop, answered, answered, policy, retired=(), suspected=False).members == (1, 2, 3)
    layout = next_layout(loop, answered, answered, policy, retired=(), suspected=False, excluded={3})
    assert layout.members == (1, 2)


def test_an_accused_member_that_alone_holds_the_end_leaves_only_if_the_order_survives_its_loss() -> None:
    """Decision 54, Uncommitted ends."""
    policy = topology(1, 2, 3)
    answered = fenced(1) | fenced(2, complete_through=19) | fenced(3, complete_through=21)
    for resilience, members in ((0, (1, 2, 3)), (1, (1, 2))):
        loop = formation_of(1, 2, 3, resilience=resilience)
        layout = next_layout(loop, answered, answered, policy, retired=(), suspected=False, accused=3)
        assert layout.members == members
    layout = next_layout(loop, answered, answered, policy, retired={1}, suspected=False, accused=3)
    assert layout.members == (1, 2, 3)
    level = answered | fenced(3)
    assert next_layout(loop, level, level, policy, retired={1}, suspected=False).members == (2, 3)


def test_a_leaving_site_that_alone_holds_the_end_becomes_a_member_again() -> None:
    """Decision 54, Uncommitted ends."""
    loop = formation_of(2, 1, leaving=(3,), first_sequence=0, resilience=1, resilience_before=1)
    answered = fenced(2, complete_through=8) | fenced(3, complete_through=10)
    policy = topology(1, 2, 3)
    layout = next_layout(loop, answered, answered, policy, retired={3}, suspected=False)
    assert layout.members == (2, 3)
    assert not commits_may_be_missing(loop, answered.values(), (1,))
    without_1 = answered | fenced(1, complete_through=8)
    assert next_layout(loop, without_1, without_1, policy, retired={3}, suspected=False).members == (2, 1)


def test_no_site_leaves_where_the_promised_resilience_would_shrink() -> None:
    """Decision 56, Least resilience."""
    loops = (LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING),)
    answered = fenced(1, 2, 3)
    for excess, members in ((Excess.HALT, (1, 2, 3)), (Excess.CONTINUE, (1, 2))):
        policy = Topology(loops=loops, resilience=2, excess=excess)
        loop = formation_of(1, 2, 3, resilience=2)
        assert next_layout(loop, answered, answered, policy, retired={3}, suspected=False).members == members


def test_before_a_formation_has_taken_over_the_resilience_of_the_one_before_counts() -> None:
    loop = formation_of(1, 2, first_sequence=0, resilience=1, resilience_before=0)
    assert commits_may_be_missing(loop, fenced(2, complete_through=9).values(), (1,))
    assert not commits_may_be_missing(loop, fenced(2, complete_through=10).values(), (1,))


def test_a_site_that_leaves_does_not_count_against_the_resilience_of_those_that_stay() -> None:
    """It holds nothing that was committed without it.  Decision 54, Uncommitted ends."""
    loop = formation_of(1, first_sequence=0, resilience=0, resilience_before=1, leaving=(2,))
    answered = fenced(1, complete_through=9).values()
    assert not commits_may_be_missing(loop, answered, (2,))
    assert commits_may_be_missing(loop, answered, (1,))
    assert commits_may_be_missing(replace(loop, resilience_before=0), answered, (2,))


def test_silent_members_are_bypassed() -> None:
    answered = fenced(1, 3)
    assert next_layout(
        formation_of(1, 2, 3), answered, answered, topology(1, 2, 3), retired=(), suspected=True
    ).members == (1, 3)


def test_a_restarted_site_stays_if_its_journal_is_near() -> None:
    answered = fenced(1) | {
        2: report_of(2, membership_state=MembershipState.RESTARTED, complete_through=20 - LAG_MAX),
        3: report_of(3, membership_state=MembershipState.RESTARTED, complete_through=19 - LAG_MAX),
    }
    assert next_layout(
        formation_of(1, 2, 3), answered, answered, topology(1, 2, 3), retired=(), suspected=True
    ).members == (1, 2)


def test_retired_sites_and_those_with_bad_clocks_leave_at_a_reformation() -> None:
    answered = fenced(1, 2) | fenced(3, request=MembershipRequest.WITHDRAW)
    layout = next_layout(formation_of(1, 2, 3), answered, answered, topology(1, 2, 3), retired={2}, suspected=True)
    assert layout.members == (1,)
    all_leaving = next_layout(
        formation_of(1, 2, 3), answered, answered, topology(1, 2, 3), retired={1, 2}, suspected=True
    )
    assert all_leaving.members == (1, 2, 3)  # a loop is never emptied


def test_if_only_leaving_sites_are_left_they_stay() -> None:
    answered = fenced(3)
    loop = formation_of(1, leaving=(3,), first_sequence=0)
    assert next_layout(loop, answered, answered, topology(1, 3), retired={3}, suspected=True).members == (3,)


def test_a_secondary_site_takes_the_place_of_its_junction() -> None:
    """2001 §8."""
    answered = fenced(1, 3)
    reports = answered | {91: report_of(91, complete_through=18), 92: report_of(92, complete_through=19)}
    policy = topology(1, 2, 3, remedy=Remedy.REPLACE)
    layout = next_layout(formation_of(1, 2, 3), answered, reports, policy, retired=(), suspected=True)
    assert layout.members == (1, 92, 3)
    layout = next_layout(formation_of(1, 2, 3), answered, reports, policy, retired={92}, suspected=True)
    assert layout.members == (1, 91, 3)
    layout = next_layout(formation_of(1, 2, 3), answered, reports, policy, retired={91, 92}, suspected=True)
    assert layout.members == (1, 3)


def test_a_needless_reformation_raises_retries_up_to_a_limit() -> None:
    """Decision 28, Retry adaptation."""
    answered = fenced(1, 2)
    loop = formation_of(1, 2)
    for _ in range(50):
        loop = next_layout(loop, answered, answered, topology(1, 2), retired=(), suspected=True)
    assert loop.timing.retries_max == RETRIES_FACTOR_MAX * TIMING.retries_max
    failed = next_layout(formation_of(1, 2, 3), answered, answered, topology(1, 2, 3), retired=(), suspected=True)
    assert failed.timing.retries_max == TIMING.retries_max


def test_patience_at_most_doubles_the_time_to_detect_a_crash() -> None:
    """And the lease of a crashed member, for which its successors wait.  Decision 73, Bounded patience."""
    patient = replace(TIMING, retries_max=RETRIES_FACTOR_MAX * TIMING.retries_max)
    assert patient.reform_delay <= 2 * TIMING.reform_delay
    assert patient.lease_period <= 2 * TIMING.lease_period


def test_the_resilience_follows_the_members() -> None:
    answered = fenced(1, 2, 3)
    layout = next_layout(
        formation_of(1, 2, 3, 4), answered, answered, topology(1, 2, 3, 4, resilience=3), retired=(), suspected=True
    )
    assert layout.resilience == 2
