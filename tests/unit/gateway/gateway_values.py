"""One sequence and the gateways that feed it: what each of them enters is delivered to all, token by token."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairtape.core.effects import Ordered, Span
from fairtape.core.instants import SECOND, Instant
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import CASH, Cancel, Funding, NewOrder, OpenMarket, OrderType, Replace, Side, encode
from fairtape.exchange.rules import Continuous
from fairtape.gateway.core.events import OrderEvent
from fairtape.gateway.core.gateway_core import GatewayCore
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.market.prices import ONE
from fairtape.wire.blocks import pack_messages
from unit.exchange.floor_values import fixed

OPERATOR = 1
BROKERS: Mapping[str, str] = {"cyd": "broker", "dan": "broker"}
NOW: Instant = 1_000 * SECOND


def scope(login: str, account: str) -> bool:
    return login == account or BROKERS.get(account) == login


def gateway_of(me: int, limits: GatewayLimits | None = None, *, first_number: int = 1) -> GatewayCore:
    return GatewayCore(me, Floor(commit_passes=2), scope=scope, first_number=first_number, limits=limits)


def order(account: str, name: str, side: Side, quantity: float, price: float = 0, **other: Any) -> NewOrder:
    kind = OrderType.LIMIT if price else OrderType.MARKET
    terms = {"symbol": "XYZ", "order_type": kind, **other}
    return NewOrder(0, 0, account, name, side=side, quantity=fixed(quantity), price=fixed(price), **terms)


def buy(account: str, name: str, quantity: float, price: float = 0, **other: Any) -> NewOrder:
    return order(account, name, Side.BUY, quantity, price, **other)


def sell(account: str, name: str, quantity: float, price: float = 0, **other: Any) -> NewOrder:
    return order(account, name, Side.SELL, quantity, price, **other)


def cancel(account: str, name: str) -> Cancel:
    return Cancel(0, 0, account, name)


def replace(account: str, name: str, new_name: str, quantity: float, price: float) -> Replace:
    return Replace(0, 0, account, name, new_name, fixed(quantity), fixed(price))


@dataclass
class Sequence:
    """A sequence without a ring: a token takes what all gateways have entered."""

    gateways: list[GatewayCore]
    token: int = 0
    number: int = 1
    sent: list[Ordered] = field(default_factory=list)
    events: dict[int, list[OrderEvent]] = field(default_factory=dict)

    def open(self, *accounts: str, cash: float = 10_000, shares: float = 1_000) -> "Sequence":
        """Open the market XYZ, and fund these accounts."""
        messages: list[Any] = [OpenMarket(OPERATOR, 1, "XYZ", Continuous(), ONE // 100, ONE)]
        for account in accounts:
            for asset, amount in ((CASH, cash), ("XYZ", shares)):
                messages.append(Funding(OPERATOR, len(messages) + 1, account, asset, fixed(amount)))
        self.deliver([(OPERATOR, [encode(each) for each in messages])])
        self.new_events()
        return self

    def next_token(self) -> None:
        """The next token takes what every gateway has entered, in their order."""
        self.deliver([(gateway.me, gateway.payloads()) for gateway in self.gateways])

    def settle(self) -> None:
        """Deliver what was entered, and let its trades commit."""
        self.next_token()
        for _ in range(2):
            self.token += 1
            for gateway in self.gateways:
                gateway.pass_token(self.token)

    def deliver(self, batches: Iterable[tuple[int, list[bytes]]]) -> None:
        self.token += 1
        spans, first = [], self.number
        for source, payloads in batches:
            if payloads:
                body = pack_messages(payloads)
                spans.append(Span(source, 1, self.number, len(payloads), self.number, (body,), (len(payloads),)))
                self.number += len(payloads)
        if spans:
            ordered = Ordered(0, 1, self.token, first, self.number - first, NOW + self.token * SECOND, tuple(spans))
            self.sent.append(ordered)
            for gateway in self.gateways:
                gateway.apply(ordered)

    def new_events(self, at: int = 0) -> list[OrderEvent]:
        """The events since the last call; equal at every gateway."""
        each = [gateway.events() for gateway in self.gateways]
        assert all(events == each[0] for events in each)
        return each[at]


def kinds(events: Iterable[OrderEvent]) -> list[tuple[str, str]]:
    return [(event.client_id, event.kind.value) for event in events]
