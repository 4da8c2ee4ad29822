"""Requests that a gateway has entered and the sequence has not answered yet, with what they will reserve.

The floor's balances know nothing of them, so a gateway that looked there alone would let the same funds through again
and again until its first order had its place. What is held here is counted beside what the floor has reserved.
"""

from dataclasses import dataclass, field

from fairtape.exchange.orders import CASH, Cancel, NewOrder, Replace


@dataclass(frozen=True, slots=True)
class Pending:
    """One request on its way."""

    request: NewOrder | Cancel | Replace
    asset: str = CASH
    amount: int = 0  # that it will reserve
    exposure: int = 0  # that it adds to the open orders

    @property
    def name(self) -> str:
        """The name that it takes; empty for a cancel."""
        return "" if isinstance(self.request, Cancel) else self.request.client_id


@dataclass(slots=True)
class Held:
    """What the pending requests of one account come to."""

    assets: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)  # client ids, and the gateway numbers that bring them
    orders: int = 0
    exposure: int = 0
    requests: int = 0


class PendingRequests:
    """All pending requests of one gateway, by their gateway numbers."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def held(self, account: str) -> Held:
        """What is held of an account; nothing is kept for those who have nothing pending."""
        return self._held.get(account) or Held()

    def named(self, account: str, client_id: str) -> Pending | None:
        """The request that brings an order of this name."""
        held = self._held.get(account)
        number = None if held is None else held.names.get(client_id)
        return None if number is None else self._pending[number]

    def add(self, pending: Pending) -> None:
        """A request was entered."""
        request = pending.request
        self._pending[request.gateway_number] = pending
        held = self._held.setdefault(request.account, Held())
        held.assets[pending.asset] = held.assets.get(pending.asset, 0) + pending.amount
        held.exposure += pending.exposure
        held.orders += isinstance(request, NewOrder)
        held.requests += 1
        if pending.name:
            held.names[pending.name] = request.gateway_number

    def resolve(self, number: int) -> None:
        """The sequence has answered a request: from here on the floor's own balances know of it."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        request = pending.request
        held = self._held[request.account]
        held.assets[pending.asset] -= pending.amount
        held.exposure -= pending.exposure
        held.orders -= isinstance(request, NewOrder)
        held.requests -= 1
        held.names.pop(pending.name, None)
        if not held.requests:
            del self._held[request.account]

    def requests(self) -> list[NewOrder | Cancel | Replace]:
        """Those that wait, in their order."""
        return [pending.request for pending in self._pending.values()]
