"""`fairtape bench sources`: what is published, and misses of a goal and invalid results are reported."""

from fairtape.bench.results import Results
from fairtape.bench.sources import (
    BLOCKS,
    RATIO_GOAL,
    SINGLES,
    SLICE_MESSAGES,
    SLICE_PERIOD,
    SourcesInTurn,
    problems_of,
    shortfalls_of,
)
from fairtape.core.instants import SECOND
from unit.nodes.test_source_group import NOW, sources


def published_by(pattern: str, count: int) -> list[int]:
    """What each source has published after two slices."""
    members = sources(count)
    producer = SourcesInTurn(members, pattern, NOW, NOW + SECOND)
    producer.wake(NOW + SLICE_PERIOD)
    assert producer.published == 2 * SLICE_MESSAGES
    return [source.next_number - 1 for source in members]


def test_in_blocks_the_sources_take_turns_with_a_whole_slice() -> None:
    assert published_by(BLOCKS, 3) == [SLICE_MESSAGES, SLICE_MESSAGES, 0]


def test_single_messages_are_of_as_many_sources() -> None:
    assert published_by(SINGLES, 2 * SLICE_MESSAGES) == [1] * 2 * SLICE_MESSAGES


def test_one_source_publishes_the_same_in_both_patterns() -> None:
    assert published_by(BLOCKS, 1) == published_by(SINGLES, 1) == [2 * SLICE_MESSAGES]


def test_the_goal_holds_for_400_sources_and_the_cost_of_more_is_only_printed() -> None:
    results: Results = {
        "cost_ratio_400": RATIO_GOAL,
        "single_cost_ratio_400": RATIO_GOAL + 0.01,
        "cost_ratio_1000": 5.0,
        "single_cost_ratio_1000": 5.0,
    }
    (shortfall,) = shortfalls_of(results, (400, 1_000))
    assert shortfall.startswith("single_cost_ratio_400 is 2.01")


def test_invalid_results_are_explained_in_a_sentence() -> None:
    assert problems_of({"one_order_400": True, "failures_400": []}) == []
    results: Results = {"one_order_400": False, "single_failures_1": ["silent"]}
    first, second = problems_of(results)
    assert first.startswith("one_order_400 is false")
    assert second == "a failure was declared (single_failures_1): silent"
