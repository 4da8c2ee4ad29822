"""Nasdaq TotalView-ITCH 5.0: every message of the feed, described once.

Each class is one message type; its annotations are its layout, and values that cannot be encoded are refused. `decode`
and `encode` convert single messages; whole files are converted by `columns`, which is derived from the same classes.

Times are nanoseconds since midnight of the exchange's day. A Price4 is an integer with 4 decimals, a Price8 with 8.
Codes (a side, a reason, a state) are kept as letters: the exchange adds new ones, and a reader that refused them would
fail on that day. Their meanings are in the exchange's specification, whose names and order the fields follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

from fairtape.core.errors import FormatError
from fairtape.formats.fixed_layout import U16, U32, U48, U64, Layout, Letter, Price4, Price8, Text2, Text4, Text8

TIMESTAMP_MAX: Final = (1 << 48) - 1
LOCATE_MAX: Final = (1 << 16) - 1
STOCK_MAX: Final = 8  # characters of a symbol
PRICE_UNIT: Final = 10**5  # of a Price4, in units of 1e-9


class BadItch(FormatError):
    """Bytes that are no ITCH 5.0 message, or values that cannot be encoded."""


@dataclass(frozen=True, slots=True)
class ItchMessage:
    """The common head of all messages, after the letter."""

    LETTER: ClassVar[str] = ""

    stock_locate: U16  # the day's number of a stock; 0 where the message has none
    tracking_number: U16  # internal to the exchange
    timestamp_ns: U48  # since midnight

    def __post_init__(self) -> None:
        LAYOUTS[self.LETTER].check(self)


@dataclass(frozen=True, slots=True)
class ItchSystemEvent(ItchMessage):
    """Start and end of messages, of system hours and of market hours."""

    LETTER = "S"
    event_code: Letter  # O and C: start and end of messages; S and E: of system hours; Q and M: of market hours


@dataclass(frozen=True, slots=True)
class StockDirectory(ItchMessage):
    """A stock and its locate, for this day."""

    LETTER = "R"
    stock: Text8
    market_category: Letter
    financial_status: Letter
    round_lot_size: U32
    round_lots_only: Letter
    issue_classification: Letter
    issue_subtype: Text2
    authenticity: Letter  # P: live; T: a test
    short_sale_threshold: Letter
    ipo_flag: Letter
    luld_tier: Letter
    etp_flag: Letter
    etp_leverage_factor: U32
    inverse_indicator: Letter


@dataclass(frozen=True, slots=True)
class StockTradingAction(ItchMessage):
    """A stock is halted, paused, quoted only, or trades."""

    LETTER = "H"
    stock: Text8
    trading_state: Letter
    reserved: Letter
    reason: Text4


@dataclass(frozen=True, slots=True)
class RegShoRestriction(ItchMessage):
    """Whether short sales of a stock are restricted."""

    LETTER = "Y"
    stock: Text8
    reg_sho_action: Letter


@dataclass(frozen=True, slots=True)
class MarketParticipantPosition(ItchMessage):
    """The status of one market participant in one stock."""

    LETTER = "L"
    mpid: Text4
    stock: Text8
    primary_market_maker: Letter
    market_maker_mode: Letter
    participant_state: Letter


@dataclass(frozen=True, slots=True)
class MwcbDeclineLevel(ItchMessage):
    """The levels of the market-wide circuit breaker."""

    LETTER = "V"
    level_1: Price8
    level_2: Price8
    level_3: Price8


@dataclass(frozen=True, slots=True)
class MwcbStatus(ItchMessage):
    """A level of the market-wide circuit breaker was breached."""

    LETTER = "W"
    breached_level: Letter


@dataclass(frozen=True, slots=True)
class QuotingPeriodUpdate(ItchMessage):
    """When quotation of a new issue is expected to begin."""

    LETTER = "K"
    stock: Text8
    release_time_s: U32  # seconds since midnight
    release_qualifier: Letter
    price: Price4


@dataclass(frozen=True, slots=True)
class LuldAuctionCollar(ItchMessage):
    """The collar of the auction that ends a trading pause."""

    LETTER = "J"
    stock: Text8
    reference_price: Price4
    upper_price: Price4
    lower_price: Price4
    extension: U32


@dataclass(frozen=True, slots=True)
class OperationalHalt(ItchMessage):
    """One market center cannot trade a stock."""

    LETTER = "h"
    stock: Text8
    market_code: Letter
    halt_action: Letter


@dataclass(frozen=True, slots=True)
class AddOrder(ItchMessage):
    """A new order without attribution."""

    LETTER = "A"
    order_reference: U64
    buy_sell: Letter
    shares: U32
    stock: Text8
    price: Price4


@dataclass(frozen=True, slots=True)
class AddOrderAttributed(ItchMessage):
    """A new order with the owner's MPID."""

    LETTER = "F"
    order_reference: U64
    buy_sell: Letter
    shares: U32
    stock: Text8
    price: Price4
    attribution: Text4


@dataclass(frozen=True, slots=True)
class OrderExecuted(ItchMessage):
    """An order was executed, in whole or in part, at its price."""

    LETTER = "E"
    order_reference: U64
    executed_shares: U32
    match_number: U64


@dataclass(frozen=True, slots=True)
class OrderExecutedWithPrice(ItchMessage):
    """An order was executed, in whole or in part, at another price."""

    LETTER = "C"
    order_reference: U64
    executed_shares: U32
    match_number: U64
    printable: Letter  # N: reported by another message
    execution_price: Price4


@dataclass(frozen=True, slots=True)
class OrderCancel(ItchMessage):
    """An order was canceled in part."""

    LETTER = "X"
    order_reference: U64
    canceled_shares: U32


@dataclass(frozen=True, slots=True)
class OrderDelete(ItchMessage):
    """An order was canceled as a whole."""

    LETTER = "D"
    order_reference: U64


@dataclass(frozen=True, slots=True)
class OrderReplace(ItchMessage):
    """An order was replaced by a new one on the same side of the same stock."""

    LETTER = "U"
    original_order_reference: U64
    order_reference: U64
    shares: U32
    price: Price4


@dataclass(frozen=True, slots=True)
class ItchTrade(ItchMessage):
    """A trade against an order that was not displayed."""

    LETTER = "P"
    order_reference: U64
    buy_sell: Letter  # the side of the resting order
    shares: U32
    stock: Text8
    price: Price4
    match_number: U64


@dataclass(frozen=True, slots=True)
class CrossTrade(ItchMessage):
    """The result of a cross, all its shares at once."""

    LETTER = "Q"
    shares: U64
    stock: Text8
    cross_price: Price4
    match_number: U64
    cross_type: Letter


@dataclass(frozen=True, slots=True)
class ItchBrokenTrade(ItchMessage):
    """A trade is void."""

    LETTER = "B"
    match_number: U64


@dataclass(frozen=True, slots=True)
class NetOrderImbalance(ItchMessage):
    """The current state of a cross before it is executed."""

    LETTER = "I"
    paired_shares: U64
    imbalance_shares: U64
    imbalance_direction: Letter
    stock: Text8
    far_price: Price4
    near_price: Price4
    reference_price: Price4
    cross_type: Letter
    price_variation: Letter


@dataclass(frozen=True, slots=True)
class RetailInterest(ItchMessage):
    """The sides with retail price improvement interest."""

    LETTER = "N"
    stock: Text8
    interest_flag: Letter


@dataclass(frozen=True, slots=True)
class DirectListing(ItchMessage):
    """Price discovery of a direct listing with a capital raise."""

    LETTER = "O"
    stock: Text8
    open_eligibility: Letter
    minimum_price: Price4
    maximum_price: Price4
    near_execution_price: Price4
    near_execution_time: U64  # the specification names no unit
    lower_collar: Price4
    upper_collar: Price4


MESSAGES: Final = (
    ItchSystemEvent,
    StockDirectory,
    StockTradingAction,
    RegShoRestriction,
    MarketParticipantPosition,
    MwcbDeclineLevel,
    MwcbStatus,
    QuotingPeriodUpdate,
    LuldAuctionCollar,
    OperationalHalt,
    AddOrder,
    AddOrderAttributed,
    OrderExecuted,
    OrderExecutedWithPrice,
    OrderCancel,
    OrderDelete,
    OrderReplace,
    ItchTrade,
    CrossTrade,
    ItchBrokenTrade,
    NetOrderImbalance,
    RetailInterest,
    DirectListing,
)
LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType({each.LETTER: Layout.of(each, BadItch) for each in MESSAGES})


def encode(message: ItchMessage) -> bytes:
    """The bytes of a message, without a length prefix."""
    return LAYOUTS[message.LETTER].encode(message)


def decode(payload: bytes) -> ItchMessage:
    """The message in these bytes. Raises `BadItch` for anything that `encode` would not have made."""
    letter = payload[:1].decode("latin-1")
    if letter not in LAYOUTS:
        raise BadItch(f"type is {letter!r}; it must be one of {''.join(LAYOUTS)}")
    message = LAYOUTS[letter].decode(payload)
    assert isinstance(message, ItchMessage)
    return message
