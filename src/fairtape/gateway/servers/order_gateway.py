"""The order gateway: what its servers submit, what its ring delivers, and the order log between them.

A turn of any server is: submit what was received, `sync`, and only then answer. `sync` writes every accepted request to
the order log and publishes it to the ring. So a trader whose request was accepted will learn what became of it,
whatever happens to this process in between.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Instant
from fairtape.exchange.orders import Cancel, NewOrder, Replace, decode
from fairtape.gateway.core.events import Answer, OrderEvent
from fairtape.gateway.core.gateway_core import GatewayCore
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.gateway.storage.order_log import OrderLog


class EventListener(Protocol):
    """A server that reports to traders what became of their orders."""

    def on_events(self, events: Sequence[OrderEvent]) -> None:
        """The sequence has produced these events."""

    def on_break(self) -> None:
        """A Break revoked events: reporting resumes after the last one that is still valid."""


class OrderGateway:
    """One gateway: its core, its accounts, its order log and its listeners."""

    def __init__(
        self,
        core: GatewayCore,
        accounts: TradingAccounts,
        *,
        publish: Callable[[list[bytes]], None],
        now: Callable[[], Instant],
        order_log: OrderLog | None = None,
    ) -> None:
        self.core = core
        self.accounts = accounts
        self.now = now
        self._publish = publish
        self._order_log = order_log
        self._listeners: list[EventListener] = []

    def add_listener(self, listener: EventListener) -> None:
        self._listeners.append(listener)

    # Called by servers.

    def submit(self, login: str, request: NewOrder | Cancel | Replace) -> Answer:
        """Check a request and enter it. The answer must not be sent before `sync`."""
        match request:
            case NewOrder():
                return self.core.enter(login, request, self.now())
            case Cancel():
                return self.core.cancel(login, request, self.now())
            case Replace():
                return self.core.replace(login, request, self.now())

    def sync(self) -> None:
        """Make all entered requests durable, then publish them."""
        payloads = self.core.payloads()
        if self._order_log is not None:
            for payload in payloads:
                self._order_log.append(_number(payload), payload)
            self._order_log.sync()
        if payloads:
            self._publish(payloads)

    # Called with what the ring delivers.

    def apply(self, ordered: Ordered) -> None:
        """Apply Msg(e), and report its events."""
        placed = self.core.apply(ordered)
        if self._order_log is not None:
            self._order_log.mark_placed(placed)
        self._report_events()

    def on_formation(self, change: FormationChange) -> None:
        """A new formation. If the core is stale after it, `replace_core` must follow."""
        self.core.on_formation(change)
        self._report_events()
        if change.broken and not self.core.stale:
            self._report_break()

    def replace_core(self, core: GatewayCore) -> None:
        """After a Break: a core whose floor was rebuilt from the journal takes over the pending requests."""
        pending = self.core.pending.requests()
        self.core = core
        core.events()
        for request in pending:
            core.reenter(request, self.now())
        self.sync()
        self._report_break()

    def recover(self) -> int:
        """Enter again what an earlier process accepted and the sequence does not have; return how many there were."""
        if self._order_log is None:
            return 0
        self.core.events()  # replayed from the journal: each listener knows itself after which event it resumes
        entered, numbers = 0, []
        for payload in self._order_log.unplaced():
            request = decode(payload)
            assert isinstance(request, NewOrder | Cancel | Replace)
            numbers.append(request.gateway_number)
            entered += self.core.reenter(request, self.now()).entered
        self.sync()
        self._order_log.mark_placed(numbers)
        return entered

    def close(self) -> None:
        if self._order_log is not None:
            self._order_log.close()

    def _report_events(self) -> None:
        events = self.core.events()
        if events:
            for listener in self._listeners:
                listener.on_events(events)

    def _report_break(self) -> None:
        for listener in self._listeners:
            listener.on_break()


def _number(payload: bytes) -> int:
    request = decode(payload)
    assert isinstance(request, NewOrder | Cancel | Replace)
    return request.gateway_number
