"""What a trader hears of its orders, as the sequence proves it.

Every event follows from the sequence alone and carries a number that does, too: all gateways give the same event the
same number. So a trader who lost its connection goes on after the last number it heard, at this gateway or another.

A Break takes the numbers from some place on back. An event therefore says in which *era* it was made: the formation
of the last Break before it, or 0.
"""

from enum import Enum
from typing import NamedTuple

from fairtape.core.instants import Instant
from fairtape.exchange.orders import OrderType, Side, TimeInForce
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import Symbol


class EventKind(Enum):
    """What happened."""

    SEQUENCED = "sequenced"  # the order has its place, and its funds are reserved
    REPLACED = "replaced"
    FILLED = "filled"  # a tentative trade
    COMMITTED = "committed"  # that trade outlives N failures, and is settled
    VOIDED = "voided"  # that trade never was: its token is lost
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FUNDED = "funded"


class Asked(Enum):
    """What kind of request was rejected."""

    ORDER = "order"
    CANCEL = "cancel"
    REPLACE = "replace"
    OTHER = "other"


class OrderEvent(NamedTuple):
    """One thing that became of one account's order, and how the order stands after it."""

    era: int
    number: int  # rises; of all events of the sequence, so one account's numbers have holes
    kind: EventKind
    account: str
    client_id: str  # the order's name, as it is now; of a rejection, the name in the request
    order: int = 0  # its place in the sequence; 0 where it has none
    previous_id: str = ""  # the name before a replace
    symbol: Symbol = ""
    side: Side = Side.BUY
    order_type: OrderType = OrderType.LIMIT
    time_in_force: TimeInForce = TimeInForce.DAY
    price: Price = 0
    stop_price: Price = 0
    quantity: Quantity = 0  # whole
    filled: Quantity = 0
    open: Quantity = 0
    spent: int = 0  # price times quantity of all its fills, in units of 1e-18
    trade_id: int = 0
    last_price: Price = 0  # of this trade
    last_quantity: Quantity = 0  # of this trade, or of what was cancelled; of funding, the amount
    took: bool = False  # it was the aggressor of this trade
    asked: Asked = Asked.OTHER
    stands: bool = False  # a request was rejected, but an order of that name stands
    reason: str = ""
    at: Instant = 0  # of the token

    @property
    def average(self) -> Price:
        """The average price of its fills."""
        return self.spent // self.filled if self.filled else 0


class Cause(Enum):
    """Why a gateway does not enter a request."""

    ACCOUNT = "account"
    SYMBOL = "symbol"
    VALUE = "value"
    DUPLICATE = "duplicate"
    ORDER = "order"  # there is no such order
    FUNDS = "funds"
    RATE = "rate"
    LIMIT = "limit"
    BUSY = "busy"


class Answer(NamedTuple):
    """The gateway's own word, before the sequence has spoken."""

    gateway_number: int  # of the request that was entered; 0: it was not
    cause: Cause | None = None
    reason: str = ""

    @property
    def entered(self) -> bool:
        """Whether the request is on its way into the sequence."""
        return self.cause is None
