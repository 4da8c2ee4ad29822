"""A deployment under load: the search for a rate, the load, and what counts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.bench.deployed_ring import (
    CHUNK_RECORDS,
    LATE_MAX,
    QUEUED_MAX,
    RATE_LEAST,
    RATE_STEP,
    SPREAD_SITES,
    LoadRun,
    RecordLoad,
    RingRounds,
    highest_passing,
    ladder,
    ring_kinds,
    spreads_of,
)
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.timing import PROFILES
from fairtape.nodes.source import Source
from fairtape.wire.seals import KEY_SIZE, Keys

# The search.


def test_the_rates_of_a_search_ascend_in_equal_ratios_and_are_the_same_for_all_rounds() -> None:
    rates = ladder(1_000_000)
    assert rates[0] == RATE_LEAST
    assert 1_000_000 / RATE_STEP < rates[-1] <= 1_000_000
    assert ladder(500_000) == [rate for rate in rates if rate <= 500_000]
    assert all(higher / lower == pytest.approx(RATE_STEP, rel=0.001) for lower, higher in pairwise(rates))
    assert ladder(RATE_LEAST - 1) == []


@given(count=st.integers(1, 200), passing=st.integers(0, 200), guess=st.integers(0, 2_100))
def test_the_highest_passing_rate_is_found_without_trying_one_twice(count: int, passing: int, guess: int) -> None:
    rates = [10 * (place + 1) for place in range(count)]
    limit = 10 * min(passing, count)
    tried: list[int] = []

    def passes(rate: int) -> bool:
        tried.append(rate)
        return rate <= limit

    assert highest_passing(rates, passes, guess=guess) == (limit or None)
    assert len(tried) == len(set(tried)) <= 2 * count.bit_length() + 1


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=60), guess=st.integers(0, 60))
def test_noise_ends_the_search_at_a_rate_that_passed_below_one_that_did_not(outcomes: list[bool], guess: int) -> None:
    rates = list(range(len(outcomes)))
    found = highest_passing(rates, outcomes.__getitem__, guess=guess)
    assert found is None or outcomes[found]
    above = 0 if found is None else found + 1
    assert above == len(outcomes) or not outcomes[above]


def test_a_good_guess_is_tried_with_one_other_rate() -> None:
    tried: list[int] = []

    def passes(rate: int) -> bool:
        tried.append(rate)
        return rate <= 70

    assert highest_passing(range(100), passes, guess=70) == 70
    assert tried == [70, 71]
    assert highest_passing([], passes, guess=70) is None


def run_of(rate: float, *, late: float = 0.0, reformations: int = 0) -> LoadRun:
    return LoadRun(rate, late, 0, 0, reformations, source_cpu_us=0.2, site_cpu_us=0.3, sites=3)


def test_a_rate_is_on_time_if_it_was_carried_and_at_most_one_percent_was_late() -> None:
    assert run_of(99_000, late=LATE_MAX).is_on_time(100_000)
    assert not run_of(97_000).is_on_time(100_000)
    assert not run_of(100_000, late=0.011).is_on_time(100_000)
    assert not run_of(100_000, reformations=1).is_on_time(100_000)
    assert run_of(1).cpu_us == pytest.approx(0.2 + 3 * 0.3)


# Load.


def load_of(size: int) -> tuple[Source, RecordLoad]:
    keys = Keys({}, {101: bytes(KEY_SIZE)})
    source = Source(me=101, keys=keys, timing=PROFILES["metro"], resilience=1, incarnation=1)
    return source, RecordLoad(source, size)


def test_a_paced_load_publishes_what_is_due_and_catches_up_in_chunks() -> None:
    _, load = load_of(64)
    assert load.deadline() is None
    load.set_rate(1_000_000, SECOND)
    assert load.deadline() == SECOND
    steps = []
    for now in (SECOND, SECOND + MILLISECOND, SECOND + 4 * MILLISECOND, SECOND + 4 * MILLISECOND):
        load.wake(now)
        steps.append((load.published, (load.deadline() or 0) - now))
    whole = 1_000 + CHUNK_RECORDS
    assert steps == [(0, MILLISECOND), (1_000, MILLISECOND), (whole, 0), (4_000, MILLISECOND)]


def test_a_flood_publishes_until_the_queue_is_full_and_a_quiet_load_nothing() -> None:
    source, load = load_of(64)
    load.set_rate(None, SECOND)
    chunks = 0
    while load.deadline() is not None:
        load.wake(SECOND)
        chunks += 1
    assert source.queued >= QUEUED_MAX
    assert chunks <= 1 + QUEUED_MAX // (64 * CHUNK_RECORDS)
    load.set_rate(0, SECOND)
    assert load.deadline() is None


# Spread and results.


def test_the_spread_of_a_token_is_from_its_first_release_to_its_last() -> None:
    assert spreads_of([{1: 10, 2: 20, 3: 7}, {2: 25, 1: 10}, {1: 13, 2: 21, 4: 1}]) == [3, 5]
    assert spreads_of([{1: 10}, {}]) == []


def test_each_part_runs_the_rings_that_it_needs_as_far_as_the_machine_carries_them() -> None:
    assert {(kind.prefix, kind.profile) for kind in ring_kinds(1, ["idle"])} == {("", "metro"), ("lan_", "lan")}
    assert all(kind.parts == {"spread"} for kind in ring_kinds(1, ["spread"]))
    assert {kind.sites for kind in ring_kinds(1, ["spread"])} <= {1, SPREAD_SITES}
    assert ring_kinds(10_000, ["on-time", "idle"]) == []


def test_results_of_rounds_are_medians_with_minimum_and_maximum() -> None:
    (kind,) = [each for each in ring_kinds(1, ["on-time", "spread", "idle"]) if each.prefix == "lan_"]
    rounds = RingRounds(kind, [300, 100, 200], [run_of(400), run_of(600), run_of(500, late=0.5)])
    rounds.idle += [0.1, 0.3, 0.2]
    rounds.spreads += [[1_000, 9_000], [3_000], [2_000]]
    rounds.memory += [1 << 20, 3 << 20]
    results = rounds.results()
    assert [results[f"lan_on_time_messages_per_s{each}"] for each in ("", "_min", "_max")] == [200, 100, 300]
    assert (results["lan_flood_messages_per_s"], results["lan_flood_late_fraction_max"]) == (500, 0.5)
    assert (results["lan_cpu_us_per_message"], results["lan_idle_core_share"]) == (1.1, 0.2)
    assert (results["lan_spread_p99_us"], results["lan_spread_p99_us_max"], results["lan_spread_tokens"]) == (3, 9, 4)
    assert results["lan_process_memory_mib"] == 3
