"""Order handling on a floor: accept orders, reserve what they may cost, book their trades and cancellations.

The handler receives one request after the other, each with its sequence number. Every change of a market and the
matching change of the ledger happen here, together, so that all shares and all cash always have an owner.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from fairtape.core.instants import Instant
from fairtape.exchange.book import Fill, Order, RemovalReason, reduce_open
from fairtape.exchange.ledger import Ledger, LedgerAccount
from fairtape.exchange.market import Market
from fairtape.exchange.orders import DIGEST_SIZE, Cancel, NewOrder, OrderType, Replace, TradeReport
from fairtape.exchange.outputs import (
    BUYER_TOOK,
    SELLER_TOOK,
    Cancelled,
    Execution,
    Output,
    Replaced,
    Sequenced,
    TentativeFill,
)
from fairtape.exchange.rules import Continuous, DutchClock
from fairtape.market.prices import ONE, Price, Quantity, format_sum
from fairtape.market.symbols import Symbol


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
    """All accounts, markets and open orders of a floor."""

    def __init__(self, *, commit_passes: int, limits: FloorLimits) -> None:
        self.limits = limits
        self.trades = TradeBook(commit_passes=commit_passes, reports_max=limits.reports_max)
        self.ledger = Ledger(accounts_max=limits.accounts_max, assets_max=limits.symbols_max)
        self.accounts: dict[str, FloorAccount] = {}
        self.markets: dict[Symbol, Market] = {}
        self.outputs: list[Output] = []
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
