"""A sequence without a ring, for tests of servers: what the gateways publish comes back to all of them in one order."""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fairtape.core.effects import Ordered, Span
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import CASH, Funding, OpenMarket, Pulse, encode
from fairtape.exchange.rules import Continuous
from fairtape.gateway.core.gateway_core import GatewayCore
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.gateway.storage.order_log import OrderLog
from fairtape.market.prices import ONE
from fairtape.wire.blocks import pack_messages

OPERATOR = 1
COMMIT_PASSES = 2
SECRET = "secret-of-the-tests"  # noqa: S105 - protects nothing


class LocalSequence:
    """Orders what is published, and delivers it to every gateway in the next turn of the event loop."""

    def __init__(self) -> None:
        self.tokens: list[Ordered] = []
        self.gateways: list[OrderGateway] = []
        self._batches: list[tuple[int, list[bytes]]] = []
        self._sequence = 1
        self._scheduled = False

    def publisher(self, source: int) -> Callable[[list[bytes]], None]:
        def publish(payloads: list[bytes]) -> None:
            self._batches.append((source, payloads))
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self.deliver_published)

        return publish

    def deliver_published(self) -> None:
        """One token with all that was published, and pulses behind it, so that its trades commit."""
        self._scheduled = False
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
            for gateway in self.gateways:
                gateway.apply(ordered)

    def open(self, *accounts: str, cash: int = 1_000_000_000, shares: int = 10_000_000) -> None:
        """Open the market MSFT, and fund these accounts."""
        messages: list[OpenMarket | Funding] = [OpenMarket(OPERATOR, 1, "MSFT", Continuous(), ONE // 100, ONE)]
        for account in accounts:
            for asset, amount in ((CASH, cash), ("MSFT", shares)):
                messages.append(Funding(OPERATOR, len(messages) + 1, account, asset, amount * ONE))
        self.deliver([(OPERATOR, [encode(message) for message in messages])])

    def gateway(
        self, me: int, accounts: TradingAccounts, *, order_log: Path | None = None, limits: GatewayLimits | None = None
    ) -> OrderGateway:
        """Start a gateway: it replays what was delivered, and enters again what its order log has without a place."""
        floor = Floor(commit_passes=COMMIT_PASSES)
        limits = limits or GatewayLimits(requests_per_s=100_000, open_orders_max=100_000)
        core = GatewayCore(me, floor, scope=accounts.acts_for, first_number=time.time_ns(), limits=limits)
        for ordered in self.tokens:
            core.apply(ordered)
        log = None if order_log is None else OrderLog(order_log)
        gateway = OrderGateway(core, accounts, publish=self.publisher(me), now=time.time_ns, order_log=log)
        gateway.recover()
        self.gateways.append(gateway)
        return gateway


_files: dict[tuple[object, ...], bytes] = {}  # login databases, reused because hashing a password is slow


def accounts_in(folder: Path, *names: str, brokers: dict[str, str] | None = None) -> TradingAccounts:
    """Logins with one password."""
    path, wanted = folder / "accounts.sqlite", (names, *sorted((brokers or {}).items()))
    if wanted not in _files:
        accounts = TradingAccounts(path)
        for name in names:
            accounts.add(name, SECRET, broker=(brokers or {}).get(name, ""))
        accounts.close()
        _files[wanted] = path.read_bytes()
    path.write_bytes(_files[wanted])
    return TradingAccounts(path)
