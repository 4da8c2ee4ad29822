"""What a floor says: the states of orders as the sequence proves them, trades, and evidence.

The same at every replica, in the same order. Gateways turn them into what their traders hear; the arbiter's site
publishes what is meant for the ticker.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.instants import Instant
from fairtape.exchange.orders import Side
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import SYMBOL_MAX, Symbol
from fairtape.market.trades import Trade, TradeFlag

BUYER_TOOK: Final = int(Side.BUY)
SELLER_TOOK: Final = int(Side.SELL)

_FLAGS: Final = {BUYER_TOOK: TradeFlag.BOUGHT, SELLER_TOOK: TradeFlag.SOLD}
_EXECUTION: Final = struct.Struct(f"<QQ{SYMBOL_MAX}sqqQQbq")


class Execution(NamedTuple):
    """A trade of the floor, with both its sides."""

    trade_id: int  # counts from 1, without holes
    token: int  # that put the later order into the sequence
    symbol: Symbol
    price: Price
    quantity: Quantity
    buy_order: int  # the sequence numbers of the two orders
    sell_order: int
    buyer: str  # the accounts
    seller: str
    buy_client_id: str
    sell_client_id: str
    aggressor: int  # Side of the one who took; 0 in an auction
    traded_at: Instant  # of the token

    def to_bytes(self) -> bytes:
        """What goes into the digest of a token's trades. The accounts follow from the orders."""
        names = (self.trade_id, self.token, self.symbol.encode("ascii"), self.price, self.quantity)
        return _EXECUTION.pack(*names, self.buy_order, self.sell_order, self.aggressor, self.traded_at)


@dataclass(slots=True)
class Sequenced:
    """An order has its place: every replica accepted it there, and its funds are reserved."""

    number: int  # its place in the sequence
    source: int
    gateway_number: int
    account: str
    client_id: str


@dataclass(slots=True)
class Replaced:
    """An order has new terms."""

    number: int  # of the request
    source: int
    gateway_number: int
    order: int  # the sequence number of the order
    account: str
    order_id: str  # the client id it had
    client_id: str  # and has
    price: Price
    open: Quantity  # what was left to trade when the request took effect


@dataclass(slots=True)
class Cancelled:
    """So much of an order is gone without a trade."""

    number: int  # of the message that was being applied
    order: int  # the sequence number of the order
    account: str
    client_id: str
    quantity: Quantity
    open: Quantity  # what is left: above zero only where an order was reduced
    reason: str


@dataclass(slots=True)
class Rejected:
    """A request changed nothing."""

    number: int  # its place in the sequence
    source: int
    gateway_number: int  # 0 where the request could not be read
    account: str
    client_id: str
    reason: str


@dataclass(slots=True)
class TentativeFill:
    """A trade was made. It holds unless more sites fail than its commit waits for."""

    trade: Execution


@dataclass(slots=True)
class Committed:
    """A trade outlives N failures from here on, and is settled in the ledger."""

    trade: Execution
    token: int  # that had passed


@dataclass(slots=True)
class Printed:
    """A committed trade, for the ticker."""

    execution: Execution
    venue: str  # the name under which the floor prints

    @property
    def trade(self) -> Trade:
        """The record, made when it is asked for: most replicas never publish it."""
        made = self.execution
        flags = _FLAGS.get(made.aggressor, 0)
        amounts = (made.symbol, made.price, made.quantity, made.traded_at)
        return Trade(0, *amounts, made.trade_id, flags, self.venue)


@dataclass(slots=True)
class Voided:
    """A trade never was: its token is lost."""

    trade: Execution
    committed: bool  # it had been called committed, which takes more than N failures


@dataclass(slots=True)
class Broken:
    """From this number on the sequence may have been used otherwise."""

    token: int
    sequence: int
    rebuild: bool  # this replica has applied lost tokens, and must be rebuilt from its journal


@dataclass(slots=True)
class Evidence:
    """An arbiter's report differs from this replica's own computation."""

    number: int  # the report's place in the sequence
    reporter: int  # its source
    token: int
    field: str
    expected: str  # what this replica computed
    found: str  # what the report says


@dataclass(slots=True)
class Funded:
    """Cash or shares came from outside, or went there."""

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


Output: TypeAlias = (
    Sequenced
    | Replaced
    | Cancelled
    | Rejected
    | TentativeFill
    | Committed
    | Printed
    | Voided
    | Broken
    | Evidence
    | Funded
    | MarketChanged
)
