"""The house of a gateway: what its servers ask, what its ring brings, and the memory between them.

A turn of any server is: ask for what came, `sync`, and only then answer. `sync` puts everything that was taken on the
disk and hands it to the ring. So a trader who heard that a request was taken will hear what became of it, whatever
happens to this process in between.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Instant
from fairtape.exchange.order_codec import decode
from fairtape.exchange.orders import Cancel, NewOrder, Replace
from fairtape.gateway.core.events import Answer, OrderEvent
from fairtape.gateway.core.gateway import Gateway
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.gateway.storage.order_log import OrderLog


class EventListener(Protocol):
    """A server that tells traders what became of their orders."""

    def happened(self, events: Sequence[OrderEvent]) -> None:
        """The sequence has proved these."""

    def broke(self) -> None:
        """A Break took events back: whoever heard them goes on behind the last one that stands."""


class OrderGateway:
    """One gateway, its accounts, and everybody who listens."""

    def __init__(
        self,
        gateway: Gateway,
        accounts: TradingAccounts,
        *,
        publish: Callable[[list[bytes]], None],
        now: Callable[[], Instant],
        intake: OrderLog | None = None,
    ) -> None:
        self.gateway = gateway
        self.accounts = accounts
        self.now = now
        self._publish = publish
        self._intake = intake
        self._listeners: list[EventListener] = []

    def listen(self, listener: EventListener) -> None:
        """Let a server hear what becomes of orders."""
        self._listeners.append(listener)

    # What servers ask.

    def ask(self, login: str, request: NewOrder | Cancel | Replace) -> Answer:
        """Enter a request, if the gateway lets it through. Answer nobody before `sync`."""
        match request:
            case NewOrder():
                return self.gateway.enter(login, request, self.now())
            case Cancel():
                return self.gateway.cancel(login, request, self.now())
            case Replace():
                return self.gateway.replace(login, request, self.now())

    def sync(self) -> None:
        """What was taken is on the disk, and on its way into the ring."""
        payloads = self.gateway.payloads()
        if self._intake is not None:
            for payload in payloads:
                self._intake.take(_number(payload), payload)
            self._intake.sync()
        if payloads:
            self._publish(payloads)

    # What the ring brings.

    def apply(self, ordered: Ordered) -> None:
        """Msg(e) in its place."""
        placed = self.gateway.apply(ordered)
        if self._intake is not None:
            self._intake.place(placed)
        self._tell()

    def turn(self, change: FormationChange) -> None:
        """A new formation. Where the gateway is stale after it, `rebuilt` must follow."""
        self.gateway.turn(change)
        self._tell()
        if change.broken and not self.gateway.stale:
            self._say_broken()

    def rebuilt(self, gateway: Gateway) -> None:
        """After a Break: a gateway whose floor was rebuilt from the journal takes over what waits."""
        waiting = self.gateway.pending.requests()
        self.gateway = gateway
        gateway.events()
        for request in waiting:
            gateway.again(request, self.now())
        self.sync()
        self._say_broken()

    def recover(self) -> int:
        """Enter again what an earlier process took and the sequence does not have; how many there were."""
        if self._intake is None:
            return 0
        self.gateway.events()  # of the past: whoever was told of them knows its place
        entered, numbers = 0, []
        for payload in self._intake.waiting():
            request = decode(payload)
            assert isinstance(request, NewOrder | Cancel | Replace)
            numbers.append(request.gateway_number)
            entered += self.gateway.again(request, self.now()).entered
        self.sync()
        self._intake.place(numbers)
        return entered

    def close(self) -> None:
        """Let go of the memory."""
        if self._intake is not None:
            self._intake.close()

    def _tell(self) -> None:
        events = self.gateway.events()
        if events:
            for listener in self._listeners:
                listener.happened(events)

    def _say_broken(self) -> None:
        for listener in self._listeners:
            listener.broke()


def _number(payload: bytes) -> int:
    request = decode(payload)
    assert isinstance(request, NewOrder | Cancel | Replace)
    return request.gateway_number
