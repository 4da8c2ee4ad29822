"""Frequent batch auctions against the literature: uniform price, older batches first, equal orders share by size.

Each example names its source. "rule" means that the document states a rule without numbers, and the numbers are ours;
"given" means that it has the numbers but we did not see its answer, and the result is ours.
"""

from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND
from fairtape.exchange.auctions import by_batch, pro_rata
from fairtape.exchange.book import Order
from fairtape.exchange.rules import BadRule, BatchAuction, Rounding
from unit.exchange.floor_values import MarketHarness, fixed, market_of, plain

Orders: TypeAlias = list[tuple[Any, ...]]
PERIOD = 100 * MILLISECOND

BCS = "Budish, Cramton, Shim, The High-Frequency Trading Arms Race, QJE 2015, section VII.A"
BCS14 = "Budish, Cramton, Shim, Implementation Details for Frequent Batch Auctions, AER P&P 2014"
POWERTAC = "Power TAC wiki, Wholesale market, bidding and clearing"
DERIVE = "Derive, Matching algorithms, pro-rata example"

# (source, batches of (side, quantity, price), filled quantity of each order after all, last price)
EXAMPLES: list[tuple[str, list[Orders], list[float], float | None]] = [
    (
        f"{BCS}, case 1: supply and demand do not cross, and all orders are carried over (rule)",
        [[("buy", 5, 10), ("sell", 5, 11)]],
        [0, 0],
        None,
    ),
    (
        f"{BCS}, case 2: they cross in one price (rule)",
        [[("buy", 5, 10), ("buy", 5, 9), ("sell", 5, 8), ("sell", 5, 9)]],
        [5, 5, 5, 5],
        9,
    ),
    (
        f"{BCS}, case 2: where they cross in an interval, its middle (rule)",
        [[("buy", 5, 11), ("sell", 5, 9)]],
        [5, 5],
        10,
    ),
    (
        f"{BCS}: orders above the price are filled whole, at the price they are rationed (rule)",
        [[("buy", 6, 10), ("buy", 4, 11), ("sell", 6, 9)]],
        [2, 4, 6],
        10,
    ),
    (
        f"{BCS}: within a batch time does not count (rule)",
        [[("buy", 5, 10), ("buy", 5, 10), ("sell", 4, 10)]],
        [2, 2, 4],
        10,
    ),
    (
        f"{BCS}: across batches it does (rule)",
        [[("buy", 5, 10)], [("buy", 5, 10), ("sell", 6, 10)]],
        [5, 1, 6],
        10,
    ),
    (
        f"{BCS}: what is carried over trades in a later batch (rule)",
        [[("buy", 5, 10), ("sell", 5, 11)], [("sell", 3, 9)]],
        [3, 0, 3],
        10,
    ),
    (
        f"{BCS14}: who snipes a stale quote is decided by price, not by speed (rule)",
        [[("sell", 1, 100)], [("buy", 1, 102), ("buy", 1, 105), ("buy", 1, 103)]],
        [1, 0, 1, 0],
        104,
    ),
    (
        f"{BCS14}: a better price beats an older batch (rule)",
        [[("buy", 5, 10)], [("buy", 5, 11), ("sell", 5, 10)]],
        [0, 5, 5],
        10.5,
    ),
    (
        f"{POWERTAC}: midway between the last cleared supply and demand bids (rule)",
        [[("buy", 10, 30), ("buy", 10, 26), ("sell", 10, 20), ("sell", 10, 22)]],
        [10, 10, 10, 10],
        24,
    ),
    (
        f"{POWERTAC}: the last demand bid is cleared in part and remains (rule)",
        [[("buy", 10, 30), ("buy", 10, 26), ("sell", 10, 20), ("sell", 5, 22)]],
        [10, 5, 10, 5],
        26,
    ),
    (
        f"{DERIVE}: Alice 10, Bob 30, Charlie takes 20",
        [[("buy", 10, 150), ("buy", 30, 150), ("sell", 20, 150)]],
        [5, 15, 20],
        150,
    ),
    (
        f"{DERIVE}: what rounding leaves is handed out afterwards (rule)",
        [[("buy", 1, 150), ("buy", 1, 150), ("buy", 1, 150), ("sell", 2, 150)]],
        [1, 1, 0, 2],
        150,
    ),
]


def played(batches: list[Orders], rule: BatchAuction) -> MarketHarness:
    """A market after one batch for each list, and the instant at which the last one ends."""
    harness = MarketHarness(market_of(rule))
    for number, orders in enumerate(batches, 1):
        for order in orders:
            harness.enter(*order, at=number * PERIOD + 1)
        harness.market.advance((number + 1) * PERIOD)
    return harness


@pytest.mark.parametrize(("source", "batches", "filled", "price"), EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_a_batch_comes_to_the_published_result(
    source: str, batches: list[Orders], filled: list[float], price: float | None
) -> None:
    harness = played(batches, BatchAuction(period=PERIOD))
    assert [plain(order.quantity - order.open) for order in harness.orders.values()] == filled, source
    assert (plain(harness.market.last) if harness.market.last else None) == price


def test_nothing_trades_before_a_batch_ends() -> None:
    harness = MarketHarness(market_of(BatchAuction(period=PERIOD)))
    assert harness.enter("buy", 1, 10, at=PERIOD) == []
    assert harness.enter("sell", 1, 10, at=2 * PERIOD - 1) == []
    assert harness.market.advance(2 * PERIOD - 1) == ()
    assert len(harness.market.advance(2 * PERIOD)) == 1


def test_the_middle_of_an_open_interval_is_that_of_its_ends() -> None:
    for rounding in (Rounding.UP, Rounding.DOWN):
        harness = played(
            [[("buy", 5, 10), ("buy", 5, 11), ("sell", 5, 10)]], BatchAuction(period=PERIOD, rounding=rounding)
        )
        assert plain(harness.market.last) == 10.5


def test_the_middle_is_rounded_as_the_rule_says() -> None:
    for rounding, price in ((Rounding.DOWN, 10), (Rounding.UP, 10.01), (Rounding.EVEN, 10)):
        harness = played([[("buy", 5, 10.01), ("sell", 5, 10)]], BatchAuction(period=PERIOD, rounding=rounding))
        assert plain(harness.market.last) == price
    with pytest.raises(BadRule, match="no maker"):
        BatchAuction(period=PERIOD, rounding=Rounding.MAKER)


sizes = st.lists(st.integers(1, 20), min_size=1, max_size=8)


@given(sizes, st.integers(1, 160), st.integers(1, 5))
def test_shares_by_size_hand_out_everything_and_differ_from_exact_ones_by_less_than_a_lot(
    quantities: list[int], volume: int, lot: int
) -> None:
    orders = [Order(n, object(), 1, 10, quantity * lot) for n, quantity in enumerate(quantities)]
    volume = min(volume, sum(quantities)) * lot
    shares = dict(pro_rata(orders, volume, lot))
    assert sum(shares.values()) == volume
    whole = sum(order.open for order in orders)
    for order in orders:
        share = shares.get(order, 0)
        assert share % lot == 0
        assert share <= order.open
        assert abs(share * whole - order.open * volume) < lot * whole


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=9), st.integers(1, 80))
def test_an_older_batch_is_filled_before_a_younger_one_gets_anything(
    entered: list[tuple[int, int]], volume: int
) -> None:
    orders = []
    for number, (batch, quantity) in enumerate(sorted(entered)):
        order = Order(number, object(), 1, fixed(10), quantity)
        order.batch = batch
        orders.append(order)
    shares = dict(by_batch(1)(orders, min(volume, sum(order.open for order in orders))))
    for older in orders:
        for younger in orders:
            if older.batch < younger.batch and shares.get(younger):
                assert shares.get(older) == older.open
