"""The distributed trading floor: every replica applies the same rules to the same sequence. TRMP 2001 §7.3.

`apply` takes Msg(e) and returns the outputs that follow from it. It has no other input: no clock but the instant of the
token, no randomness, no external table. So equal sequences give equal trades, balances and outputs at every site, and a
floor rebuilt from a journal equals the floor that was lost.

**Money.** A gateway checks funds before it enters an order, but only the sequence decides: every replica rejects an
order whose account cannot pay *at its position in the sequence*. Two gateways that accept the same funds at the same
time therefore do no harm. What an order may cost stays reserved until the order is cancelled or its trades commit. The
proceeds of a trade can be spent when it commits, not before. Every change of a market and the matching change of the
ledger happen together, in `OrderHandler`, so that all shares and all cash always have an owner.

**Replays.** A request names its gateway and that gateway's increasing number. A request from another source, or with a
number that is not above the last, is rejected.

**Clocks.** Batch auctions and Dutch clocks advance with the instants of delivered tokens, before the messages of the
token are applied. Tokens without messages are not delivered, so a source sends a `Pulse` where a clock must not wait
for the next order.

**A Break.** A lost token takes its trades with it. A replica that has applied tokens from the break on reports all
their trades as void, and refuses further tokens until it is rebuilt from its journal, which the ring has cut to what
the others hold. Trades of earlier tokens, also tentative ones, are the same at all survivors and stay valid.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, TypeAlias

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Instant
from fairtape.core.spans import blocks
from fairtape.exchange.book import Fill, Order, RemovalReason, reduce_open
from fairtape.exchange.ledger import Ledger, LedgerAccount
from fairtape.exchange.market import Market, flaw_of
from fairtape.exchange.orders import (
    DIGEST_SIZE,
    Action,
    BadOrder,
    Cancel,
    Control,
    Funding,
    NewOrder,
    OpenMarket,
    OrderType,
    Pulse,
    Replace,
    TradeReport,
    decode,
    encode,
)
from fairtape.exchange.outputs import (
    BUYER_TOOK,
    SELLER_TOOK,
    Cancelled,
    Committed,
    Evidence,
    Execution,
    FloorOutput,
    Funded,
    MarketChanged,
    Printed,
    Rejected,
    Replaced,
    SequenceBroken,
    Sequenced,
    TentativeFill,
    Voided,
)
from fairtape.exchange.rules import Continuous, DutchClock
from fairtape.market.prices import ONE, Price, Quantity, format_sum
from fairtape.market.symbols import Symbol
from fairtape.market.trades import TRADE_KIND
from fairtape.wire.blocks import unpack_messages

FloorRequest: TypeAlias = NewOrder | Cancel | Replace | OpenMarket | Control | Funding

_TICKER: Final = bytes([TRADE_KIND])


class OutOfOrder(ValueError):
    """A token that does not follow the last one applied, or any token after a Break that requires a rebuild."""


class TradeBook:
    """The trades of a floor from execution to commit, and the digests that compare replicas.

    A trade made at token e is tentative. When token e + N has passed, N + 1 sites hold the messages that made it, so it
    survives N failures: then it commits and settles (TRMP 2001 §7.3). The digest is a hash chain over the tokens that
    made trades, so comparing 32 bytes shows whether two replicas have made the same trades from the beginning.
    """

    def __init__(self, *, commit_passes: int, reports_max: int) -> None:
        self._commit_passes = commit_passes
        self._reports_max = reports_max
        self._tentative: deque[tuple[int, list[Execution]]] = deque()
        self._committed: deque[tuple[int, list[Execution]]] = deque()  # of the latest tokens, in case they are lost
        self._reports: OrderedDict[int, TradeReport] = OrderedDict()
        self._current: list[Execution] = []
        self._forgotten_through = 0
        self.trades_hash = bytes(DIGEST_SIZE)
        self.tentative_count = 0
        self.next_id = 1

    def add(self, trade: Execution) -> None:
        self._current.append(trade)
        self.next_id += 1
        self.tentative_count += 1

    def close(self, formation: int, token: int) -> None:
        """The token is applied: add its trades to the digest."""
        if not self._current:
            return
        content = b"".join(trade.to_bytes() for trade in self._current)
        self.trades_hash = sha256(self.trades_hash + content).digest()
        self._reports[token] = TradeReport(formation, token, len(self._current), self.trades_hash)
        if len(self._reports) > self._reports_max:
            self._forgotten_through, _ = self._reports.popitem(last=False)
        self._tentative.append((token, self._current))
        self._current = []

    def commit(self, token: int, formed_at: int) -> Iterator[Execution]:
        """The trades that commit when this token has passed, in the order of execution.

        Passes are counted within one formation. The first holder of the token in a new formation may be the very site
        that held the last token of the old one: only from the first token of the formation on does each further token
        prove another holder.
        """
        while self._tentative and max(self._tentative[0][0], formed_at) + self._commit_passes <= token:
            made_at, trades = self._tentative.popleft()
            self.tentative_count -= len(trades)
            self._committed.append((made_at, trades))
            if len(self._committed) > self._reports_max:
                self._committed.popleft()
            yield from trades

    def since(self, token: int) -> Iterator[tuple[Execution, bool]]:
        """The trades of this token and later ones, each with whether it had committed."""
        for committed, kept in ((True, self._committed), (False, self._tentative)):
            for made_at, trades in kept:
                if made_at >= token:
                    yield from ((trade, committed) for trade in trades)

    def report(self, token: int) -> TradeReport | None:
        """This replica's report on a token; None if the token made no trade or is no longer kept."""
        return self._reports.get(token)

    def has_forgotten(self, token: int) -> bool:
        """Whether the token is too old to be compared."""
        return token <= self._forgotten_through

    def tentative(self) -> Iterator[Execution]:
        for _, trades in self._tentative:
            yield from trades


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorLimits:
    """Limits of a floor. A request over a limit is rejected with a reason that names the limit."""

    accounts_max: int = 100_000
    symbols_max: int = 4_096
    gateways_max: int = 4_096
    open_orders_max: int = 10_000  # per account
    client_ids_max: int = 4_096  # per account: past client ids that are remembered
    tentative_max: int = 1_000_000  # trades before their commit
    reports_max: int = 1_024  # tokens whose reports can be checked
    formations_max: int = 256  # formations whose last token is remembered, to recognise reports on lost tokens


class FloorAccount:
    """An account on the floor: its funds, its open orders by client id, and the client ids it has used."""

    __slots__ = ("funds", "name", "orders", "used_ids")

    def __init__(self, funds: LedgerAccount) -> None:
        self.funds = funds
        self.name = funds.name
        self.orders: dict[str, tuple[Market, Order]] = {}
        self.used_ids: OrderedDict[str, None] = OrderedDict()


class OrderHandler:
    """All accounts, markets and open orders of a floor: accepts orders, reserves their cost, books their trades.

    It receives one request after the other, each with its sequence number.
    """

    def __init__(self, *, commit_passes: int, limits: FloorLimits) -> None:
        self.limits = limits
        self.trades = TradeBook(commit_passes=commit_passes, reports_max=limits.reports_max)
        self.ledger = Ledger(accounts_max=limits.accounts_max, assets_max=limits.symbols_max)
        self.accounts: dict[str, FloorAccount] = {}
        self.markets: dict[Symbol, Market] = {}
        self.outputs: list[FloorOutput] = []
        self.number = 0  # sequence number of the message that is being applied
        self.token = 0  # the token that is being applied, and its instant
        self.at: Instant = 0

    def enter(self, source: int, new: NewOrder) -> str | None:
        """Accept a new order, or return why not."""
        account, market = self.accounts.get(new.account), self.markets.get(new.symbol)
        if account is None:
            return f"account is {new.account}; the floor has no such account"
        if market is None:
            return f"symbol is {new.symbol}; no such market is open"
        reason = self._entry_refusal(account, new) or market.refusal(new)
        if reason is not None:
            return reason
        order = market.order_of(new, self.number, account)
        reserved = self._reserve(market, order)
        if reserved is None:
            return self._funds_refusal(market, order)
        self._remember_id(account, new.client_id)
        account.orders[new.client_id] = (market, order)
        self.outputs.append(Sequenced(self.number, source, new.gateway_number, new.account, new.client_id))
        if new.order_type is OrderType.STOP or new.order_type is OrderType.STOP_LIMIT:
            market.stop(order)
        else:
            self._execute(market, order, reserved)
        self.trigger_stops(market)
        return None

    def _entry_refusal(self, account: FloorAccount, new: NewOrder) -> str | None:
        """Return why the account may not enter another order, or not under this client id."""
        if (reason := self._reuse_refusal(account, new.client_id)) is not None:
            return reason
        balances = account.funds.balances
        if new.symbol not in balances and len(balances) > self.limits.symbols_max:
            return f"symbol is {new.symbol}; the account has held {len(balances)} assets, which is the limit"
        if len(account.orders) >= self.limits.open_orders_max:
            return f"the account has {len(account.orders)} open orders, which is the limit"
        if self.trades.tentative_count >= self.limits.tentative_max:
            return f"{self.trades.tentative_count} trades wait for their commit, which is the limit; try again"
        return None

    def _reuse_refusal(self, account: FloorAccount, client_id: str) -> str | None:
        if client_id in account.used_ids or client_id in account.orders:
            return f"client_id is {client_id}; the account has used it before"
        return None

    def _remember_id(self, account: FloorAccount, client_id: str) -> None:
        account.used_ids[client_id] = None
        if len(account.used_ids) > self.limits.client_ids_max:
            account.used_ids.popitem(last=False)

    def _reserve(self, market: Market, order: Order) -> int | None:
        """Reserve what the order may cost. Return that amount, or None if the account does not have it."""
        funds = _account_of(order).funds
        if order.sign < 0:
            shares = funds.balances.get(market.terms.symbol)
            return order.open if shares is not None and shares.reserve(order.open) else None
        if not order.is_market:
            amount = order.price * order.open // ONE
        elif order.stop_price:
            amount = 0  # a stop order to buy at market reserves when it is triggered
        else:
            amount = market.cost(order, self.at) // ONE
        if not funds.cash.reserve(amount):
            return None
        funds.balance(market.terms.symbol)  # counts against the limit of assets from now on
        return amount

    def _funds_refusal(self, market: Market, order: Order) -> str:
        funds = _account_of(order).funds
        if order.sign < 0:
            shares = funds.balances.get(market.terms.symbol)
            available = 0 if shares is None else shares.available
            return f"{format_sum(available)} {market.terms.symbol} are available; the order sells more"
        return f"{format_sum(funds.cash.available)} of cash is available; the order may cost more"

    def _execute(self, market: Market, order: Order, reserved: int) -> None:
        """Let an order trade. A market order that does not rest releases at once what it did not spend."""
        fills = market.enter(order, self.at)
        self.trade(market, fills)
        if order.sign > 0 and order.is_market and order.queue is None:
            spent = sum(fill.price * fill.quantity for fill in fills if order in (fill.taker, fill.maker))
            _account_of(order).funds.cash.release(reserved - spent // ONE)

    def trigger_stops(self, market: Market) -> None:
        """Book the reductions, and execute triggered stop orders until no further one is triggered."""
        self._book_reductions(market)
        while (order := market.triggered()) is not None:
            if order.sign > 0 and order.is_market:
                reserved = self._reserve(market, order)
                if reserved is None:
                    market.reductions.append(reduce_open(order, order.open, RemovalReason.NO_FUNDS))
                else:
                    self._execute(market, order, reserved)
            else:
                self.trade(market, market.enter(order, self.at))
            self._book_reductions(market)

    def _book_reductions(self, market: Market) -> None:
        if not market.reductions:
            return
        for order, quantity, reason in market.reductions:
            account = _account_of(order)
            if order.sign < 0:
                account.funds.balances[market.terms.symbol].release(quantity)
            else:
                account.funds.cash.release(self._reserved_price(market, order) * quantity // ONE)
            self.outputs.append(
                Cancelled(self.number, order.number, account.name, order.client_id, quantity, order.open, reason.value)
            )
            if not order.open:
                account.orders.pop(order.client_id, None)
        market.reductions.clear()

    def _reserved_price(self, market: Market, order: Order) -> Price:
        """What a buyer has reserved per open share."""
        if not order.is_market:
            return order.price
        return 0 if isinstance(market.rule, Continuous | DutchClock) else market.terms.price_max

    def trade(self, market: Market, fills: Iterable[Fill]) -> None:
        """Record trades, and release what buyers reserved above the trade price."""
        for maker, taker, price, quantity in fills:
            buy, sell = (maker, taker) if maker.sign > 0 else (taker, maker)
            buyer, seller = _account_of(buy), _account_of(sell)
            spare = self._reserved_price(market, buy) - price
            if spare > 0:
                buyer.funds.cash.release(spare * quantity // ONE)
            if type(market.rule) is Continuous:
                aggressor = BUYER_TOOK if taker is buy else SELLER_TOOK
            else:
                aggressor = BUYER_TOOK if isinstance(market.rule, DutchClock) else 0
            trade = Execution(
                self.trades.next_id,
                self.token,
                market.terms.symbol,
                price,
                quantity,
                buy.number,
                sell.number,
                buyer.name,
                seller.name,
                buy.client_id,
                sell.client_id,
                aggressor,
                self.at,
            )
            self.trades.add(trade)
            self.outputs.append(TentativeFill(trade))
            for order, account in ((buy, buyer), (sell, seller)):
                if not order.open:
                    account.orders.pop(order.client_id, None)

    def cancel(self, request: Cancel) -> str | None:
        """Cancel an open order, or return why not."""
        found = self._open_order(request.account, request.order_id)
        if isinstance(found, str):
            return found
        market, order = found
        market.cancel(order)
        self._book_reductions(market)
        return None

    def _open_order(self, name: str, order_id: str) -> "tuple[Market, Order] | str":
        """An open order, or why there is none of that id."""
        account = self.accounts.get(name)
        found = None if account is None else account.orders.get(order_id)
        return f"order_id is {order_id}; {name} has no such open order" if found is None else found

    def replace(self, source: int, request: Replace) -> str | None:
        """Change the terms of an open order, or return why not."""
        found = self._open_order(request.account, request.order_id)
        if isinstance(found, str):
            return found
        market, order = found
        account = _account_of(order)
        reason = self._replace_refusal(market, order, request) or self._reuse_refusal(account, request.client_id)
        if reason is not None:
            return reason
        wanted = max(request.quantity - (order.quantity - order.open), 0)
        stays = not wanted or (request.price == order.price and wanted <= order.open)
        if not stays and not self._adjust_reservation(market, order, request.price, wanted):
            return self._funds_refusal(market, order)
        del account.orders[request.order_id]
        self._remember_id(account, request.client_id)
        order.client_id = request.client_id
        account.orders[request.client_id] = (market, order)
        answer = (self.number, source, request.gateway_number, order.number, request.account)
        self.outputs.append(Replaced(*answer, request.order_id, request.client_id, request.price, wanted))
        if stays:
            if wanted < order.open:
                market.reduce(order, order.open - wanted)
        else:
            self.trade(market, market.move(order, request.price, request.quantity, self.at))
        self.trigger_stops(market)
        return None

    def _replace_refusal(self, market: Market, order: Order, request: Replace) -> str | None:
        if market.halted:
            return f"{market.terms.symbol} is halted; only cancels are accepted"
        if order.stop_price or order.is_market:
            return f"order_id is {request.order_id}; a stop or market order is not replaced: cancel it"
        if order.sign < 0 and isinstance(market.rule, DutchClock):
            return f"order_id is {request.order_id}; the Dutch clock is running for it: cancel it"
        if request.quantity % market.terms.lot:
            return market.lot_flaw(request.quantity)
        return market.price_flaw("price", request.price)

    def _adjust_reservation(self, market: Market, order: Order, price: Price, wanted: Quantity) -> bool:
        """Reserve for the new terms instead of the old. False, and no change, if the funds are missing."""
        funds = _account_of(order).funds
        if order.sign < 0:
            balance, more = funds.balances[market.terms.symbol], wanted - order.open
        else:
            balance, more = funds.cash, (price * wanted - order.price * order.open) // ONE
        if more > 0:
            return balance.reserve(more)
        balance.release(-more)
        return True


def _account_of(order: Order) -> FloorAccount:
    owner = order.owner
    assert type(owner) is FloorAccount
    return owner


class Floor:
    """All markets of one sequence, and their ledger."""

    def __init__(
        self,
        *,
        commit_passes: int,
        venue: str = "FLOOR",
        operators: Iterable[int] | None = None,
        arbiters: Iterable[int] | None = None,
        limits: FloorLimits | None = None,
    ) -> None:
        assert commit_passes >= 0
        self._handler = OrderHandler(commit_passes=commit_passes, limits=limits or FloorLimits())
        self._venue = venue
        self._operators = None if operators is None else frozenset(operators)  # None: every source may administer
        self._arbiters = None if arbiters is None else frozenset(arbiters)  # None: every source may report
        self._gateways: dict[int, int] = {}  # gateway -> its last number
        self._stale = False
        self._formation = 0  # formation of the last token that was applied
        self._formed_at = 0  # first token applied of that formation
        self._reached: OrderedDict[int, int] = OrderedDict()  # formation -> its last token that was applied

    # Input.

    def apply(self, ordered: Ordered) -> list[FloorOutput]:
        """Apply Msg(e), and return what follows from it."""
        self._follow(ordered.token)
        self._enter(ordered)
        self._commit(ordered.token)
        self._handler.at = ordered.acknowledged_at
        for market in self.markets.values():
            if type(market.rule) is not Continuous:
                self._handler.trade(market, market.advance(self._handler.at))
                self._handler.trigger_stops(market)
        for number, source, payload in _messages(ordered):
            self._handler.number = number
            self._apply_message(source, payload)
        self._handler.trades.close(ordered.formation, ordered.token)
        return self._drain()

    def pass_token(self, token: int, formation: int | None = None) -> list[FloorOutput]:
        """A token without messages has passed: trades may commit earlier. Calling this is optional.

        A token of a formation that has delivered nothing yet is ignored here: `TradeBook.commit` says why.
        """
        self._follow(token)
        if formation in (None, self._formation):
            self._commit(token)
        return self._drain()

    def on_formation(self, change: FormationChange) -> list[FloorOutput]:
        """A new formation takes over. Only a Break has consequences."""
        if not change.broken:
            return []
        lost = self.token >= change.token
        self._handler.outputs.append(SequenceBroken(change.token, change.sequence, lost))
        self._handler.outputs += [
            Voided(trade, committed) for trade, committed in self._handler.trades.since(change.token)
        ]
        self._stale = self._stale or lost
        return self._drain()

    # Queries.

    @property
    def token(self) -> int:
        return self._handler.token

    @property
    def ledger(self) -> Ledger:
        return self._handler.ledger

    @property
    def markets(self) -> Mapping[Symbol, Market]:
        return self._handler.markets

    @property
    def accounts(self) -> Mapping[str, FloorAccount]:
        """The accounts and their open orders."""
        return self._handler.accounts

    @property
    def trades_hash(self) -> bytes:
        """The digest of all trades so far: equal at replicas that have applied the same tokens."""
        return self._handler.trades.trades_hash

    @property
    def trade_count(self) -> int:
        return self._handler.trades.next_id - 1

    def report(self, token: int) -> bytes | None:
        """The arbiter's report on a token, as a message; None if the token made no trade."""
        report = self._handler.trades.report(token)
        return None if report is None else encode(report)

    def tentative(self) -> Iterator[Execution]:
        """The trades that have not committed yet."""
        return self._handler.trades.tentative()

    # Tokens.

    def _follow(self, token: int) -> None:
        if self._stale:
            raise OutOfOrder("the floor has applied tokens that are lost; rebuild it from the journal")
        if token <= self.token:
            raise OutOfOrder(f"token {token} came after token {self.token}; tokens must increase")
        self._handler.token = token

    def _enter(self, ordered: Ordered) -> None:
        if ordered.formation != self._formation:
            self._formation, self._formed_at = ordered.formation, ordered.token
        self._reached[ordered.formation] = ordered.token
        if len(self._reached) > self._handler.limits.formations_max:
            self._reached.popitem(last=False)

    def _commit(self, token: int) -> None:
        for trade in self._handler.trades.commit(token, self._formed_at):
            amount = trade.price * trade.quantity // ONE
            buyer, seller = self.ledger.accounts[trade.buyer], self.ledger.accounts[trade.seller]
            self.ledger.settle(buyer, seller, trade.symbol, trade.quantity, amount)
            self._handler.outputs.append(Committed(trade, token))
            self._handler.outputs.append(Printed(trade, self._venue))

    def _drain(self) -> list[FloorOutput]:
        outputs, self._handler.outputs = self._handler.outputs, []
        return outputs

    # Messages.

    def _apply_message(self, source: int, payload: bytes) -> None:
        if payload[:1] == _TICKER:
            return
        try:
            message = decode(payload)
        except BadOrder as error:
            self._handler.outputs.append(Rejected(self._handler.number, source, 0, "", "", str(error)))
            return
        if isinstance(message, TradeReport):
            self._check_report(source, message)
        elif not isinstance(message, Pulse):
            reason = self._replay_refusal(source, message.gateway, message.gateway_number) or self._apply_request(
                source, message
            )
            if reason is not None:
                self._reject(source, message, reason)

    def _reject(self, source: int, message: FloorRequest, reason: str) -> None:
        account = "" if isinstance(message, OpenMarket | Control) else message.account
        client_id = message.client_id if isinstance(message, NewOrder | Replace) else ""
        if isinstance(message, Cancel):
            client_id = message.order_id
        self._handler.outputs.append(
            Rejected(self._handler.number, source, message.gateway_number, account, client_id, reason)
        )

    def _replay_refusal(self, source: int, gateway: int, number: int) -> str | None:
        """Return why a request is a replay, or is not from the source that sent it."""
        if gateway != source:
            return f"gateway is {gateway}, but source {source} sent it: a request is accepted only from its own gateway"
        last = self._gateways.get(source)
        if last is None and len(self._gateways) == self._handler.limits.gateways_max:
            return f"gateway is {source}; the floor has its limit of {self._handler.limits.gateways_max} gateways"
        if last is not None and number <= last:
            return f"gateway_number is {number}; it must be above {last}: the request is a replay"
        self._gateways[source] = number
        return None

    def _apply_request(self, source: int, message: FloorRequest) -> str | None:
        """Carry out a request, or return why not."""
        if isinstance(message, NewOrder):
            return self._handler.enter(source, message)
        if isinstance(message, Cancel):
            return self._handler.cancel(message)
        if isinstance(message, Replace):
            return self._handler.replace(source, message)
        if self._operators is not None and source not in self._operators:
            return f"source {source} is not an operator; only operators open markets and fund accounts"
        if isinstance(message, Funding):
            return self._fund(message)
        return self._open(message) if isinstance(message, OpenMarket) else self._control(message)

    # Operators and arbiters.

    def _fund(self, funding: Funding) -> str | None:
        reason = self.ledger.fund(funding.account, funding.asset, funding.amount)
        if reason is not None:
            return reason
        if funding.account not in self.accounts:
            self._handler.accounts[funding.account] = FloorAccount(self.ledger.accounts[funding.account])
        self._handler.outputs.append(Funded(self._handler.number, funding.account, funding.asset, funding.amount))
        return None

    def _open(self, terms: OpenMarket) -> str | None:
        if (flaw := flaw_of(terms)) is not None:
            return flaw
        market = self.markets.get(terms.symbol)
        if market is not None:
            if (reason := market.change(terms, self._handler.at)) is not None:
                return reason
        elif len(self.markets) == self._handler.limits.symbols_max:
            return f"symbol is {terms.symbol}; the floor has its limit of {self._handler.limits.symbols_max} markets"
        else:
            self._handler.markets[terms.symbol] = Market(terms, self._handler.at)
        self._handler.outputs.append(
            MarketChanged(self._handler.number, terms.symbol, f"trades as {type(terms.rule).__name__}")
        )
        return None

    def _control(self, control: Control) -> str | None:
        market = self.markets.get(control.symbol)
        if market is None:
            return f"symbol is {control.symbol}; no such market is open"
        match control.action:
            case Action.HALT:
                market.halt(self._handler.at)
            case Action.RESUME:
                market.resume(self._handler.at)
            case Action.UNCROSS:
                fills = market.uncross()
                if fills is None:
                    return f"{control.symbol} trades as {type(market.rule).__name__}, which has no rounds to end"
                self._handler.trade(market, fills)
            case Action.CLOSE:
                market.close()
                del self._handler.markets[control.symbol]
        self._handler.outputs.append(MarketChanged(self._handler.number, control.symbol, control.action.name.lower()))
        self._handler.trigger_stops(market)
        return None

    def _check_report(self, source: int, report: TradeReport) -> None:
        """Compare the arbiter's report with this replica's own computation."""
        if self._arbiters is not None and source not in self._arbiters:
            self._handler.outputs.append(
                Rejected(self._handler.number, source, 0, "", "", f"source {source} is not an arbiter")
            )
            return
        if (reason := self._report_refusal(report)) is not None:
            self._handler.outputs.append(Rejected(self._handler.number, source, 0, "", "", reason))
            return
        own = self._handler.trades.report(report.token)
        count, digest = (0, "none") if own is None else (own.trade_count, own.trades_hash.hex())
        for field, expected, found in (
            ("trade_count", str(count), str(report.trade_count)),
            ("trades_hash", digest, report.trades_hash.hex()),
        ):
            if expected != found:
                self._handler.outputs.append(
                    Evidence(self._handler.number, source, report.token, field, expected, found)
                )

    def _report_refusal(self, report: TradeReport) -> str | None:
        """Return why a report can be neither confirmed nor refuted here."""
        if self._handler.trades.has_forgotten(report.token):
            return f"token is {report.token}; it is too old to be checked"
        reached = self._reached.get(report.formation)
        if reached is None or (report.formation != self._formation and report.token > reached):
            return f"token is {report.token} of formation {report.formation}, which is not in the sequence: it was lost"
        return None


def _messages(ordered: Ordered) -> Iterator[tuple[int, int, bytes]]:
    """The messages of a token as (number, source, payload); a fragment is an empty payload, which the floor rejects."""
    for span in ordered.spans:
        for sequence, body, count, is_fragment in blocks(span):
            payloads = [b""] if is_fragment else unpack_messages(body, count)
            for number, payload in enumerate(payloads, sequence):
                yield number, span.source, payload


class Replica:
    """The floor of one site, rebuilt from the site's journal whenever the ring revokes tokens that it has applied.

    After a Break the ring may revoke tokens that a site has already released. The replica needs no separate signal for
    that: a formation that begins at or below the last token applied revokes everything from its first token on, whether
    or not it is the formation that broke. Trades of revoked tokens are reported as void.
    """

    def __init__(self, new: Callable[[], Floor], released: Callable[[], Iterable[Ordered]]) -> None:
        """`released` reads the site's journal: all that the site has released, from the first token on."""
        self._new = new
        self._released = released
        self.floor = new()
        self.rebuild()

    def rebuild(self) -> None:
        """Start again from the journal. Outputs of the past are discarded: they were reported when they happened."""
        self.floor = self._new()
        for ordered in self._released():
            self.floor.apply(ordered)

    def deliver(self, ordered: Ordered) -> list[FloorOutput]:
        return self.floor.apply(ordered)

    def on_formation(self, change: FormationChange) -> list[FloorOutput]:
        """The site has recorded a new formation."""
        lost = change.token <= self.floor.token
        outputs = self.floor.on_formation(replace(change, broken=True) if lost else change)
        if lost:
            self.rebuild()
        return outputs
