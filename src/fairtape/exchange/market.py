"""One market: a symbol under one rule, with its book, its stop orders and its auction clock.

A market knows orders, prices and time, but no balances: whether an account can pay is decided before an order gets
here. Calls return fills, and collect what is removed without a trade in `reductions`, which the caller drains after
each call. Time is the instant of the token that is being applied.
"""

from collections.abc import Sequence
from typing import Final

from fairtape.core.instants import Instant
from fairtape.exchange.auctions import (
    Clearing,
    ClockState,
    award,
    by_batch,
    clear,
    clock_price_at,
    middle,
    nearest,
    run_clock,
    uncross,
)
from fairtape.exchange.book import ANY_BUY, ANY_SELL, Book, Fill, Ladder, Order, Reduction, RemovalReason, reduce_open
from fairtape.exchange.matching import cost, fillable, match
from fairtape.exchange.orders import NewOrder, OpenMarket, OrderType, Side, TimeInForce
from fairtape.exchange.rules import (
    EXCHANGEABLE,
    BatchAuction,
    CallAuction,
    Candidates,
    Continuous,
    DutchClock,
    Rule,
    SecondPrice,
)
from fairtape.market.prices import ONE, Price, Quantity, format_fixed

_NO_FILLS: Final[tuple[Fill, ...]] = ()
PRICE_MAX: Final = ANY_BUY - 1  # highest limit; market orders to buy rank above it
DAY: Final = TimeInForce.DAY
FOK: Final = TimeInForce.FOK


def flaw_of(terms: OpenMarket) -> str | None:
    """Return why no market can be opened on these terms; None if one can."""
    step = terms.rule.step if isinstance(terms.rule, Continuous) else 0
    for field, price in (("price_min", terms.price_min), ("price_max", terms.price_max), *_prices_of(terms.rule)):
        if price % terms.tick:
            return f"{field} is {format_fixed(price)}; it must be a multiple of the tick {format_fixed(terms.tick)}"
    if step and terms.tick % step:
        return f"step is {format_fixed(step)}; the tick {format_fixed(terms.tick)} must be a multiple of it"
    if (step or terms.tick) * terms.lot % ONE:
        return (
            f"tick {format_fixed(terms.tick)} times lot {format_fixed(terms.lot)} is finer than 1e-9; "
            "enlarge the lot so that every trade costs a whole number of units"
        )
    if terms.price_max and terms.price_max < max(terms.price_min, terms.tick):
        return f"price_max is {format_fixed(terms.price_max)}; it must not be below price_min and the tick"
    reference = terms.rule.reference if isinstance(terms.rule, CallAuction) else 0
    if reference and not terms.price_min <= reference <= (terms.price_max or PRICE_MAX):
        return f"reference is {format_fixed(reference)}; it must not be outside price_min and price_max"
    return None


def _prices_of(rule: Rule) -> list[tuple[str, Price]]:
    match rule:
        case CallAuction():
            return [("reference", rule.reference)]
        case DutchClock():
            return [("start", rule.start), ("decrement", rule.decrement), ("rewind", rule.rewind)]
    return []


class Market:
    """The market of one symbol."""

    __slots__ = ("_batch", "_clock", "_stops", "book", "halted", "last", "reductions", "rule", "terms")

    def __init__(self, terms: OpenMarket, now: Instant = 0) -> None:
        assert flaw_of(terms) is None
        self.terms = terms
        self.rule = terms.rule
        self.book = Book()
        self.reductions: list[Reduction] = []
        self.halted = False
        self.last: Price = 0  # price of the latest trade; 0: none yet
        self._stops = (Ladder(), Ladder())  # stop orders to buy, lowest stop first; to sell, highest first
        self._clock = ClockState(0, now)
        self._batch = self._batch_at(now)

    # Checks.

    def refusal(self, new: NewOrder) -> str | None:
        """Return why this order is refused; None if it can be entered."""
        if self.halted:
            return f"{new.symbol} is halted; only cancels are accepted"
        if new.quantity % self.terms.lot:
            return self.lot_flaw(new.quantity)
        for field, price in (("price", new.price), ("stop_price", new.stop_price)):
            if price and (flaw := self.price_flaw(field, price)):
                return flaw
        if type(self.rule) is Continuous:
            return None
        return self._auction_refusal(new)

    def lot_flaw(self, quantity: Quantity) -> str:
        lot = format_fixed(self.terms.lot)
        return f"quantity is {format_fixed(quantity)}; it must be a multiple of the lot {lot}"

    def price_flaw(self, field: str, price: Price) -> str | None:
        """Return why this is no valid price here; None if it is."""
        terms = self.terms
        if price % terms.tick:
            return f"{field} is {format_fixed(price)}; it must be a multiple of the tick {format_fixed(terms.tick)}"
        highest = terms.price_max or PRICE_MAX
        if not terms.price_min <= price <= highest:
            bounds = f"{format_fixed(terms.price_min)} to {format_fixed(highest)}"
            return f"{field} is {format_fixed(price)}; it must be from {bounds}"
        return None

    def _auction_refusal(self, new: NewOrder) -> str | None:
        """Refuse what only a continuous market supports, and a second offer in an auction of lots."""
        wait = new.time_in_force
        immediate = wait is FOK or (wait is not DAY and not isinstance(self.rule, DutchClock))
        if new.order_type not in (OrderType.LIMIT, OrderType.MARKET) or new.post_only or immediate:
            return f"{new.symbol} is an auction; it accepts only limit and market orders that rest"
        if not isinstance(self.rule, SecondPrice | DutchClock):
            if new.order_type is OrderType.MARKET and new.side is Side.BUY and not self.terms.price_max:
                return f"{new.symbol} has no price_max; a market order to buy would have no bound"
            return None
        if new.side is Side.SELL and self.book.asks:
            return f"{new.symbol} has a lot on offer; offer the next one when it is sold"
        if new.order_type is OrderType.MARKET and (new.side is Side.SELL or isinstance(self.rule, SecondPrice)):
            return f"{new.symbol} sells lots; bids and offers must be limit orders"
        return None

    def order_of(self, new: NewOrder, number: int, owner: object) -> Order:
        """The order of a request. In a continuous market, a market order for the day becomes immediate-or-cancel."""
        sign = 1 if new.side is Side.BUY else -1
        price, wait = new.price, new.time_in_force
        if not price:
            price = ANY_BUY if sign > 0 else ANY_SELL
            if wait is DAY and type(self.rule) is Continuous:
                wait = TimeInForce.IOC
        terms = (price, new.quantity, new.self_trade, wait, new.post_only, new.client_id, new.stop_price)
        return Order(number, owner, sign, *terms)

    # Orders.

    def enter(self, order: Order, now: Instant = 0) -> Sequence[Fill]:
        """Let an order trade and rest, as the rule says."""
        rule = self.rule
        if type(rule) is not Continuous:
            return self._enter_auction(order, now)
        book = self.book
        opposite = book.asks if order.sign > 0 else book.bids
        keys = opposite.keys
        fills: list[Fill] | tuple[Fill, ...] = _NO_FILLS
        if keys and keys[-1] >= -order.key:
            if (order.post_only or order.time_in_force is FOK) and (why := _taking_refusal(order, opposite)):
                self.reductions.append(reduce_open(order, order.open, why))
                return _NO_FILLS
            fills = []
            match(order, opposite, rule, self.terms.tick, fills, self.reductions)
            if fills:
                self.last = fills[-1].price
        if order.open:
            if order.time_in_force is DAY:
                (book.bids if order.sign > 0 else book.asks).add(order, order.key)
            else:
                whole = order.time_in_force is FOK
                self.reductions.append(
                    reduce_open(order, order.open, RemovalReason.NOT_WHOLE if whole else RemovalReason.UNFILLED)
                )
        return fills

    def _enter_auction(self, order: Order, now: Instant) -> Sequence[Fill]:
        """An order of an auction rests; a Dutch clock may fill it at once."""
        fills = [*self.advance(now)]
        order.batch = self._batch
        self.book.rest(order)
        if not isinstance(self.rule, DutchClock):
            return fills
        if order.sign < 0:
            self._clock = ClockState(self.rule.start, now)
        fills += self.advance(now)
        if order.open and (order.is_market or order.time_in_force is not DAY):
            self.book.remove(order)
            self.reductions.append(reduce_open(order, order.open, RemovalReason.UNFILLED))
        return fills

    def stop(self, order: Order) -> None:
        """Hold a stop order until a trade triggers it."""
        self._stops[order.sign < 0].add(order, -order.stop_price * order.sign)

    def triggered(self) -> Order | None:
        """The next stop order that the last trade has triggered, turned into a plain order; None if there is none."""
        buys, sells = self._stops
        if not (buys.keys or sells.keys):
            return None
        for sign, stops in ((1, buys), (-1, sells)):
            if self.last and stops.keys and stops.keys[-1] >= -self.last * sign:
                order = stops.first()
                assert order is not None
                stops.remove(order, stops.keys[-1])
                order.stop_price = 0
                return order
        return None

    def cancel(self, order: Order, why: RemovalReason = RemovalReason.ASKED) -> None:
        """Remove an open order."""
        if order.stop_price:
            self._stops[order.sign < 0].remove(order, -order.stop_price * order.sign)
        else:
            (self.book.bids if order.sign > 0 else self.book.asks).remove(order, order.key)
        self.reductions.append(reduce_open(order, order.open, why))

    def reduce(self, order: Order, quantity: Quantity) -> None:
        """Reduce an open order by this quantity; the rest keeps its priority."""
        self.reductions.append(reduce_open(order, quantity, RemovalReason.ASKED))
        if not order.open:
            self.book.remove(order)

    def move(self, order: Order, price: Price, quantity: Quantity, now: Instant) -> Sequence[Fill]:
        """Give an open order a new limit and a new total quantity, at the end of its queue."""
        self.book.remove(order)
        order.open += quantity - order.quantity
        order.quantity = quantity
        order.price = price
        order.key = price * order.sign
        return self.enter(order, now)

    def close(self) -> None:
        """Cancel all orders."""
        for order in [*self.book.orders(), *self._stops[0], *self._stops[1]]:
            self.cancel(order, RemovalReason.CLOSED)

    # Time and operators.

    def advance(self, now: Instant) -> Sequence[Fill]:
        """Advance the clock of an auction to now."""
        if self.halted:
            return _NO_FILLS
        fills: Sequence[Fill] = _NO_FILLS
        if isinstance(self.rule, DutchClock):
            fills, self._clock = run_clock(self.book, self.rule, self._clock, now)
        elif isinstance(self.rule, BatchAuction) and self._batch_at(now) > self._batch:
            self._batch = self._batch_at(now)
            fills = self._cleared(self.rule)
        if fills:
            self.last = fills[-1].price
        return fills

    def uncross(self) -> Sequence[Fill] | None:
        """End the round of a call or sealed auction; None if the rule has no rounds."""
        if isinstance(self.rule, CallAuction):
            fills: Sequence[Fill] = self._cleared(self.rule)
        elif isinstance(self.rule, SecondPrice):
            fills = award(self.book)
            for order in list(self.book.orders()):
                self.cancel(order, RemovalReason.ROUND_OVER)
        else:
            return None
        if fills:
            self.last = fills[-1].price
        return fills

    def indicative(self) -> Clearing | None:
        """The price and volume at which an open auction would clear now."""
        terms, rule = self.terms, self.rule
        if isinstance(rule, BatchAuction):
            reference = self.last // terms.tick * terms.tick
            candidates, tie = Candidates.TICKS, middle(terms.tick, rule.rounding)
        elif isinstance(rule, CallAuction):
            reference = (self.last or rule.reference) // terms.tick * terms.tick
            candidates, tie = rule.candidates, nearest(reference)
        else:
            return None
        return clear(
            self.book.bids.levels(),
            self.book.asks.levels(),
            tick=terms.tick,
            candidates=candidates,
            tie=tie,
            without_limits=reference,
            bounds=(terms.price_min, terms.price_max or PRICE_MAX),
            closed=isinstance(rule, BatchAuction),
        )

    def _cleared(self, rule: CallAuction | BatchAuction) -> list[Fill]:
        clearing = self.indicative()
        if clearing is None:
            return []
        if isinstance(rule, BatchAuction):
            return uncross(self.book, clearing.price, clearing.volume, by_batch(self.terms.lot))
        return uncross(self.book, clearing.price, clearing.volume)

    def halt(self, now: Instant) -> None:
        """Stop trading, and the clock."""
        if not self.halted:
            self._clock = ClockState(self.clock_price(now), now)
            self.halted = True

    def resume(self, now: Instant) -> None:
        """Continue trading; the clock continues from its price at the halt."""
        if self.halted:
            self._clock = ClockState(self._clock.price, now)
            self._batch = self._batch_at(now)
            self.halted = False

    def change(self, terms: OpenMarket, now: Instant) -> str | None:
        """Change the rule and keep the open orders, or return why not."""
        if not (isinstance(self.rule, EXCHANGEABLE) and isinstance(terms.rule, EXCHANGEABLE)):
            return f"{terms.symbol} is open under a rule that ends only with the market; close it first"
        if (terms.tick, terms.lot, terms.price_min, terms.price_max) != (
            self.terms.tick,
            self.terms.lot,
            self.terms.price_min,
            self.terms.price_max,
        ):
            return f"{terms.symbol} is open; its tick, lot and price limits change only when it is closed"
        if self.book.is_crossed:
            return f"{terms.symbol} has bids and offers that cross; uncross it first"
        if any(order.is_market for order in self.book.orders()) or any(self._stops):
            return f"{terms.symbol} has open market or stop orders, which the new rule does not support"
        self.terms, self.rule = terms, terms.rule
        for order in self.book.orders():
            order.batch = 0
        self._batch = self._batch_at(now)
        return None

    # Queries.

    def clock_price(self, now: Instant) -> Price:
        """The price of the Dutch clock; 0 if there is no clock or no offer."""
        lot = self.book.asks.first()
        if not isinstance(self.rule, DutchClock) or lot is None:
            return 0
        return clock_price_at(self.rule, self._clock, lot.price, self._clock.set_at if self.halted else now)

    def cost(self, order: Order, now: Instant) -> int:
        """The most that a market order to buy may pay, as price times quantity."""
        if isinstance(self.rule, DutchClock):
            lot = self.book.asks.first()
            return self.clock_price(now) * min(order.open, lot.open) if lot is not None else 0
        if type(self.rule) is Continuous:
            return cost(order, self.book.asks)
        return self.terms.price_max * order.open

    @property
    def is_sealed(self) -> bool:
        """Whether the book is secret."""
        return isinstance(self.rule, SecondPrice)

    def _batch_at(self, now: Instant) -> int:
        return now // self.rule.period if isinstance(self.rule, BatchAuction) else 0


def _taking_refusal(order: Order, opposite: Ladder) -> RemovalReason | None:
    """Return why an order that crosses must not take."""
    if order.post_only:
        return RemovalReason.WOULD_TAKE
    return RemovalReason.NOT_WHOLE if fillable(order, opposite) < order.open else None
