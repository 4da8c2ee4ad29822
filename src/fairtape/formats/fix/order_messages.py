"""Order entry in FIX 4.4: the messages of traders and the responses, as values.

They are independent of the exchange; the gateway translates. Conditions between fields that FIX states (a limit order
has a price, a stop order a stop price) are checked when a value is made.

Two fields are user-defined: the order's number in the unified sequence, and the certainty of a report, because a trade
is tentative before it is committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, TypeAlias, cast

from fairtape.formats.fix.codec import BadFix, FixMessage, Pair
from fairtape.formats.fix.dictionary import RejectReason
from fairtape.formats.fix.fields import FIXED, INSTANT, INTEGER, TEXT, CodeKind, FixField, FixLayout

SEQUENCE_TAG: Final = 20_001
CERTAINTY_TAG: Final = 20_002


class FixSide(Enum):
    """Side (54)."""

    BUY = "1"
    SELL = "2"
    SELL_SHORT = "5"
    SELL_SHORT_EXEMPT = "6"


class OrdType(Enum):
    """OrdType (40)."""

    MARKET = "1"
    LIMIT = "2"
    STOP = "3"
    STOP_LIMIT = "4"


class FixTimeInForce(Enum):
    """TimeInForce (59)."""

    DAY = "0"
    GOOD_TILL_CANCEL = "1"
    AT_THE_OPENING = "2"
    IMMEDIATE_OR_CANCEL = "3"
    FILL_OR_KILL = "4"
    GOOD_TILL_DATE = "6"
    AT_THE_CLOSE = "7"


class ExecType(Enum):
    """ExecType (150): what a report is about."""

    NEW = "0"
    DONE_FOR_DAY = "3"
    CANCELED = "4"
    REPLACED = "5"
    PENDING_CANCEL = "6"
    STOPPED = "7"
    REJECTED = "8"
    SUSPENDED = "9"
    PENDING_NEW = "A"
    CALCULATED = "B"
    EXPIRED = "C"
    RESTATED = "D"
    PENDING_REPLACE = "E"
    TRADE = "F"
    TRADE_CORRECT = "G"
    TRADE_CANCEL = "H"
    ORDER_STATUS = "I"


class OrdStatus(Enum):
    """OrdStatus (39): the current state of the order."""

    NEW = "0"
    PARTIALLY_FILLED = "1"
    FILLED = "2"
    DONE_FOR_DAY = "3"
    CANCELED = "4"
    REPLACED = "5"
    PENDING_CANCEL = "6"
    STOPPED = "7"
    REJECTED = "8"
    SUSPENDED = "9"
    PENDING_NEW = "A"
    CALCULATED = "B"
    EXPIRED = "C"
    ACCEPTED_FOR_BIDDING = "D"
    PENDING_REPLACE = "E"


class OrdRejReason(Enum):
    """OrdRejReason (103)."""

    BROKER_OPTION = 0
    UNKNOWN_SYMBOL = 1
    EXCHANGE_CLOSED = 2
    EXCEEDS_LIMIT = 3
    TOO_LATE = 4
    UNKNOWN_ORDER = 5
    DUPLICATE_ORDER = 6
    STALE_ORDER = 8
    UNSUPPORTED = 11
    INCORRECT_QUANTITY = 13
    UNKNOWN_ACCOUNT = 15
    OTHER = 99


class CxlRejReason(Enum):
    """CxlRejReason (102)."""

    TOO_LATE = 0
    UNKNOWN_ORDER = 1
    BROKER_OPTION = 2
    ALREADY_PENDING = 3
    DUPLICATE_ID = 6
    OTHER = 99


class CxlRejResponseTo(Enum):
    """CxlRejResponseTo (434)."""

    CANCEL = "1"
    REPLACE = "2"


class Certainty(Enum):
    """How certain a report is."""

    TENTATIVE = "T"  # computed by the arbiter, not yet committed
    COMMITTED = "C"  # survives the failures that the deployment tolerates


Account: TypeAlias = Annotated[str, FixField(1, TEXT)]
AvgPx: TypeAlias = Annotated[int, FixField(6, FIXED)]
ClOrdId: TypeAlias = Annotated[str, FixField(11, TEXT)]
CumQty: TypeAlias = Annotated[int, FixField(14, FIXED)]
ExecId: TypeAlias = Annotated[str, FixField(17, TEXT)]
ExecInst: TypeAlias = Annotated[str, FixField(18, TEXT)]
LastMkt: TypeAlias = Annotated[str, FixField(30, TEXT)]
LastPx: TypeAlias = Annotated[int, FixField(31, FIXED)]
LastQty: TypeAlias = Annotated[int, FixField(32, FIXED)]
OrderId: TypeAlias = Annotated[str, FixField(37, TEXT)]
OrderQty: TypeAlias = Annotated[int, FixField(38, FIXED)]
Status: TypeAlias = Annotated[OrdStatus, FixField(39, CodeKind(OrdStatus))]
Type: TypeAlias = Annotated[OrdType, FixField(40, CodeKind(OrdType))]
OrigClOrdId: TypeAlias = Annotated[str, FixField(41, TEXT)]
Price: TypeAlias = Annotated[int, FixField(44, FIXED)]
SideOf: TypeAlias = Annotated[FixSide, FixField(54, CodeKind(FixSide))]
Symbol: TypeAlias = Annotated[str, FixField(55, TEXT)]
FreeText: TypeAlias = Annotated[str, FixField(58, TEXT)]
Force: TypeAlias = Annotated[FixTimeInForce, FixField(59, CodeKind(FixTimeInForce))]
TransactAt: TypeAlias = Annotated[int, FixField(60, INSTANT)]
StopPx: TypeAlias = Annotated[int, FixField(99, FIXED)]
ExDestination: TypeAlias = Annotated[str, FixField(100, TEXT)]
MinQty: TypeAlias = Annotated[int, FixField(110, FIXED)]
ExpireAt: TypeAlias = Annotated[int, FixField(126, INSTANT)]


def _check_prices(order: "NewOrderSingle | OrderCancelReplaceRequest") -> None:
    """Check the prices that the order type requires, and the quantity."""
    if order.ord_type in (OrdType.LIMIT, OrdType.STOP_LIMIT) and order.price is None:
        raise _missing(44, f"price is missing; an order of type {order.ord_type.name} must have one")
    if order.ord_type in (OrdType.STOP, OrdType.STOP_LIMIT) and order.stop_px is None:
        raise _missing(99, f"stop_px is missing; an order of type {order.ord_type.name} must have one")
    if order.time_in_force is FixTimeInForce.GOOD_TILL_DATE and order.expire_at is None:
        raise _missing(126, "expire_at is missing; an order that is good till a date must have one")
    if order.order_qty <= 0:
        raise BadFix.of(RejectReason.VALUE_INCORRECT, 38, f"order_qty is {order.order_qty}; it must be more than 0")


def _missing(tag: int, text: str) -> BadFix:
    return BadFix.of(RejectReason.REQUIRED_TAG_MISSING, tag, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOrderSingle:
    """A new order (D)."""

    MSG_TYPE: ClassVar[bytes] = b"D"

    cl_ord_id: ClOrdId
    account: Account | None = None
    exec_inst: ExecInst | None = None  # 6: post only (participate, do not initiate)
    ex_destination: ExDestination | None = None  # one venue; all, if absent
    symbol: Symbol
    side: SideOf
    transact_at: TransactAt
    order_qty: OrderQty
    min_qty: MinQty | None = None
    ord_type: Type
    price: Price | None = None
    stop_px: StopPx | None = None
    time_in_force: Force | None = None  # the day, if absent
    expire_at: ExpireAt | None = None
    text: FreeText | None = None

    def __post_init__(self) -> None:
        _check_prices(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCancelRequest:
    """Cancel an order (F)."""

    MSG_TYPE: ClassVar[bytes] = b"F"

    orig_cl_ord_id: OrigClOrdId
    order_id: OrderId | None = None
    cl_ord_id: ClOrdId
    account: Account | None = None
    symbol: Symbol
    side: SideOf
    transact_at: TransactAt
    order_qty: OrderQty | None = None
    text: FreeText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCancelReplaceRequest:
    """Change the price or the quantity of an order (G)."""

    MSG_TYPE: ClassVar[bytes] = b"G"

    order_id: OrderId | None = None
    orig_cl_ord_id: OrigClOrdId
    cl_ord_id: ClOrdId
    account: Account | None = None
    exec_inst: ExecInst | None = None
    ex_destination: ExDestination | None = None
    symbol: Symbol
    side: SideOf
    transact_at: TransactAt
    order_qty: OrderQty
    min_qty: MinQty | None = None
    ord_type: Type
    price: Price | None = None
    stop_px: StopPx | None = None
    time_in_force: Force | None = None
    expire_at: ExpireAt | None = None
    text: FreeText | None = None

    def __post_init__(self) -> None:
        _check_prices(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStatusRequest:
    """Asks for the state of an order (H)."""

    MSG_TYPE: ClassVar[bytes] = b"H"

    order_id: OrderId | None = None
    cl_ord_id: ClOrdId
    account: Account | None = None
    symbol: Symbol
    side: SideOf


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReport:
    """A change of an order, or its state (8)."""

    MSG_TYPE: ClassVar[bytes] = b"8"

    order_id: OrderId
    cl_ord_id: ClOrdId | None = None
    orig_cl_ord_id: OrigClOrdId | None = None
    exec_id: ExecId
    exec_ref_id: Annotated[str, FixField(19, TEXT)] | None = None  # the report that this one corrects or cancels
    exec_type: Annotated[ExecType, FixField(150, CodeKind(ExecType))]
    ord_status: Status
    ord_rej_reason: Annotated[OrdRejReason, FixField(103, CodeKind(OrdRejReason))] | None = None
    account: Account | None = None
    symbol: Symbol
    side: SideOf
    order_qty: OrderQty | None = None
    ord_type: Type | None = None
    price: Price | None = None
    stop_px: StopPx | None = None
    time_in_force: Force | None = None
    last_qty: LastQty | None = None
    last_px: LastPx | None = None
    last_mkt: LastMkt | None = None
    leaves_qty: Annotated[int, FixField(151, FIXED)]
    cum_qty: CumQty
    avg_px: AvgPx
    transact_at: TransactAt | None = None
    text: FreeText | None = None
    sequence: Annotated[int, FixField(SEQUENCE_TAG, INTEGER)] | None = None  # in the unified order
    certainty: Annotated[Certainty, FixField(CERTAINTY_TAG, CodeKind(Certainty))] | None = None

    def __post_init__(self) -> None:
        if self.exec_type in (ExecType.TRADE, ExecType.TRADE_CORRECT):
            if self.last_qty is None:
                raise _missing(32, "last_qty is missing; a report of a trade must have one")
            if self.last_px is None:
                raise _missing(31, "last_px is missing; a report of a trade must have one")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCancelReject:
    """A cancel or a replace was rejected (9)."""

    MSG_TYPE: ClassVar[bytes] = b"9"

    order_id: OrderId
    cl_ord_id: ClOrdId
    orig_cl_ord_id: OrigClOrdId
    ord_status: Status
    account: Account | None = None
    transact_at: TransactAt | None = None
    response_to: Annotated[CxlRejResponseTo, FixField(434, CodeKind(CxlRejResponseTo))]
    reason: Annotated[CxlRejReason, FixField(102, CodeKind(CxlRejReason))] | None = None
    text: FreeText | None = None


OrderEntry: TypeAlias = (
    NewOrderSingle
    | OrderCancelRequest
    | OrderCancelReplaceRequest
    | OrderStatusRequest
    | ExecutionReport
    | OrderCancelReject
)
LAYOUTS: Final[Mapping[bytes, FixLayout[OrderEntry]]] = MappingProxyType(
    {
        each.MSG_TYPE: cast(FixLayout[OrderEntry], FixLayout.of(each))
        for each in (
            NewOrderSingle,
            OrderCancelRequest,
            OrderCancelReplaceRequest,
            OrderStatusRequest,
            ExecutionReport,
            OrderCancelReject,
        )
    }
)
FROM_TRADERS: Final = frozenset({b"D", b"F", b"G", b"H"})


def read(message: FixMessage) -> OrderEntry:
    """The value of a message of order entry. Raises `BadFix` with a flaw for anything else."""
    layout = LAYOUTS.get(message.msg_type)
    if layout is None:
        shown = message.msg_type.decode("ascii", "backslashreplace")
        raise BadFix.of(RejectReason.INVALID_MSG_TYPE, 35, f"type {shown} is no message of order entry")
    return layout.read(message)


def write(value: OrderEntry) -> list[Pair]:
    """The fields of a value, from its type on. Raises `BadFix` where it cannot be encoded."""
    return list(LAYOUTS[value.MSG_TYPE].write(value))
