"""The book: ladders that stay sorted, queues that are never empty, and the market around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.exchange.book import Book, Ladder, Order
from fairtape.exchange.market import flaw_of
from fairtape.exchange.orders import OpenMarket
from fairtape.exchange.rules import CallAuction, Continuous, DutchClock, Pricing, Rule, SecondPrice
from fairtape.market.prices import ONE
from unit.exchange.floor_values import MarketHarness, fixed, market_of


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 40)), max_size=60))
def test_a_book_equals_a_list_that_is_sorted_every_time(steps: list[tuple[bool, int, int]]) -> None:
    book = Book()
    waiting: list[Order] = []
    for number, (buys, price, victim) in enumerate(steps):
        if victim < len(waiting):
            book.remove(waiting.pop(victim))
        else:
            order = Order(number, object(), 1 if buys else -1, price, 1)
            book.rest(order)
            waiting.append(order)
        expected = sorted(waiting, key=lambda order: (-order.sign, -order.key, order.number))
        assert list(book.orders()) == expected
        for ladder in (book.bids, book.asks):
            assert ladder.keys == sorted(ladder.queues)
            assert all(ladder.queues.values())
        assert len(book.bids) + len(book.asks) == len(waiting)


def test_the_best_prices_and_the_depth_cover_both_sides() -> None:
    harness = MarketHarness(market_of(Continuous()))
    assert (harness.market.book.depth(1), harness.market.book.bids.first()) == (([], []), None)
    harness.enter_all(("buy", 1, 9), ("buy", 2, 10), ("buy", 3, 10), ("sell", 4, 11), ("sell", 5, 12))
    book = harness.market.book
    assert book.depth(1) == ([(fixed(10), fixed(5))], [(fixed(11), fixed(4))])
    assert harness.left() == ([(10, 5), (9, 1)], [(11, 4), (12, 5)])
    assert "buys" in repr(book.bids.first())


def test_an_order_leaves_with_its_last_share() -> None:
    book = Book()
    order = Order(1, object(), 1, 5, 3)
    book.rest(order)
    book.reduce(order, 2)
    assert book.bids.first() is order
    book.reduce(order, 1)
    assert not book.bids
    assert isinstance(book.side(order), Ladder)


@pytest.mark.parametrize(
    ("rule", "tick", "lot", "low", "high", "word"),
    [
        (Continuous(), 0.001, 0.001, 0, 0, None),
        (Continuous(pricing=Pricing.MIDPOINT, step=3), 0.01, 1, 0, 0, "multiple of it"),
        (CallAuction(reference=fixed(1.005)), 0.01, 1, 0, 0, "reference is 1.005"),
        (DutchClock(start=fixed(1.005), decrement=fixed(1), step_period=1), 0.01, 1, 0, 0, "start is 1.005"),
        (SecondPrice(), 0.01, 1, 5, 4, "price_max is 4"),
        (SecondPrice(), 0.01, 1, 0.005, 4, "price_min is 0.005"),
    ],
)
def test_a_market_opens_only_on_terms_that_can_be_kept(
    rule: Rule, tick: float, lot: float, low: float, high: float, word: str | None
) -> None:
    flaw = flaw_of(OpenMarket(1, 1, "XYZ", rule, fixed(tick), fixed(lot), fixed(low), fixed(high)))
    assert flaw is None if word is None else flaw is not None and word in flaw


def test_a_trade_must_cost_a_whole_number_of_units() -> None:
    assert "enlarge the lot" in str(flaw_of(OpenMarket(1, 1, "XYZ", Continuous(), 1, ONE // 10)))
    assert flaw_of(OpenMarket(1, 1, "XYZ", Continuous(), 10, ONE // 10)) is None


def test_stops_wait_apart_and_come_by_price_and_then_by_time() -> None:
    market = market_of(Continuous())
    stops = [(1, 12), (1, 11), (1, 11), (-1, 9), (-1, 10)]
    for number, (sign, price) in enumerate(stops, 1):
        market.stop(Order(number, object(), sign, fixed(price), fixed(1), stop_price=fixed(price)))
    assert market.triggered() is None
    market.last = fixed(11)
    assert [order.number for order in iter(market.triggered, None) if order] == [2, 3]
    market.last = fixed(9)
    assert [order.number for order in iter(market.triggered, None) if order] == [5, 4]


def test_a_rule_changes_only_where_the_orders_mean_the_same() -> None:
    market = market_of(Continuous())
    other = market.terms._replace(tick=ONE)
    assert "tick" in str(market.change(other, 0))
    assert "closed" in str(market.change(market.terms._replace(rule=SecondPrice()), 0)) or market.rule == Continuous()
    market.stop(Order(1, object(), 1, fixed(1), fixed(1), stop_price=fixed(1)))
    assert "stop orders" in str(market.change(market.terms._replace(rule=CallAuction()), 0))
    assert market.indicative() is None
    assert market.clock_price(0) == 0
