"""The governor of the primary loop: what it does about what the sites say."""

from dataclasses import replace

from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.nodes.coordinator.planned_change import lead_time
from fairtape.nodes.coordinator.primary_loop import FIRST_FORMATION_DELAY, Phase, PrimaryLoopCoordinator
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.ring.membership.topology import Excess, LoopTopology, Topology, lease_margin
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import Fence, Grant, Install, MembershipRequest, MembershipState
from unit.loop_values import TIMING, formation_of, standing_of

NOW: Instant = 100 * SECOND
LEASE = TIMING.lease_period + lease_margin(TIMING)


def governor(
    formation: Formation | None, *, excess: Excess = Excess.CONTINUE, resilience: int = 1
) -> PrimaryLoopCoordinator:
    loops = (LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING),)
    governor = PrimaryLoopCoordinator(
        Topology(loops=loops, excess=excess, resilience=resilience), me=101, stripe=0, clock_bound=lambda: 0
    )
    governor.lead(formation, 4, NOW)
    return governor


def led(**changes: object) -> PrimaryLoopCoordinator:
    """In a formation that all three members have entered."""
    loop = governor(formation_of(1, 2, 3, resilience=1), **changes)  # type: ignore[arg-type]
    for site in (1, 2, 3):
        loop.receive_report(standing_of(site), NOW)
    loop.outbox.clear()
    return loop


def said(governor: PrimaryLoopCoordinator, kind: type) -> list[NodeId]:
    told = [site for site, message in governor.outbox if isinstance(message, kind)]
    governor.outbox.clear()
    return told


def proposed(governor: PrimaryLoopCoordinator) -> bool:
    return any(isinstance(message, Install) and not message.final for _, message in governor.outbox)


def record(governor: PrimaryLoopCoordinator, now: Instant) -> Formation:
    assert governor.phase is Phase.RECORDING
    assert governor.proposal is not None
    formation = governor.proposal
    governor.recorded(formation, now)
    return formation


def test_the_first_formation_waits_for_everybody_but_not_for_ever() -> None:
    eager = governor(None)
    for site in (1, 2, 3):
        eager.receive_report(
            standing_of(site, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1),
            NOW,
        )
    assert record(eager, NOW).members == (1, 2, 3)
    patient = governor(None)
    patient.receive_report(
        standing_of(1, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1), NOW
    )
    assert patient.phase is Phase.EMPTY
    patient.wake(NOW + FIRST_FORMATION_DELAY)
    first = record(patient, NOW + FIRST_FORMATION_DELAY)
    assert (first.number, first.members, first.broken) == (1, (1,), False)


def test_sites_with_a_past_and_a_store_without_one_begin_with_a_break() -> None:
    loop = governor(None)
    for site in (1, 2, 3):
        loop.receive_report(standing_of(site, membership_state=MembershipState.NEWBORN), NOW)
    assert (record(loop, NOW).number, loop.formation is not None and loop.formation.broken) == (4, True)


def test_a_member_that_says_how_it_stands_gets_a_lease() -> None:
    loop = led()
    loop.receive_report(standing_of(2, asked_at=NOW - 7), NOW + 5)
    (site, grant), *_ = loop.outbox
    assert site == 2
    assert grant == Grant(0, 3, 101, 0, 4, NOW - 7, NOW + 5, 0, TIMING.lease_period)


def test_whoever_is_behind_is_told_of_the_formation_but_not_all_the_time() -> None:
    loop = led()
    loop.receive_report(standing_of(9, formation=1), NOW)
    assert said(loop, Install) == [9]
    loop.receive_report(standing_of(9, formation=1), NOW + 1)
    assert said(loop, Install) == []


def test_a_report_makes_it_fence_everybody_and_give_no_more_leases() -> None:
    loop = led()
    loop.receive_report(standing_of(1, suspect=2, suspect_token=21), NOW)
    assert loop.phase is Phase.FENCING
    assert said(loop, Fence) == [1, 2, 3]
    loop.receive_report(standing_of(3), NOW)
    assert said(loop, Grant) == []


def test_a_silent_member_is_waited_for_as_long_as_its_lease_lasts() -> None:
    """Each old member has answered or its lease has run out.  Decision 21, Where a formation resumes."""
    loop = led()
    loop.receive_report(standing_of(1, suspect=2, suspect_token=21), NOW)
    for site in (1, 3):
        loop.receive_report(
            standing_of(site, membership_state=MembershipState.FENCED, complete_through=20 + site), NOW + MILLISECOND
        )
    loop.wake(NOW + LEASE - 1)
    assert loop.phase is Phase.FENCING
    loop.wake(NOW + LEASE)
    formation = record(loop, NOW + LEASE)
    assert (formation.number, set(formation.members), formation.keeper) == (4, {1, 3}, 3)
    assert (formation.first_token, formation.broken) == (24, False)
    assert set(said(loop, Install)) == {1, 2, 3}
    assert loop.decisions[-1].silent == (2,)


def test_when_all_have_answered_nobody_is_waited_for() -> None:
    loop = led()
    loop.receive_report(standing_of(1, suspect=2, suspect_token=21), NOW)
    for site in (1, 2, 3):
        loop.receive_report(standing_of(site, membership_state=MembershipState.FENCED), NOW)
    assert set(record(loop, NOW).members) == {1, 2, 3}
    assert any("no site had failed" in notice for notice in loop.notices)


def test_more_silent_members_than_k_are_a_break_or_a_halt() -> None:
    for excess, phase in ((Excess.CONTINUE, Phase.RECORDING), (Excess.HALT, Phase.HALTED)):
        loop = led(excess=excess)
        loop.receive_report(standing_of(1, membership_state=MembershipState.FENCED), NOW)
        loop.wake(NOW + LEASE)
        assert loop.phase is phase
        loop.resume(NOW + LEASE)
        assert record(loop, NOW + LEASE).broken


def test_a_halt_ends_when_the_silent_are_heard_again() -> None:
    loop = led(excess=Excess.HALT)
    loop.receive_report(standing_of(1, membership_state=MembershipState.FENCED), NOW)
    loop.wake(NOW + LEASE)
    loop.receive_report(standing_of(2, membership_state=MembershipState.FENCED), NOW + 2 * LEASE)
    assert not record(loop, NOW + 2 * LEASE).broken


def test_a_member_that_falls_silent_is_missed_when_its_lease_is_over() -> None:
    loop = led()
    for site in (1, 2):
        loop.receive_report(standing_of(site), NOW + LEASE // 2)
    assert loop.deadline() <= NOW + LEASE
    loop.wake(NOW + LEASE)
    assert loop.phase is Phase.FENCING
    assert "site 3 is silent" in loop.notices[-1]


def test_a_new_leader_waits_out_what_the_last_one_granted() -> None:
    loop = governor(formation_of(1, 2, 3, resilience=2))
    loop.receive_report(standing_of(1, membership_state=MembershipState.FENCED), NOW)
    loop.wake(NOW + LEASE - 1)
    assert loop.phase is Phase.FENCING
    loop.wake(NOW + LEASE)
    assert not record(loop, NOW + LEASE).broken


def test_a_formation_takes_over_when_all_have_prepared_for_it() -> None:
    loop = led()
    loop.retire(3, NOW)
    assert loop.phase is Phase.PLANNING
    proposals = [message for _, message in loop.outbox if isinstance(message, Install)]
    assert not any(message.final for message in proposals)
    relief = decode_formation(proposals[0].layout)
    for site in (1, 2):
        loop.receive_report(standing_of(site, prepared=4), NOW)
    assert loop.phase is Phase.PLANNING
    loop.receive_report(standing_of(3, prepared=4), NOW)
    assert record(loop, NOW) == relief
    assert (relief.members, relief.leaving) == ((1, 2), (3,))


def test_a_suspicion_is_stronger_than_any_preparation() -> None:
    loop = led()
    loop.retire(3, NOW)
    for site in (1, 2):
        loop.receive_report(standing_of(site, prepared=4), NOW)
    loop.receive_report(standing_of(3, prepared=4, suspect=1, suspect_token=22), NOW)
    assert loop.phase is Phase.FENCING


def test_who_prepares_too_late_is_a_failure() -> None:
    loop = led()
    loop.retire(3, NOW)
    assert loop.deadline() <= NOW + TIMING.retry_period
    for later in range(1, 30):
        loop.wake(NOW + later * TIMING.retry_period // 2)
    assert loop.phase is Phase.FENCING


def test_after_a_change_that_failed_it_pauses_and_nobody_is_thought_hasty() -> None:
    loop = governor(formation_of(1, 2))
    joining = standing_of(3, membership_state=MembershipState.OBSERVER, request=MembershipRequest.JOIN)
    for standing in (standing_of(1), standing_of(2), joining):
        loop.receive_report(standing, NOW)
    now = NOW
    while loop.phase is Phase.PLANNING:
        now = loop.deadline()
        loop.receive_report(standing_of(1, prepared=4), now)
        loop.receive_report(standing_of(2), now)
    for site in (1, 2):
        loop.receive_report(standing_of(site, membership_state=MembershipState.FENCED), now)
    loop.outbox.clear()
    following = record(loop, now)
    assert following.timing.retries_max == TIMING.retries_max
    planned_at = now + 4 * lead_time(TIMING, 1)
    while now < planned_at:
        assert not proposed(loop)
        now = min(now + TIMING.retry_period, planned_at)
        for standing in (standing_of(1), standing_of(2), joining):
            loop.receive_report(replace(standing, formation=following.number), now)
    assert proposed(loop)


def test_no_change_is_planned_before_all_hold_what_came_before() -> None:
    loop = governor(formation_of(1, 2, 3))
    for site in (1, 2, 3):
        loop.receive_report(standing_of(site, complete_through=9 if site == 2 else 20), NOW)
    loop.outbox.clear()
    loop.retire(3, NOW)
    assert not any(isinstance(message, Install) for _, message in loop.outbox)
    loop.receive_report(standing_of(2, complete_through=10), NOW)
    assert any(isinstance(message, Install) for _, message in loop.outbox)


def test_whoever_is_leaving_must_answer_until_the_new_formation_has_taken_over() -> None:
    relief = formation_of(1, 2, leaving=(3,), first_sequence=0, resilience=1, resilience_before=1)
    for reached, waits in ((9, True), (10, False)):
        loop = governor(relief)
        for site in (1, 2):
            loop.receive_report(
                standing_of(site, membership_state=MembershipState.FENCED, complete_through=reached), NOW
            )
        assert (loop.phase is Phase.FENCING) == waits


def test_a_site_with_a_bad_clock_is_let_go() -> None:
    loop = led()
    loop.receive_report(standing_of(2, request=MembershipRequest.WITHDRAW), NOW)
    assert loop.phase is Phase.PLANNING
    assert any(isinstance(message, Install) and not message.final for _, message in loop.outbox)


def test_a_member_that_lost_its_memory_is_noticed() -> None:
    loop = led()
    loop.receive_report(standing_of(2, membership_state=MembershipState.RESTARTED), NOW)
    assert "site 2 has lost its memory" in loop.notices[-1]
