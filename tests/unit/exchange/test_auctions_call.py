"""The call auction against published examples, and against an implementation that tries every price.

Each example names its source. "rule" means that the document states a rule without numbers, and the numbers are ours;
"given" means that it has the numbers but we did not see its answer, and the result is ours.
"""

from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.exchange.auctions import Clearing, clear, middle, nearest
from fairtape.exchange.rules import CallAuction, Candidates, Rounding
from unit.exchange.floor_values import MarketHarness, fixed, market_of, plain, plain_fills

Orders: TypeAlias = list[tuple[Any, ...]]

ASX = "ASX, Equity market closing and settlement price determination (rule)"
UNSW = "UNSW Trading Engine Course, session 3, appendix: stock X under the new ASX algorithm, principles 1 to 3"
MARKETGRID = "MarketGrid documentation, Single-Price Auction, example"
KRX = "KRX, Execution method of market orders at single price auctions"
KRX_1P = "KRX, Individual auction at a single price, matching price"
JPX = "JPX, How to determine the contract price by the Itayose method (rule)"
QUEDEX = "Quedex FAQ, auction algorithm (rule)"
FPR = "Foucault, Pagano, Röell, Market Liquidity, ch. 1, the nine orders of exercise 2 as a call auction (given)"

STOCK_X: Orders = [
    *[("buy", q, p) for q, p in ((500, 6.40), (500, 6.39), (500, 6.39), (1_000, 6.34), (500, 6.33))],
    *[("sell", q, p) for q, p in ((1_000, 6.10), (500, 6.40), (520, 6.41), (550, 6.42), (519, 6.43))],
]
GRID: Orders = [
    *[("buy", q, p) for q, p in ((45, 13_000), (95, 12_900), (25, 12_800), (35, 12_700), (25, 12_600), (55, 12_500))],
    *[("buy", q, p) for q, p in ((200, 12_400), (80, 12_300), (60, 12_200))],
    *[("sell", q, p) for q, p in ((35, 13_100), (50, 13_000), (10, 12_900), (15, 12_800), (10, 12_700), (20, 12_600))],
    *[("sell", q, p) for q, p in ((90, 12_500), (155, 12_400), (125, 12_300), (10, 12_200))],
]
NINE: Orders = [
    *[("buy", q, p) for q, p in ((100, 3), (200, 4), (200, 3.5), (500, 2.5))],
    *[("sell", q, p) for q, p in ((500, 5), (600, 3), (500, 4))],
    ("buy", 500),
    ("sell", 200),
]
KRX_1: Orders = [("sell", 200, 10_500), ("buy", 200), ("buy", 200, 10_600), ("buy", 200, 10_500)]
KRX_2: Orders = [
    *[("sell", 200, p) for p in (10_700, 10_500, 10_400)],
    ("buy", 200),
    ("buy", 200, 10_500),
]
KRX_ONE: Orders = [
    *[("sell", q, p) for q, p in ((450, 7_860), (750, 7_850), (300, 7_840), (150, 7_830), (200, 7_830), (50, 7_830))],
    *[("sell", q, p) for q, p in ((200, 7_820), (150, 7_810))],
    *[("buy", q, p) for q, p in ((100, 7_850), (150, 7_840), (200, 7_830), (150, 7_830), (400, 7_820), (500, 7_810))],
    ("buy", 650, 7_800),
]
KRX_MANY: Orders = [("buy", 200, 7_850), ("buy", 100, 7_840), ("sell", 100, 7_810), ("sell", 200, 7_800)]
OVERLAP: Orders = [("buy", 100, 10.05), ("sell", 100, 10)]
MIXED: Orders = [("buy", 100, 10.05), ("buy", 50, 10), ("sell", 100, 10), ("sell", 50, 10.05)]

# (source, orders, tick, reference, candidates, (price, volume, surplus) or None)
EXAMPLES: list[tuple[str, Orders, float, float, Candidates, tuple[float, float, float] | None]] = [
    (UNSW, STOCK_X, 0.01, 0, Candidates.TICKS, (6.39, 1_000, 500)),
    (f"{UNSW}, limits alone", STOCK_X, 0.01, 0, Candidates.LIMITS, (6.39, 1_000, 500)),
    (MARKETGRID, GRID, 100, 0, Candidates.TICKS, (12_400, 290, 190)),
    (f"{KRX}, example 1: a tick above the best bid", KRX_1, 100, 10_400, Candidates.BEYOND, (10_700, 200, 0)),
    (f"{KRX}, example 2: matched at 10,500", KRX_2, 100, 10_300, Candidates.BEYOND, (10_500, 400, 0)),
    (f"{KRX_1P}: the only one, 600 at 7,830", KRX_ONE, 10, 0, Candidates.TICKS, (7_830, 600, -150)),
    (f"{KRX_1P}: of several the last price", KRX_MANY, 10, 7_820, Candidates.TICKS, (7_820, 300, 0)),
    (f"{KRX_1P}: or the closest to it", KRX_MANY, 10, 7_850, Candidates.TICKS, (7_840, 300, 0)),
    (
        f"{KRX}: only market orders trade at the last price",
        [("buy", 2), ("sell", 2)],
        100,
        10_400,
        Candidates.TICKS,
        (10_400, 2, 0),
    ),
    (f"{ASX}: no overlap, no auction price", [("buy", 1, 9), ("sell", 1, 10)], 0.01, 9.5, Candidates.TICKS, None),
    (
        f"{ASX}: an even market trades at its one price",
        [("buy", 3, 9), ("sell", 3, 9)],
        0.01,
        0,
        Candidates.TICKS,
        (9, 3, 0),
    ),
    (
        f"{ASX}, principle 2: least left over",
        [("buy", 100, 10.02), ("buy", 70, 10.01), ("sell", 100, 10)],
        0.01,
        0,
        Candidates.TICKS,
        (10.02, 100, 0),
    ),
    (
        f"{ASX}, principle 3: buy pressure takes the highest",
        [("buy", 150, 10.05), ("sell", 100, 10)],
        0.01,
        0,
        Candidates.TICKS,
        (10.05, 100, 50),
    ),
    (
        f"{ASX}, principle 3: sell pressure takes the lowest",
        [("buy", 100, 10.05), ("sell", 150, 10)],
        0.01,
        0,
        Candidates.TICKS,
        (10, 100, -50),
    ),
    (f"{ASX}, principle 4: a reference inside is the price", OVERLAP, 0.01, 10.03, Candidates.TICKS, (10.03, 100, 0)),
    (f"{ASX}, principle 4: a reference above takes the highest", OVERLAP, 0.01, 11, Candidates.TICKS, (10.05, 100, 0)),
    (f"{ASX}, principle 4: a reference below takes the lowest", OVERLAP, 0.01, 9, Candidates.TICKS, (10, 100, 0)),
    (f"{JPX}, condition 3 between two limits", MIXED, 0.01, 10.04, Candidates.TICKS, (10.04, 100, 0)),
    (
        f"{JPX}, condition 4.1: cumulative sells larger at all",
        [("buy", 5, 502), ("sell", 9, 500)],
        1,
        501,
        Candidates.TICKS,
        (500, 5, -4),
    ),
    (
        f"{JPX}, condition 4.2: cumulative buys larger at all",
        [("buy", 9, 502), ("sell", 5, 500)],
        1,
        501,
        Candidates.TICKS,
        (502, 5, 4),
    ),
    (f"{QUEDEX}: the price closest to the last", OVERLAP, 0.01, 10.01, Candidates.LIMITS, (10.01, 100, 0)),
    (FPR, NINE, 0.01, 0, Candidates.TICKS, (3.5, 800, 100)),
]


def opened(reference: float, candidates: Candidates, tick: float = 0.01) -> MarketHarness:
    return MarketHarness(
        market_of(CallAuction(candidates=candidates, reference=fixed(reference)), tick=tick, high=20_000)
    )


@pytest.mark.parametrize(
    ("source", "orders", "tick", "reference", "candidates", "expected"), EXAMPLES, ids=[row[0] for row in EXAMPLES]
)
def test_the_auction_finds_the_published_price(
    source: str, orders: Orders, tick: float, reference: float, candidates: Candidates, expected: Any
) -> None:
    harness = opened(reference, candidates, tick)
    assert all(not fills for fills in harness.enter_all(*orders))
    found = harness.market.indicative()
    assert (found and tuple(map(plain, found))) == expected, source
    fills = harness.market.uncross()
    assert fills is not None
    assert sum(fill.quantity for fill in fills) == (0 if found is None else found.volume)
    assert {fill.price for fill in fills} == (set() if found is None else {found.price})
    assert not harness.market.book.is_crossed


def test_better_prices_and_older_orders_are_filled_first() -> None:
    harness = opened(0, Candidates.TICKS)
    harness.enter_all(("buy", 5, 10), ("buy", 5, 10.02), ("buy", 5, 10), ("sell", 8, 10), ("buy", 1))
    fills = harness.market.uncross()
    assert fills is not None
    assert plain_fills(fills) == [(4, 5, 10, 1), (2, 4, 10, 5), (1, 4, 10, 2)]
    assert harness.left() == ([(10, 8)], [])


levels = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=8)


@given(levels, levels, st.integers(1, 12), st.sampled_from([Candidates.LIMITS, Candidates.TICKS]))
def test_no_price_trades_more_or_leaves_less(
    bids: list[tuple[int, int]], offers: list[tuple[int, int]], reference: int, candidates: Candidates
) -> None:
    """The reference implementation tries every tick."""
    found = clear(bids, offers, tick=1, candidates=candidates, tie=nearest(reference))
    outcomes = {}
    for price in range(1, 13):
        demand = sum(quantity for limit, quantity in bids if limit >= price)
        supply = sum(quantity for limit, quantity in offers if limit <= price)
        outcomes[price] = (min(demand, supply), demand - supply)
    most = max(volume for volume, _ in outcomes.values())
    if not most:
        assert found is None
        return
    assert found is not None
    assert found.volume == most
    assert outcomes[found.price] == (found.volume, found.surplus)
    if candidates is Candidates.TICKS:
        limits = [limit for limit, _ in [*bids, *offers]]
        rivals = [p for p in range(min(limits), max(limits) + 1) if outcomes[p][0] == most]
        least = min(abs(outcomes[p][1]) for p in rivals)
        rivals = [p for p in rivals if abs(outcomes[p][1]) == least]
        assert found.price in rivals
        surpluses = {outcomes[p][1] > 0 for p in rivals if outcomes[p][1]}
        if least and surpluses == {True}:
            assert found.price == max(rivals)
        elif least and surpluses == {False}:
            assert found.price == min(rivals)
        else:
            assert abs(found.price - reference) == min(abs(p - reference) for p in rivals)


def test_the_middle_is_rounded_as_declared_and_stays_between() -> None:
    assert middle(10, Rounding.UP)(10, 25) == 20
    assert middle(10, Rounding.DOWN)(11, 12) == 11
    bids, offers = [(12, 5)], [(9, 5)]
    assert clear(bids, offers, tick=1, candidates=Candidates.TICKS, tie=middle(1, Rounding.DOWN)) == Clearing(10, 5, 0)


def test_prices_beyond_the_limits_stay_within_the_bounds() -> None:
    harness = MarketHarness(market_of(CallAuction(candidates=Candidates.BEYOND), tick=100, high=10_600))
    harness.enter_all(*KRX_1)
    found = harness.market.indicative()
    assert found is not None
    assert plain(found.price) == 10_600
