"""Symbols into stripes: limits are kept, related ones stay together, few move, and plans load again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("deltalake", reason="the extra `pipeline` is not installed")

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.market.stripe_files import from_toml, to_toml
from fairtape.market.stripes import BASE
from fairtape.pipeline.stripes.burst_model import Bursts, drawn_windows, expected_windows
from fairtape.pipeline.stripes.evaluation import (
    PlanEvaluator,
    alphabetical,
    by_rate,
    compare,
    portfolios,
    stripes_heard,
)
from fairtape.pipeline.stripes.overrun_risk import BadHistory, Indices, Limit, Windows, chances, needs, tail
from fairtape.pipeline.stripes.packing import Likeness, Packing, pack, repack
from fairtape.pipeline.stripes.study import PlanLayout, places_in, plan_of

BOUND = 1e-3
FAMILIES = 12
MEMBERS = 10
SYMBOLS = tuple(f"S{number:03}" for number in np.random.default_rng(5).permutation(FAMILIES * MEMBERS))


def likeness() -> Likeness:
    """Families of ten, each member alike to all others of its own."""
    pairs = {
        (one, other): 0.8
        for first in range(0, len(SYMBOLS), MEMBERS)
        for one in range(first, first + MEMBERS)
        for other in range(one + 1, first + MEMBERS)
    }
    return Likeness.of(len(SYMBOLS), pairs)


def daily(seed: int, days: int = 20) -> Any:
    """Messages per day: a few symbols have most, and families have good and bad days together."""
    chance = np.random.default_rng(seed)
    means = 400_000 / (np.arange(len(SYMBOLS)) + 4.0)
    family_days = np.repeat(chance.lognormal(0, 0.3, (FAMILIES, days)), MEMBERS, axis=0)
    return means[np.random.default_rng(3).permutation(len(SYMBOLS))][:, None] * family_days


def groups() -> Any:
    return np.arange(len(SYMBOLS)) // MEMBERS


def limits(messages_max: float = 90.0) -> list[Limit]:
    second, fine = (
        expected_windows(daily(1), groups(), period=period, count=200, seed=7) for period in (SECOND, 10 * MILLISECOND)
    )
    return [Limit(second, messages_max), Limit(fine, messages_max / 4)]


def packed() -> Packing:
    return pack(limits(), likeness(), bound=BOUND, reserve=0.1)


@given(st.floats(0.5, 60), st.integers(1, 90))
@settings(max_examples=50, deadline=None)
def test_the_tail_of_a_poisson_count_is_close_to_the_exact_one(mean: float, most: int) -> None:
    terms = np.exp(np.cumsum(np.log(mean / np.arange(1, 400))) - mean)  # P(1), P(2), …
    exact = float(terms[most:].sum())
    found = float(tail(np.array([mean], np.float32), np.zeros(1, np.float32), float(most))[0])
    assert found >= 0.5 * exact or exact > 0.5
    assert found <= 3.0 * exact + 1e-9 or most < mean + 2 * np.sqrt(mean)


def test_bursts_of_single_symbols_make_an_overrun_likelier() -> None:
    mean = np.array([20.0], np.float32)
    calm, wild = tail(mean, np.zeros(1, np.float32), 50.0), tail(mean, np.array([100.0], np.float32), 50.0)
    assert wild[0] > 10 * calm[0]


def test_a_history_without_windows_is_refused() -> None:
    with pytest.raises(BadHistory, match="no windows"):
        Windows.counted(SECOND, np.zeros((3, 0), np.float32), np.zeros(0))


def test_every_stripe_keeps_the_bound_but_those_of_lone_symbols() -> None:
    packing = packed()
    found = chances(limits(), packing.places, packing.stripes)
    kept = [place for place in range(packing.stripes) if place not in packing.lone]
    assert (found[kept] <= BOUND).all()
    assert all(len(packing.members[place]) == 1 for place in packing.lone)
    assert sorted(symbol for members in packing.members for symbol in members) == list(range(len(SYMBOLS)))


def test_a_symbol_that_no_stripe_can_carry_is_alone() -> None:
    counts = np.full((3, 10), 1.0, np.float32)
    counts[1] = 500.0
    windows = Windows.counted(SECOND, counts, np.full(10, 0.1))
    packing = pack([Limit(windows, 50.0)], Likeness.of(3, {(0, 1): 1.0, (0, 2): 1.0}), bound=BOUND)
    assert packing.lone == {int(packing.places[1])}
    assert packing.places[0] == packing.places[2] != packing.places[1]


def test_stripes_keep_room() -> None:
    packing = packed()
    needed = needs(limits(), packing.places, packing.stripes, BOUND)
    assert max(need for place, need in enumerate(needed) if place not in packing.lone) <= 0.91


def test_news_of_one_symbol_harm_fewer_others_than_where_rates_alone_decide() -> None:
    packing = packed()
    rates = limits()[0].windows.means

    def harm(places: Indices) -> float:
        return float(np.bincount(places) @ np.bincount(places, rates))

    assert harm(packing.places) < harm(by_rate(SYMBOLS, rates, packing.stripes))


def test_calm_symbols_are_not_crowded_however_much_they_are_alike() -> None:
    """Any of them may have news tomorrow, which all who share its stripe will feel."""
    busy, calm = 60, 1_200
    means = np.concatenate([np.full(busy, 8.0), np.full(calm, 1e-4)]).astype(np.float32)
    windows = Windows.counted(SECOND, np.repeat(means[:, None], 50, axis=1), np.full(50, 0.02))
    pairs = {
        (one, other): 0.9 for one in range(busy, busy + calm) for other in range(one + 1, min(one + 40, busy + calm))
    }
    packing = pack([Limit(windows, 90.0)], Likeness.of(busy + calm, pairs), bound=BOUND)
    sizes = np.bincount(packing.places)
    assert sizes.max() < calm / 4
    assert packing.stripes < busy


def test_equal_histories_give_equal_packings() -> None:
    assert packed().places.tolist() == packed().places.tolist()


def test_a_customer_of_a_family_hears_fewer_stripes_than_with_other_plans_and_the_bound_holds() -> None:
    packing = packed()
    past = limits()
    windows = tuple(
        drawn_windows(daily(2), groups(), period=period, count=2_000, seed=9) for period in (SECOND, 10 * MILLISECOND)
    )
    lone = np.isin(packing.places, sorted(packing.lone))
    later = [Limit(each, limit.messages_max) for each, limit in zip(windows, past, strict=True)]
    held = portfolios(likeness(), past[0].windows.means, seed=4)
    ours, *others = compare(packing.places, PlanEvaluator(SYMBOLS, later, np.flatnonzero(~lone), held, BOUND), past)
    for other in others:
        assert ours.stripes_per_portfolio < other.stripes_per_portfolio
    assert ours.overruns[0] <= BOUND
    assert ours.worst[0] <= BOUND


def test_a_plan_that_still_keeps_the_bound_moves_no_symbol() -> None:
    packing = packed()
    again = repack(limits(), likeness(), packing.places, bound=BOUND, reserve=0.1, stripes=packing.stripes)
    assert again.places.tolist() == packing.places.tolist()


def test_newcomers_find_a_place_near_their_family_and_few_others_move() -> None:
    packing = packed()
    known = packing.places.copy()
    newcomers = np.argsort(limits()[0].windows.means)[:6]
    known[newcomers] = -1
    again = repack(limits(), likeness(), known, bound=BOUND, reserve=0.1, stripes=packing.stripes)
    assert (again.places >= 0).all()
    assert (again.places != packing.places).sum() <= len(newcomers)
    assert (chances(limits(), again.places, again.stripes) <= BOUND)[
        ~np.isin(np.arange(again.stripes), [*again.lone])
    ].all()


def test_a_stripe_that_got_too_full_loses_as_few_symbols_as_will_do() -> None:
    packing = packed()
    louder = [Limit(Windows(limit.windows.period, 1.15 * limit.windows.counts, 1.3 * limit.windows.spread,
                            limit.windows.weights, limit.windows.clump), limit.messages_max)
              for limit in limits()]  # fmt: skip
    again = repack(louder, likeness(), packing.places, bound=BOUND, stripes=packing.stripes)
    moved = int((again.places != packing.places).sum())
    assert moved <= len(SYMBOLS) // 4
    found = chances(louder, again.places, again.stripes)
    assert (found[[place for place in range(again.stripes) if place not in again.lone]] <= BOUND).all()


def test_the_plan_of_a_packing_loads_again_and_the_next_one_keeps_numbers_and_addresses() -> None:
    packing = packed()
    cores = np.arange(packing.stripes) % 2
    layout = PlanLayout(SYMBOLS, ("NYSE",), packing.places, cores, ("A", "B"), BASE)
    plan, numbers = plan_of(layout, 256_000, 10**7, 0, None)
    assert from_toml(to_toml(plan)) == plan
    assert [len(plan.stripes[number].symbols) for number in numbers] == [len(each) for each in packing.members]
    assert places_in(plan, SYMBOLS).tolist() == packing.places.tolist()
    more = PlanLayout(SYMBOLS[1:], ("NYSE",), packing.places[1:], np.append(cores, 1), ("A", "B"), BASE)
    following, _ = plan_of(more, 256_000, 10**7, 0, plan)
    assert following.version == plan.version + 1
    assert following.edge_of(SYMBOLS[0]) == plan.edge_of(SYMBOLS[0]), "who is not in the history stays"
    for stripe in plan.edge:
        assert following.stripes[stripe.number].feeds == stripe.feeds
    assert len(following.edge) == len(plan.edge) + 1


def test_another_rate_is_that_of_all_stripes_and_venues_stay_where_the_history_knows_none() -> None:
    places = np.arange(len(SYMBOLS)) % 3
    plan, _ = plan_of(
        PlanLayout(SYMBOLS, ("NYSE",), places, np.zeros(3, np.int64), ("A",), BASE), 56_000, 10**7, 0, None
    )
    without = PlanLayout(SYMBOLS, (), places, np.zeros(3, np.int64), ("A",), BASE)
    following, _ = plan_of(without, 112_000, 10**8, 0, plan)
    assert {stripe.bits_per_s_max for stripe in following.edge} == {112_000}
    assert {core.bits_per_s_max for core in following.core} == {10**8}
    assert {stripe.venues for stripe in following.edge if not stripe.opaque} == {("NYSE",)}


def test_a_crowded_stripe_is_relieved_in_proportion_to_its_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    chance = Limit.chance

    def counted(self: Limit, counts: Any, spread: Any) -> float:
        asked.append(1)
        return chance(self, counts, spread)

    monkeypatch.setattr(Limit, "chance", counted)

    def questions(symbols: int) -> int:
        windows = Windows.counted(SECOND, np.full((symbols, 5), 1.0, np.float32), np.full(5, 0.2))
        asked.clear()
        packing = repack(
            [Limit(windows, symbols / 4)], Likeness.of(symbols, {}), np.zeros(symbols, np.int64), bound=BOUND
        )
        assert packing.stripes >= 4
        return len(asked)

    assert questions(160) < 3 * questions(80)


def test_a_symbol_too_busy_for_any_takes_a_stripe_that_became_empty() -> None:
    counts = np.array([[500.0] * 4, [1.0] * 4], np.float32)
    windows = Windows.counted(SECOND, counts, np.full(4, 0.25))
    packing = repack([Limit(windows, 50.0)], Likeness.of(2, {}), np.array([-1, 0]), bound=BOUND, stripes=2)
    assert (packing.places.tolist(), packing.stripes, packing.lone) == ([1, 0], 2, frozenset({1}))


def test_where_no_symbol_can_be_carried_none_is_evaluated() -> None:
    windows = Windows.counted(SECOND, np.full((2, 4), 500.0, np.float32), np.full(4, 0.25))
    packing = pack([Limit(windows, 50.0)], Likeness.of(2, {}), bound=BOUND)
    evaluator = PlanEvaluator(("A", "B"), [Limit(windows, 50.0)], np.flatnonzero(np.zeros(2)), [], BOUND)
    assert {result.overruns for result in compare(packing.places, evaluator, [Limit(windows, 50.0)])} == {(0.0,)}


def test_alphabetical_ranges_are_ranges_and_rates_are_balanced() -> None:
    rates = limits()[0].windows.means
    places = alphabetical(SYMBOLS, rates, 7)
    in_order = [places[number] for number in sorted(range(len(SYMBOLS)), key=lambda each: SYMBOLS[each])]
    assert in_order == sorted(in_order)
    loads = np.bincount(by_rate(SYMBOLS, rates, 7), rates)
    assert loads.max() <= 4 / 3 * rates.sum() / 7 + rates.max()
    assert stripes_heard([np.array([0, 1, 2])], np.array([4, 4, 5])) == 2.0


def test_the_shape_of_the_day_has_mean_one_and_its_ends_are_busy() -> None:
    at = (np.arange(100_000) + 0.5) / 100_000
    shape = Bursts().shape(at)
    assert shape.mean() == pytest.approx(1.0, abs=1e-6)
    assert shape[0] > 2.5
    assert shape.min() < 0.9


def test_drawn_and_expected_windows_have_the_same_mean() -> None:
    drawn = drawn_windows(daily(1), groups(), period=SECOND, count=4_000, seed=3)
    expected = expected_windows(daily(1), groups(), period=SECOND, count=4_000, seed=3)
    assert drawn.means.sum() == pytest.approx(expected.means.sum(), rel=0.02)
