"""Invalid results of `fairtape bench ring` are reported."""

import pytest

from fairtape.bench.report import problems_of
from fairtape.bench.results import Results

SOUND: Results = {
    "messages_per_s": 1_000_000,
    "bare_packets_per_s": 60_000,
    "one_order": True,
    "single_releases": 500,
    "single_late_releases": 0,
    "failures": [],
}


def test_valid_results_have_no_problems() -> None:
    assert problems_of(SOUND) == []


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"one_order": False}, "one_order is false: not every receiver delivered all published messages"),
        ({"one_order_1kb": False}, "one_order_1kb is false"),
        ({"messages_per_s": 0}, "messages_per_s is 0: nothing was delivered in the measured time"),
        ({"bare_packets_per_s": 0}, "bare_packets_per_s is 0: nothing arrived in the measured time"),
        ({"single_releases": 0}, "single_releases is 0: nothing arrived in the measured time"),
        ({"failures": ["site 2: silent"]}, "a failure was declared (failures), site 2: silent"),
    ],
)
def test_invalid_results_are_explained_in_a_sentence(broken: Results, sentence: str) -> None:
    (problem,) = problems_of(SOUND | broken)
    assert problem.startswith(sentence)
