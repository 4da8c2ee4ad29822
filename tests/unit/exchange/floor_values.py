"""Builders for tests of the floor: requests with gateway numbers, tokens that carry them, plain prices."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from fairtape.core.effects import Ordered, Span
from fairtape.core.instants import SECOND, Instant
from fairtape.exchange.book import ANY_BUY, ANY_SELL, Fill, Order
from fairtape.exchange.floor import Floor, FloorLimits
from fairtape.exchange.market import Market
from fairtape.exchange.orders import (
    CASH,
    Action,
    Cancel,
    Control,
    FloorMessage,
    Funding,
    NewOrder,
    OpenMarket,
    OrderType,
    Replace,
    SelfTrade,
    Side,
    TimeInForce,
    encode,
)
from fairtape.exchange.outputs import FloorOutput, Rejected
from fairtape.exchange.rules import Continuous, Rule
from fairtape.market.prices import ONE
from fairtape.wire.blocks import pack_messages

CENT: Final = ONE // 100
GATEWAY: Final = 101
OPERATOR: Final = 1


def fixed(number: float) -> int:
    """A plain number of a test, to the thousandth, in units of 1e-9."""
    return round(number * 1_000) * (ONE // 1_000)


def plain(value: int) -> float:
    """The plain number of a fixed-point value."""
    return value / ONE


def market_of(rule: Rule, *, tick: float = 0.01, lot: float = 1, high: float = 0, low: float = 0) -> Market:
    terms = OpenMarket(OPERATOR, 1, "XYZ", rule, fixed(tick), fixed(lot), fixed(low), fixed(high))
    return Market(terms)


@dataclass
class MarketHarness:
    """One market and its orders, numbered from 1; an order is (side, quantity, price or None for a market order)."""

    market: Market
    number: int = 0
    orders: dict[int, Order] = field(default_factory=dict)

    def enter(
        self,
        side: str,
        quantity: float,
        price: float | None = None,
        *,
        owner: object = None,
        at: Instant = 0,
        wait: TimeInForce = TimeInForce.DAY,
        policy: SelfTrade = SelfTrade.CANCEL_NEWEST,
        post_only: bool = False,
    ) -> list[tuple[int, int, float, float]]:
        """Enter an order. Returns its fills as (maker, taker, price, quantity)."""
        self.number += 1
        sign = 1 if side == "buy" else -1
        limit = (ANY_BUY if sign > 0 else ANY_SELL) if price is None else fixed(price)
        if price is None and wait is TimeInForce.DAY and isinstance(self.market.rule, Continuous):
            wait = TimeInForce.IOC
        owner = owner if owner is not None else object()
        order = Order(self.number, owner, sign, limit, fixed(quantity), policy, wait, post_only)
        self.orders[self.number] = order
        return plain_fills(self.market.enter(order, at))

    def enter_all(self, *orders: tuple[Any, ...]) -> list[list[tuple[int, int, float, float]]]:
        """Enter several orders. Returns the fills of each."""
        return [self.enter(*order) for order in orders]

    def left(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """The book: bids and offers as (price, quantity), best first."""
        bids, offers = self.market.book.depth(1_000)
        return [(plain(p), plain(q)) for p, q in bids], [(plain(p), plain(q)) for p, q in offers]


def plain_fills(fills: Iterable[Fill]) -> list[tuple[int, int, float, float]]:
    """Fills as (maker, taker, price, quantity), in plain numbers."""
    return [(fill.maker.number, fill.taker.number, plain(fill.price), plain(fill.quantity)) for fill in fills]


@dataclass
class Script:
    """Builds a sequence: requests get their gateway numbers, tokens their numbers and instants."""

    token: int = 0
    sequence: int = 1
    numbers: dict[int, int] = field(default_factory=dict)
    tokens: list[Ordered] = field(default_factory=list)

    def next_number(self, gateway: int) -> int:
        self.numbers[gateway] = self.numbers.get(gateway, 0) + 1
        return self.numbers[gateway]

    def order(
        self, account: str, client_id: str, side: Side, quantity: float, price: float = 0, **other: Any
    ) -> NewOrder:
        gateway = other.pop("gateway", GATEWAY)
        kind = OrderType.LIMIT if price else OrderType.MARKET
        if stop := other.pop("stop", 0):
            kind = OrderType.STOP_LIMIT if price else OrderType.STOP
        terms = {"symbol": "XYZ", "order_type": kind, "stop_price": fixed(stop), "entered_at": 5, **other}
        return NewOrder(
            gateway,
            self.next_number(gateway),
            account,
            client_id,
            side=side,
            quantity=fixed(quantity),
            price=fixed(price),
            **terms,
        )

    def buy(self, account: str, client_id: str, quantity: float, price: float = 0, **other: Any) -> NewOrder:
        return self.order(account, client_id, Side.BUY, quantity, price, **other)

    def sell(self, account: str, client_id: str, quantity: float, price: float = 0, **other: Any) -> NewOrder:
        return self.order(account, client_id, Side.SELL, quantity, price, **other)

    def cancel(self, account: str, order_id: str, gateway: int = GATEWAY) -> Cancel:
        return Cancel(gateway, self.next_number(gateway), account, order_id)

    def replace(self, account: str, order_id: str, client_id: str, quantity: float, price: float) -> Replace:
        number = self.next_number(GATEWAY)
        return Replace(GATEWAY, number, account, order_id, client_id, fixed(quantity), fixed(price))

    def open(self, rule: Rule | None = None, symbol: str = "XYZ", high: float = 0, tick: float = 0.01) -> OpenMarket:
        number = self.next_number(OPERATOR)
        return OpenMarket(OPERATOR, number, symbol, rule or Continuous(), fixed(tick), ONE, 0, fixed(high))

    def control(self, action: Action, symbol: str = "XYZ") -> Control:
        return Control(OPERATOR, self.next_number(OPERATOR), symbol, action)

    def fund(self, account: str, cash: float = 0, shares: float = 0, symbol: str = "XYZ") -> list[Funding]:
        amounts = ((CASH, cash), (symbol, shares))
        return [
            Funding(OPERATOR, self.next_number(OPERATOR), account, asset, fixed(amount))
            for asset, amount in amounts
            if amount
        ]

    def ordered(self, *messages: FloorMessage | bytes, source: int | None = None, at: Instant | None = None) -> Ordered:
        """The next token, with these messages."""
        self.token += 1
        spans = []
        first = self.sequence
        for message in messages:
            payload = message if isinstance(message, bytes) else encode(message)
            gateway = source if source is not None else getattr(message, "gateway", OPERATOR)
            body = pack_messages([payload])
            spans.append(Span(gateway, 1, self.sequence, 1, self.sequence, (body,), (1,)))
            self.sequence += 1
        instant = self.token * SECOND if at is None else at
        ordered = Ordered(0, 1, self.token, first, len(spans), instant, tuple(spans))
        self.tokens.append(ordered)
        return ordered


@dataclass
class ScriptedFloor:
    """A floor, and the script that builds its sequence."""

    floor: Floor
    script: Script

    def play(
        self, *messages: FloorMessage | bytes, source: int | None = None, at: Instant | None = None
    ) -> list[FloorOutput]:
        """Apply one token with these messages."""
        return self.floor.apply(self.script.ordered(*messages, source=source, at=at))


def scripted_floor(
    rule: Rule | None = None, *, commit_passes: int = 2, high: float = 0, limits: FloorLimits | None = None
) -> ScriptedFloor:
    """A floor with one open market XYZ and four funded accounts: 10,000 of cash and 1,000 shares each."""
    scripted = ScriptedFloor(Floor(commit_passes=commit_passes, limits=limits), Script())
    script = scripted.script
    opening = script.open(rule, high=high)
    funding = [each for name in ("ann", "bob", "cyd", "dan") for each in script.fund(name, 10_000, 1_000)]
    scripted.play(opening, *funding)
    return scripted


def kinds(outputs: Iterable[FloorOutput]) -> list[str]:
    """The class names of outputs."""
    return [type(output).__name__ for output in outputs]


def the_rejection(outputs: list[FloorOutput]) -> str:
    """The reason of the only rejected request."""
    (rejected,) = [output for output in outputs if isinstance(output, Rejected)]
    return rejected.reason
