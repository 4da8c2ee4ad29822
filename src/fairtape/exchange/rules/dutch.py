"""The falling clock: a lot gets cheaper step by step until somebody takes it.

The clock is a function of time alone, and time is the instant of the token, so it shows the same price at every site.
A resting bid is a promise to stop the clock at its limit. Bids that all wait before the start therefore make a sealed
auction at the first price: the highest wins and pays the step that its limit allows.
"""

from typing import NamedTuple

from fairtape.core.instants import Instant
from fairtape.exchange.book import Book, Fill, Order
from fairtape.exchange.rules.values import DutchClock
from fairtape.market.prices import Price


class ClockState(NamedTuple):
    """Where the clock stood when it was last set: it falls from there."""

    price: Price
    set_at: Instant


def price_at(rule: DutchClock, clock: ClockState, reserve: Price, now: Instant) -> Price:
    """What the clock shows: never less than the reserve."""
    steps = max(now - clock.set_at, 0) // rule.step_period
    return max(clock.price - steps * rule.decrement, reserve)


def run(book: Book, rule: DutchClock, clock: ClockState, now: Instant) -> tuple[list[Fill], ClockState]:
    """Let the clock fall until now, and sell to each bid that it passes on its way."""
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
    """The hand as it stands now: whoever comes later meets the price of the moment, not one that has passed."""
    steps = max(now - clock.set_at, 0) // rule.step_period
    return ClockState(clock.price - steps * rule.decrement, clock.set_at + steps * rule.step_period)


def _state_at_limit(rule: DutchClock, clock: ClockState, reserve: Price, limit: Price) -> ClockState | None:
    """The first step of the clock at or below a limit; None where it stops above."""
    if limit < reserve:
        return None
    target = max(clock.price, reserve)
    steps = max(-((limit - target) // rule.decrement), 0)
    price = max(clock.price - steps * rule.decrement, reserve)
    return ClockState(price, clock.set_at + steps * rule.step_period)


def _by_number(one: Order, other: Order) -> tuple[Order, Order]:
    return (one, other) if one.number < other.number else (other, one)
