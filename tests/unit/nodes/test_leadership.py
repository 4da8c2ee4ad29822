"""The lead of a reformation server: what the store has confirmed, and how long the lease is."""

from fairtape.core.formation_log import STORE_CALLS_PER_LEASE, Claim, Claimed, Leadership
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.nodes.coordinator.leadership import LEASE_MAX, MEASURED_CALLS, RENEWALS, Lead
from fairtape.simulation.simulated_store import MemoryFormationStore

NOW: Instant = 100 * SECOND
LEASE = 300 * MILLISECOND


def leading(store: MemoryFormationStore) -> Lead:
    """A server that leads from NOW on."""
    lead = Lead(101, lease_min=LEASE, first_renewal=NOW)
    lead.show(None, NOW)
    lead.show(carried_out(store, lead.take_over(NOW)), NOW)
    lead.begin()
    return lead


def carried_out(store: MemoryFormationStore, claim: Claim) -> Leadership | None:
    answer = store.answer(claim)
    assert isinstance(answer, Claimed)
    return answer.leadership


def test_a_lead_counts_from_when_its_claim_was_sent() -> None:
    """Decision 67, Confirmed lead."""
    store = MemoryFormationStore()
    lead = leading(store)
    assert lead.until == NOW + LEASE
    renewal = lead.renew(NOW + 100)
    lead.show(carried_out(store, renewal), NOW + LEASE - 1)
    assert lead.until == NOW + 100 + LEASE


def test_a_claim_whose_answer_was_lost_counts_from_when_it_was_sent() -> None:
    """A refused claim and a read show that it was carried out, and extend nothing."""
    for by_claim in (True, False):
        store = MemoryFormationStore()
        lead = leading(store)
        carried_out(store, lead.renew(NOW + 50))
        lead.show(carried_out(store, lead.renew(NOW + 250)) if by_claim else store.leadership, NOW + 260)
        assert lead.until == NOW + 50 + LEASE
        assert carried_out(store, lead.renew(NOW + 270)) == store.leadership
        lead.show(store.leadership, NOW + 280)
        assert lead.until == NOW + 270 + LEASE


def test_a_claim_that_was_not_carried_out_extends_nothing() -> None:
    store = MemoryFormationStore()
    lead = leading(store)
    lead.renew(NOW + 50)
    lead.show(store.leadership, NOW + 60)
    assert lead.until == NOW + LEASE


def test_a_late_claim_is_known_by_its_renewal() -> None:
    """It is carried out long after it was sent, and after a read that did not show it."""
    store = MemoryFormationStore()
    lead = leading(store)
    late = lead.renew(NOW + 50)
    lead.show(store.leadership, NOW + 60)
    carried_out(store, late)
    lead.show(carried_out(store, lead.renew(NOW + 200)), NOW + 210)
    assert lead.until == NOW + 50 + LEASE


def takes_over(lead: Lead, at: Instant) -> bool:
    """Whether a server may take over that runs until then."""
    for now in range(lead._waited_until, at, LEASE // RENEWALS):
        lead.wait(now)
    lead.wait(at)
    return lead.may_take_over


def test_an_earlier_incarnation_confirms_nothing() -> None:
    store = MemoryFormationStore()
    before = leading(store)
    zombie = before.renew(NOW + 10)
    after = Lead(101, lease_min=LEASE, first_renewal=NOW + 20)
    after.show(store.leadership, NOW + 20)
    carried_out(store, zombie)
    after.show(store.leadership, NOW + 30)
    assert after.until == 0
    assert not takes_over(after, NOW + 30 + LEASE)
    assert takes_over(after, NOW + 31 + LEASE + LEASE // 4)


def test_others_wait_for_the_lease_that_the_leader_claimed() -> None:
    """Decision 68, Leader's lease."""
    standby = Lead(102, lease_min=LEASE, first_renewal=NOW)
    standby.show(Leadership(101, 1, 7, lease=4 * LEASE), NOW)
    assert not takes_over(standby, NOW + 5 * LEASE)
    assert takes_over(standby, NOW + 5 * LEASE + 1)
    assert standby.take_over(NOW + 5 * LEASE + 1).wanted.lease == 4 * LEASE
    standby.show(Leadership(101, 1, 8), NOW)  # as written by a release without leases
    assert takes_over(standby, NOW + LEASE + LEASE // 4 + 1)


def test_a_lease_is_as_long_as_several_requests_to_the_store() -> None:
    lead = leading(MemoryFormationStore())
    assert lead.lease == LEASE
    lead.measure(310 * MILLISECOND)
    assert lead.lease == STORE_CALLS_PER_LEASE * 310 * MILLISECOND
    lead.measure(2 * SECOND)
    assert lead.lease == LEASE_MAX
    lead.measure(-SECOND)
    for _ in range(MEASURED_CALLS):
        lead.measure(MILLISECOND)
    assert lead.lease == LEASE


def test_a_shorter_lease_counts_as_soon_as_it_is_asked_for() -> None:
    """The claim may be carried out and its answer lost: then the others wait for the shorter one."""
    store = MemoryFormationStore()
    lead = leading(store)
    lead.measure(SECOND)
    lead.show(carried_out(store, lead.renew(NOW)), NOW)
    assert lead.until == NOW + LEASE_MAX
    for _ in range(MEASURED_CALLS):
        lead.measure(MILLISECOND)
    lead.renew(NOW + 10)
    assert lead.until == NOW + 10 + LEASE


def test_a_server_whose_own_claim_is_the_latest_needs_not_wait() -> None:
    """Its lead has ended, and no other server has led since."""
    store = MemoryFormationStore()
    lead = leading(store)
    carried_out(store, lead.renew(NOW + 10))
    lead.end()
    lead.show(store.leadership, NOW + 2 * LEASE)
    assert not lead.may_begin(NOW + 2 * LEASE)
    assert takes_over(lead, NOW + 2 * LEASE)
    lead.show(carried_out(store, lead.take_over(NOW + 2 * LEASE)), NOW + 2 * LEASE)
    assert lead.may_begin(NOW + 2 * LEASE)
    lead.begin()
    assert lead.term == 2


def test_a_store_that_has_lost_a_leadership_may_still_have_a_leader() -> None:
    standby = Lead(102, lease_min=LEASE, first_renewal=NOW)
    standby.show(Leadership(101, 3, 7, lease=LEASE), NOW)
    standby.show(None, NOW + 10)
    assert not takes_over(standby, NOW + LEASE)
    standby.show(Leadership(101, 1, 2, lease=LEASE), NOW + LEASE)
    assert not takes_over(standby, NOW + 2 * LEASE)


def test_a_server_that_gives_its_claims_up_waits_like_the_others() -> None:
    lead = leading(MemoryFormationStore())
    lead.end()
    lead.forget_claims(NOW + 10)
    assert not takes_over(lead, NOW + LEASE)
    assert takes_over(lead, NOW + 11 + LEASE + LEASE // 4)


def test_a_clock_that_is_set_ahead_ends_no_lease() -> None:
    standby = Lead(102, lease_min=LEASE, first_renewal=NOW)
    standby.show(Leadership(101, 1, 7, lease=LEASE), NOW)
    standby.wait(NOW + 10 * SECOND)
    assert not standby.may_take_over
    assert takes_over(standby, NOW + 10 * SECOND + LEASE + LEASE // 4)
