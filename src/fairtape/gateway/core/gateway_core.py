"""The core of a gateway (S_P, S_S): checks requests, numbers them, and reports what the sequence made of them.

A gateway is a source of the ring with a floor of its own. The floor is the same projection that every site has. The
gateway checks funds, holdings and client ids against that floor, plus the requests that it has entered and the sequence
has not answered yet: otherwise it would accept the same funds again until the first order had its place. These checks
only keep out requests that would fail. They decide nothing: two gateways may accept the same funds at the same time,
and then every replica rejects the later request (TRMP 2001 §7.2).

**Permissions.** A login acts for its own account. A secondary broker (S_S) is a login that vouches for its customers:
it acts for them and for no other account. `Scope` says who is whose customer.

**Retries.** An account never uses a client id twice. So a request that is repeated, because a connection or a gateway
failed between the request and its answer, is recognised at every gateway.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Instant
from fairtape.core.spans import blocks
from fairtape.core.token_bucket import TokenBucket
from fairtape.exchange.floor import Floor, FloorAccount
from fairtape.exchange.market import Market
from fairtape.exchange.orders import (
    CANCEL_KIND,
    CASH,
    NEW_ORDER_KIND,
    REPLACE_KIND,
    BadOrder,
    Cancel,
    FloorMessage,
    NewOrder,
    OrderType,
    Replace,
    Side,
    decode,
    encode,
)
from fairtape.exchange.outputs import FloorOutput
from fairtape.gateway.core.blotter import Blotter
from fairtape.gateway.core.events import Answer, Cause, OrderEvent
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.market.prices import ONE, Price, format_fixed, format_sum
from fairtape.market.symbols import Symbol
from fairtape.wire.blocks import unpack_messages


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that was entered and is not answered yet, with what it will reserve."""

    request: NewOrder | Cancel | Replace
    asset: str = CASH
    amount: int = 0  # what it will reserve
    exposure: int = 0  # what it adds to the value of open orders

    @property
    def client_id(self) -> str:
        """The client id that it introduces; empty for a cancel."""
        return "" if isinstance(self.request, Cancel) else self.request.client_id


@dataclass(slots=True)
class PendingTotals:
    """Sums over the pending requests of one account."""

    assets: dict[str, int] = field(default_factory=dict)
    client_ids: dict[str, int] = field(default_factory=dict)  # -> gateway number of the request that introduces it
    orders: int = 0
    exposure: int = 0
    requests: int = 0


class PendingRequests:
    """All pending requests of one gateway, by gateway number."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._totals: dict[str, PendingTotals] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def totals(self, account: str) -> PendingTotals:
        """The sums of an account; accounts without pending requests have no entry."""
        return self._totals.get(account) or PendingTotals()

    def find(self, account: str, client_id: str) -> Pending | None:
        """The request that introduces an order with this client id."""
        totals = self._totals.get(account)
        number = None if totals is None else totals.client_ids.get(client_id)
        return None if number is None else self._pending[number]

    def add(self, pending: Pending) -> None:
        request = pending.request
        self._pending[request.gateway_number] = pending
        totals = self._totals.setdefault(request.account, PendingTotals())
        totals.assets[pending.asset] = totals.assets.get(pending.asset, 0) + pending.amount
        totals.exposure += pending.exposure
        totals.orders += isinstance(request, NewOrder)
        totals.requests += 1
        if pending.client_id:
            totals.client_ids[pending.client_id] = request.gateway_number

    def resolve(self, number: int) -> None:
        """The sequence has answered a request: from now on the floor's own balances include it."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        request = pending.request
        totals = self._totals[request.account]
        totals.assets[pending.asset] -= pending.amount
        totals.exposure -= pending.exposure
        totals.orders -= isinstance(request, NewOrder)
        totals.requests -= 1
        totals.client_ids.pop(pending.client_id, None)
        if not totals.requests:
            del self._totals[request.account]

    def requests(self) -> list[NewOrder | Cancel | Replace]:
        return [pending.request for pending in self._pending.values()]


Scope: TypeAlias = Callable[[str, str], bool]
"""Whether a login may act for an account."""

_REQUESTS: Final = frozenset({NEW_ORDER_KIND, CANCEL_KIND, REPLACE_KIND})
_NUMBER: Final = struct.Struct("<Q")
_NUMBER_AT: Final = 12  # offset of the gateway number in a request
_Request = TypeVar("_Request", NewOrder, Cancel, Replace)


class GatewayCore:
    """The state of one gateway, and its view of the floor."""

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
        """`first_number` must be above every number this source has used: the instant of the start qualifies."""
        self.me = me
        self.floor = floor
        self.limits = limits or GatewayLimits()
        self.blotter = blotter or Blotter(ceiling=self._ceiling)
        self.pending = PendingRequests()
        self.outputs: list[FloorOutput] = []  # of the last token, for the bookkeeper
        self.stale = False  # the floor, and this core with it, must be rebuilt from the journal
        self._scope = scope
        self._next_number = first_number
        self._rate_limits: dict[str, TokenBucket] = {}
        self._payloads: list[bytes] = []

    # Requests of traders.

    def enter(self, login: str, order: NewOrder, now: Instant) -> Answer:
        """Enter an order. Its gateway, gateway number and instant are set here."""
        order = self._numbered(order, now)
        refusal = self._request_refusal(login, order.account, now) or _value_refusal(order)
        if refusal is not None:
            return refusal
        floor_account, market = self.floor.accounts.get(order.account), self.floor.markets.get(order.symbol)
        if floor_account is None:
            return _refused(Cause.ACCOUNT, f"account is {order.account}; it was never funded")
        totals = self.pending.totals(order.account)
        if (refusal := self._reuse_refusal(floor_account, totals, order.client_id)) is not None:
            return refusal
        if market is None:
            return _refused(Cause.SYMBOL, f"symbol is {order.symbol}; no such market is open")
        if (flaw := market.refusal(order)) is not None:
            return _refused(Cause.VALUE, flaw)
        if len(floor_account.orders) + totals.orders >= self.limits.open_orders_max:
            return _refused(Cause.LIMIT, f"the account has {self.limits.open_orders_max} open orders, its limit")
        asset, amount = _cost(market, floor_account, order, now)
        price = order.price or (market.terms.price_max if order.order_type is OrderType.MARKET else 0)
        exposure = max(price * order.quantity // ONE, amount if asset == CASH else 0)
        refusal = self._funds_refusal(floor_account, totals, asset, amount) or self._notional_refusal(
            order.account, totals, exposure
        )
        return refusal or self._send(Pending(order, asset, amount, exposure))

    def cancel(self, login: str, request: Cancel, now: Instant) -> Answer:
        """Enter a cancel of an open or pending order."""
        request = self._numbered(request, now)
        refusal = self._request_refusal(login, request.account, now) or _value_refusal(request)
        refusal = refusal or self._unknown_refusal(request.account, request.order_id)
        return refusal or self._send(Pending(request))

    def replace(self, login: str, request: Replace, now: Instant) -> Answer:
        """Enter new terms for an open or pending order."""
        request = self._numbered(request, now)
        refusal = self._request_refusal(login, request.account, now) or _value_refusal(request)
        refusal = refusal or self._unknown_refusal(request.account, request.order_id)
        if refusal is not None:
            return refusal
        floor_account, totals = self.floor.accounts[request.account], self.pending.totals(request.account)
        if (refusal := self._reuse_refusal(floor_account, totals, request.client_id)) is not None:
            return refusal
        asset, amount, exposure = self._replace_cost(floor_account, request)
        refusal = self._funds_refusal(floor_account, totals, asset, amount) or self._notional_refusal(
            request.account, totals, exposure
        )
        # The floor may reject it, so what it would release is not available yet.
        return refusal or self._send(Pending(request, asset, amount, max(exposure, 0)))

    def reenter(self, request: NewOrder | Cancel | Replace, now: Instant) -> Answer:
        """Enter a request of an earlier process again, under a new number, unless it is already in the sequence.

        It was checked then; if anything has changed since, the floor decides.
        """
        floor_account = self.floor.accounts.get(request.account)
        known = (
            floor_account is not None
            and not isinstance(request, Cancel)
            and request.client_id in floor_account.used_ids
        )
        if known or len(self.pending) >= self.limits.pending_max:
            return _refused(Cause.DUPLICATE, "it is already in the sequence")
        mine = request._replace(gateway=self.me, gateway_number=self._next_number, entered_at=now)
        return self._send(Pending(mine))

    # Deliveries of the ring.

    def apply(self, ordered: Ordered) -> list[int]:
        """Apply Msg(e). Return the gateway numbers of this gateway's own requests in it."""
        self.outputs = self.floor.apply(ordered)
        self.blotter.book(self.outputs, lambda number: _message_at(ordered, number), ordered.acknowledged_at)
        placed = list(_own_numbers(ordered, self.me))
        for number in placed:
            self.pending.resolve(number)
        return placed

    def pass_token(self, token: int, formation: int | None = None, at: Instant = 0) -> None:
        self.blotter.book(self.floor.pass_token(token, formation), lambda _: None, at)

    def on_formation(self, change: FormationChange) -> None:
        """A new formation. After a Break that revoked applied tokens, `stale` is set."""
        lost = self.floor.token >= change.token  # also where the Break itself left no trace and this one follows it
        outputs = self.floor.on_formation(change)
        if change.broken or lost:
            self.stale = self.stale or lost
            self.blotter.apply_break(change.formation, outputs)

    # Output.

    def payloads(self) -> list[bytes]:
        """The payloads to publish, in this order."""
        payloads, self._payloads = self._payloads, []
        return payloads

    def events(self) -> list[OrderEvent]:
        """The order events since the last call."""
        return self.blotter.drain()

    def _ceiling(self, symbol: Symbol) -> Price:
        """The highest price of a market; 0 if it has none."""
        market = self.floor.markets.get(symbol)
        return 0 if market is None else market.terms.price_max

    def _numbered(self, request: _Request, now: Instant) -> _Request:
        return request._replace(gateway=self.me, gateway_number=self._next_number, entered_at=now)

    def _send(self, pending: Pending) -> Answer:
        self._payloads.append(encode(pending.request))
        self.pending.add(pending)
        self._next_number += 1
        return Answer(pending.request.gateway_number)

    def _request_refusal(self, login: str, account: str, now: Instant) -> Answer | None:
        """Return why this login may not send a request for this account now."""
        if not self._scope(login, account):
            return _refused(Cause.ACCOUNT, f"account is {account}; {login} may not act for it")
        limits = self.limits
        if self.stale or len(self.pending) >= limits.pending_max:
            return _refused(Cause.BUSY, "the gateway waits for the sequence; try again")
        if self.pending.totals(account).requests >= limits.account_pending_max:
            return _refused(Cause.RATE, f"{limits.account_pending_max} requests are pending, which is the limit")
        if account not in self._rate_limits and len(self._rate_limits) >= limits.accounts_max:
            self._rate_limits.clear()  # accounts over their rate start again: better than a table without limit
        bucket = self._rate_limits.setdefault(account, TokenBucket(limits.requests_per_s, limits.burst_period))
        if not bucket.take(1, now):
            return _refused(
                Cause.RATE, f"the account sends more than {limits.requests_per_s} requests a second, its limit"
            )
        return None

    def _reuse_refusal(self, floor_account: FloorAccount, totals: PendingTotals, client_id: str) -> Answer | None:
        if client_id in floor_account.used_ids or client_id in floor_account.orders or client_id in totals.client_ids:
            return _refused(Cause.DUPLICATE, f"client_id is {client_id}; the account has used it before")
        return None

    def _unknown_refusal(self, account: str, order_id: str) -> Answer | None:
        floor_account = self.floor.accounts.get(account)
        if floor_account is not None and (
            order_id in floor_account.orders or self.pending.find(account, order_id) is not None
        ):
            return None
        return _refused(Cause.ORDER, f"order_id is {order_id}; {account} has no such open order")

    def _funds_refusal(
        self, floor_account: FloorAccount, totals: PendingTotals, asset: str, amount: int
    ) -> Answer | None:
        balance = floor_account.funds.balances.get(asset)
        available = (0 if balance is None else balance.available) - totals.assets.get(asset, 0)
        if amount <= max(available, 0):
            return None
        what = f"{asset} are" if asset else "of cash is"
        return _refused(
            Cause.FUNDS, f"{format_sum(max(available, 0))} {what} available; the request needs {format_sum(amount)}"
        )

    def _notional_refusal(self, account: str, totals: PendingTotals, exposure: int) -> Answer | None:
        notional = self.blotter.exposure(account) + totals.exposure + exposure
        if exposure <= 0 or notional <= self.limits.notional_max:
            return None
        limit = format_fixed(self.limits.notional_max)
        return _refused(Cause.LIMIT, f"the open orders would come to {format_sum(notional)}; the limit is {limit}")

    def _replace_cost(self, floor_account: FloorAccount, request: Replace) -> tuple[str, int, int]:
        """What a replace needs beyond what the order has reserved: asset, amount, exposure."""
        found = floor_account.orders.get(request.order_id)
        if found is not None:
            market, order = found
            symbol, buys = market.terms.symbol, order.sign > 0
            price, left, filled = order.price, order.open, order.quantity - order.open
        else:
            pending = self.pending.find(request.account, request.order_id)
            assert pending is not None
            entered = pending.request
            if not isinstance(entered, NewOrder):
                return CASH, 0, 0  # a replace of a pending replace: the floor decides
            symbol, buys = entered.symbol, entered.side is Side.BUY
            price, left, filled = entered.price, entered.quantity, 0
        wanted = max(request.quantity - filled, 0)
        more = (request.price * wanted - price * left) // ONE
        return (CASH, max(more, 0), more) if buys else (symbol, max(wanted - left, 0), more)


def _refused(cause: Cause, reason: str) -> Answer:
    return Answer(0, cause, reason)


def _value_refusal(request: NewOrder | Cancel | Replace) -> Answer | None:
    """Return why a request has invalid values."""
    try:
        encode(request)
    except BadOrder as error:
        return _refused(Cause.VALUE, str(error))
    return None


def _cost(market: Market, floor_account: FloorAccount, new: NewOrder, now: Instant) -> tuple[str, int]:
    """What the floor will reserve for an order: asset and amount."""
    if new.side is Side.SELL:
        return new.symbol, new.quantity
    if new.order_type is OrderType.MARKET:
        return CASH, market.cost(market.order_of(new, 0, floor_account), now) // ONE
    return CASH, new.price * new.quantity // ONE  # a stop order at market reserves nothing until it is triggered


def _bodies(ordered: Ordered) -> Iterator[tuple[int, int, bytes, int]]:
    """The blocks of a token with whole messages: first number, source, body, count."""
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


def _message_at(ordered: Ordered, wanted: int) -> FloorMessage | None:
    """The message with a sequence number."""
    for number, _, body, count in _bodies(ordered):
        if number <= wanted < number + count:
            try:
                return decode(unpack_messages(body, count)[wanted - number])
            except BadOrder:
                return None
    return None
