"""The Dutch clock: the price of a lot falls step by step until a bid takes it.

The clock depends on time alone, and time is the instant of the token, so every site has the same price. A resting bid
stops the clock at its limit. Bids that all rest before the start therefore form a sealed first-price auction: the
highest bid wins and pays the first step at or below its limit.
"""

from typing import NamedTuple

from fairtape.core.instants import Instant
from fairtape.exchange.book import Book, Fill, Order
from fairtape.exchange.rules.values import DutchClock
from fairtape.market.prices import Price


class ClockState(NamedTuple):
    """The price of the clock at the instant when it was last set; it falls from there."""

    price: Price
    set_at: Instant


def price_at(rule: DutchClock, clock: ClockState, reserve: Price, now: Instant) -> Price:
    """The price that the clock shows: never below the reserve."""
    steps = max(now - clock.set_at, 0) // rule.step_period
    return max(clock.price - steps * rule.decrement, reserve)


def run(book: Book, rule: DutchClock, clock: ClockState, now: Instant) -> tuple[list[Fill], ClockState]:
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
