"""The gateway (S_P, S_S): checks what traders ask for, enters it, and tells them what the sequence made of it.

A gateway is a source of the ring with a floor of its own. The floor is the same projection that every site has, so the
gateway checks funds, holdings and names against what the sequence has proved, plus what it entered itself and has not
seen come back. That check spares everybody requests that must fail. It decides nothing: two gateways may let the same
funds through at once, and then every replica rejects the request that has the later place (TRMP 2001 §7.2).

**Who may ask.** A login acts for its own account. A secondary broker (S_S) is a login that vouches for its customers:
it acts for them, and for nobody else. Who is whose customer is the `Scope`'s to say.

**Again.** An account never uses a name of an order twice. So a request that is repeated, because a connection or a
gateway failed between the order and its answer, is known by its name wherever it comes in.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.spans import blocks
from fairtape.edge.protocol.pacing import Pacer
from fairtape.exchange.floor import Floor
from fairtape.exchange.market import Market
from fairtape.exchange.order_codec import CANCEL_KIND, NEW_ORDER_KIND, REPLACE_KIND, Message, decode, encode
from fairtape.exchange.order_handling import Customer
from fairtape.exchange.orders import CASH, BadOrder, Cancel, NewOrder, OrderType, Replace, Side
from fairtape.exchange.outputs import Output
from fairtape.gateway.core.blotter import Blotter
from fairtape.gateway.core.events import Answer, Cause, OrderEvent
from fairtape.market.prices import ONE, Price, format_fixed, format_sum
from fairtape.market.symbols import Symbol
from fairtape.wire.blocks import unpack_messages

# Requests that a gateway has entered and the sequence has not answered yet, with what they will reserve.
#
# The floor's balances know nothing of them, so a gateway that looked there alone would let the same funds through again
# and again until its first order had its place. What is held here is counted beside what the floor has reserved.


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


Scope: TypeAlias = Callable[[str, str], bool]
"""Whether a login may act for an account."""

_REQUESTS: Final = frozenset({NEW_ORDER_KIND, CANCEL_KIND, REPLACE_KIND})
_NUMBER: Final = struct.Struct("<Q")
_NUMBER_AT: Final = 12  # where a request has its gateway number
_Request = TypeVar("_Request", NewOrder, Cancel, Replace)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """What one account may do at one gateway, so that no customer disturbs the others."""

    requests_per_s: int = 1_000
    burst_period: Duration = 1 * SECOND
    open_orders_max: int = 1_000
    notional_max: int = 1_000_000_000 * ONE  # of all open orders together, at their limits
    pending_max: int = 100_000  # requests of all accounts that the sequence has not answered
    account_pending_max: int = 10_000
    accounts_max: int = 100_000  # whose rates are watched


class Gateway:
    """One gateway and its view of the floor."""

    def __init__(
        self,
        me: int,
        floor: Floor,
        *,
        scope: Scope,
        first_number: int,
        limits: GatewayLimits | None = None,
        blotter: Blotter | None = None,
    ) -> None:
        """`first_number` must be above all that this source ever used: the instant of the start will do."""
        self.me = me
        self.floor = floor
        self.limits = limits or GatewayLimits()
        self.blotter = blotter or Blotter(ceiling=self._ceiling)
        self.pending = PendingRequests()
        self.outputs: list[Output] = []  # of the last token, for whoever keeps books
        self.stale = False  # the floor must be rebuilt from the journal, and the gateway with it
        self._scope = scope
        self._next_number = first_number
        self._pacers: dict[str, Pacer] = {}
        self._payloads: list[bytes] = []

    # What traders ask.

    def enter(self, login: str, order: NewOrder, now: Instant) -> Answer:
        """Enter an order for an account that the login may act for. Its gateway, number and instant are set here."""
        order = self._mine(order, now)
        refusal = self._unwelcome(login, order.account, now) or _flaw(order)
        if refusal is not None:
            return refusal
        customer, market = self.floor.customers.get(order.account), self.floor.markets.get(order.symbol)
        if customer is None:
            return _refused(Cause.ACCOUNT, f"account is {order.account}; nothing was ever paid into it")
        held = self.pending.held(order.account)
        if (refusal := self._used(customer, held, order.client_id)) is not None:
            return refusal
        if market is None:
            return _refused(Cause.SYMBOL, f"symbol is {order.symbol}; no such market is open")
        if (flaw := market.refusal(order)) is not None:
            return _refused(Cause.VALUE, flaw)
        if len(customer.orders) + held.orders >= self.limits.open_orders_max:
            return _refused(Cause.LIMIT, f"the account has {self.limits.open_orders_max} open orders, its limit")
        asset, amount = _cost(market, customer, order, now)
        price = order.price or (market.terms.price_max if order.order_type is OrderType.MARKET else 0)
        exposure = max(price * order.quantity // ONE, amount if asset == CASH else 0)
        refusal = self._unaffordable(customer, held, asset, amount) or self._over(order.account, held, exposure)
        return refusal or self._send(Pending(order, asset, amount, exposure))

    def cancel(self, login: str, request: Cancel, now: Instant) -> Answer:
        """Enter a cancel of an order that is open, or on its way."""
        request = self._mine(request, now)
        refusal = self._unwelcome(login, request.account, now) or _flaw(request)
        refusal = refusal or self._unknown(request.account, request.order_id)
        return refusal or self._send(Pending(request))

    def replace(self, login: str, request: Replace, now: Instant) -> Answer:
        """Enter new terms for an order that is open, or on its way."""
        request = self._mine(request, now)
        refusal = self._unwelcome(login, request.account, now) or _flaw(request)
        refusal = refusal or self._unknown(request.account, request.order_id)
        if refusal is not None:
            return refusal
        customer, held = self.floor.customers[request.account], self.pending.held(request.account)
        if (refusal := self._used(customer, held, request.client_id)) is not None:
            return refusal
        asset, amount, exposure = self._difference(customer, request)
        refusal = self._unaffordable(customer, held, asset, amount) or self._over(request.account, held, exposure)
        # The floor may refuse it, so what it would free is not free yet.
        return refusal or self._send(Pending(request, asset, amount, max(exposure, 0)))

    def again(self, request: NewOrder | Cancel | Replace, now: Instant) -> Answer:
        """Enter once more, under a new number, what an earlier life of this gateway entered, unless it came through.

        It was checked then; whatever has changed since, the floor decides.
        """
        customer = self.floor.customers.get(request.account)
        known = customer is not None and not isinstance(request, Cancel) and request.client_id in customer.used
        if known or len(self.pending) >= self.limits.pending_max:
            return _refused(Cause.DUPLICATE, "it has its place already")
        mine = request._replace(gateway=self.me, gateway_number=self._next_number, entered_at=now)
        return self._send(Pending(mine))

    # What the ring brings.

    def apply(self, ordered: Ordered) -> list[int]:
        """Msg(e) in its place; the numbers of our own requests in it."""
        self.outputs = self.floor.apply(ordered)
        self.blotter.book(self.outputs, lambda number: _message_at(ordered, number), ordered.acknowledged_at)
        placed = list(_own_numbers(ordered, self.me))
        for number in placed:
            self.pending.resolve(number)
        return placed

    def pass_token(self, token: int, formation: int | None = None, at: Instant = 0) -> None:
        """A token without messages has passed."""
        self.blotter.book(self.floor.pass_token(token, formation), lambda _: None, at)

    def turn(self, change: FormationChange) -> None:
        """A new formation. After a Break that took applied tokens away, `stale` is set."""
        lost = self.floor.token >= change.token  # also to a formation that follows one which left no trace
        outputs = self.floor.turn(change)
        if change.broken or lost:
            self.stale = self.stale or lost
            self.blotter.break_off(change.formation, outputs)

    # What goes out.

    def payloads(self) -> list[bytes]:
        """What the source is to publish, in this order."""
        payloads, self._payloads = self._payloads, []
        return payloads

    def events(self) -> list[OrderEvent]:
        """What became of orders since the last call."""
        return self.blotter.drain()

    # Inside.

    def _ceiling(self, symbol: Symbol) -> Price:
        """The highest price of a market; 0 where it has none."""
        market = self.floor.markets.get(symbol)
        return 0 if market is None else market.terms.price_max

    def _mine(self, request: _Request, now: Instant) -> _Request:
        return request._replace(gateway=self.me, gateway_number=self._next_number, entered_at=now)

    def _send(self, pending: Pending) -> Answer:
        self._payloads.append(encode(pending.request))
        self.pending.add(pending)
        self._next_number += 1
        return Answer(pending.request.gateway_number)

    def _unwelcome(self, login: str, account: str, now: Instant) -> Answer | None:
        """Why this login may not ask anything for this account now."""
        if not self._scope(login, account):
            return _refused(Cause.ACCOUNT, f"account is {account}; {login} may not act for it")
        limits = self.limits
        if self.stale or len(self.pending) >= limits.pending_max:
            return _refused(Cause.BUSY, "the gateway waits for the sequence; try again")
        if self.pending.held(account).requests >= limits.account_pending_max:
            return _refused(Cause.RATE, f"{limits.account_pending_max} requests wait for the sequence, the limit")
        if account not in self._pacers and len(self._pacers) >= limits.accounts_max:
            self._pacers.clear()  # whoever was over its rate begins anew: better than to watch nobody
        pacer = self._pacers.setdefault(account, Pacer(limits.requests_per_s, limits.burst_period))
        if not pacer.takes(1, now):
            return _refused(Cause.RATE, f"the account asks more than {limits.requests_per_s} times a second, its limit")
        return None

    def _used(self, customer: Customer, held: Held, client_id: str) -> Answer | None:
        if client_id in customer.used or client_id in customer.orders or client_id in held.names:
            return _refused(Cause.DUPLICATE, f"client_id is {client_id}; the account has used it before")
        return None

    def _unknown(self, account: str, order_id: str) -> Answer | None:
        customer = self.floor.customers.get(account)
        if customer is not None and (order_id in customer.orders or self.pending.named(account, order_id) is not None):
            return None
        return _refused(Cause.ORDER, f"order_id is {order_id}; {account} has no such open order")

    def _unaffordable(self, customer: Customer, held: Held, asset: str, amount: int) -> Answer | None:
        balance = customer.account.balances.get(asset)
        available = (0 if balance is None else balance.available) - held.assets.get(asset, 0)
        if amount <= max(available, 0):
            return None
        what = f"{asset} are" if asset else "of cash is"
        return _refused(Cause.FUNDS, f"{format_sum(max(available, 0))} {what} available; it takes {format_sum(amount)}")

    def _over(self, account: str, held: Held, exposure: int) -> Answer | None:
        notional = self.blotter.exposure(account) + held.exposure + exposure
        if exposure <= 0 or notional <= self.limits.notional_max:
            return None
        limit = format_fixed(self.limits.notional_max)
        return _refused(Cause.LIMIT, f"the open orders would come to {format_sum(notional)}; the limit is {limit}")

    def _difference(self, customer: Customer, request: Replace) -> tuple[str, int, int]:
        """What a replace takes beyond what the order has set aside: asset, amount, exposure."""
        found = customer.orders.get(request.order_id)
        if found is not None:
            market, order = found
            symbol, buys = market.terms.symbol, order.sign > 0
            price, left, filled = order.price, order.open, order.quantity - order.open
        else:
            pending = self.pending.named(request.account, request.order_id)
            assert pending is not None
            entered = pending.request
            if not isinstance(entered, NewOrder):
                return CASH, 0, 0  # a replace of a replace that is on its way: the floor decides
            symbol, buys = entered.symbol, entered.side is Side.BUY
            price, left, filled = entered.price, entered.quantity, 0
        wanted = max(request.quantity - filled, 0)
        more = (request.price * wanted - price * left) // ONE
        return (CASH, max(more, 0), more) if buys else (symbol, max(wanted - left, 0), more)


def _refused(cause: Cause, reason: str) -> Answer:
    return Answer(0, cause, reason)


def _flaw(request: NewOrder | Cancel | Replace) -> Answer | None:
    """Why these are no values of a request."""
    try:
        encode(request)
    except BadOrder as error:
        return _refused(Cause.VALUE, str(error))
    return None


def _cost(market: Market, customer: Customer, new: NewOrder, now: Instant) -> tuple[str, int]:
    """What an order will reserve, as the floor does it."""
    if new.side is Side.SELL:
        return new.symbol, new.quantity
    if new.order_type is OrderType.MARKET:
        return CASH, market.cost(market.order_of(new, 0, customer), now) // ONE
    return CASH, new.price * new.quantity // ONE  # a stop without a limit pays when it is reached


def _bodies(ordered: Ordered) -> Iterator[tuple[int, int, bytes, int]]:
    """The blocks of a token that hold messages: first number, source, body, count."""
    for span in ordered.spans:
        for number, body, count, is_fragment in blocks(span):
            if not is_fragment:
                yield number, span.source, body, count


def _own_numbers(ordered: Ordered, me: int) -> Iterator[int]:
    for _, source, body, count in _bodies(ordered):
        if source == me:
            for payload in unpack_messages(body, count):
                if payload[:1] and payload[0] in _REQUESTS and len(payload) >= _NUMBER_AT + _NUMBER.size:
                    yield _NUMBER.unpack_from(payload, _NUMBER_AT)[0]


def _message_at(ordered: Ordered, wanted: int) -> Message | None:
    """The message of the floor at a place in the sequence."""
    for number, _, body, count in _bodies(ordered):
        if number <= wanted < number + count:
            try:
                return decode(unpack_messages(body, count)[wanted - number])
            except BadOrder:
                return None
    return None
