"""Continuous price–time priority at the maker's, the taker's and the middle price, against published examples.

Each example names its source. "rule" means that the document states a rule without numbers, and the numbers are ours;
"given" means that it has the numbers but we did not see its answer, and the result is ours; "after" means that its
numbers could not be found again, so the example is constructed after its rule.
"""

from fractions import Fraction
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.exchange.book import Fill, Order
from fairtape.exchange.market import Market
from fairtape.exchange.matching import match
from fairtape.exchange.orders import SelfTrade, TimeInForce
from fairtape.exchange.rules import Continuous, Pricing, Rounding, rounded
from unit.exchange.floor_values import MarketHarness, fixed, market_of, plain

Orders: TypeAlias = list[tuple[Any, ...]]
Trades: TypeAlias = list[tuple[float, float]]

FPR = "Foucault, Pagano, Röell, Market Liquidity, ch. 1, exercise 2 and its solution table"
SDIX = "SDIX, Continuous Matching for Baskets"
EXAM = "SolutionInn, 'a continuous auction starts with an empty order book' (after; 7 shares in all)"
WHITEBIT = "WhiteBIT documentation, Matching engine, order matching (rule)"
JPX = "JPX, Trading Methods, Zaraba (rule)"
SPEC = "TRMP 2001 §7.3: a buy at A and a sell at B < A (rule)"

OPENING: Orders = [("buy", 100, 3), ("buy", 200, 4), ("buy", 200, 3.5), ("buy", 500, 2.5), ("sell", 500, 5)]
SWEEP: Orders = [*OPENING, ("sell", 600, 3)]
ASK: Orders = [*SWEEP, ("sell", 500, 4)]
BUYS: Orders = [*ASK, ("buy", 500)]
BASKETS: Orders = [("sell", 20, 3_040), ("sell", 60, 3_050), ("sell", 25, 3_060), ("sell", 15, 3_060)]
EMPTY_BOOK: Orders = [("buy", 2, 10), ("buy", 3, 11), ("sell", 2, 12), ("sell", 2, 9), ("buy", 4, 12), ("sell", 3, 10)]

MAKER: list[tuple[str, Orders, Trades]] = [
    (f"{FPR}, t=5: the book does not cross", OPENING, []),
    (f"{FPR}, t=6", SWEEP, [(4, 200), (3.5, 200), (3, 100)]),
    (f"{FPR}, t=7: the new offer waits", ASK, []),
    (f"{FPR}, t=8", BUYS, [(3, 100), (4, 400)]),
    (f"{FPR}, t=9", [*BUYS, ("sell", 200)], [(2.5, 200)]),
    (SDIX, [*BASKETS, ("buy", 90, 3_060)], [(3_040, 20), (3_050, 60), (3_060, 10)]),
    (f"{SDIX}, a smaller one stops at the best price (rule)", [*BASKETS, ("buy", 20, 3_060)], [(3_040, 20)]),
    (f"{EXAM}, 10:23", EMPTY_BOOK[:4], [(11, 2)]),
    (f"{EXAM}, 10:32", EMPTY_BOOK[:5], [(12, 2)]),
    (f"{EXAM}, 10:50", EMPTY_BOOK, [(12, 2), (11, 1)]),
    (f"{WHITEBIT}: better prices first", [("sell", 1, 101), ("sell", 1, 100), ("buy", 2, 101)], [(100, 1), (101, 1)]),
    (f"{JPX}: the lowest offer and the highest bid", [("sell", 5, 501), ("sell", 5, 500), ("buy", 5, 502)], [(500, 5)]),
    (f"{SPEC}: at B, which was there", [("sell", 1, 9), ("buy", 1, 10)], [(9, 1)]),
    (f"{SPEC}: at A, which was there", [("buy", 1, 10), ("sell", 1, 9)], [(10, 1)]),
]

CS = "Chatterjee and Samuelson, Bargaining under Incomplete Information (1983), sealed offers b ≥ s"
CS_K = f"{CS}, price k·b + (1-k)·s (rule), offers in twelfths as in the linear equilibrium of k=1/2"
TAKER: list[tuple[str, Orders, Trades]] = [
    (f"{CS_K}, k=1, values 1 and 0: offers 9 and 3", [("sell", 1, 3), ("buy", 1, 9)], [(9, 1)]),
    (f"{CS_K}, k=0, the same offers", [("buy", 1, 9), ("sell", 1, 3)], [(3, 1)]),
    (f"{CS_K}, k=1, values 3/4 and 1/4", [("sell", 1, 5), ("buy", 1, 7)], [(7, 1)]),
    (f"{CS_K}, k=0, values 3/4 and 1/4", [("buy", 1, 7), ("sell", 1, 5)], [(5, 1)]),
    (f"{CS}, values 1 and 3/4 meet exactly", [("sell", 1, 9), ("buy", 1, 9)], [(9, 1)]),
    (f"{CS}, values 1/2 and 1/2: no trade below a difference of 1/4", [("sell", 1, 7), ("buy", 1, 5)], []),
    (f"{SPEC}: at A, which came", [("sell", 1, 9), ("buy", 1, 10)], [(10, 1)]),
    (f"{SPEC}: at B, which came", [("buy", 1, 10), ("sell", 1, 9)], [(9, 1)]),
    (f"{FPR}, t=6, the same orders at the taker's price", SWEEP, [(3, 200), (3, 200), (3, 100)]),
    (f"{FPR}, t=8: who takes every price names none", BUYS, [(3, 100), (4, 400)]),
    (f"{SDIX}, the same orders", [*BASKETS, ("buy", 90, 3_060)], [(3_060, 20), (3_060, 60), (3_060, 10)]),
    (f"{EXAM}, 10:50, the same orders", EMPTY_BOOK, [(10, 2), (10, 1)]),
    (f"{EXAM}, 10:23, the same orders", EMPTY_BOOK[:4], [(9, 2)]),
]

XETRA = "Deutsche Börse, Xetra MidPoint presentation, page 27: limits 17.18 and 17.26 (after)"
TSX = "TSX, Dark Liquidity guide, 14.3.10: a dark limit of 10.01 meets sells of 10.00 at 10.005 (after)"
PATENT = "US patent on matching at the midpoint between the buy and the sell order price (rule)"
MIDPOINT: list[tuple[str, Orders, Trades]] = [
    (XETRA, [("sell", 10_000, 17.18), ("buy", 10_000, 17.26)], [(17.22, 10_000)]),
    (f"{TSX}, order D", [("buy", 4_500, 10.01), ("sell", 800, 10)], [(10.005, 800)]),
    (f"{TSX}, order E", [("buy", 4_500, 10.01), ("sell", 800, 10), ("sell", 500, 10)], [(10.005, 500)]),
    (f"{CS_K}, k=1/2, values 1 and 0", [("sell", 1, 3), ("buy", 1, 9)], [(6, 1)]),
    (f"{CS_K}, k=1/2, values 3/4 and 1/4", [("buy", 1, 7), ("sell", 1, 5)], [(6, 1)]),
    (f"{CS_K}, k=1/2, values 1 and 3/4", [("sell", 1, 9), ("buy", 1, 9)], [(9, 1)]),
    (f"{CS_K}, k=1/2, values 1/4 and 0", [("sell", 1, 3), ("buy", 1, 3)], [(3, 1)]),
    (f"{CS}, values 1/2 and 1/2: no trade", [("sell", 1, 7), ("buy", 1, 5)], []),
    (f"{PATENT}: the buy below the sell", [("sell", 1, 20.02), ("buy", 1, 20)], []),
    (f"{PATENT}: equal prices", [("sell", 1, 20), ("buy", 1, 20)], [(20, 1)]),
    (f"{SPEC}: somewhere in between", [("sell", 1, 9), ("buy", 1, 10)], [(9.5, 1)]),
    (f"{FPR}, t=6, the same orders", SWEEP, [(3.5, 200), (3.25, 200), (3, 100)]),
    (f"{SDIX}, the same orders", [*BASKETS, ("buy", 90, 3_060)], [(3_050, 20), (3_055, 60), (3_060, 10)]),
    (f"{FPR}, t=8: no middle without a limit", BUYS, [(3, 100), (4, 400)]),
]


def last_trades(orders: Orders, rule: Continuous) -> Trades:
    harness = MarketHarness(market_of(rule))
    return [(price, quantity) for _, _, price, quantity in harness.enter_all(*orders)[-1]]


@pytest.mark.parametrize(("source", "orders", "trades"), MAKER, ids=[row[0] for row in MAKER])
def test_a_trade_is_made_at_the_resting_price(source: str, orders: Orders, trades: Trades) -> None:
    assert last_trades(orders, Continuous()) == trades, source


@pytest.mark.parametrize(("source", "orders", "trades"), TAKER, ids=[row[0] for row in TAKER])
def test_a_trade_is_made_at_the_arriving_price(source: str, orders: Orders, trades: Trades) -> None:
    assert last_trades(orders, Continuous(pricing=Pricing.TAKER)) == trades, source


@pytest.mark.parametrize(("source", "orders", "trades"), MIDPOINT, ids=[row[0] for row in MIDPOINT])
def test_a_trade_is_made_at_the_midpoint(source: str, orders: Orders, trades: Trades) -> None:
    assert last_trades(orders, Continuous(pricing=Pricing.MIDPOINT, step=fixed(0.005))) == trades, source


@pytest.mark.parametrize(
    ("rounding", "first", "second"),
    [(Rounding.DOWN, 10, 10), (Rounding.UP, 10.01, 10.01), (Rounding.MAKER, 10.01, 10), (Rounding.EVEN, 10, 10)],
)
def test_a_midpoint_between_two_ticks_is_rounded_as_the_rule_says(
    rounding: Rounding, first: float, second: float
) -> None:
    rule = Continuous(pricing=Pricing.MIDPOINT, rounding=rounding)
    assert last_trades([("buy", 1, 10.01), ("sell", 1, 10)], rule) == [(first, 1)]
    assert last_trades([("sell", 1, 10), ("buy", 1, 10.01)], rule) == [(second, 1)]


@given(st.integers(0, 10**6), st.integers(1, 50), st.sampled_from(Rounding), st.booleans())
def test_rounding_reaches_a_neighbouring_step(doubled: int, step: int, rounding: Rounding, upward: bool) -> None:
    price = rounded(doubled, step, rounding, upward=upward)
    assert price % step == 0
    assert abs(Fraction(doubled, 2) - price) < step


# IOC, FOK and post-only orders, and self-trades.


def test_an_ioc_order_takes_what_is_there_and_never_rests() -> None:
    harness = MarketHarness(market_of(Continuous()))
    harness.enter("sell", 5, 10)
    assert harness.enter("buy", 8, 10, wait=TimeInForce.IOC) == [(1, 2, 10, 5)]
    assert harness.left() == ([], [])


def test_a_fok_order_takes_all_or_nothing() -> None:
    harness = MarketHarness(market_of(Continuous()))
    harness.enter_all(("sell", 5, 10), ("sell", 5, 11))
    assert harness.enter("buy", 11, 11, wait=TimeInForce.FOK) == []
    assert harness.enter("buy", 10, 10, wait=TimeInForce.FOK) == []
    assert harness.enter("buy", 1, 9, wait=TimeInForce.FOK) == []
    assert [reduction.reason.name for reduction in harness.market.reductions] == ["NOT_WHOLE"] * 3
    assert harness.enter("buy", 10, 11, wait=TimeInForce.FOK) == [(1, 6, 10, 5), (2, 6, 11, 5)]


def test_a_fok_order_does_not_count_orders_of_its_own_account() -> None:
    harness, me = MarketHarness(market_of(Continuous())), object()
    harness.enter("sell", 5, 10, owner=me)
    assert harness.enter("buy", 5, 10, owner=me, wait=TimeInForce.FOK) == []


def test_a_post_only_order_rests_or_is_cancelled() -> None:
    harness = MarketHarness(market_of(Continuous()))
    harness.enter("sell", 5, 10)
    assert harness.enter("buy", 5, 10, post_only=True) == []
    assert harness.enter("buy", 5, 9.99, post_only=True) == []
    assert harness.left() == ([(9.99, 5)], [(10, 5)])


@pytest.mark.parametrize(
    ("policy", "bids", "offers", "traded"),
    [
        (SelfTrade.CANCEL_NEWEST, [], [(10, 4), (11, 9)], []),
        (SelfTrade.CANCEL_OLDEST, [], [(11, 3)], [(2, 3, 11, 6)]),
        (SelfTrade.CANCEL_BOTH, [], [(11, 9)], []),
        (SelfTrade.DECREMENT, [], [(11, 7)], [(2, 3, 11, 2)]),
        (SelfTrade.ALLOW, [], [(11, 7)], [(1, 3, 10, 4), (2, 3, 11, 2)]),
    ],
)
def test_the_arriving_orders_policy_decides_when_an_account_meets_itself(
    policy: SelfTrade, bids: list[Any], offers: list[Any], traded: list[Any]
) -> None:
    harness, me = MarketHarness(market_of(Continuous())), object()
    harness.enter("sell", 4, 10, owner=me)
    harness.enter("sell", 9, 11)
    assert harness.enter("buy", 6, 11, owner=me, policy=policy) == traded
    assert harness.left() == (bids, offers)


# Properties.

flows = st.lists(
    st.tuples(st.booleans(), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2), st.sampled_from(TimeInForce)),
    max_size=30,
)


@given(flows, st.sampled_from(Pricing), st.sampled_from(SelfTrade))
def test_prices_stay_within_limits_and_priority_is_never_violated(
    flow: list[tuple[bool, int, int, int, TimeInForce]], pricing: Pricing, policy: SelfTrade
) -> None:
    market = market_of(Continuous(pricing=pricing), tick=1)
    owners = [object() for _ in range(3)]
    entered: list[Order] = []
    for number, (buys, price, quantity, who, wait) in enumerate(flow):
        order = Order(number, owners[who], 1 if buys else -1, fixed(price), fixed(quantity), policy, wait)
        waiting = [
            each
            for each in (market.book.asks if order.sign > 0 else market.book.bids)
            if each.owner is not order.owner or not policy
        ]
        fills = market.enter(order)
        entered.append(order)
        for fill in fills:
            low, high = sorted((fill.maker.price, fill.taker.price))
            assert low <= fill.price <= high
            assert (fill.taker.price - fill.maker.price) * fill.taker.sign >= 0
        assert [fill.maker for fill in fills] == waiting[: len(fills)]
        assert all(not fill.maker.open for fill in fills[:-1])
        assert not market.book.is_crossed
    for order in entered:
        assert (order.queue is not None) == (order.open > 0)


@given(flows)
def test_the_engine_equals_a_naive_implementation(flow: list[tuple[bool, int, int, int, TimeInForce]]) -> None:
    """The naive implementation keeps one list and sorts it again for every order."""
    market = market_of(Continuous(), tick=1)
    waiting: list[tuple[bool, int, int, list[int]]] = []
    for number, (buys, price, quantity, _, _) in enumerate(flow):
        expected = []
        rivals = [each for each in waiting if each[0] != buys]
        for rival in sorted(rivals, key=lambda each: (each[1] if buys else -each[1], each[2])):
            if (rival[1] <= price if buys else rival[1] >= price) and quantity and rival[3][0]:
                traded = min(quantity, rival[3][0])
                rival[3][0] -= traded
                quantity -= traded
                expected.append((rival[2], rival[1], traded))
        waiting.append((buys, price, number, [quantity]))
        order = Order(number, object(), 1 if buys else -1, fixed(price), fixed(quantity + sum(e[2] for e in expected)))
        fills = market.enter(order)
        assert [(fill.maker.number, plain(fill.price), plain(fill.quantity)) for fill in fills] == expected


def test_matching_alone_leaves_the_decision_about_the_rest_to_its_caller() -> None:
    market: Market = market_of(Continuous(), tick=1)
    market.enter(Order(1, object(), -1, fixed(5), fixed(2)))
    taker = Order(2, object(), 1, fixed(5), fixed(3))
    fills: list[Fill] = []
    match(taker, market.book.asks, Continuous(), fixed(1), fills, market.reductions)
    assert (taker.open, taker.queue, len(fills)) == (fixed(1), None, 1)
    assert not market.book.asks
