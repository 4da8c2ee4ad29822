"""What a trader learns about its orders, as the sequence decides it.

Every event and its number follow from the sequence alone, so all gateways give the same event the same number. A trader
who lost its connection resumes after the last number it received, at this gateway or another.

A Break revokes the numbers from some point on. An event therefore names its *era*: the formation of the last Break
before it, or 0.
"""

from enum import Enum
from typing import NamedTuple

from fairtape.core.instants import Instant
from fairtape.exchange.orders import OrderType, Side, TimeInForce
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import Symbol


class EventKind(Enum):
    SEQUENCED = "sequenced"  # the order is in the sequence, and its funds are reserved
    REPLACED = "replaced"
    FILLED = "filled"  # a tentative trade
    COMMITTED = "committed"  # that trade survives N failures, and is settled
    VOIDED = "voided"  # that trade is void: its token is lost
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FUNDED = "funded"


class RequestKind(Enum):
    """The kind of request that was rejected."""

    ORDER = "order"
    CANCEL = "cancel"
    REPLACE = "replace"
    OTHER = "other"


class OrderEvent(NamedTuple):
    """A change of one account's order, and the state of the order after it."""

    era: int
    number: int  # increases over all events of the sequence, so one account's numbers have gaps
    kind: EventKind
    account: str
    client_id: str  # the order's current client id; of a rejection, the one in the request
    order: int = 0  # its sequence number; 0 if it has none
    previous_id: str = ""  # the client id before a replace
    symbol: Symbol = ""
    side: Side = Side.BUY
    order_type: OrderType = OrderType.LIMIT
    time_in_force: TimeInForce = TimeInForce.DAY
    price: Price = 0
    stop_price: Price = 0
    quantity: Quantity = 0  # total
    filled: Quantity = 0
    open: Quantity = 0
    spent: int = 0  # price times quantity of all its fills, in units of 1e-18
    trade_id: int = 0
    last_price: Price = 0  # of this trade
    last_quantity: Quantity = 0  # of this trade, or cancelled; of funding, the amount
    took: bool = False  # whether it was the aggressor of this trade
    asked: RequestKind = RequestKind.OTHER
    stands: bool = False  # the request was rejected, but an order with this client id exists
    reason: str = ""
    at: Instant = 0  # instant of the token

    @property
    def average(self) -> Price:
        """The average price of its fills."""
        return self.spent // self.filled if self.filled else 0


class Cause(Enum):
    """Why a gateway refuses a request."""

    ACCOUNT = "account"
    SYMBOL = "symbol"
    VALUE = "value"
    DUPLICATE = "duplicate"
    ORDER = "order"  # no such order
    FUNDS = "funds"
    RATE = "rate"
    LIMIT = "limit"
    BUSY = "busy"


class Answer(NamedTuple):
    """The gateway's immediate answer to a request, before the sequence has decided."""

    gateway_number: int  # of the request that was entered; 0: it was refused
    cause: Cause | None = None
    reason: str = ""

    @property
    def entered(self) -> bool:
        return self.cause is None
