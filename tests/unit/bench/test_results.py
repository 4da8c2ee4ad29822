"""Resource usage of the machine."""

from fairtape.bench.results import Processors


def test_the_stolen_share_covers_the_time_between_two_reads() -> None:
    assert Processors(30, 1_000).stolen_since(Processors(10, 800)) == 0.1
    assert Processors(10, 800).stolen_since(Processors(10, 800)) == 0.0
    assert 0 <= Processors.read().stolen <= Processors.read().total
