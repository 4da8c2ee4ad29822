"""Nasdaq OUCH 4.2: order entry with short messages of fixed layout, carried by SoupBinTCP.

Version 4.2 rather than 5.0: each message has one layout, so it is described like ITCH; an order is identified by a
token of its owner's choice, which makes a repeated order detectable; and most tools support it. 5.0 adds appendages of
optional fields, which this market does not use.

A client sends the messages of `INBOUND` as unsequenced data and receives those of `OUTBOUND` as sequenced data. Two
letters (M, U) mean different messages in the two directions, so there is a decoder for each direction. Codes are kept
as letters. A Price4 is an integer with 4 decimals; times are nanoseconds since midnight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, TypeAlias, cast

from fairtape.core.errors import FormatError
from fairtape.formats.fixed_layout import U32, U64, Layout, Letter, Price4, Text, Text4, Text8

Token: TypeAlias = Annotated[str, Text(14)]

MARKET_PRICE: Final = 2_000_000_000  # $200,000.0000 means a market order
IMMEDIATE: Final = 0  # time in force in seconds; the largest values have a special meaning
MARKET_HOURS: Final = 99_998
SYSTEM_HOURS: Final = 99_999


class BadOuch(FormatError):
    """Bytes that are no OUCH 4.2 message, or values that cannot be encoded."""


@dataclass(frozen=True, slots=True)
class Inbound:
    """A message of a client."""

    LETTER: ClassVar[str] = ""

    def __post_init__(self) -> None:
        INBOUND[self.LETTER].check(self)


@dataclass(frozen=True, slots=True)
class EnterOrder(Inbound):
    """A new order. Idempotent: an order whose token was used before is ignored."""

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
    """Replace an order by one with another price or size and a new token; it loses its priority."""

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
    """Reduce an order to at most this many shares; 0 cancels it."""

    LETTER = "X"
    order_token: Token
    shares: U32


@dataclass(frozen=True, slots=True)
class ModifyOrder(Inbound):
    """Change the kind of sell side, or reduce the shares; the order keeps its priority."""

    LETTER = "M"
    order_token: Token
    side: Letter
    shares: U32


@dataclass(frozen=True, slots=True)
class TradeNow(Inbound):
    """Let a resting hidden order execute against the book."""

    LETTER = "N"
    order_token: Token


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message of the market, with its time."""

    LETTER: ClassVar[str] = ""

    timestamp_ns: U64  # since midnight

    def __post_init__(self) -> None:
        OUTBOUND[self.LETTER].check(self)


@dataclass(frozen=True, slots=True)
class SystemEvent(Outbound):
    """The start or the end of the day."""

    LETTER = "S"
    event_code: Letter  # S: start of day; E: end of day


@dataclass(frozen=True, slots=True)
class Accepted(Outbound):
    """An order was accepted with these values, which may differ from the request."""

    LETTER = "A"
    order_token: Token
    side: Letter
    shares: U32
    stock: Text8
    price: Price4
    time_in_force: U32
    firm: Text4
    display: Letter
    order_reference: U64  # the market's number of the order
    capacity: Letter
    intermarket_sweep: Letter
    minimum_quantity: U32
    cross_type: Letter
    order_state: Letter  # L: live; D: dead, accepted and already done
    bbo_weight: Letter


@dataclass(frozen=True, slots=True)
class OuchReplaced(Outbound):
    """An order was replaced."""

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
class OuchCanceled(Outbound):
    """Shares of an order were canceled; the rest stays."""

    LETTER = "C"
    order_token: Token
    decrement_shares: U32
    reason: (
        Letter  # U: requested by the user; I: immediate or cancel; T: timeout; S: supervisory; Q: self-match; others
    )


@dataclass(frozen=True, slots=True)
class AiqCanceled(Outbound):
    """Shares were canceled to prevent a trade of the owner with itself (anti-internalization)."""

    LETTER = "D"
    order_token: Token
    decrement_shares: U32
    reason: Letter
    quantity_prevented: U32
    execution_price: Price4
    liquidity_flag: Letter


@dataclass(frozen=True, slots=True)
class Executed(Outbound):
    """An order was executed, in whole or in part."""

    LETTER = "E"
    order_token: Token
    executed_shares: U32
    execution_price: Price4
    liquidity_flag: Letter  # A: added; R: removed; and others
    match_number: U64


@dataclass(frozen=True, slots=True)
class ExecutedWithReferencePrice(Outbound):
    """An order was executed at a price derived from a reference price."""

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
    """A trade is void."""

    LETTER = "B"
    order_token: Token
    match_number: U64
    reason: Letter


@dataclass(frozen=True, slots=True)
class TradeCorrection(Outbound):
    """A trade was corrected."""

    LETTER = "F"
    order_token: Token
    executed_shares: U32
    execution_price: Price4
    liquidity_flag: Letter
    match_number: U64
    reason: Letter


@dataclass(frozen=True, slots=True)
class OuchRejected(Outbound):
    """An order was rejected; its token cannot be used again."""

    LETTER = "J"
    order_token: Token
    reason: Letter


@dataclass(frozen=True, slots=True)
class CancelPending(Outbound):
    """A cancel is pending, because the order takes part in a cross."""

    LETTER = "P"
    order_token: Token


@dataclass(frozen=True, slots=True)
class CancelReject(Outbound):
    """A cancel was rejected."""

    LETTER = "I"
    order_token: Token


@dataclass(frozen=True, slots=True)
class OrderPriorityUpdate(Outbound):
    """An order has another priority in the book."""

    LETTER = "T"
    order_token: Token
    price: Price4
    display: Letter
    order_reference: U64


@dataclass(frozen=True, slots=True)
class OrderModified(Outbound):
    """An order was modified as requested."""

    LETTER = "M"
    order_token: Token
    side: Letter
    shares: U32


@dataclass(frozen=True, slots=True)
class TradeNowReceived(Outbound):
    """A `TradeNow` request was received."""

    LETTER = "N"
    order_token: Token


Message: TypeAlias = Inbound | Outbound
_FROM_CLIENT: Final = (EnterOrder, ReplaceOrder, CancelOrder, ModifyOrder, TradeNow)
_FROM_MARKET: Final = (
    SystemEvent,
    Accepted,
    OuchReplaced,
    OuchCanceled,
    AiqCanceled,
    Executed,
    ExecutedWithReferencePrice,
    BrokenTrade,
    TradeCorrection,
    OuchRejected,
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
    """The message of a client. Raises `BadOuch` for anything else."""
    return cast(Inbound, _layout(INBOUND, payload).decode(payload))


def decode_outbound(payload: bytes) -> Outbound:
    """The message of the market. Raises `BadOuch` for anything else."""
    return cast(Outbound, _layout(OUTBOUND, payload).decode(payload))


def _layout(layouts: Mapping[str, Layout], payload: bytes) -> Layout:
    letter = payload[:1].decode("latin-1")
    if letter not in layouts:
        raise BadOuch(f"type is {letter!r}; it must be one of {''.join(layouts)}")
    return layouts[letter]
