"""Auctions: call and batch auctions at one price, the sealed second-price auction, and the Dutch clock.

The clearing price follows from four principles, each deciding among the prices that the one before it left (ASX
Operating Rules, the London and Xetra market models and TSE's Itayose agree on them): the most volume; the least
surplus; the direction of that surplus; and last a reference price from outside the book.

Demand falls and supply rises with the price, both in steps at the limits. So it is enough to examine the limits
themselves and, where every tick is a candidate, the first and the last tick between two of them.

The volume goes to the better price first, and at one price by time, or by batch and then by size.

The Dutch clock lowers the price of a lot step by step until a bid takes it. The clock depends on time alone, and time
is the instant of the token, so every site has the same price. A resting bid stops the clock at its limit. Bids that all
rest before the start therefore form a sealed first-price auction: the highest bid wins and pays the first step at or
below its limit.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from fairtape.core.instants import Instant
from fairtape.exchange.book import ANY_BUY, ANY_SELL, Book, Fill, Order
from fairtape.exchange.rules import Candidates, DutchClock, Rounding, rounded
from fairtape.market.prices import Price, Quantity

Levels: TypeAlias = Iterable[tuple[Price, Quantity]]
"""Limits with their quantities; `ANY_BUY` and `ANY_SELL` are the limits of market orders."""

TieBreak: TypeAlias = Callable[[Price, Price], Price]
"""Chooses a price between the lowest and the highest that are left."""


class Clearing(NamedTuple):
    """The result of an auction."""

    price: Price
    volume: Quantity
    surplus: int  # above zero: bids are left over; below: offers


class _Curve:
    """What one side would trade at a price or a better one."""

    def __init__(self, levels: Levels) -> None:
        ordered = sorted(levels)
        self.prices = [price for price, _ in ordered]
        self._through = [0, *accumulate(quantity for _, quantity in ordered)]

    def at_most(self, price: Price) -> Quantity:
        """Supply: the quantity at this price and below."""
        return self._through[bisect_right(self.prices, price)]

    def at_least(self, price: Price) -> Quantity:
        """Demand: the quantity at this price and above."""
        return self._through[-1] - self._through[bisect_left(self.prices, price)]


def clear(
    bids: Levels,
    offers: Levels,
    *,
    tick: Price,
    candidates: Candidates,
    tie: TieBreak,
    without_limits: Price = 0,
    bounds: tuple[Price, Price] = (0, ANY_BUY),
    closed: bool = False,
) -> Clearing | None:
    """The price, volume and surplus of an auction; None if nothing trades.

    `without_limits` is the price if all orders are market orders; 0: then nothing trades. The price stays within
    `bounds`. If the prices that are left lie between two limits, `closed` includes those limits.
    """
    demand, supply = _Curve(bids), _Curve(offers)
    limits = sorted({*demand.prices, *supply.prices} - {ANY_BUY, ANY_SELL})
    if not limits:
        limits = [without_limits] if without_limits and bounds[0] <= without_limits <= bounds[1] else []
    if candidates is Candidates.BEYOND and limits:
        beyond = (limits[0] - tick, limits[-1] + tick)
        limits = sorted({*limits, *(price for price in beyond if price and bounds[0] <= price <= bounds[1])})
    prices = limits if candidates is Candidates.LIMITS else _with_ticks(limits, tick)
    outcomes = [(price, demand.at_least(price), supply.at_most(price)) for price in prices]
    volume = max((min(bid, offered) for _, bid, offered in outcomes), default=0)
    if not volume:
        return None
    fullest = [(price, bid - offered) for price, bid, offered in outcomes if min(bid, offered) == volume]
    least = min(abs(surplus) for _, surplus in fullest)
    chosen = (lambda low, high: tie(*_hull(limits, low, high))) if closed else tie
    price = _by_pressure([(price, surplus) for price, surplus in fullest if abs(surplus) == least], chosen)
    return Clearing(price, volume, demand.at_least(price) - supply.at_most(price))


def _with_ticks(limits: Sequence[Price], tick: Price) -> list[Price]:
    """The limits, and the first and last tick between each two of them: in between nothing changes."""
    between = [price for low, high in pairwise(limits) for price in (low + tick, high - tick) if low < price < high]
    return sorted({*limits, *between})


def _by_pressure(remaining: Sequence[tuple[Price, int]], tie: TieBreak) -> Price:
    """The highest price if only bids are left over, the lowest if only offers are, else the tie break."""
    lowest, highest = remaining[0][0], remaining[-1][0]
    if all(surplus > 0 for _, surplus in remaining):
        return highest
    if all(surplus < 0 for _, surplus in remaining):
        return lowest
    return tie(lowest, highest)


def _hull(limits: Sequence[Price], lowest: Price, highest: Price) -> tuple[Price, Price]:
    """The limits between which these prices lie."""
    return limits[bisect_right(limits, lowest) - 1], limits[bisect_left(limits, highest)]


def nearest(reference: Price) -> TieBreak:
    """The price closest to the reference."""
    return lambda lowest, highest: min(max(reference, lowest), highest)


def middle(step: Price, rounding: Rounding) -> TieBreak:
    """The middle, rounded to a step, within both ends."""
    return lambda lowest, highest: min(max(rounded(lowest + highest, step, rounding), lowest), highest)


# Allocation.

Share: TypeAlias = tuple[Order, Quantity]
Allocation: TypeAlias = Callable[[Sequence[Order], Quantity], list[Share]]


def by_time(orders: Iterable[Order], volume: Quantity) -> list[Share]:
    """The volume to the orders in turn; the last of them may get a part."""
    shares = []
    for order in orders:
        if not volume:
            break
        share = min(order.open, volume)
        shares.append((order, share))
        volume -= share
    return shares


def by_batch(lot: Quantity) -> Allocation:
    """Better prices first; at one price older batches first; within a batch by size, in whole lots."""

    def allocate(orders: Sequence[Order], volume: Quantity) -> list[Share]:
        shares: list[Share] = []
        for _, same in groupby(orders, key=lambda order: (order.key, order.batch)):
            batch = list(same)
            wanted = min(sum(order.open for order in batch), volume)
            shares += pro_rata(batch, wanted, lot)
            volume -= wanted
        return shares

    return allocate


def pro_rata(orders: Sequence[Order], volume: Quantity, lot: Quantity) -> list[Share]:
    """The volume by size, rounded down to lots; remaining lots go to the largest fractions, then by age."""
    whole = sum(order.open for order in orders)
    if volume >= whole:
        return [(order, order.open) for order in orders]
    exact = [divmod(order.open * volume // lot, whole) for order in orders]
    left = volume // lot - sum(lots for lots, _ in exact)
    ranked = sorted(range(len(orders)), key=lambda place: (-exact[place][1], orders[place].number))
    extra = set(ranked[:left])
    shares = [(order, (exact[place][0] + (place in extra)) * lot) for place, order in enumerate(orders)]
    return [share for share in shares if share[1]]


def uncross(book: Book, price: Price, volume: Quantity, allocate: Allocation = by_time) -> list[Fill]:
    """Trade the volume at the price, and remove the filled orders from the book."""
    bids = [order for order in book.bids if order.price >= price]
    offers = [order for order in book.asks if order.price <= price]
    fills = list(paired(allocate(_in_order(bids), volume), allocate(_in_order(offers), volume), price))
    for fill in fills:
        book.reduce(fill.maker, fill.quantity)
        book.reduce(fill.taker, fill.quantity)
    return fills


def _in_order(orders: list[Order]) -> list[Order]:
    """Best price first, then by batch, then by time: the sort is stable."""
    return sorted(orders, key=lambda order: (-order.key, order.batch))


def paired(bids: Iterable[Share], offers: Iterable[Share], price: Price) -> Iterator[Fill]:
    """Fills between bids and offers of the same total volume, in order."""
    sellers = iter(offers)
    seller, on_offer = next(sellers, (None, 0))
    for buyer, wanted in bids:
        while wanted:
            assert seller is not None
            quantity = min(wanted, on_offer)
            maker, taker = sorted((buyer, seller), key=attrgetter("number"))
            yield Fill(maker, taker, price, quantity)
            wanted -= quantity
            on_offer -= quantity
            if not on_offer:
                seller, on_offer = next(sellers, (None, 0))


# The sealed second-price auction.


def award(book: Book) -> list[Fill]:
    """Sell the offer to the highest bids, and remove what is filled from the book. Equal bids are served by time.

    Vickrey 1961: the price does not depend on the winner's own bid, so the best bid is the true value. With several
    units, each unit counts as a bid, and all winners pay the highest bid that was refused.
    """
    offer = book.asks.first()
    if offer is None:
        return []
    bids = [order for order in book.bids if order.price >= offer.price]
    winners = by_time(bids, offer.open)
    price = max(offer.price, _refused(winners, [order.price for order in bids]))
    sold = sum(quantity for _, quantity in winners)
    fills = list(paired(winners, [(offer, sold)] if sold else [], price))
    for fill in fills:
        book.reduce(fill.maker, fill.quantity)
        book.reduce(fill.taker, fill.quantity)
    return fills


def _refused(winners: list[Share], prices: list[int]) -> int:
    """The highest bid for a unit that was refused; 0 if every bid above the reserve was served."""
    if winners and winners[-1][1] < winners[-1][0].open:
        return winners[-1][0].price
    return prices[len(winners)] if len(prices) > len(winners) else 0


class ClockState(NamedTuple):
    """The price of the clock at the instant when it was last set; it falls from there."""

    price: Price
    set_at: Instant


def clock_price_at(rule: DutchClock, clock: ClockState, reserve: Price, now: Instant) -> Price:
    """The price that the clock shows: never below the reserve."""
    steps = max(now - clock.set_at, 0) // rule.step_period
    return max(clock.price - steps * rule.decrement, reserve)


def run_clock(book: Book, rule: DutchClock, clock: ClockState, now: Instant) -> tuple[list[Fill], ClockState]:
    """Run the clock until now, and sell to each bid that it reaches."""
    fills = []
    while (lot := book.asks.first()) is not None and (bid := book.bids.first()) is not None:
        stop = _state_at_limit(rule, clock, lot.price, bid.price)
        if stop is None or stop.set_at > now:
            break
        quantity = min(lot.open, bid.open)
        fills.append(Fill(*_by_number(lot, bid), stop.price, quantity))
        book.reduce(lot, quantity)
        book.reduce(bid, quantity)
        clock = ClockState(min(stop.price + rule.rewind, rule.start), stop.set_at)
    return fills, _advanced(rule, clock, now)


def _advanced(rule: DutchClock, clock: ClockState, now: Instant) -> ClockState:
    """The clock set to now: a later bid meets the current price, not one that has passed."""
    steps = max(now - clock.set_at, 0) // rule.step_period
    return ClockState(clock.price - steps * rule.decrement, clock.set_at + steps * rule.step_period)


def _state_at_limit(rule: DutchClock, clock: ClockState, reserve: Price, limit: Price) -> ClockState | None:
    """The clock at its first step at or below a limit; None if it stops above."""
    if limit < reserve:
        return None
    target = max(clock.price, reserve)
    steps = max(-((limit - target) // rule.decrement), 0)
    price = max(clock.price - steps * rule.decrement, reserve)
    return ClockState(price, clock.set_at + steps * rule.step_period)


def _by_number(one: Order, other: Order) -> tuple[Order, Order]:
    return (one, other) if one.number < other.number else (other, one)
