"""Outputs of a floor: the states of orders as the sequence decides them, trades, and evidence.

They are the same at every replica, in the same order. Gateways turn them into reports for their traders. `Printed` is a
committed trade in the form of the ticker.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.instants import Instant
from fairtape.exchange.orders import Side
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import SYMBOL_MAX, Symbol
from fairtape.market.trades import PublishedTrade, TradeFlag

BUYER_TOOK: Final = int(Side.BUY)
SELLER_TOOK: Final = int(Side.SELL)

_FLAGS: Final = {BUYER_TOOK: TradeFlag.BOUGHT, SELLER_TOOK: TradeFlag.SOLD}
_EXECUTION: Final = struct.Struct(f"<QQ{SYMBOL_MAX}sqqQQbq")


class Execution(NamedTuple):
    """A trade of the floor, with both sides."""

    trade_id: int  # counts from 1, without gaps
    token: int  # the token of the later order
    symbol: Symbol
    price: Price
    quantity: Quantity
    buy_order: int  # sequence numbers of the two orders
    sell_order: int
    buyer: str  # accounts
    seller: str
    buy_client_id: str
    sell_client_id: str
    aggressor: int  # Side of the taker; 0 in an auction
    traded_at: Instant  # instant of the token

    def to_bytes(self) -> bytes:
        """The input of the digest over a token's trades. Accounts are left out: they follow from the orders."""
        names = (self.trade_id, self.token, self.symbol.encode("ascii"), self.price, self.quantity)
        return _EXECUTION.pack(*names, self.buy_order, self.sell_order, self.aggressor, self.traded_at)


@dataclass(slots=True)
class Sequenced:
    """An order has its place in the sequence: every replica has accepted it there, and its funds are reserved."""

    number: int  # sequence number of the order
    source: int
    gateway_number: int
    account: str
    client_id: str


@dataclass(slots=True)
class Replaced:
    """An order has new terms."""

    number: int  # sequence number of the request
    source: int
    gateway_number: int
    order: int  # sequence number of the order
    account: str
    order_id: str  # its previous client id
    client_id: str  # its new client id
    price: Price
    open: Quantity  # left to trade when the request took effect


@dataclass(slots=True)
class Cancelled:
    """A quantity of an order was removed without a trade."""

    number: int  # sequence number of the message that was being applied
    order: int  # sequence number of the order
    account: str
    client_id: str
    quantity: Quantity
    open: Quantity  # what is left; above zero only if the order was reduced
    reason: str


@dataclass(slots=True)
class Rejected:
    """A request was refused and changed nothing."""

    number: int  # sequence number of the request
    source: int
    gateway_number: int  # 0 if the request could not be decoded
    account: str
    client_id: str
    reason: str


@dataclass(slots=True)
class TentativeFill:
    """A trade was made. It is final unless more sites fail than its commit waits for."""

    trade: Execution


@dataclass(slots=True)
class Committed:
    """A trade survives N failures from now on, and is settled in the ledger."""

    trade: Execution
    token: int  # the token whose passing committed it


@dataclass(slots=True)
class Printed:
    """A committed trade, for the ticker."""

    execution: Execution
    venue: str  # the venue name of the floor

    @property
    def trade(self) -> PublishedTrade:
        """The trade record, built on demand: most replicas never publish it."""
        made = self.execution
        flags = _FLAGS.get(made.aggressor, 0)
        amounts = (made.symbol, made.price, made.quantity, made.traded_at)
        return PublishedTrade(0, *amounts, made.trade_id, flags, self.venue)


@dataclass(slots=True)
class Voided:
    """A trade is void because its token is lost."""

    trade: Execution
    committed: bool  # it had committed, so more than N sites have failed


@dataclass(slots=True)
class SequenceBroken:
    """A Break: numbers from here on may have been used for other messages."""

    token: int
    sequence: int
    rebuild: bool  # this replica has applied lost tokens and must be rebuilt from its journal


@dataclass(slots=True)
class Evidence:
    """An arbiter's report differs from this replica's own computation."""

    number: int  # sequence number of the report
    reporter: int  # its source
    token: int
    field: str
    expected: str  # as this replica computed it
    found: str  # as reported


@dataclass(slots=True)
class Funded:
    """Cash or shares were deposited or withdrawn."""

    number: int
    account: str
    asset: str
    amount: int


@dataclass(slots=True)
class MarketChanged:
    """A market opened, changed its rule, halted, resumed, uncrossed or closed."""

    number: int
    symbol: Symbol
    what: str


FloorOutput: TypeAlias = (
    Sequenced
    | Replaced
    | Cancelled
    | Rejected
    | TentativeFill
    | Committed
    | Printed
    | Voided
    | SequenceBroken
    | Evidence
    | Funded
    | MarketChanged
)
