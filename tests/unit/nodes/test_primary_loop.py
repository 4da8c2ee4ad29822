"""The coordinator of the primary loop: how it reacts to the reports of the sites."""

from dataclasses import replace

from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.nodes.coordinator.exclusion import FIRST_WAIT
from fairtape.nodes.coordinator.lost_store import NUMBERS_SKIPPED
from fairtape.nodes.coordinator.planned_change import lead_time
from fairtape.nodes.coordinator.primary_loop import FIRST_FORMATION_DELAY, Phase, PrimaryLoopCoordinator
from fairtape.nodes.coordinator.reformation import SUSPICION
from fairtape.nodes.coordinator.roll import Holding, lost_journal, most_held
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation, proposal_digest
from fairtape.ring.membership.topology import Excess, LoopTopology, Topology, lease_margin
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import Fence, Grant, Install, MembershipRequest, MembershipState
from unit.ring.loop_values import TIMING, formation_of, report_of

NOW: Instant = 100 * SECOND
LEASE = TIMING.lease_period + lease_margin(TIMING)
FENCED: dict[str, object] = {"membership_state": MembershipState.FENCED}


def coordinator(
    formation: Formation | None, *, excess: Excess = Excess.CONTINUE, resilience: int = 1
) -> PrimaryLoopCoordinator:
    loops = (LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING),)
    coordinator = PrimaryLoopCoordinator(
        Topology(loops=loops, excess=excess, resilience=resilience), me=101, stripe=0, clock_bound=lambda: 0
    )
    coordinator.lead(formation, 4, NOW)
    return coordinator


def led(**changes: object) -> PrimaryLoopCoordinator:
    """In a formation that all three members have entered."""
    loop = coordinator(formation_of(1, 2, 3, resilience=1), **changes)  # type: ignore[arg-type]
    for site in (1, 2, 3):
        loop.receive_report(report_of(site), NOW)
    loop.outbox.clear()
    return loop


def said(coordinator: PrimaryLoopCoordinator, kind: type) -> list[NodeId]:
    recipients = [site for site, message in coordinator.outbox if isinstance(message, kind)]
    coordinator.outbox.clear()
    return recipients


def proposed(coordinator: PrimaryLoopCoordinator) -> bool:
    return any(isinstance(message, Install) and not message.final for _, message in coordinator.outbox)


def record(coordinator: PrimaryLoopCoordinator, now: Instant) -> Formation:
    assert coordinator.phase is Phase.RECORDING
    assert coordinator.proposal is not None
    formation = coordinator.proposal
    coordinator.recorded(formation, now)
    return formation


def test_the_first_formation_waits_for_all_sites_but_not_for_ever() -> None:
    eager = coordinator(None)
    for site in (1, 2, 3):
        eager.receive_report(
            report_of(site, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1),
            NOW,
        )
    assert record(eager, NOW).members == (1, 2, 3)
    patient = coordinator(None)
    patient.receive_report(
        report_of(1, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1), NOW
    )
    assert patient.phase is Phase.EMPTY
    patient.wake(NOW + FIRST_FORMATION_DELAY)
    first = record(patient, NOW + FIRST_FORMATION_DELAY)
    assert (first.number, first.members, first.broken) == (1, (1,), False)


def test_a_server_that_knows_no_site_of_the_tour_does_not_spin() -> None:
    loop = coordinator(None)
    newborn = report_of(9, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1)
    loop.receive_report(newborn, NOW)
    loop.wake(NOW + FIRST_FORMATION_DELAY)
    assert loop.deadline() > NOW + FIRST_FORMATION_DELAY


def test_sites_with_a_history_and_a_store_without_one_begin_with_a_break() -> None:
    loop = coordinator(None)
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, membership_state=MembershipState.NEWBORN), NOW)
    assert (record(loop, NOW).number, loop.formation is not None and loop.formation.broken) == (
        4 + NUMBERS_SKIPPED,
        True,
    )


def test_a_report_ahead_of_the_store_stops_all_sites_and_skips_the_lost_numbers() -> None:
    """Decision 69, Lost formations."""
    loop = led()
    loop.receive_report(report_of(2, formation=5), NOW + 1)
    assert loop.phase is Phase.FENCING
    assert [message.formation for _, message in loop.outbox if isinstance(message, Fence)] == [3, 5, 3]
    loop.outbox.clear()
    loop.receive_report(report_of(1, formation=2), NOW + 2)
    assert not any(isinstance(message, Grant | Install) for _, message in loop.outbox)
    for site, formation in ((1, 3), (2, 5), (3, 5)):
        loop.receive_report(
            report_of(site, formation=formation, membership_state=MembershipState.FENCED, complete_through=30 - site),
            NOW + 3,
        )
    following = record(loop, NOW + 3)
    assert (following.number, following.keeper, following.broken) == (6, 2, True)
    assert set(said(loop, Install)) == {1, 2, 3}


def test_a_retired_site_that_holds_most_is_a_member_after_a_recovery() -> None:
    """No keeper is outside its formation.  Decision 54, Uncommitted ends."""
    for complete_through, members in ((20, {1, 2}), (21, {1, 2, 3})):
        loop = led()
        loop.retired.add(3)
        for site in (1, 2, 3):
            through = complete_through if site == 3 else 20
            loop.receive_report(report_of(site, formation=5, complete_through=through, **FENCED), NOW + 1)
        loop.wake(NOW + 4 * SECOND)
        following = record(loop, NOW + 4 * SECOND)
        assert set(following.members) == members
        assert following.keeper in members


def test_without_an_answer_it_waits_for_the_leases_of_the_lost_formation() -> None:
    for number, waits in ((1, False), (2, True)):
        loop = coordinator(formation_of(1, 2, 3))
        loop.receive_report(report_of(1, formation=5, membership_state=MembershipState.FENCED), NOW)
        loop.receive_report(report_of(2, formation=5, membership_state=MembershipState.FENCED), NOW)
        state = MembershipState.MEMBER if number == 2 else MembershipState.NEWBORN
        loop.receive_report(report_of(3, formation=5, membership_state=state), NOW)
        assert (loop.phase is Phase.FENCING) == waits
        loop.wake(NOW + FIRST_FORMATION_DELAY)
        assert record(loop, NOW + FIRST_FORMATION_DELAY).broken


def test_a_loop_of_which_no_member_answers_waits_for_one() -> None:
    """Also if the operator orders to go on: there is no order that could be continued."""
    loop = coordinator(formation_of(1, 2, 3, resilience=1))
    for at in (LEASE, LEASE + FIRST_FORMATION_DELAY):
        loop.wake(NOW + at)
    assert loop.phase is Phase.HALTED
    loop.resume(NOW + LEASE + FIRST_FORMATION_DELAY + 1)
    assert loop.phase is Phase.HALTED
    loop.receive_report(report_of(1, membership_state=MembershipState.FENCED), NOW + LEASE + 2 * FIRST_FORMATION_DELAY)
    assert record(loop, NOW + LEASE + 2 * FIRST_FORMATION_DELAY).members == (1,)


def test_what_dead_members_reported_is_nothing_to_go_on_with() -> None:
    """Their journals hold more. A command without any member has no effect.  Decision 26, All members restarted."""
    loop = led(excess=Excess.HALT)
    loop.wake(NOW + LEASE)
    later = NOW + LEASE + FIRST_FORMATION_DELAY
    loop.wake(later)
    assert loop.phase is Phase.HALTED
    loop.resume(later)
    assert loop.phase is Phase.HALTED
    loop.receive_report(report_of(1, membership_state=MembershipState.RESTARTED, incarnation=9), later + SECOND)
    assert loop.phase is Phase.HALTED
    loop.resume(later + SECOND)
    assert record(loop, later + SECOND).broken


def test_members_whose_journals_prove_nothing_are_a_last_resort() -> None:
    """Where journals are not durable they observe after a restart.  Decision 26, All members restarted."""
    loop = led(excess=Excess.HALT)
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, membership_state=MembershipState.OBSERVER, incarnation=9), NOW)
    later = NOW + LEASE + FIRST_FORMATION_DELAY
    loop.wake(later)
    assert loop.phase is Phase.HALTED
    loop.resume(later)
    assert record(loop, later).broken


def test_under_halt_a_lost_proof_needs_the_operator() -> None:
    loop = led(excess=Excess.HALT)
    for site in (1, 2, 3):
        state = MembershipState.NEWBORN if site == 3 else MembershipState.FENCED
        loop.receive_report(report_of(site, formation=5, membership_state=state), NOW)
    assert loop.phase is Phase.HALTED
    assert "the store has lost formations after 3" in loop.notices[-1]
    loop.resume(NOW)
    assert record(loop, NOW).broken
    proven = led(excess=Excess.HALT)
    for site in (1, 2, 3):
        proven.receive_report(report_of(site, formation=5, membership_state=MembershipState.FENCED), NOW)
    assert not record(proven, NOW).broken


def test_leases_go_on_while_a_planned_change_is_recorded() -> None:
    """However long the store takes.  Decision 68, Leader's lease."""
    loop = led()
    loop.retire(3, NOW)
    (relief,) = {message.layout for _, message in loop.outbox if isinstance(message, Install)}
    digest = proposal_digest(decode_formation(relief))
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, prepared=4, proposal=digest), NOW)
    assert loop.phase is Phase.RECORDING
    loop.outbox.clear()
    loop.receive_report(report_of(1, prepared=4, proposal=digest), NOW + 1)
    assert said(loop, Grant) == [1]


def test_a_slow_store_delays_the_first_token_that_it_records() -> None:
    for delay in (0, SECOND):
        loop = led()
        loop.recording_delay = delay
        loop.receive_report(report_of(1, suspect=2, suspect_token=21), NOW)
        for site in (1, 2, 3):
            loop.receive_report(report_of(site, membership_state=MembershipState.FENCED), NOW)
        following = record(loop, NOW)
        later = max(delay - following.timing.reform_delay // 4, 0)
        assert following.starts_at == NOW + TIMING.one_way_max + later
    assert lead_time(TIMING, 0, SECOND) - lead_time(TIMING, 0) > SECOND * 9 // 10


def test_a_member_that_reports_gets_a_lease() -> None:
    loop = led()
    loop.receive_report(report_of(2, asked_at=NOW - 7), NOW + 5)
    (site, grant), *_ = loop.outbox
    assert site == 2
    assert grant == Grant(0, 3, 101, 0, 4, NOW - 7, NOW + 5, 0, TIMING.lease_period)


def test_a_site_that_is_behind_is_sent_the_formation_at_a_limited_rate() -> None:
    loop = led()
    loop.receive_report(report_of(9, formation=1), NOW)
    assert said(loop, Install) == [9]
    loop.receive_report(report_of(9, formation=1), NOW + 1)
    assert said(loop, Install) == []


def test_a_suspicion_makes_it_fence_all_members_and_grant_no_more_leases() -> None:
    loop = led()
    loop.receive_report(report_of(1, suspect=2, suspect_token=21), NOW)
    assert loop.phase is Phase.FENCING
    assert said(loop, Fence) == [1, 2, 3]
    loop.receive_report(report_of(3), NOW)
    assert said(loop, Grant) == []


def test_a_silent_member_is_waited_for_as_long_as_its_lease_lasts() -> None:
    """Each old member has answered or its lease has expired.  Decision 21, Where a formation resumes."""
    loop = led()
    loop.receive_report(report_of(1, suspect=2, suspect_token=21), NOW)
    for site in (1, 3):
        loop.receive_report(
            report_of(site, membership_state=MembershipState.FENCED, complete_through=20 + site), NOW + MILLISECOND
        )
    loop.wake(NOW + LEASE - 1)
    assert loop.phase is Phase.FENCING
    loop.wake(NOW + LEASE)
    formation = record(loop, NOW + LEASE)
    assert (formation.number, set(formation.members), formation.keeper) == (4, {1, 3}, 3)
    assert (formation.first_token, formation.broken) == (24, False)
    assert set(said(loop, Install)) == {1, 2, 3}
    assert loop.decisions[-1].silent == (2,)


def test_a_member_with_another_journal_counts_as_silent() -> None:
    """Its empty journal proves nothing about what it held.  Decision 52, Identity of a journal."""
    for journal, broken in ((13, False), (99, True)):
        loop = coordinator(formation_of(1, 2, 3, resilience=1, journals=(11, 12, 13)))
        loop.receive_report(report_of(1, membership_state=MembershipState.FENCED, journal=11), NOW)
        restarted = {"membership_state": MembershipState.RESTARTED, "incarnation": 9, "sequence": 1}
        loop.receive_report(report_of(3, journal=journal, complete_through=0, **restarted), NOW)
        loop.wake(NOW + LEASE)
        formation = record(loop, NOW + LEASE)
        assert formation.broken == broken
        assert formation.journals[0] == 11


def test_a_member_that_restarts_with_less_than_it_had_counts_as_silent() -> None:
    for sequence, broken in ((150, False), (149, True)):
        loop = led()
        restarted = report_of(3, membership_state=MembershipState.RESTARTED, incarnation=9, sequence=sequence)
        loop.receive_report(restarted, NOW)
        loop.receive_report(report_of(1, membership_state=MembershipState.FENCED), NOW)
        loop.wake(NOW + LEASE)
        assert record(loop, NOW + LEASE).broken == broken


def test_what_a_site_reports_between_hides_no_loss() -> None:
    """A copy of an earlier formation, or the whole journal at a first restart.  Decision 52, Identity of a journal."""
    earlier = report_of(3, membership_state=MembershipState.NEWBORN, incarnation=9, formation=2, sequence=90)
    whole = report_of(3, membership_state=MembershipState.RESTARTED, incarnation=8, sequence=151)
    for between, sequence, broken in ((earlier, 90, True), (whole, 150, True), (whole, 151, False)):
        loop = led()
        loop.receive_report(between, NOW)
        restarted = report_of(3, membership_state=MembershipState.RESTARTED, incarnation=9, sequence=sequence)
        loop.receive_report(restarted, NOW)
        loop.receive_report(report_of(1, membership_state=MembershipState.FENCED), NOW)
        loop.wake(NOW + LEASE)
        assert record(loop, NOW + LEASE).broken == broken


def test_what_a_formation_dropped_is_not_expected_of_a_restarted_member() -> None:
    """A member of the next formation holds what precedes it, and no more.  Decision 52, Identity of a journal."""
    formation = formation_of(1, 2, 3, number=4, first_sequence=140)
    held = Holding(3, 1_003, 150)
    assert held.within(formation) == Holding(3, 1_003, 140)
    assert held.within(formation_of(1, 2, 3, number=4, first_sequence=0)) == held
    assert most_held(held, report_of(3, formation=4, sequence=141), formation) == Holding(4, 1_003, 141)
    less = report_of(3, sequence=149, incarnation=9, membership_state=MembershipState.RESTARTED)
    assert most_held(held, less, formation_of(1, 2, 3)) == held
    restarted = report_of(3, formation=4, sequence=140, incarnation=9, membership_state=MembershipState.RESTARTED)
    assert not lost_journal(held.within(formation), restarted)
    assert lost_journal(held.within(formation), replace(restarted, sequence=139))


def test_a_loop_halts_before_its_promised_resilience_shrinks() -> None:
    """Members fail one by one, and no more than K at once.  Decision 56, Least resilience."""
    loop = coordinator(formation_of(1, 2, resilience=1), excess=Excess.HALT)
    loop.receive_report(report_of(1, membership_state=MembershipState.FENCED), NOW)
    loop.wake(NOW + LEASE)
    assert loop.phase is Phase.HALTED
    assert "K would be 0 with members (1,), and must be at least 1" in loop.notices[-1]
    loop.resume(NOW + LEASE)
    following = record(loop, NOW + LEASE)
    assert (following.members, following.resilience, following.broken) == ((1,), 0, False)


def after_a_needless_reformation() -> tuple[PrimaryLoopCoordinator, Formation]:
    """Site 3 has accused site 1, and all have answered."""
    loop = led()
    loop.receive_report(report_of(3, suspect=1, suspect_token=21), NOW)
    for site in (1, 2, 3):
        accusation = {"suspect": 1, "suspect_token": 21} if site == 3 else {}
        loop.receive_report(report_of(site, membership_state=MembershipState.FENCED, **accusation), NOW)
    second = record(loop, NOW)
    loop.outbox.clear()
    return loop, second


def test_after_a_needless_reformation_the_others_say_whom_they_suspect() -> None:
    """Decision 55, Accused members."""
    loop, second = after_a_needless_reformation()
    assert set(second.members) == {1, 2, 3}
    at = NOW + LEASE // 2
    for site in (1, 2):
        loop.receive_report(report_of(site, formation=4), at)
    loop.receive_report(report_of(3, formation=4, suspect=1, suspect_token=21), at)
    assert not said(loop, Fence)
    until = at + len(second.members) * second.timing.token_period + second.timing.retry_period
    assert loop.deadline() <= until
    loop.receive_report(report_of(1, formation=4, suspect=3, suspect_token=23), until - 1)
    loop.receive_report(report_of(2, formation=4, suspect=3, suspect_token=23), until - 1)
    loop.wake(until)
    assert said(loop, Fence) == [1, 2, 3]
    for site, suspect in ((1, 3), (2, 3), (3, 1)):
        accusation = {"suspect": suspect, "suspect_token": 21}
        loop.receive_report(report_of(site, formation=4, membership_state=MembershipState.FENCED, **accusation), until)
    assert set(record(loop, until).members) == {1, 2}


def test_the_end_of_an_accused_member_is_dropped_or_the_member_is_the_keeper() -> None:
    """No keeper is outside its formation.  Decision 54, Uncommitted ends."""
    for resilience, members, keeper, first_token in ((0, {1, 2, 3}, 3, 23), (1, {1, 2}, 1, 21)):
        loop = coordinator(formation_of(1, 2, 3, resilience=resilience), resilience=resilience)
        for site in (1, 2):
            accusation = {"suspect": 3, "suspect_token": 21, "membership_state": MembershipState.FENCED}
            loop.receive_report(report_of(site, **accusation), NOW)
        loop.receive_report(report_of(3, membership_state=MembershipState.FENCED, complete_through=22), NOW)
        following = record(loop, NOW)
        assert (set(following.members), following.keeper, following.first_token) == (members, keeper, first_token)
        assert not following.broken


def test_the_order_waits_with_an_accused_member_that_may_not_leave() -> None:
    """Until it is restarted, and not for ever.  Decision 57, Exclusion."""
    loop = coordinator(formation_of(1, 2, 3, resilience=2), excess=Excess.HALT, resilience=2)
    now, waited = NOW, []
    for number in range(3, 9):
        accusation = {"suspect": 3, "suspect_token": 21, "membership_state": MembershipState.FENCED}
        for site in (1, 2, 3):
            loop.receive_report(report_of(site, formation=number, **(accusation if site < 3 else FENCED)), now)
        assert loop.formation is not None
        waited.append(0)
        while loop.phase is Phase.FENCING:
            assert loop.waits
            now += loop.formation.timing.lease_period
            loop.wake(now)
            waited[-1] += 1
        assert set(record(loop, now).members) == {1, 2, 3}
    assert waited == [0, 4, 8, 16, 16, 16]
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, formation=9, **(accusation if site < 3 else FENCED)), now)
    assert loop.waits
    loop.receive_report(report_of(3, formation=9, membership_state=MembershipState.RESTARTED, incarnation=9), now + 1)
    assert set(record(loop, now + 1).members) == {1, 2, 3}


def test_a_leaving_site_that_is_fenced_alone_causes_a_reformation() -> None:
    """The leader that fenced it has failed since."""
    loop = coordinator(formation_of(1, 2, leaving=(3,), resilience=1))
    for site in (1, 2):
        loop.receive_report(report_of(site), NOW)
    loop.receive_report(report_of(3, membership_state=MembershipState.FENCED), NOW)
    assert loop.phase is Phase.FENCING


def test_an_earlier_report_that_arrives_after_an_accusation_leaves_no_timer_behind() -> None:
    """Reported again, it is followed after another round.  Decision 55, Accused members."""
    loop, second = after_a_needless_reformation()
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, formation=4), NOW)
    accused = report_of(3, formation=4, suspect=1, suspect_token=21)
    loop.receive_report(accused, NOW)
    until = NOW + len(second.members) * second.timing.token_period + second.timing.retry_period
    assert loop.deadline() <= until
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, formation=4), until - 1)
    loop.wake(until)
    assert not said(loop, Fence)
    assert loop.deadline() > until
    loop.receive_report(accused, until)
    assert not said(loop, Fence)
    loop.wake(2 * until - NOW)
    assert said(loop, Fence) == [1, 2, 3]


def test_a_site_that_fails_twice_waits_before_it_joins_again() -> None:
    """Decision 57, Exclusion."""
    loop, now = led(), NOW
    for number in (3, 4):
        loop.receive_report(
            report_of(3, formation=number, membership_state=MembershipState.RESTARTED, incarnation=number), now
        )
        for site in (1, 2):
            loop.receive_report(report_of(site, formation=number, membership_state=MembershipState.FENCED), now)
        record(loop, now)
    assert loop.formation is not None
    assert 3 not in loop.formation.members
    assert any("site 3 failed 2 times in a row" in notice for notice in loop.notices)
    joining = report_of(3, formation=5, membership_state=MembershipState.OBSERVER, request=MembershipRequest.JOIN)
    until = now + FIRST_WAIT * TIMING.lease_period
    while now < until:
        assert loop.phase is Phase.STEADY
        now = min(now + TIMING.lease_period // 2, until)
        for report in (report_of(1, formation=5), report_of(2, formation=5), joining):
            loop.receive_report(report, now)
    assert proposed(loop)


def test_when_all_have_answered_it_does_not_wait() -> None:
    loop = led()
    loop.receive_report(report_of(1, suspect=2, suspect_token=21), NOW)
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, membership_state=MembershipState.FENCED), NOW)
    assert set(record(loop, NOW).members) == {1, 2, 3}
    assert any("no site had failed" in notice for notice in loop.notices)


def test_more_silent_members_than_k_are_a_break_or_a_halt() -> None:
    for excess, phase in ((Excess.CONTINUE, Phase.RECORDING), (Excess.HALT, Phase.HALTED)):
        loop = led(excess=excess)
        loop.receive_report(report_of(1, membership_state=MembershipState.FENCED), NOW)
        loop.wake(NOW + LEASE)
        assert loop.phase is phase
        loop.resume(NOW + LEASE)
        assert record(loop, NOW + LEASE).broken


def test_a_halt_ends_when_the_silent_members_report_again() -> None:
    loop = led(excess=Excess.HALT)
    loop.receive_report(report_of(1, membership_state=MembershipState.FENCED), NOW)
    loop.wake(NOW + LEASE)
    loop.receive_report(report_of(2, membership_state=MembershipState.FENCED), NOW + 2 * LEASE)
    assert not record(loop, NOW + 2 * LEASE).broken


def test_a_silent_member_is_detected_when_its_lease_ends() -> None:
    loop = led()
    for site in (1, 2):
        loop.receive_report(report_of(site), NOW + LEASE // 2)
    assert loop.deadline() <= NOW + LEASE
    loop.wake(NOW + LEASE)
    assert loop.phase is Phase.FENCING
    assert "site 3 is silent" in loop.notices[-1]


def test_a_new_leader_waits_for_the_leases_of_the_last_one() -> None:
    loop = coordinator(formation_of(1, 2, 3, resilience=2))
    loop.receive_report(report_of(1, membership_state=MembershipState.FENCED), NOW)
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
    digest = proposal_digest(relief)
    for site in (1, 2):
        loop.receive_report(report_of(site, prepared=4, proposal=digest), NOW)
    loop.receive_report(report_of(3, prepared=4, proposal=digest + 1), NOW)
    assert loop.phase is Phase.PLANNING, "prepared for another formation with the same number"
    loop.receive_report(report_of(3, prepared=4, proposal=digest), NOW)
    assert record(loop, NOW) == relief
    assert (relief.members, relief.leaving) == ((1, 2), (3,))


def test_a_suspicion_aborts_a_planned_change() -> None:
    loop = led()
    loop.retire(3, NOW)
    for site in (1, 2):
        loop.receive_report(report_of(site, prepared=4), NOW)
    loop.receive_report(report_of(3, prepared=4, suspect=1, suspect_token=22), NOW)
    assert loop.phase is Phase.FENCING


def test_a_site_that_prepares_too_late_fails_the_change() -> None:
    loop = led()
    loop.retire(3, NOW)
    assert loop.deadline() <= NOW + TIMING.retry_period
    for later in range(1, 30):
        loop.wake(NOW + later * TIMING.retry_period // 2)
    assert loop.phase is Phase.FENCING


def test_after_a_failed_change_it_pauses_and_does_not_raise_retries() -> None:
    loop = coordinator(formation_of(1, 2))
    joining = report_of(3, membership_state=MembershipState.OBSERVER, request=MembershipRequest.JOIN)
    for report in (report_of(1), report_of(2), joining):
        loop.receive_report(report, NOW)
    now = NOW
    while loop.phase is Phase.PLANNING:
        now = loop.deadline()
        loop.receive_report(report_of(1, prepared=4), now)
        loop.receive_report(report_of(2), now)
    for site in (1, 2):
        loop.receive_report(report_of(site, membership_state=MembershipState.FENCED), now)
    loop.outbox.clear()
    following = record(loop, now)
    assert following.timing.retries_max == TIMING.retries_max
    planned_at = now + 4 * lead_time(TIMING, 1)
    while now < planned_at:
        assert not proposed(loop)
        now = min(now + TIMING.retry_period, planned_at)
        for report in (report_of(1), report_of(2), joining):
            loop.receive_report(replace(report, formation=following.number), now)
    assert proposed(loop)


def test_no_change_is_planned_before_all_hold_what_came_before() -> None:
    loop = coordinator(formation_of(1, 2, 3))
    for site in (1, 2, 3):
        loop.receive_report(report_of(site, complete_through=9 if site == 2 else 20), NOW)
    loop.outbox.clear()
    loop.retire(3, NOW)
    assert not any(isinstance(message, Install) for _, message in loop.outbox)
    loop.receive_report(report_of(2, complete_through=10), NOW)
    assert any(isinstance(message, Install) for _, message in loop.outbox)


def test_a_leaving_site_must_answer_until_the_new_formation_has_taken_over() -> None:
    relief = formation_of(1, 2, leaving=(3,), first_sequence=0, resilience=1, resilience_before=1)
    for reached, waits in ((9, True), (10, False)):
        loop = coordinator(relief)
        for site in (1, 2):
            loop.receive_report(report_of(site, membership_state=MembershipState.FENCED, complete_through=reached), NOW)
        assert (loop.phase is Phase.FENCING) == waits


def test_a_site_with_a_bad_clock_leaves_the_loop() -> None:
    loop = led()
    loop.receive_report(report_of(2, request=MembershipRequest.WITHDRAW), NOW)
    assert loop.phase is Phase.PLANNING
    assert any(isinstance(message, Install) and not message.final for _, message in loop.outbox)


def test_a_member_that_lost_its_memory_causes_a_reformation() -> None:
    loop = led()
    loop.receive_report(report_of(2, membership_state=MembershipState.RESTARTED), NOW)
    assert "site 2 was restarted" in loop.notices[-1]


def test_the_suspicion_of_one_member_is_no_failure_and_that_of_most_is() -> None:
    """Decision 72, Suspicion: no one has declared a failure yet."""
    loop = led()
    suspects = report_of(2, suspect=1, suspect_token=21, reason=SUSPICION)
    phases = []
    for report in (suspects, report_of(2), replace(suspects, sender=3), suspects):  # withdrawn in between
        loop.receive_report(report, NOW)
        phases.append(loop.phase)
    assert phases == [*3 * [Phase.STEADY], Phase.FENCING]


def test_a_member_that_was_silent_for_a_lease_is_not_waited_for_once_the_others_have_answered() -> None:
    loop = led()
    for site in (2, 3):
        loop.receive_report(report_of(site), NOW + LEASE // 2)
    loop.wake(NOW + LEASE)
    assert loop.phase is Phase.FENCING
    for site in (2, 3):
        loop.receive_report(report_of(site, membership_state=MembershipState.FENCED), NOW + LEASE + MILLISECOND)
    assert record(loop, NOW + LEASE + MILLISECOND).members == (2, 3)
