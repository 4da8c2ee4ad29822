"""The error bound of a clock, from its own claim and from exchanges."""

from fairtape.core.instants import MILLISECOND
from fairtape.nodes.clock_bound import EXCHANGES_MAX, ClockBoundEstimator

MS = MILLISECOND


def exchange(
    keeper: ClockBoundEstimator, *, ahead: int, round_trip: int = 2 * MS, bound: int = 0, at: int = 1_000 * MS
) -> None:
    """An exchange with a good clock, of a clock that is `ahead`."""
    keeper.exchanged(asked_at=at + ahead, received_at=at + round_trip // 2, bound=bound, now=at + round_trip + ahead)


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


def test_the_bound_of_the_other_clock_adds_to_the_uncertainty() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0, bound=5 * MS)
    assert keeper.bound(50 * MS) == 6 * MS


def test_an_exchange_across_a_clock_step_back_is_discarded() -> None:
    keeper = ClockBoundEstimator()
    exchange(keeper, ahead=0)
    keeper.exchanged(asked_at=100 * MS, received_at=50 * MS, bound=0, now=40 * MS)
    assert keeper.bound(9 * MS) == 9 * MS
