"""`fairtape bench sources`: what is published, by which sources, and what makes results invalid or short of a goal."""

from pathlib import Path

from fairtape.bench.deployed_ring import LoadRun, new_deployment
from fairtape.bench.results import Results
from fairtape.bench.sources import (
    BLOCKS,
    FIRST_SOURCE,
    RATE,
    RATIO_GOAL,
    SINGLES,
    SLICE_PERIOD,
    SourcesInTurn,
    add_sources,
    problems_of,
    results_of,
    shortfalls_of,
)
from fairtape.core.instants import SECOND
from fairtape.deployment.config.description import read_deployment
from fairtape.deployment.config.keys import keys_of
from unit.nodes.test_source_group import NOW, sources

SLICE = RATE * SLICE_PERIOD // SECOND


def published_by(pattern: str, count: int) -> list[int]:
    """What each source has published after two slices."""
    members = sources(count)
    load = SourcesInTurn(members, pattern)
    assert load.deadline() is None
    load.set_rate(RATE, NOW)
    load.wake(NOW + SLICE_PERIOD)
    assert load.deadline() == NOW + 2 * SLICE_PERIOD
    load.set_rate(0, NOW)
    load.wake(NOW + SECOND)
    assert load.deadline() is None
    return [source.next_number - 1 for source in members]


def test_in_blocks_the_sources_take_turns_with_a_whole_slice() -> None:
    assert published_by(BLOCKS, 3) == [SLICE, SLICE, 0]


def test_single_messages_are_of_as_many_sources() -> None:
    assert published_by(SINGLES, 2 * SLICE) == [1] * 2 * SLICE


def test_one_source_publishes_the_same_in_both_patterns() -> None:
    assert published_by(BLOCKS, 1) == published_by(SINGLES, 1) == [2 * SLICE]


def test_added_sources_have_one_address_and_a_key_each(tmp_path: Path) -> None:
    add_sources(new_deployment(tmp_path, sites=1, profile="metro"), 3)
    deployment = read_deployment(tmp_path)
    added = [node for node in deployment.nodes.values() if node.number >= FIRST_SOURCE]
    assert [node.number - FIRST_SOURCE for node in added] == [0, 1, 2]
    assert len({(node.host, node.port) for node in added}) == 1
    (site,) = deployment.sites
    known = keys_of(deployment, site).sources
    assert [keys_of(deployment, node).sources for node in added] == [
        {node.number: known[node.number]} for node in added
    ]
    assert len({known[node.number] for node in added}) == 3


def run_of(source_cpu_us: float, late: float = 0.0) -> LoadRun:
    return LoadRun(RATE, late, 0, 0, 0, source_cpu_us=source_cpu_us, site_cpu_us=2 * source_cpu_us, sites=3)


def test_the_ratio_compares_medians_of_the_rounds() -> None:
    one = [run_of(4.0), run_of(2.0), run_of(3.0)]
    results = results_of(SINGLES, 400, [run_of(6.0), run_of(9.0, late=0.5), run_of(4.5)], one)
    assert (results["single_cost_ratio_400"], results["single_site_cost_ratio_400"]) == (2.0, 2.0)
    assert (results["single_cost_us_400"], results["single_cost_us_400_max"]) == (6.0, 9.0)
    assert (results["single_late_fraction_400"], results["single_late_fraction_400_max"]) == (0.0, 0.5)
    assert "cost_ratio_1" not in results_of(BLOCKS, 1, one, one)


def test_the_goal_holds_for_400_sources_and_the_cost_of_more_is_only_printed() -> None:
    results: Results = {
        "cost_ratio_400": RATIO_GOAL,
        "single_cost_ratio_400": RATIO_GOAL + 0.01,
        "cost_ratio_1000": 5.0,
        "single_cost_ratio_1000": 5.0,
    }
    (shortfall,) = shortfalls_of(results, (400, 1_000))
    assert shortfall.startswith("single_cost_ratio_400 is 2.01")


def test_costs_of_a_ring_that_did_not_keep_up_are_not_valid() -> None:
    assert problems_of(results_of(BLOCKS, 400, [run_of(1.0, late=0.01)], [run_of(1.0)])) == []
    (late,) = problems_of(results_of(SINGLES, 400, [run_of(1.0), run_of(1.0, late=0.011)], [run_of(1.0)]))
    assert late.startswith("single_late_fraction_400_max is 0.011: the ring did not keep up")
    slow, reformed = problems_of({"messages_per_s_400_min": 19_000, "reformations_1": 1})
    assert slow.startswith("messages_per_s_400_min is 19,000 of 20,000")
    assert reformed.startswith("reformations_1 is 1")
