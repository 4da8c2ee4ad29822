"""Resource usage of the machine."""

from fairtape.bench.results import Processors, datagrams_dropped, spread_of


def test_the_stolen_share_covers_the_time_between_two_reads() -> None:
    assert Processors(30, 1_000).stolen_since(Processors(10, 800)) == 0.1
    assert Processors(10, 800).stolen_since(Processors(10, 800)) == 0.0
    assert 0 <= Processors.read().stolen <= Processors.read().total


def test_rounds_are_their_median_with_minimum_and_maximum() -> None:
    assert spread_of("rate", [30.26, 10.0, 20.04], 1) == {"rate": 20.0, "rate_min": 10.0, "rate_max": 30.3}
    assert spread_of("rate", [1.4, 2.6], 0) == {"rate": 2, "rate_min": 1, "rate_max": 3}


def test_the_count_of_dropped_datagrams_never_falls() -> None:
    assert 0 <= datagrams_dropped() <= datagrams_dropped()
