"""Nasdaq OUCH 4.2: order entry as short messages of fixed layout, carried by SoupBinTCP.

Version 4.2 and not 5.0: its messages have one layout each, so they are described as those of ITCH are, an order is
named by a token of its owner's choice (which is a replay's identity), and it is what most tools speak. 5.0 adds
appendages of optional fields that this market has no use for.

A client sends what stands in `INBOUND` as unsequenced data and gets what stands in `OUTBOUND` as sequenced data. Two
letters (M, U) mean different messages in the two directions, so a reader says which one it reads. Codes are kept as
the letters that they are. A Price4 has 4 decimals as an integer; times are nanoseconds since midnight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, TypeAlias, cast

from fairtape.core.errors import FormatError
from fairtape.formats.fixed_layout import U32, U64, Layout, Letter, Price4, Text, Text4, Text8

Token: TypeAlias = Annotated[str, Text(14)]

MARKET_PRICE: Final = 2_000_000_000  # $200,000.0000 says: at any price
SHARES_MAX: Final = 1_000_000  # of one order: fewer than this
IMMEDIATE: Final = 0  # times in force, in seconds; the largest ones are names
MARKET_HOURS: Final = 99_998
SYSTEM_HOURS: Final = 99_999


class BadOuch(FormatError):
    """Bytes that are no message of OUCH 4.2, or values that no message can carry."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """What a client says."""

    LETTER: ClassVar[str] = ""

    def __post_init__(self) -> None:
        INBOUND[self.LETTER].check(self)


@dataclass(frozen=True, slots=True)
class EnterOrder(Inbound):
    """A new order. A token that was used before is ignored, so an order may be sent again without harm."""

    LETTER = "O"
    order_token: Token
    side: Letter  # B: buy; S: sell; T: sell short; E: sell short, exempt
    shares: U32
    stock: Text8
    price: Price4
    time_in_force: U32
    firm: Text4
    display: Letter  # Y: anonymous; A: attributable; N: hidden; P: post only; and others
    capacity: Letter  # A: agency; P: principal; R: riskless; O: other
    intermarket_sweep: Letter
    minimum_quantity: U32
    cross_type: Letter  # N: continuous; O, C, H, …: the crosses
    customer_type: Letter


@dataclass(frozen=True, slots=True)
class ReplaceOrder(Inbound):
    """Another price or size for an order, under another token; it loses its place."""

    LETTER = "U"
    existing_token: Token
    replacement_token: Token
    shares: U32
    price: Price4
    time_in_force: U32
    display: Letter
    intermarket_sweep: Letter
    minimum_quantity: U32


@dataclass(frozen=True, slots=True)
class CancelOrder(Inbound):
    """Leave at most this many shares of an order; 0 leaves none."""

    LETTER = "X"
    order_token: Token
    shares: U32


@dataclass(frozen=True, slots=True)
class ModifyOrder(Inbound):
    """Another side among the sells, or fewer shares, in the same place."""

    LETTER = "M"
    order_token: Token
    side: Letter
    shares: U32


@dataclass(frozen=True, slots=True)
class TradeNow(Inbound):
    """A resting hidden order shall take what it can."""

    LETTER = "N"
    order_token: Token


@dataclass(frozen=True, slots=True)
class Outbound:
    """What the market says, and when."""

    LETTER: ClassVar[str] = ""

    timestamp_ns: U64  # since midnight

    def __post_init__(self) -> None:
        OUTBOUND[self.LETTER].check(self)


@dataclass(frozen=True, slots=True)
class SystemEvent(Outbound):
    """The beginning or the end of the day."""

    LETTER = "S"
    event_code: Letter  # S: start of day; E: end of day


@dataclass(frozen=True, slots=True)
class Accepted(Outbound):
    """An order is in the market, as it stands here: it may differ from what was asked for."""

    LETTER = "A"
    order_token: Token
    side: Letter
    shares: U32
    stock: Text8
    price: Price4
    time_in_force: U32
    firm: Text4
    display: Letter
    order_reference: U64  # the market's own name of the order
    capacity: Letter
    intermarket_sweep: Letter
    minimum_quantity: U32
    cross_type: Letter
    order_state: Letter  # L: live; D: dead, it was accepted and is over
    bbo_weight: Letter


@dataclass(frozen=True, slots=True)
class Replaced(Outbound):
    """An order took another's place."""

    LETTER = "U"
    replacement_token: Token
    side: Letter
    shares: U32
    stock: Text8
    price: Price4
    time_in_force: U32
    firm: Text4
    display: Letter
    order_reference: U64
    capacity: Letter
    intermarket_sweep: Letter
    minimum_quantity: U32
    cross_type: Letter
    order_state: Letter
    previous_token: Token
    bbo_weight: Letter


@dataclass(frozen=True, slots=True)
class Canceled(Outbound):
    """Shares were taken out of an order; the rest lives."""

    LETTER = "C"
    order_token: Token
    decrement_shares: U32
    reason: Letter  # U: the owner's wish; I: immediate or cancel; T: time; S: supervision; Q: self-match; and others


@dataclass(frozen=True, slots=True)
class AiqCanceled(Outbound):
    """Shares were taken out of an order that would have traded with its owner's own."""

    LETTER = "D"
    order_token: Token
    decrement_shares: U32
    reason: Letter
    quantity_prevented: U32
    execution_price: Price4
    liquidity_flag: Letter


@dataclass(frozen=True, slots=True)
class Executed(Outbound):
    """Some or all of an order traded."""

    LETTER = "E"
    order_token: Token
    executed_shares: U32
    execution_price: Price4
    liquidity_flag: Letter  # A: added; R: removed; and others
    match_number: U64


@dataclass(frozen=True, slots=True)
class ExecutedWithReferencePrice(Outbound):
    """Some or all of an order traded at a price that follows from another one."""

    LETTER = "G"
    order_token: Token
    executed_shares: U32
    execution_price: Price4
    liquidity_flag: Letter
    match_number: U64
    reference_price: Price4
    reference_price_type: Letter


@dataclass(frozen=True, slots=True)
class BrokenTrade(Outbound):
    """A trade never was."""

    LETTER = "B"
    order_token: Token
    match_number: U64
    reason: Letter


@dataclass(frozen=True, slots=True)
class TradeCorrection(Outbound):
    """A trade was another one."""

    LETTER = "F"
    order_token: Token
    executed_shares: U32
    execution_price: Price4
    liquidity_flag: Letter
    match_number: U64
    reason: Letter


@dataclass(frozen=True, slots=True)
class Rejected(Outbound):
    """An order is not in the market; its token is used up."""

    LETTER = "J"
    order_token: Token
    reason: Letter


@dataclass(frozen=True, slots=True)
class CancelPending(Outbound):
    """A cancel waits, because the order takes part in a cross."""

    LETTER = "P"
    order_token: Token


@dataclass(frozen=True, slots=True)
class CancelReject(Outbound):
    """A cancel does not happen."""

    LETTER = "I"
    order_token: Token


@dataclass(frozen=True, slots=True)
class OrderPriorityUpdate(Outbound):
    """An order has another place in the book."""

    LETTER = "T"
    order_token: Token
    price: Price4
    display: Letter
    order_reference: U64


@dataclass(frozen=True, slots=True)
class OrderModified(Outbound):
    """An order was modified as asked for."""

    LETTER = "M"
    order_token: Token
    side: Letter
    shares: U32


@dataclass(frozen=True, slots=True)
class TradeNowReceived(Outbound):
    """A resting hidden order takes what it can."""

    LETTER = "N"
    order_token: Token


Message: TypeAlias = Inbound | Outbound
_FROM_CLIENT: Final = (EnterOrder, ReplaceOrder, CancelOrder, ModifyOrder, TradeNow)
_FROM_MARKET: Final = (
    SystemEvent,
    Accepted,
    Replaced,
    Canceled,
    AiqCanceled,
    Executed,
    ExecutedWithReferencePrice,
    BrokenTrade,
    TradeCorrection,
    Rejected,
    CancelPending,
    CancelReject,
    OrderPriorityUpdate,
    OrderModified,
    TradeNowReceived,
)

INBOUND: Final[Mapping[str, Layout]] = MappingProxyType(
    {message.LETTER: Layout.of(message, BadOuch) for message in _FROM_CLIENT}
)
OUTBOUND: Final[Mapping[str, Layout]] = MappingProxyType(
    {message.LETTER: Layout.of(message, BadOuch) for message in _FROM_MARKET}
)


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    layouts = INBOUND if isinstance(message, Inbound) else OUTBOUND
    return layouts[message.LETTER].encode(message)


def decode_inbound(payload: bytes) -> Inbound:
    """The message that a client sent. Raises `BadOuch` for anything else."""
    return cast(Inbound, _layout(INBOUND, payload).decode(payload))


def decode_outbound(payload: bytes) -> Outbound:
    """The message that the market sent. Raises `BadOuch` for anything else."""
    return cast(Outbound, _layout(OUTBOUND, payload).decode(payload))


def _layout(layouts: Mapping[str, Layout], payload: bytes) -> Layout:
    letter = payload[:1].decode("latin-1")
    if letter not in layouts:
        raise BadOuch(f"type is {letter!r}; it must be one of {''.join(layouts)}")
    return layouts[letter]
