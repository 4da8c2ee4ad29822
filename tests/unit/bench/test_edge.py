"""Invalid and low results of `fairtape bench edge` are reported."""

import pytest

from fairtape.bench.edge import problems_of, shortfalls_of
from fairtape.bench.results import Results

EDGE: Results = {
    "websocket_kept_up": True,
    "websocket_customers": 1_000,
    "websocket_customers_asked": 1_000,
    "websocket_customers_tried": 1_000,
    "arrow_messages_per_s": 1_000_000,
    "itch_messages_per_s": 1_000_000,
}


@pytest.mark.parametrize(
    ("broken", "problems", "shortfalls"),
    [
        ({}, 0, 0),
        ({"arrow_messages_per_s": 999_999}, 0, 1),
        ({"websocket_customers": 500}, 0, 1),
        ({"websocket_customers": 0, "websocket_kept_up": False}, 1, 1),
    ],
)
def test_problems_and_shortfalls_of_the_edge_are_reported(broken: Results, problems: int, shortfalls: int) -> None:
    assert len(problems_of(EDGE | broken)) == problems
    assert len(shortfalls_of(EDGE | broken)) == shortfalls
