"""The membership of a site: what it may do in each state, and that its state changes along the two tables only."""

from dataclasses import replace

import pytest

from fairtape.core.effects import Reason, Recovered, Report
from fairtape.nodes.membership import NEAR_TOKENS_MAX, Membership
from fairtape.nodes.membership_tables import AGREEMENT, PARTICIPATION, Agreement, Participation
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from unit.ring.loop_values import formation_of
from unit.ring.ring_values import KEYS

ME, INCARNATION = 1, 7
FIRST = formation_of(1, 2, 3, number=3, roll=(INCARNATION, 0, 0), keeper=2)
NEXT = formation_of(1, 2, number=4, roll=(INCARNATION, 0), first_token=51, first_sequence=0, keeper=2)
WITHOUT_ME = replace(NEXT, members=(2, 3), leaving=(ME,))
FAILURE = Report(2, 12, Reason.ACK_SILENT, 0)


class MemberSite:
    """A membership and the order that it judges."""

    def __init__(self, formation: Formation | None = FIRST, *, recovered: Recovered | None = None) -> None:
        self.membership = Membership(me=ME, incarnation=INCARNATION)
        if formation is not None:
            self.enter_first(formation, recovered or Recovered.nothing())

    def enter_first(self, formation: Formation, recovered: Recovered) -> None:
        self.ordering = Ordering(
            formations=FormationHistory(formation),
            stripe=0,
            buffer=ReceiveBuffer(keys=KEYS, stripe=0),
            after=recovered.token,
            next_sequence=recovered.sequence,
        )
        self.membership.enter_first(formation, self.ordering, recovered)

    def install(self, formation: Formation) -> None:
        self.membership.enter(formation)
        self.ordering.formations.restart(formation)

    def take_over(self, formation: Formation) -> None:
        self.membership.take_over(formation)
        self.ordering.formations.take_over(formation)


def restored(token: int, number: int) -> Recovered:
    return replace(Recovered.nothing(), token=token, sequence=token + 1, number=number)


def entered(formation: Formation = FIRST) -> MemberSite:
    """A site that holds everything before the formation."""
    site = MemberSite(formation)
    site.ordering.advance_to(formation.first_token - 1)
    return site


def participation(membership: Membership) -> Participation:
    return membership.participation


def test_a_ring_without_reformation_servers_is_active_until_a_failure_ends_it() -> None:
    membership = Membership.fixed(ME)
    formation = formation_of(1, 2)
    ordering = MemberSite(formation).ordering
    membership.enter_first(formation, ordering, replace(Recovered.nothing(), number=formation.number))
    assert (membership.active, membership.stopped, membership.changes) == (True, False, False)
    assert membership.declare(FAILURE)
    assert (membership.stopped, membership.report) == (True, FAILURE)


def test_an_earlier_formation_does_not_replace_the_one_that_waits() -> None:
    """An Install of the same term was delayed: this site was active in that formation, and must not enter it again."""
    site = entered()
    site.membership.roll_back(NEXT)
    site.membership.wait(FIRST)
    assert site.membership.take_waiting() is NEXT
    assert site.membership.take_waiting() is None


def test_a_formation_that_contradicts_the_order_waits_for_the_rollback() -> None:
    site = entered()
    site.membership.roll_back(NEXT)
    assert participation(site.membership) is Participation.ROLLING_BACK
    assert (site.membership.formation, site.membership.active) == (None, False)
    site.membership.journal_cut()
    assert participation(site.membership) is Participation.NEWBORN
    assert site.membership.take_waiting() is NEXT


@pytest.mark.parametrize("formation", [replace(FIRST, members=(2, 3, 4)), replace(FIRST, roll=(INCARNATION - 1, 0, 0))])
def test_a_site_without_a_turn_observes(formation: Formation) -> None:
    membership = MemberSite(formation).membership
    assert participation(membership) is Participation.OBSERVING
    assert not membership.has_turns
    assert not membership.fence()
    assert not membership.declare(FAILURE)


def test_a_prepared_site_takes_its_turns_until_the_proposed_formation() -> None:
    membership = entered().membership
    assert membership.prepare(NEXT)
    assert participation(membership) is Participation.PREPARED
    assert membership.may_take_turn(NEXT.first_token - 1, FIRST, 0)
    assert not membership.may_take_turn(NEXT.first_token, FIRST, 0)


@pytest.mark.parametrize("number", [3, 5])
def test_only_the_next_formation_can_be_prepared(number: int) -> None:
    assert not entered().membership.prepare(replace(NEXT, number=number))


def test_an_active_site_that_has_ordered_the_last_token_before_a_proposal_is_too_late() -> None:
    site = entered()
    site.ordering.advance_to(NEXT.first_token - 1)
    assert not site.membership.prepare(NEXT)
    observer = entered(replace(FIRST, members=(2, 3, 4)))
    observer.ordering.advance_to(NEXT.first_token - 1)
    assert observer.membership.prepare(NEXT)


def test_a_site_that_leaves_takes_its_last_turns_and_can_still_be_fenced() -> None:
    site = entered()
    site.take_over(WITHOUT_ME)
    membership = site.membership
    assert participation(membership) is Participation.OBSERVING
    assert membership.has_turns
    assert membership.may_order(FIRST.first_token, FIRST, 0)
    assert membership.fence()


def test_a_site_that_has_taken_its_last_turn_is_fenced_unless_it_was_restarted() -> None:
    """It may alone hold what precedes the formation without it.  Decision 54, Uncommitted ends."""
    site = entered()
    site.take_over(WITHOUT_ME)
    site.ordering.advance_to(WITHOUT_ME.first_token - 1)
    assert not site.membership.has_turns
    assert site.membership.fence()
    assert not entered(WITHOUT_ME).membership.fence()


def test_a_fence_ends_what_a_site_is_prepared_for() -> None:
    membership = entered().membership
    assert membership.prepare(NEXT)
    assert membership.fence()
    assert (membership.fenced, membership.stopped, membership.proposal) == (True, True, None)
    assert not membership.prepare(NEXT)


@pytest.mark.parametrize("stop", [Membership.fence, lambda membership: membership.declare(FAILURE)])
def test_a_site_that_has_stopped_stays_stopped_in_a_planned_formation(stop: object) -> None:
    """Without its turns the order would never reach the first token of that formation."""
    site = entered()
    assert callable(stop)
    assert stop(site.membership)
    stopped = participation(site.membership)
    site.take_over(NEXT)
    assert participation(site.membership) is stopped
    assert site.membership.active
    site.install(replace(FIRST, number=5))
    assert participation(site.membership) is Participation.ACTIVE
    assert site.membership.report is None


def test_a_site_that_has_declared_a_failure_is_still_prepared() -> None:
    membership = entered().membership
    assert membership.prepare(NEXT)
    assert membership.declare(FAILURE)
    assert (membership.participation, membership.proposal) == (Participation.REFORMING, NEXT)


@pytest.mark.parametrize(
    ("recovered", "keeper", "state"),
    [
        (Recovered.nothing(), 2, Agreement.VERIFIED),
        (restored(9, number=2), 2, Agreement.UNVERIFIED),
        (restored(9, number=2), ME, Agreement.VERIFIED),
        (restored(9, number=3), 2, Agreement.VERIFIED),
    ],
    ids=["nothing", "another formation", "the keeper", "the same formation"],
)
def test_a_journal_that_ends_in_another_formation_is_not_verified(
    recovered: Recovered, keeper: int, state: Agreement
) -> None:
    site = MemberSite(replace(FIRST, keeper=keeper), recovered=recovered)
    assert site.membership.agreement.state is state
    assert site.membership.may_order(recovered.token + 1, FIRST, 0) is (state is not Agreement.UNVERIFIED)


@pytest.mark.parametrize("caught_up", [False, True])
@pytest.mark.parametrize(
    ("number", "keeper", "trusted"),
    [(4, 2, True), (5, 2, False), (5, ME, True)],
    ids=["the next one", "one was skipped", "the keeper"],
)
def test_an_order_is_trusted_in_the_next_formation_only(
    caught_up: bool, number: int, keeper: int, trusted: bool
) -> None:
    site = entered()
    agreement = site.membership.agreement
    assert agreement.compare(site.ordering.complete_through if caught_up else 999) is caught_up
    before = agreement.state
    site.install(replace(NEXT, number=number, keeper=keeper))
    assert agreement.state is (before if trusted else Agreement.UNVERIFIED)


def test_an_unverified_order_is_not_trusted_in_the_next_formation() -> None:
    site = MemberSite(recovered=restored(9, number=2))
    site.install(NEXT)
    assert not site.membership.verified
    assert not site.membership.agreement.compare(9)
    assert site.membership.agreement.confirm()
    assert not site.membership.agreement.confirm()
    assert site.membership.agreement.compare(9)


def test_an_observer_is_stranded_until_it_has_caught_up_and_a_member_only_before_its_formation() -> None:
    member, observer = entered(), entered(replace(FIRST, members=(2, 3, 4)))
    assert (member.membership.stranded, observer.membership.stranded) == (False, True)
    assert observer.membership.agreement.compare(FIRST.first_token - 1)
    assert not observer.membership.stranded
    assert MemberSite().membership.stranded


def test_a_token_that_the_ring_cannot_repair_strands_a_site_until_it_is_in_the_order() -> None:
    site = entered()
    agreement = site.membership.agreement
    agreement.compare(site.ordering.complete_through)
    agreement.not_recovered(30)
    agreement.not_recovered(20)
    assert (agreement.state, agreement.unrecovered_token) == (Agreement.VERIFIED, 30)
    assert site.membership.stranded
    assert not agreement.take_recoverable()
    site.ordering.advance_to(30)
    assert agreement.take_recoverable()
    assert not site.membership.stranded


def test_a_site_becomes_far_behind_once() -> None:
    site = entered()
    agreement, complete_through = site.membership.agreement, site.ordering.complete_through
    assert not agreement.measure(complete_through + NEAR_TOKENS_MAX)
    assert agreement.measure(complete_through + NEAR_TOKENS_MAX + 1)
    assert not agreement.measure(complete_through + NEAR_TOKENS_MAX + 1)
    assert not site.membership.far_behind  # a member drops nothing while the ring repairs what it misses
    agreement.not_recovered(99)
    assert site.membership.far_behind


def test_what_cannot_happen_in_a_state_is_an_error_of_ours() -> None:
    site = entered()
    with pytest.raises(AssertionError):
        site.membership.journal_cut()
    with pytest.raises(AssertionError):
        MemberSite(None).membership.take_over(NEXT)


def test_what_a_state_means_is_asserted_when_it_is_entered() -> None:
    membership = entered().membership
    membership.leave_all = lambda: None  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="without its invariant"):
        membership.roll_back(NEXT)


def test_every_state_can_be_entered_and_left() -> None:
    for table, states in ((PARTICIPATION, Participation), (AGREEMENT, Agreement)):
        assert {edge.at for edge in table.edges} == {edge.to for edge in table.edges} == set(states)
