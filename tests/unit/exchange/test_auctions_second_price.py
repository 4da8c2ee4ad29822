"""The sealed second-price auction against the literature, and its truthfulness by exhaustion.

Each example names its source. "rule" means that the document states a rule without numbers, and the numbers are ours;
"given" means that it has the numbers but we did not see its answer, and the result is ours; "after" means that its
numbers could not be found again, so the example is constructed after its rule.
"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.exchange.rules import SecondPrice
from unit.exchange.floor_values import MarketHarness, market_of, plain

BRANDLY = "M. Brandly, Vickrey auctions: high bidder bids more honestly (2012)"
MITTWEIDA = "Mittweida Blockchain Academy, Second Price Sealed Bid, willingness to pay of A to F (after)"
UCLA = "I. Obara, UCLA Econ 145, Practice Questions II (2010), question 1 (after), "
RESERVE = "Second-price exercise with a seller's reserve r and two bidders, part b"
SPEC = "TRMP 2001 §7.3: the highest bidder buys at the price offered by the second highest (rule)"
VICKREY = "Vickrey, Counterspeculation, Auctions, and Competitive Sealed Tenders (1961)"
KRISHNA = "Krishna, Auction Theory, section 12.1, six units and three bidders, uniform price (after)"
KRISHNA_BIDS = ((50, 1), (47, 1), (40, 1), (32, 1), (15, 1), (5, 1), (42, 1), (28, 1), (20, 1), (12, 1), (7, 1), (3, 1),
                (45, 1), (35, 1), (24, 1), (14, 1), (9, 1), (6, 1))  # fmt: skip

# (source, reserve, units, bids as (price, quantity), winners as {index of the bid: units}, the price or None)
EXAMPLES: list[tuple[str, float, int, tuple[tuple[float, int], ...], dict[int, int], float | None]] = [
    (f"{BRANDLY}: 1,000, 1,250 and 1,500 (given)", 1, 1, ((1_000, 1), (1_250, 1), (1_500, 1)), {2: 1}, 1_250),
    (f"{BRANDLY}: the winner says 2,000", 1, 1, ((1_000, 1), (1_250, 1), (2_000, 1)), {2: 1}, 1_250),
    (MITTWEIDA, 1, 1, ((100, 1), (90, 1), (85, 1), (80, 1), (75, 1), (70, 1)), {0: 1}, 90),
    (f"{MITTWEIDA}: A, B, C and E are a ring", 1, 1, ((100, 1), (80, 1), (70, 1)), {0: 1}, 80),
    (f"{UCLA}a: 0.5, 0.7, 0.2", 0.01, 1, ((0.5, 1), (0.7, 1), (0.2, 1)), {1: 1}, 0.5),
    (f"{UCLA}c: reserve 0.2, one bid above it", 0.2, 1, ((0.5, 1), (0.1, 1)), {0: 1}, 0.2),
    (f"{UCLA}c: no bid reaches the reserve", 0.2, 1, ((0.1, 1), (0.15, 1)), {}, None),
    (f"{UCLA}e: reserve 0.5, two bids above it", 0.5, 1, ((0.7, 1), (0.6, 1), (0.2, 1)), {0: 1}, 0.6),
    (f"{RESERVE}, i: both exceed r (rule)", 10, 1, ((30, 1), (20, 1)), {0: 1}, 20),
    (f"{RESERVE}, ii: one exceeds r (rule)", 25, 1, ((30, 1), (20, 1)), {0: 1}, 25),
    (f"{RESERVE}, iii: none does (rule)", 35, 1, ((30, 1), (20, 1)), {}, None),
    (SPEC, 1, 1, ((7, 1), (9, 1), (8, 1)), {1: 1}, 8),
    (f"{SPEC}: of equal bids the first in the sequence wins", 1, 1, ((9, 1), (9, 1)), {0: 1}, 9),
    (f"{VICKREY}, part IV: m units, the first rejected bid (rule)", 1, 2, ((9, 1), (5, 1), (7, 1)), {0: 1, 2: 1}, 5),
    (f"{VICKREY}, part IV: as many units as bids, at the reserve (rule)", 2, 3, ((9, 1), (7, 1)), {0: 1, 1: 1}, 2),
    (KRISHNA, 1, 6, KRISHNA_BIDS, {0: 1, 1: 1, 2: 1, 6: 1, 12: 1, 13: 1}, 32),
    (f"{KRISHNA}: one unit", 1, 1, KRISHNA_BIDS, {0: 1}, 47),
    (f"{VICKREY}, part IV: a bid served in part rejects its own rest (rule)", 1, 3, ((9, 2), (7, 2)), {0: 2, 1: 1}, 7),
]


def sold(reserve: float, units: int, bids: tuple[tuple[float, int], ...]) -> tuple[dict[int, int], float | None]:
    """The units that each bid gets, by the index of the bid, and the price."""
    harness = MarketHarness(market_of(SecondPrice()))
    harness.enter("sell", units, reserve)
    for price, quantity in bids:
        assert harness.enter("buy", quantity, price) == []
    fills = harness.market.uncross()
    assert fills is not None
    assert not list(harness.market.book.orders())
    assert len({fill.price for fill in fills}) <= 1
    return {fill.taker.number - 2: int(plain(fill.quantity)) for fill in fills}, (
        plain(fills[0].price) if fills else None
    )


@pytest.mark.parametrize(
    ("source", "reserve", "units", "bids", "winners", "price"), EXAMPLES, ids=[row[0] for row in EXAMPLES]
)
def test_the_highest_bids_win_at_the_highest_one_refused(
    source: str,
    reserve: float,
    units: int,
    bids: tuple[tuple[float, int], ...],
    winners: dict[int, int],
    price: float | None,
) -> None:
    assert sold(reserve, units, bids) == (winners, price), source


def test_a_round_without_an_offer_ends_without_a_sale() -> None:
    harness = MarketHarness(market_of(SecondPrice()))
    harness.enter("buy", 1, 5)
    assert harness.market.uncross() == []
    assert [reduction.reason.name for reduction in harness.market.reductions] == ["ROUND_OVER"]


def test_no_bidder_gains_by_bidding_anything_but_the_value() -> None:
    """Three bidders, every value and every bid of a small grid: bidding the true value is never worse. Vickrey 1961."""
    grid = range(1, 5)
    outcomes = {bids: sold(2, 1, tuple((bid, 1) for bid in bids)) for bids in product(grid, repeat=3)}

    def gain(bids: tuple[int, ...], value: int, bidder: int) -> float:
        winners, price = outcomes[bids]
        return value - price if bidder in winners and price is not None else 0

    for others in product(grid, repeat=2):
        for bidder, value, lie in product(range(3), grid, grid):
            truth = (*others[:bidder], value, *others[bidder:])
            false = (*others[:bidder], lie, *others[bidder:])
            assert gain(truth, value, bidder) >= gain(false, value, bidder)


@given(st.lists(st.integers(1, 30), max_size=8), st.integers(1, 30), st.integers(1, 4))
def test_winners_never_pay_more_than_they_bid_nor_less_than_the_reserve(
    prices: list[int], reserve: int, units: int
) -> None:
    winners, price = sold(reserve, units, tuple((bid, 1) for bid in prices))
    eligible = sorted((bid for bid in prices if bid >= reserve), reverse=True)
    assert len(winners) == min(units, len(eligible))
    if price is not None:
        assert all(prices[place] >= price >= reserve for place in winners)
        assert price == max([reserve, *eligible[units : units + 1]])
