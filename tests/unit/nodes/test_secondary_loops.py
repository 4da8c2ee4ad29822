"""The coordinator of a secondary loop: no site is fenced, a new formation just takes over."""

from fairtape.core.instants import SECOND, Instant
from fairtape.nodes.coordinator.primary_loop import FIRST_FORMATION_DELAY
from fairtape.nodes.coordinator.secondary_loops import SecondaryLoopCoordinator
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import LoopTopology, lease_margin
from fairtape.wire.membership import Install, MembershipRequest, MembershipState
from unit.ring.loop_values import TIMING, report_of

NOW: Instant = 100 * SECOND
PATIENCE = TIMING.lease_period + lease_margin(TIMING)
SETTLED = NOW + 2 * TIMING.report_period


def coordinator() -> SecondaryLoopCoordinator:
    loop = LoopTopology(number=1, tour=(5, 6, 7), timing=TIMING, junction=2, request_sets=2)
    coordinator = SecondaryLoopCoordinator(loop, me=101, stripe=0, incarnation_of=lambda site: 1_000 + site)
    coordinator.lead(None, 4, NOW)
    coordinator.parents = (1, 2, 3)
    return coordinator


def receive_report(coordinator: SecondaryLoopCoordinator, *sites: int, at: Instant, **changes: object) -> None:
    for site in sites:
        given: dict[str, object] = {"loop": 1, "formation": 1}
        coordinator.receive_report(report_of(site, **(given | changes)), at)


def record(coordinator: SecondaryLoopCoordinator, now: Instant) -> Formation:
    assert coordinator.proposal is not None
    formation = coordinator.proposal
    coordinator.recorded(formation, now)
    return formation


def led() -> SecondaryLoopCoordinator:
    """In its first formation, which all sites have entered."""
    loop = coordinator()
    receive_report(
        loop, 5, 6, 7, at=NOW, formation=0, membership_state=MembershipState.OBSERVER, request=MembershipRequest.JOIN
    )
    record(loop, NOW)
    receive_report(loop, 2, 5, 6, 7, at=NOW)
    loop.outbox.clear()
    return loop


def test_the_first_formation_has_the_junction_first() -> None:
    loop = coordinator()
    receive_report(loop, 5, 6, 7, at=NOW, formation=0, membership_state=MembershipState.OBSERVER)
    first = record(loop, NOW)
    assert (first.members, first.junction, first.loop, first.request_sets) == ((2, 5, 6, 7), 2, 1, 2)
    assert {site for site, message in loop.outbox if isinstance(message, Install)} >= {2, 5, 6, 7}


def test_the_first_formation_does_not_wait_for_ever() -> None:
    loop = coordinator()
    receive_report(loop, 6, at=NOW, formation=0, membership_state=MembershipState.OBSERVER)
    assert loop.proposal is None
    loop.wake(NOW + FIRST_FORMATION_DELAY)
    assert record(loop, NOW + FIRST_FORMATION_DELAY).members == (2, 6)


def test_a_silent_site_is_removed_and_joins_again() -> None:
    loop = led()
    later = NOW + PATIENCE
    receive_report(loop, 2, 5, 7, at=later - 1)
    loop.wake(later)
    assert record(loop, later).members == (2, 5, 7)
    soon = later + PATIENCE // 2
    receive_report(loop, 2, 5, 7, at=soon, formation=2)
    receive_report(
        loop, 6, at=soon, formation=2, membership_state=MembershipState.OBSERVER, request=MembershipRequest.JOIN
    )
    assert record(loop, soon).members == (2, 5, 6, 7)


def test_a_loop_whose_sites_are_all_retired_is_removed() -> None:
    loop = led()
    for site in (5, 6):
        loop.retired.add(site)
    loop.retired.add(7)
    loop.wake(SETTLED)
    assert record(loop, SETTLED).members == (2,)
    loop.outbox.clear()
    loop.wake(SETTLED + 10 * PATIENCE)
    assert loop.proposal is None
    loop.retired.clear()
    soon = SETTLED + 10 * PATIENCE
    receive_report(
        loop, 6, at=soon, formation=2, membership_state=MembershipState.OBSERVER, request=MembershipRequest.JOIN
    )
    assert record(loop, soon).members == (2, 6)


def test_a_junction_that_has_failed_is_replaced_by_a_survivor() -> None:
    """2001 §5.3."""
    loop = led()
    loop.parents = (1, 3)
    receive_report(loop, 5, 6, 7, at=SETTLED)
    assert record(loop, SETTLED).members == (1, 5, 6, 7)


def test_a_site_that_did_not_pass_the_token_is_removed_unless_it_reported_recently() -> None:
    loop = led()
    receive_report(loop, 5, at=SETTLED, suspect=6, suspect_token=30)
    assert record(loop, SETTLED).members == (2, 5, 7)
    recent = led()
    receive_report(recent, 6, at=SETTLED)
    receive_report(recent, 5, at=SETTLED, suspect=6, suspect_token=30)
    assert record(recent, SETTLED).members == (2, 5, 6, 7)  # the token starts again


def test_retired_sites_and_those_with_bad_clocks_stay_out() -> None:
    loop = led()
    loop.retired = {7}
    receive_report(loop, 6, at=SETTLED, request=MembershipRequest.WITHDRAW)
    assert record(loop, SETTLED).members == (2, 5)


def test_the_formation_is_sent_to_every_site_until_it_has_entered() -> None:
    loop = led()
    loop.parents = (1, 3)
    receive_report(loop, 5, 6, 7, at=SETTLED)
    record(loop, SETTLED)
    loop.outbox.clear()
    receive_report(loop, 5, at=SETTLED, formation=2)
    loop.wake(SETTLED + TIMING.retry_period)
    assert [site for site, _ in loop.outbox] == [1, 6, 7]
