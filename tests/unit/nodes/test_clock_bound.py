"""The error bound of a clock, from its own claim and from exchanges."""

from fairtape.core.instants import MILLISECOND
from fairtape.nodes.clock_bound import EXCHANGES_MAX, UNMEASURED, ClockBoundEstimator

MS = MILLISECOND


def exchange(
    keeper: ClockBoundEstimator,
    *,
    ahead: int,
    round_trip: int = 2 * MS,
    bound: int = 0,
    at: int = 1_000 * MS,
    own: int = 50 * MS,
) -> None:
    """An exchange with a good clock, of a clock that is `ahead` and claims `own`."""
    keeper.exchanged(
        asked_at=at + ahead, received_at=at + round_trip // 2, bound=bound, now=at + round_trip + ahead, own=own
    )


def test_without_an_exchange_the_claimed_bound_holds() -> None:
    assert ClockBoundEstimator().bound(3 * MS) == 3 * MS


def test_an_exchange_that_agrees_may_show_that_a_clock_is_better_than_it_claims() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0)
    assert keeper.bound(50 * MS) == 1 * MS
    assert keeper.bound(MS // 2) == MS // 2


def test_a_contradicted_clock_gets_the_bound_of_the_exchange() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=20 * MS)
    assert keeper.bound(1 * MS) == 21 * MS


def test_the_shortest_of_the_last_round_trips_counts() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0, round_trip=2 * MS)
    exchange(keeper, ahead=0, round_trip=40 * MS)
    assert keeper.bound(50 * MS) == 1 * MS
    for _ in range(EXCHANGES_MAX):
        exchange(keeper, ahead=0, round_trip=40 * MS)
    assert keeper.bound(50 * MS) == 20 * MS


def test_what_a_clock_claims_more_than_at_the_exchange_may_be_its_error() -> None:
    """It has lost its reference since then."""
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0, own=2 * MS)
    assert keeper.bound(2 * MS) == 1 * MS
    assert keeper.bound(17 * MS) == 16 * MS
    exchange(keeper, ahead=0, round_trip=20 * MS, own=17 * MS)
    assert keeper.bound(17 * MS) == 10 * MS


def test_the_bound_of_the_other_clock_adds_to_the_uncertainty() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0, bound=5 * MS)
    assert keeper.bound(50 * MS) == 6 * MS


def test_an_exchange_across_a_clock_step_back_is_discarded() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0)
    keeper.exchanged(asked_at=100 * MS, received_at=50 * MS, bound=0, now=40 * MS, own=50 * MS)
    assert keeper.bound(9 * MS) == 9 * MS


def test_an_exchange_that_contradicts_earlier_ones_replaces_them() -> None:
    """The clock was stepped, or stood still: the shortest round trip was made before that."""
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0)
    exchange(keeper, ahead=-300 * MS, round_trip=40 * MS)
    assert keeper.bound(1 * MS) == 320 * MS


# What others send. Decision 59, Acknowledgments from the future.

OTHERS = (2, 3, 4, 5)
NOW = 1_000 * MS


def heard(
    keeper: ClockBoundEstimator, *senders: int, behind: int, own: int = 1 * MS, others: tuple[int, ...] = OTHERS,
    now: int = NOW,
) -> list[bool]:  # fmt: skip
    """Each of these members proves that the clock is behind; whether an exchange is wanted."""
    return [keeper.heard(sender, behind, own=own, others=others, now=now) for sender in senders]


def test_a_clock_is_doubted_when_most_other_members_prove_its_claim_wrong() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0, at=NOW - 100 * MS)
    heard(keeper, 2, 3, behind=300 * MS)
    assert keeper.bound(1 * MS) == 1 * MS
    assert keeper.behind == 0
    heard(keeper, 4, behind=290 * MS)
    assert keeper.bound(1 * MS) == UNMEASURED
    assert keeper.behind == 290 * MS


def test_one_member_alone_never_makes_a_clock_doubted_but_an_exchange_is_wanted() -> None:
    keeper = ClockBoundEstimator()
    for number in range(100):
        assert heard(keeper, 2, behind=(300 + number) * MS) == [True]
    assert not keeper.doubted
    assert keeper.bound(1 * MS) == 1 * MS


def test_a_datagram_within_the_claim_proves_no_claim_wrong_and_still_says_how_late_a_release_is() -> None:
    keeper = ClockBoundEstimator()
    assert heard(keeper, *OTHERS, behind=20 * MS, own=30 * MS) == [False] * 4
    assert not keeper.doubted
    assert keeper.behind == 20 * MS


def test_a_doubted_clock_is_measured_by_an_exchange_that_was_requested_since() -> None:
    """The response to an earlier request may have waited in the socket while the machine stood still."""
    keeper = ClockBoundEstimator()
    heard(keeper, *OTHERS, behind=300 * MS)
    exchange(keeper, ahead=0, at=NOW - MS)
    assert keeper.bound(1 * MS) == UNMEASURED
    exchange(keeper, ahead=-300 * MS, at=NOW + 301 * MS)
    assert keeper.bound(1 * MS) == 301 * MS


def test_a_claim_that_was_proved_wrong_does_not_count_until_it_held_for_all_exchanges() -> None:
    """The exchange is too coarse to contradict the claim, but the others did."""
    keeper = ClockBoundEstimator()
    heard(keeper, *OTHERS, behind=3 * MS)
    exchange(keeper, ahead=-3 * MS, round_trip=8 * MS, at=NOW + 10 * MS)
    assert keeper.bound(1 * MS) == 7 * MS
    assert heard(keeper, *OTHERS, behind=3 * MS, now=NOW + 20 * MS) == [False] * 4  # as far as the exchange allows
    heard(keeper, *OTHERS, behind=0, now=NOW + 30 * MS)
    for _ in range(EXCHANGES_MAX):
        exchange(keeper, ahead=0, round_trip=8 * MS, at=NOW + 40 * MS)
    assert keeper.bound(1 * MS) == 1 * MS


def test_a_server_that_contradicts_most_members_is_not_believed() -> None:
    """It may have stood still on the same machine."""
    keeper = ClockBoundEstimator()
    heard(keeper, *OTHERS, behind=300 * MS)
    exchange(keeper, ahead=0, at=NOW + 10 * MS)
    assert keeper.bound(1 * MS) == UNMEASURED
    heard(keeper, *OTHERS, behind=0, now=NOW + 30 * MS)  # the clock was corrected
    exchange(keeper, ahead=0, at=NOW + 40 * MS)
    assert keeper.bound(1 * MS) == 1 * MS


def test_the_only_other_member_is_believed_until_an_exchange_proves_it_wrong() -> None:
    """And does not count then, for as long as exchanges count: it doubts this clock again and again otherwise."""
    keeper = ClockBoundEstimator()
    heard(keeper, 2, behind=300 * MS, others=(2,))
    assert keeper.doubted
    for number in range(1, EXCHANGES_MAX + 1):
        exchange(keeper, ahead=0, at=NOW + 20 * number * MS)
        assert keeper.bound(1 * MS) == 1 * MS
        assert heard(keeper, 2, behind=300 * MS, others=(2,), now=NOW + 20 * number * MS + 10 * MS) == [False]
    exchange(keeper, ahead=0, at=NOW + 20 * EXCHANGES_MAX * MS + 20 * MS)
    assert heard(keeper, 2, behind=300 * MS, others=(2,), now=NOW + 1_000 * MS) == [True]


def test_a_delayed_datagram_takes_no_proof_back_before_an_exchange() -> None:
    keeper = ClockBoundEstimator()
    heard(keeper, 2, 3, behind=300 * MS)
    heard(keeper, 2, 3, behind=-50 * MS, now=NOW + MS)
    heard(keeper, 4, behind=300 * MS, now=NOW + MS)
    assert keeper.doubted


def test_a_site_that_has_left_does_not_count() -> None:
    keeper = ClockBoundEstimator()
    heard(keeper, 2, 3, behind=300 * MS)
    heard(keeper, 4, behind=300 * MS, others=(4, 5, 6))
    assert not keeper.doubted


def test_a_clock_that_is_set_back_while_it_is_doubted_can_be_measured() -> None:
    keeper = ClockBoundEstimator()
    heard(keeper, *OTHERS, behind=300 * MS)
    heard(keeper, *OTHERS, behind=900 * MS, now=NOW - 600 * MS)
    exchange(keeper, ahead=-900 * MS, at=NOW + 310 * MS)
    assert keeper.bound(1 * MS) == 901 * MS
