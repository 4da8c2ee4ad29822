"""Stripe plans: what is refused and how, one normal form, a place for every symbol, and the naive planner."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.market.stripe_files import canonical, digest, from_toml, to_toml
from fairtape.market.stripes import BadPlan, CoreStripe, EdgeStripe, Endpoint, StripePlan, plan_by_rate
from fairtape.market.symbols import universe
from unit.edge.edge_values import MIDNIGHT, plan
from unit.formats.trade_values import INK

SYMBOLS = st.text(INK, min_size=1, max_size=16)


def edge(number: int, address: str, **fields: object) -> EdgeStripe:
    feeds = (("A", Endpoint(f"239.1.0.{address}", 1)), ("B", Endpoint(f"239.2.0.{address}", 1)))
    values: dict[str, object] = {"core": 0, "bits_per_s_max": 1_000, "feeds": feeds}
    return EdgeStripe(number=number, **{**values, **fields})  # type: ignore[arg-type]


CORE = CoreStripe(number=0, at=Endpoint("239.0.0.1", 17_171), bits_per_s_max=10)
TRADES = edge(1, "1", symbols=("AAPL",))
OPAQUE = edge(2, "2", opaque=True)


def small(**fields: object) -> StripePlan:
    values: dict[str, object] = {"version": 1, "midnight_at": 0, "core": (CORE,), "edge": (TRADES, OPAQUE)}
    return StripePlan(**{**values, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"version": 0}, "version is 0; it must be from 1"),
        ({"midnight_at": 5}, "midnight_at is 5 ns"),
        ({"core": ()}, "core is empty"),
        ({"edge": ()}, "edge has 0 stripes"),
        ({"core": (CORE, CORE)}, "core stripe 0 is in the plan twice"),
        ({"core": (replace(CORE, bits_per_s_max=0),)}, "bits_per_s_max of core stripe 0 is 0"),
        ({"edge": (TRADES, OPAQUE, edge(2, "3"))}, "edge stripe 2 is in the plan twice"),
        ({"edge": (TRADES, OPAQUE, edge(3, "3", symbols=("AAPL",)))}, "symbol AAPL is in edge stripes 1, 3"),
        ({"edge": (edge(1, "1", symbols=("A", "A")), OPAQUE)}, "symbol A is in edge stripes 1 more than once"),
        ({"edge": (edge(1, "1", symbols=("A B",)), OPAQUE)}, "edge stripe 1: symbol is 'A B'"),
        ({"edge": (edge(1, "1", venues=("X", "X")), OPAQUE)}, "venue X is in edge stripe 1 twice"),
        ({"edge": (edge(1, "1", core=7), OPAQUE)}, "core of edge stripe 1 is 7; the plan has only core stripe 0"),
        ({"edge": (edge(1, "1", bits_per_s_max=0), OPAQUE)}, "bits_per_s_max of edge stripe 1 is 0"),
        ({"edge": (edge(1, "1", bits_per_s_max=-5), OPAQUE)}, "bits_per_s_max of edge stripe 1 is -5"),
        ({"edge": (TRADES, edge(2, "1", opaque=True))}, "address 239.1.0.1 is that of edge stripe 1, feed A and of"),
        ({"edge": (TRADES, edge(2, "2", opaque=True, symbols=("B",)))}, "edge stripe 2 is opaque and names symbols"),
        ({"edge": (TRADES,)}, "core stripe 0 has 0 opaque edge stripes"),
        ({"edge": (OPAQUE,)}, "core stripe 0 has no edge stripe for trades"),
        ({"edge": (TRADES, edge(2, "2", opaque=True, feeds=()))}, "feeds of edge stripe 2 are none"),
        (
            {"edge": (TRADES, edge(2, "2", opaque=True, feeds=(("C", Endpoint("239.3.0.1", 1)),)))},
            "feeds of edge stripe 2 are C; those of every stripe must be A, B",
        ),
        ({"core": (replace(CORE, at=Endpoint("10.0.0.1", 1)),)}, "its address must be an IPv4 multicast address"),
        ({"core": (replace(CORE, at=Endpoint("239.0.0.1", 0)),)}, "its port must be from 1"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_with_a_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadPlan) as refusal:
        small(**fields)
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("version = ", "the plan is not valid TOML"),
        ("version = 1", "the plan lacks day; give a value there"),
        ('version = "1"', "version is '1'; expected a whole number"),
        ("version = true", "version is True; expected a whole number"),
        ("version = 1\nday = 5\ncore = []\nedge = []", "day is '5'; expected a date"),
        ("version = 1\nday = 2026-11-16\ncore = [5]\nedge = []", "core has 5 in it; expected tables"),
        (to_toml(small()) + 'colour = "red"\n', "feed colour of edge stripe 2 is 'red'; expected an address"),
        ("speed = 1\n" + to_toml(small()), "speed is 1; no such field is known"),
        (to_toml(small()).replace("number = 1", "number = 1\nhue = 2"), "edge[0].hue is 2; no such field is known"),
        (to_toml(small()).replace('"AAPL"', "5"), "edge[0].symbols has 5 in it; expected a list of names"),
        (to_toml(small()).replace('"239.1.0.1:1"', "7"), "feed A of edge stripe 1 is 7; expected a text"),
    ],
)
def test_a_text_that_is_no_plan_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadPlan) as refusal:
        from_toml(text)
    assert sentence in str(refusal.value)


@given(st.text())
def test_whatever_the_text_nothing_but_a_refusal_is_raised(text: str) -> None:
    with pytest.raises(BadPlan):
        from_toml(text)


@given(st.dictionaries(SYMBOLS, st.integers(0, 10**6), max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_a_plan_is_read_back_from_its_normal_form(rates: dict[str, int], stripes: int, cores: int) -> None:
    planned = plan_by_rate(rates, max(stripes, cores), 10**6, cores=cores, midnight_at=MIDNIGHT, venues=("XNYS",)).plan
    assert from_toml(to_toml(planned)) == planned
    assert canonical(from_toml(to_toml(planned))) == canonical(planned)


def test_plans_that_say_the_same_have_the_same_digest() -> None:
    shuffled = small(edge=(OPAQUE, replace(TRADES, feeds=TRADES.feeds[::-1])))
    assert digest(shuffled) == digest(small())
    assert digest(small(version=2)) != digest(small())


@given(SYMBOLS)
def test_a_symbol_without_a_name_has_one_place_that_carries_trades(symbol: str) -> None:
    planned = plan_by_rate({"AAPL": 1}, 5, 10**6, cores=2).plan
    core, stripe = planned.core_of(symbol), planned.stripes[planned.edge_of(symbol)]
    assert stripe.core == core
    assert not stripe.opaque
    for other in (0, 1):
        assert planned.stripes[planned.edge_of(symbol, other)].core == other


def test_the_rule_for_symbols_without_a_name_never_changes() -> None:
    """Publishers and receivers of different releases must find the same place."""
    planned = plan_by_rate({}, 7, 10**6).plan
    assert [planned.edge_of(symbol) for symbol in ("AAPL", "MSFT", "BRK.B", "ZZZ")] == [6, 4, 1, 4]


def test_named_symbols_are_where_the_plan_says() -> None:
    planned = plan()
    for stripe in planned.edge:
        for symbol in stripe.symbols:
            assert planned.edge_of(symbol) == stripe.number


@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 8))
def test_the_heaviest_stripe_is_less_than_one_symbol_above_the_mean(rates: list[int], stripes: int) -> None:
    """Graham 1966: the stripe that gets the last symbol had the least load before."""
    named = dict(zip(universe(len(rates) or 1), rates, strict=False))
    planned = plan_by_rate(named, stripes, 10**9)
    assert sum(load.bits_per_s for load in planned.loads) == sum(rates)
    assert sum(load.symbols for load in planned.loads) == len(rates)
    heaviest = max(load.bits_per_s for load in planned.loads)
    assert heaviest * stripes <= sum(rates) + max(rates, default=0) * (stripes - 1)


def test_a_load_beyond_its_cap_is_reported() -> None:
    planned = plan_by_rate({"AAPL": 500, "F": 10}, 2, 100)
    assert [(load.stripe, load.over) for load in planned.loads] == [(1, True), (2, False)]
    assert planned.loads[0].share == 5.0
