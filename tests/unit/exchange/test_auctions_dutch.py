"""The Dutch clock against the literature, and its equality with a sealed first-price auction.

Each example names its source. "rule" means that the document states a rule without numbers, and the numbers are ours;
"given" means that it has the numbers but we did not see its answer, and the result is ours; "after" means that its
numbers could not be found again, so the example is constructed after its rule.
"""

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import SECOND
from fairtape.exchange.orders import TimeInForce
from fairtape.exchange.rules import DutchClock
from unit.exchange.floor_values import MarketHarness, fixed, market_of, plain, plain_fills

CAR = "Encyclopedia entry 'Dutch auction', a company car from 15,000 down in steps of 1,000, taken at 10,000"
CLEMENS = "Clemens Auctions, Dutch auctions: a pre-agreed decrement, the price at which the clock was stopped (rule)"
SHOR = "M. Shor, Dictionary of Game Theory, Dutch auction: the amount on the clock when it was stopped (rule)"
IBM = "IBM WebSphere Commerce, Dutch auctions: reduced over time until bidders have cleared the inventory (rule)"
KRISHNA = "Krishna, Auction Theory, section 12.1: the discriminatory auction in open form, 6 units, 3 bidders (after)"
KRISHNA_BIDS = (50, 47, 40, 32, 15, 5, 42, 28, 20, 12, 7, 3, 45, 35, 24, 14, 9, 6)
VICKREY = "Vickrey (1961), the Dutch auction is the sealed one at the first price (rule)"
AALSMEER = "Kambil and van Heck (1998), Dutch flower auctions: the clock is set up again for the rest of a lot (rule)"
SPEC = "TRMP 2001 §7.3, the Amsterdam flower auction (rule)"

# (source, start, decrement, rewind, reserve, units, resting bids, sales as (bid, price, units) after 100 steps)
Bids: TypeAlias = tuple[tuple[float, int], ...]
Sales: TypeAlias = list[tuple[int, float, int]]
EXAMPLES: list[tuple[str, float, float, float, float, int, Bids, Sales]] = [
    (CAR, 15_000, 1_000, 0, 1_000, 1, ((10_000, 1),), [(0, 10_000, 1)]),
    (
        f"{CAR}; a bid for less gets nothing",
        15_000,
        1_000,
        0,
        1_000,
        1,
        ((9_000, 1), (10_000, 1)),
        [(1, 10_000, 1)],
    ),
    (
        f"{CAR}; a limit between two steps takes the lower one",
        15_000,
        1_000,
        0,
        1_000,
        1,
        ((10_500, 1),),
        [(0, 10_000, 1)],
    ),
    (f"{CLEMENS}: the fastest of equals", 50, 5, 0, 5, 1, ((30, 1), (30, 1)), [(0, 30, 1)]),
    (f"{CLEMENS}: a batch of goods", 50, 5, 0, 5, 10, ((30, 10),), [(0, 30, 10)]),
    (SHOR, 100, 1, 0, 1, 1, ((42, 1), (77, 1), (60, 1)), [(1, 77, 1)]),
    (f"{IBM}: two buyers", 20, 1, 0, 1, 5, ((12, 3), (15, 2)), [(1, 15, 2), (0, 12, 3)]),
    (f"{IBM}: the last buyer in part", 20, 1, 0, 1, 4, ((12, 3), (15, 2)), [(1, 15, 2), (0, 12, 2)]),
    (
        KRISHNA,
        60,
        1,
        0,
        1,
        6,
        tuple((bid, 1) for bid in KRISHNA_BIDS),
        [(0, 50, 1), (1, 47, 1), (12, 45, 1), (6, 42, 1), (2, 40, 1), (13, 35, 1)],
    ),
    (f"{KRISHNA}: one unit", 60, 1, 0, 1, 1, tuple((bid, 1) for bid in KRISHNA_BIDS), [(0, 50, 1)]),
    (VICKREY, 10, 1, 0, 1, 1, ((4, 1), (9, 1), (8, 1)), [(1, 9, 1)]),
    (f"{VICKREY}: the clock stops at the reserve", 10, 3, 0, 5, 1, ((5, 1),), [(0, 5, 1)]),
    (f"{VICKREY}: no bid reaches the reserve", 10, 1, 0, 5, 1, ((4, 1), (3, 1)), []),
    (f"{AALSMEER}, sold at 30 and again from 35", 50, 1, 5, 10, 8, ((30, 5), (25, 3)), [(0, 30, 5), (1, 25, 3)]),
    (f"{SPEC}: a bid above the start pays the start", 40, 1, 0, 1, 1, ((45, 1),), [(0, 40, 1)]),
]


def clocked(start: float, decrement: float, rewind: float = 0) -> MarketHarness:
    rule = DutchClock(start=fixed(start), decrement=fixed(decrement), step_period=SECOND, rewind=fixed(rewind))
    return MarketHarness(market_of(rule))


@pytest.mark.parametrize(
    ("source", "start", "decrement", "rewind", "reserve", "units", "bids", "sales"),
    EXAMPLES,
    ids=[row[0] for row in EXAMPLES],
)
def test_the_clock_sells_as_published(
    source: str,
    start: float,
    decrement: float,
    rewind: float,
    reserve: float,
    units: int,
    bids: tuple[tuple[float, int], ...],
    sales: list[tuple[int, float, int]],
) -> None:
    harness = clocked(start, decrement, rewind)
    for price, quantity in bids:
        harness.enter("buy", quantity, price)
    fills = harness.enter("sell", units, reserve) + plain_fills(harness.market.advance(100 * SECOND))
    assert [(maker - 1, price, quantity) for maker, _, price, quantity in fills] == sales, source


def test_a_bid_during_the_clock_pays_the_price_it_shows() -> None:
    harness = clocked(100, 1)
    harness.enter("sell", 10, 20)
    assert harness.enter("buy", 1, 95, at=30 * SECOND) == [(1, 2, 70, 1)]
    assert harness.enter("buy", 1, at=31 * SECOND + 1) == [(1, 3, 69, 1)]
    assert harness.enter("buy", 1, 60, at=31 * SECOND, wait=TimeInForce.IOC) == []
    assert [reduction.reason.name for reduction in harness.market.reductions] == ["UNFILLED"]


def test_the_clock_stays_at_its_reserve_until_a_bid_comes() -> None:
    harness = clocked(100, 1)
    harness.enter("sell", 1, 95)
    assert plain(harness.market.clock_price(1_000 * SECOND)) == 95
    assert harness.enter("buy", 1, 99, at=2_000 * SECOND) == [(1, 2, 95, 1)]


def test_after_part_of_a_lot_the_clock_is_rewound() -> None:
    harness = clocked(100, 1, rewind=10)
    harness.enter("sell", 10, 20)
    assert harness.enter("buy", 4, 90, at=50 * SECOND) == [(1, 2, 50, 4)]
    assert plain(harness.market.clock_price(50 * SECOND)) == 60
    assert plain(harness.market.clock_price(52 * SECOND)) == 58


def test_the_clock_does_not_depend_on_how_often_it_is_read() -> None:
    looks = []
    for instants in ((100,), range(0, 101, 7), range(101)):
        harness = clocked(60, 1, rewind=3)
        for bid in (40, 55, 13, 55):
            harness.enter("buy", 2, bid)
        fills = harness.enter("sell", 7, 10)
        for instant in instants:
            fills += plain_fills(harness.market.advance(instant * SECOND))
        looks.append(fills + plain_fills(harness.market.advance(100 * SECOND)))
    assert looks[0] == looks[1] == looks[2]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 30))
def test_the_dutch_clock_is_the_sealed_auction_at_the_first_price(bids: list[int], reserve: int) -> None:
    """The highest bid wins and pays its price; of equal bids the first. Vickrey 1961."""
    harness = clocked(50, 1)
    for bid in bids:
        harness.enter("buy", 1, bid)
    fills = harness.enter("sell", 1, reserve) + plain_fills(harness.market.advance(100 * SECOND))
    best = max(bids)
    expected = [(bids.index(best) + 1, best)] if best >= reserve else []
    assert [(maker, price) for maker, _, price, _ in fills] == expected
