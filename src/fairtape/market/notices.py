"""Notices of a venue beside its trades: a trade is void, a trade is corrected, the venue halts or opens again.

A trade is identified by its number in the order, which its venue learns with the acknowledgment. A notice also names
the venue and the symbol: a reader without the trade knows the listing, and a reader with the trade can detect a wrong
notice. No notice has the size of a trade record, so the size tells them apart.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from fairtape.core.instants import Instant
from fairtape.market.prices import FIXED_MAX, format_fixed
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NAME_MAX, BadName, Symbol, checked_symbol, checked_venue
from fairtape.market.trades import TRADE_SIZE, BadTrade, PublishedTrade
from fairtape.market.trades import decode as decode_trade
from fairtape.market.trades import encode as encode_trade

CANCEL_NOTICE_KIND: Final = 0x58  # X
CORRECTION_NOTICE_KIND: Final = 0x52  # R
STATUS_NOTICE_KIND: Final = 0x56  # V
NOTICE_VERSION: Final = 1
NUMBER_MAX: Final = (1 << 63) - 1

_HEAD: Final = struct.Struct("<BBH")  # kind, version, a field that depends on the kind
_CANCEL: Final = struct.Struct(f"<BBH{VENUE_NAME_MAX}s{SYMBOL_MAX}sqq")
_CORRECTION: Final = struct.Struct("<BBH4xqq")
_STATUS: Final = struct.Struct(f"<BBH{VENUE_NAME_MAX}sq")
_SIZES: Final = {
    CANCEL_NOTICE_KIND: _CANCEL.size,
    CORRECTION_NOTICE_KIND: _CORRECTION.size + TRADE_SIZE,
    STATUS_NOTICE_KIND: _STATUS.size,
}
assert TRADE_SIZE not in _SIZES.values()


class BadNotice(ValueError):
    """Bytes or values that are no notice; the message names the field, what was found and what was expected."""


class Status(Enum):
    """The status of a venue."""

    OPEN = 1
    HALTED = 2


@dataclass(frozen=True, slots=True)
class CancelNotice:
    """The trade with this number is void."""

    number: int
    venue: str  # empty where it has none
    symbol: Symbol
    canceled_at: Instant

    def __post_init__(self) -> None:
        _check("number", self.number, 1, NUMBER_MAX)
        _check("canceled_at", self.canceled_at, 0, FIXED_MAX)
        _check_names(self.venue, self.symbol)


@dataclass(frozen=True, slots=True)
class CorrectionNotice:
    """The trade with this number is replaced by another one of the same venue and symbol."""

    number: int
    trade: PublishedTrade  # the corrected one
    corrected_at: Instant

    def __post_init__(self) -> None:
        _check("number", self.number, 1, NUMBER_MAX)
        _check("corrected_at", self.corrected_at, 0, FIXED_MAX)


@dataclass(frozen=True, slots=True)
class StatusNotice:
    """A venue opens or halts."""

    venue: str
    status: Status
    since: Instant

    def __post_init__(self) -> None:
        _check("since", self.since, 0, FIXED_MAX)
        try:
            checked_venue(self.venue)
        except BadName as error:
            raise BadNotice(str(error)) from None


VenueNotice: TypeAlias = CancelNotice | CorrectionNotice | StatusNotice


def encode_notice(notice: VenueNotice) -> bytes:
    """The payload of a notice."""
    match notice:
        case CancelNotice(number, venue, symbol, at):
            names = venue.encode("ascii"), symbol.encode("ascii")
            return _CANCEL.pack(CANCEL_NOTICE_KIND, NOTICE_VERSION, 0, *names, number, at)
        case CorrectionNotice(number, trade, at):
            return _CORRECTION.pack(CORRECTION_NOTICE_KIND, NOTICE_VERSION, 0, number, at) + encode_trade(trade)
        case StatusNotice(venue, status, since):
            return _STATUS.pack(STATUS_NOTICE_KIND, NOTICE_VERSION, status.value, venue.encode("ascii"), since)


def is_notice(payload: bytes) -> bool:
    """Whether these bytes have the size and the head of a notice. Cheap; `decode_notice` may still refuse them."""
    return len(payload) >= _HEAD.size and _SIZES.get(payload[0]) == len(payload) and payload[1] == NOTICE_VERSION


def decode_notice(payload: bytes) -> VenueNotice:
    """The notice in one message. Raises `BadNotice` for anything that `encode_notice` would not have made."""
    if not is_notice(payload):
        raise BadNotice(f"{len(payload)} bytes that begin with {payload[:2].hex() or 'nothing'} are no notice")
    notice = _read(payload)
    if encode_notice(notice) != payload:
        raise BadNotice("the encoding of a notice is not canonical")
    return notice


def _read(payload: bytes) -> VenueNotice:
    match payload[0]:
        case kind if kind == CANCEL_NOTICE_KIND:
            _, _, _, venue, symbol, number, at = _CANCEL.unpack(payload)
            return CancelNotice(number, _text("venue", venue), _text("symbol", symbol), at)
        case kind if kind == CORRECTION_NOTICE_KIND:
            _, _, _, number, at = _CORRECTION.unpack_from(payload)
            try:
                return CorrectionNotice(number, decode_trade(payload[_CORRECTION.size :]), at)
            except BadTrade as error:
                raise BadNotice(f"the trade of a correction: {error}") from None
        case _:
            _, _, status, venue, since = _STATUS.unpack(payload)
            try:
                return StatusNotice(_text("venue", venue), Status(status), since)
            except ValueError as error:
                raise BadNotice(str(error)) from None


def _text(field: str, padded: bytes) -> str:
    try:
        return padded.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise BadNotice(f"{field} is {padded!r}; it must be ascii") from None


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadNotice(f"{field} is {value}; it must be from {least} to {most}")


def _check_names(venue: str, symbol: str) -> None:
    try:
        checked_symbol(symbol)
        if venue:
            checked_venue(venue)
    except BadName as error:
        raise BadNotice(str(error)) from None


def notice_in(payload: bytes) -> VenueNotice | None:
    """The notice in one message; None for any other message."""
    try:
        return decode_notice(payload) if is_notice(payload) else None
    except BadNotice:
        return None


def in_words(notice: VenueNotice) -> str:
    """A notice as readable text."""
    match notice:
        case CancelNotice(number, venue, symbol):
            return f"number {number} is canceled: {symbol}{venue and f'@{venue}'}"
        case CorrectionNotice(number, trade):
            place = f"{trade.symbol}{trade.venue_name and f'@{trade.venue_name}'}"
            return (
                f"number {number} is corrected: {place} {format_fixed(trade.quantity)} at {format_fixed(trade.price)}"
            )
        case StatusNotice(venue, status):
            return f"{venue} is {status.name.lower()}"
