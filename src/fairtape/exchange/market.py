"""One symbol under one rule: its book, its stops and its clock.

A market knows orders, prices and time, and nothing of money: whether an account can pay is decided before an order
comes here. What happens to orders comes back as fills, and as cuts for what goes without a trade; a caller drains
`reductions` after each call. Time is the instant of the token that is being applied.
"""

from collections.abc import Sequence
from typing import Final

from fairtape.core.instants import Instant
from fairtape.exchange.book import ANY_BUY, ANY_SELL, Book, Fill, Ladder, Order, Reduction, RemovalReason, reduce_open
from fairtape.exchange.orders import NewOrder, OpenMarket, OrderType, Side, TimeInForce
from fairtape.exchange.rules import dutch
from fairtape.exchange.rules.auctions import Clearing, award, by_batch, clear, middle, nearest, uncross
from fairtape.exchange.rules.continuous import cost, fillable, match
from fairtape.exchange.rules.values import (
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
PRICE_MAX: Final = ANY_BUY - 1  # of a limit: above it stand those who take every price
DAY: Final = TimeInForce.DAY
FOK: Final = TimeInForce.FOK


def flaw_of(terms: OpenMarket) -> str | None:
    """Why no market can be opened on these terms; None where one can."""
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
    """The prices that a rule names itself."""
    match rule:
        case CallAuction():
            return [("reference", rule.reference)]
        case DutchClock():
            return [("start", rule.start), ("decrement", rule.decrement), ("rewind", rule.rewind)]
    return []


class Market:
    """The trading of one symbol."""

    __slots__ = ("_batch", "_clock", "_stops", "book", "halted", "last", "reductions", "rule", "terms")

    def __init__(self, terms: OpenMarket, now: Instant = 0) -> None:
        assert flaw_of(terms) is None
        self.terms = terms
        self.rule = terms.rule
        self.book = Book()
        self.reductions: list[Reduction] = []
        self.halted = False
        self.last: Price = 0  # of the latest trade; 0: there was none
        self._stops = (Ladder(), Ladder())  # that buy, the lowest stop first; that sell, the highest first
        self._clock = dutch.ClockState(0, now)
        self._batch = self._batch_at(now)

    # What may come in.

    def refusal(self, new: NewOrder) -> str | None:
        """Why this order cannot be entered; None where it can."""
        if self.halted:
            return f"{new.symbol} is halted; only cancels are taken"
        if new.quantity % self.terms.lot:
            return f"quantity is {format_fixed(new.quantity)}; lots are {format_fixed(self.terms.lot)}"
        for field, price in (("price", new.price), ("stop_price", new.stop_price)):
            if price and (flaw := self.price_flaw(field, price)):
                return flaw
        if type(self.rule) is Continuous:
            return None
        return self._auction_refusal(new)

    def price_flaw(self, field: str, price: Price) -> str | None:
        """Why this is no price of this market; None where it is one."""
        terms = self.terms
        if price % terms.tick:
            return f"{field} is {format_fixed(price)}; ticks are {format_fixed(terms.tick)}"
        highest = terms.price_max or PRICE_MAX
        if not terms.price_min <= price <= highest:
            bounds = f"{format_fixed(terms.price_min)} to {format_fixed(highest)}"
            return f"{field} is {format_fixed(price)}; prices are from {bounds}"
        return None

    def _auction_refusal(self, new: NewOrder) -> str | None:
        """What only a continuous market takes, and the one offer of an auction for a lot."""
        wait = new.time_in_force
        immediate = wait is FOK or (wait is not DAY and not isinstance(self.rule, DutchClock))
        if new.order_type not in (OrderType.LIMIT, OrderType.MARKET) or new.post_only or immediate:
            return f"{new.symbol} is an auction; it takes limit and market orders that wait"
        if not isinstance(self.rule, SecondPrice | DutchClock):
            if new.order_type is OrderType.MARKET and new.side is Side.BUY and not self.terms.price_max:
                return f"{new.symbol} has no price_max; a market order to buy would have no bound"
            return None
        if new.side is Side.SELL and self.book.asks:
            return f"{new.symbol} has a lot on offer; one is sold after the other"
        if new.order_type is OrderType.MARKET and (new.side is Side.SELL or isinstance(self.rule, SecondPrice)):
            return f"{new.symbol} sells lots; a bid and a reserve are limits"
        return None

    def order_of(self, new: NewOrder, number: int, owner: object) -> Order:
        """The order that a request becomes. In a continuous market one that takes every price does not wait."""
        sign = 1 if new.side is Side.BUY else -1
        price, wait = new.price, new.time_in_force
        if not price:
            price = ANY_BUY if sign > 0 else ANY_SELL
            if wait is DAY and type(self.rule) is Continuous:
                wait = TimeInForce.IOC
        terms = (price, new.quantity, new.self_trade, wait, new.post_only, new.client_id, new.stop_price)
        return Order(number, owner, sign, *terms)

    # What orders do.

    def enter(self, order: Order, now: Instant = 0) -> Sequence[Fill]:
        """Let an order trade and wait, as the rule says."""
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
        """An auction's order waits; under the clock it may take at once."""
        fills = [*self.advance(now)]
        order.batch = self._batch
        self.book.rest(order)
        if not isinstance(self.rule, DutchClock):
            return fills
        if order.sign < 0:
            self._clock = dutch.ClockState(self.rule.start, now)
        fills += self.advance(now)
        if order.open and (order.is_market or order.time_in_force is not DAY):
            self.book.remove(order)
            self.reductions.append(reduce_open(order, order.open, RemovalReason.UNFILLED))
        return fills

    def stop(self, order: Order) -> None:
        """Keep a stop order until a trade reaches it."""
        self._stops[order.sign < 0].add(order, -order.stop_price * order.sign)

    def triggered(self) -> Order | None:
        """The next stop order that the last trade has reached, which is a plain order from now on; None: no further."""
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
        """Take a waiting order out, with all that is left of it."""
        if order.stop_price:
            self._stops[order.sign < 0].remove(order, -order.stop_price * order.sign)
        else:
            (self.book.bids if order.sign > 0 else self.book.asks).remove(order, order.key)
        self.reductions.append(reduce_open(order, order.open, why))

    def reduce(self, order: Order, quantity: Quantity) -> None:
        """Take so much of a waiting order away; the rest keeps its place."""
        self.reductions.append(reduce_open(order, quantity, RemovalReason.ASKED))
        if not order.open:
            self.book.remove(order)

    def move(self, order: Order, price: Price, quantity: Quantity, now: Instant) -> Sequence[Fill]:
        """Give a waiting order a new limit and a new whole quantity, at the end of the queue."""
        self.book.remove(order)
        order.open += quantity - order.quantity
        order.quantity = quantity
        order.price = price
        order.key = price * order.sign
        return self.enter(order, now)

    def close(self) -> None:
        """Cancel everything."""
        for order in [*self.book.orders(), *self._stops[0], *self._stops[1]]:
            self.cancel(order, RemovalReason.CLOSED)

    # What time and operators do.

    def advance(self, now: Instant) -> Sequence[Fill]:
        """Let the clock of an auction run until now."""
        if self.halted:
            return _NO_FILLS
        fills: Sequence[Fill] = _NO_FILLS
        if isinstance(self.rule, DutchClock):
            fills, self._clock = dutch.run(self.book, self.rule, self._clock, now)
        elif isinstance(self.rule, BatchAuction) and self._batch_at(now) > self._batch:
            self._batch = self._batch_at(now)
            fills = self._cleared(self.rule)
        if fills:
            self.last = fills[-1].price
        return fills

    def uncross(self) -> Sequence[Fill] | None:
        """End the round of a call or of a sealed auction; None where the rule has no rounds."""
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
        """What an auction that gathers would come to now."""
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
        """Stop trading, and the clock with it."""
        if not self.halted:
            self._clock = dutch.ClockState(self.clock_price(now), now)
            self.halted = True

    def resume(self, now: Instant) -> None:
        """Go on where the market stood."""
        if self.halted:
            self._clock = dutch.ClockState(self._clock.price, now)
            self._batch = self._batch_at(now)
            self.halted = False

    def change(self, terms: OpenMarket, now: Instant) -> str | None:
        """Go on under another rule with the orders that wait; why that cannot be."""
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
            return f"{terms.symbol} has market or stop orders waiting, which the new rule does not know"
        self.terms, self.rule = terms, terms.rule
        for order in self.book.orders():
            order.batch = 0
        self._batch = self._batch_at(now)
        return None

    # What is asked.

    def clock_price(self, now: Instant) -> Price:
        """What the Dutch clock shows; 0 where nothing is on offer or there is no clock."""
        lot = self.book.asks.first()
        if not isinstance(self.rule, DutchClock) or lot is None:
            return 0
        return dutch.price_at(self.rule, self._clock, lot.price, self._clock.set_at if self.halted else now)

    def cost(self, order: Order, now: Instant) -> int:
        """The most that a market order to buy can come to pay, as price times quantity."""
        if isinstance(self.rule, DutchClock):
            lot = self.book.asks.first()
            return self.clock_price(now) * min(order.open, lot.open) if lot is not None else 0
        if type(self.rule) is Continuous:
            return cost(order, self.book.asks)
        return self.terms.price_max * order.open

    @property
    def is_sealed(self) -> bool:
        """Whether nobody may see the book."""
        return isinstance(self.rule, SecondPrice)

    def _batch_at(self, now: Instant) -> int:
        return now // self.rule.period if isinstance(self.rule, BatchAuction) else 0


def _taking_refusal(order: Order, opposite: Ladder) -> RemovalReason | None:
    """Why an order that crosses must not take."""
    if order.post_only:
        return RemovalReason.WOULD_TAKE
    return RemovalReason.NOT_WHOLE if fillable(order, opposite) < order.open else None
