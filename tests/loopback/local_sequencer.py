"""A sequence without a ring, for tests of servers: what houses publish comes back to all of them in one order."""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fairtape.core.effects import Ordered, Span
from fairtape.exchange.floor import Floor
from fairtape.exchange.order_codec import encode
from fairtape.exchange.orders import CASH, Funding, OpenMarket, Pulse
from fairtape.exchange.rules.values import Continuous
from fairtape.gateway.core.gateway import Gateway, GatewayLimits
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.gateway.storage.order_log import OrderLog
from fairtape.market.prices import ONE
from fairtape.wire.blocks import pack_messages

OPERATOR = 1
COMMIT_PASSES = 2
SECRET = "secret-of-nobody"  # noqa: S105 - of nobody


class Belt:
    """Takes what is published, and brings it in tokens, a turn of the event loop later."""

    def __init__(self) -> None:
        self.tokens: list[Ordered] = []
        self.houses: list[OrderGateway] = []
        self._batches: list[tuple[int, list[bytes]]] = []
        self._sequence = 1
        self._soon = False

    def publisher(self, source: int) -> Callable[[list[bytes]], None]:
        def publish(payloads: list[bytes]) -> None:
            self._batches.append((source, payloads))
            if not self._soon:
                self._soon = True
                asyncio.get_running_loop().call_soon(self.turn)

        return publish

    def turn(self) -> None:
        """One token with all that waits, and pulses behind it, so that its trades commit."""
        self._soon = False
        batches, self._batches = self._batches, []
        self.deliver(batches)
        for _ in range(COMMIT_PASSES):
            self.deliver([(OPERATOR, [encode(Pulse())])])

    def deliver(self, batches: Iterable[tuple[int, list[bytes]]]) -> None:
        spans, first = [], self._sequence
        for source, payloads in batches:
            count = len(payloads)
            spans.append(Span(source, 1, self._sequence, count, self._sequence, (pack_messages(payloads),), (count,)))
            self._sequence += count
        if spans:
            token = len(self.tokens) + 1
            ordered = Ordered(0, 1, token, first, self._sequence - first, time.time_ns(), tuple(spans))
            self.tokens.append(ordered)
            for house in self.houses:
                house.apply(ordered)

    def open(self, *accounts: str, cash: int = 1_000_000_000, shares: int = 10_000_000) -> None:
        """The market MSFT, and these accounts with funds."""
        messages: list[OpenMarket | Funding] = [OpenMarket(OPERATOR, 1, "MSFT", Continuous(), ONE // 100, ONE)]
        for account in accounts:
            for asset, amount in ((CASH, cash), ("MSFT", shares)):
                messages.append(Funding(OPERATOR, len(messages) + 1, account, asset, amount * ONE))
        self.deliver([(OPERATOR, [encode(message) for message in messages])])

    def house(
        self, me: int, accounts: TradingAccounts, *, intake: Path | None = None, limits: GatewayLimits | None = None
    ) -> OrderGateway:
        """A new life of a gateway: what was delivered is replayed, what was taken is entered again."""
        floor = Floor(commit_passes=COMMIT_PASSES)
        limits = limits or GatewayLimits(requests_per_s=100_000, open_orders_max=100_000)
        gateway = Gateway(me, floor, scope=accounts.acts_for, first_number=time.time_ns(), limits=limits)
        for ordered in self.tokens:
            gateway.apply(ordered)
        memory = None if intake is None else OrderLog(intake)
        house = OrderGateway(gateway, accounts, publish=self.publisher(me), now=time.time_ns, intake=memory)
        house.recover()
        self.houses.append(house)
        return house


_made: dict[tuple[object, ...], bytes] = {}  # files of logins: a password takes long to hash, on purpose


def accounts_in(folder: Path, *names: str, brokers: dict[str, str] | None = None) -> TradingAccounts:
    """Logins with one password."""
    path, wanted = folder / "accounts.sqlite", (names, *sorted((brokers or {}).items()))
    if wanted not in _made:
        accounts = TradingAccounts(path)
        for name in names:
            accounts.add(name, SECRET, broker=(brokers or {}).get(name, ""))
        accounts.close()
        _made[wanted] = path.read_bytes()
    path.write_bytes(_made[wanted])
    return TradingAccounts(path)
