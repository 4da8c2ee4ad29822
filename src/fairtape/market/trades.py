"""A trade, and its record of 64 bytes, which is one message.

Records have one size and one layout, so a body full of trades can be used as a NumPy array: `records` checks a whole
body at once, `decode` a single message, and both refuse exactly the same bytes. Little-endian, the byte order of the
machines that read it.

A record carries the *name* of its venue, so that publishers need not agree on venue numbers.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import Instant
from fairtape.market.prices import FIXED_MAX, FIXED_MIN, Price, Quantity
from fairtape.market.symbols import (
    SYMBOL_MAX,
    VENUE_NAME_MAX,
    VENUE_NAMES,
    VENUE_NUMBERS,
    VENUES,
    BadName,
    Symbol,
    checked_symbol,
    checked_venue,
)

TRADE_KIND: Final = 0x54  # T
TRADE_VERSION: Final = 1
TRADE_SIZE: Final = 64
TRADE_ID_MAX: Final = (1 << 64) - 1

_LAYOUT: Final = struct.Struct(f"<BBH{VENUE_NAME_MAX}s{SYMBOL_MAX}sqqqQ")
TRADE_DTYPE: Final = np.dtype(
    [
        ("kind", "u1"),
        ("version", "u1"),
        ("flags", "<u2"),
        ("venue", f"S{VENUE_NAME_MAX}"),  # its name, padded with NUL; empty where it has none
        ("symbol", f"S{SYMBOL_MAX}"),  # padded with NUL
        ("price", "<i8"),  # 1e-9; below zero is a price, too: power, spreads, oil in April 2020
        ("quantity", "<i8"),  # 1e-9
        ("traded_at", "<i8"),  # nanoseconds UTC
        ("trade_id", "<u8"),  # the venue's own
    ]
)
assert _LAYOUT.size == TRADE_DTYPE.itemsize == TRADE_SIZE

FEW_MAX: Final = 16  # records that are checked faster one by one: a call of NumPy takes as long as several records
_PRINTABLE: Final = bytes(range(ord(" ") + 1, ord("~") + 1))

Trades: TypeAlias = npt.NDArray[np.void]
"""An array of TRADE_DTYPE."""


class BadTrade(ValueError):
    """Bytes or values that are no trade; the message names the field, what was found and what was expected."""


class TradeFlag(IntFlag):
    """Bits of a trade's flags."""

    BOUGHT = 1  # the buyer was the aggressor
    SOLD = 2  # the seller was


class TradeFields(NamedTuple):
    """The fields of one record as they are stored."""

    kind: int
    version: int
    flags: int
    venue: bytes  # padded
    symbol: bytes  # padded
    price: int
    quantity: int
    traded_at: int
    trade_id: int

    @property
    def is_trade(self) -> bool:
        """Whether `records` accepts the record."""
        symbol = self.symbol.rstrip(b"\0")
        return (
            self.kind == TRADE_KIND
            and self.version == TRADE_VERSION
            and not self.flags & ~FLAGS_ALLOWED
            and self.quantity >= 0
            and self.traded_at >= 0
            and symbol != b""
            and not (self.venue.rstrip(b"\0") + symbol).translate(None, _PRINTABLE)
        )


def fields(buffer: bytes | bytearray | memoryview) -> Iterator[TradeFields]:
    """The fields of back-to-back records, one after the other."""
    return map(TradeFields._make, _LAYOUT.iter_unpack(buffer))


FLAGS_ALLOWED: Final = int(TradeFlag.BOUGHT | TradeFlag.SOLD)
_FLAGS_FORBIDDEN: Final = np.uint16(~FLAGS_ALLOWED & 0xFFFF)


@dataclass(frozen=True, slots=True)
class PublishedTrade:
    """One trade of one venue, as its source publishes it."""

    venue: int  # its number in VENUES; 0 where it is none of them
    symbol: Symbol
    price: Price
    quantity: Quantity
    traded_at: Instant
    trade_id: int = 0
    flags: int = 0
    other_venue: str = ""  # the name of a venue that is none of VENUES

    def __post_init__(self) -> None:
        for name, least, most in _LIMITS:
            value = getattr(self, name)
            if not least <= value <= most:
                raise BadTrade(f"{name} is {value}; it must be from {least} to {most}")
        if self.flags & ~FLAGS_ALLOWED:
            raise BadTrade(f"flags is {self.flags}; only the bits of {FLAGS_ALLOWED} have a meaning")
        if self.other_venue in VENUE_NUMBERS or (self.other_venue and self.venue):
            raise BadTrade(f"other_venue is {self.other_venue!r}; a venue of the table is named by its number alone")
        try:
            checked_symbol(self.symbol)
            if self.other_venue:
                checked_venue(self.other_venue)
        except BadName as error:
            raise BadTrade(str(error)) from None

    @property
    def venue_name(self) -> str:
        """The name of the venue; empty where the trade has none."""
        return VENUE_NAMES.get(self.venue, self.other_venue)


_LIMITS: Final = (
    ("venue", 0, len(VENUES)),
    ("price", FIXED_MIN, FIXED_MAX),
    ("quantity", 0, FIXED_MAX),
    ("traded_at", 0, FIXED_MAX),
    ("trade_id", 0, TRADE_ID_MAX),
)


def encode(trade: PublishedTrade) -> bytes:
    """The 64 bytes of a trade."""
    return _LAYOUT.pack(
        TRADE_KIND,
        TRADE_VERSION,
        trade.flags,
        trade.venue_name.encode("ascii"),
        trade.symbol.encode("ascii"),
        trade.price,
        trade.quantity,
        trade.traded_at,
        trade.trade_id,
    )


def decode(payload: bytes) -> PublishedTrade:
    """The trade in one message. Raises `BadTrade` for anything that `encode` would not have made."""
    if len(payload) != TRADE_SIZE:
        raise BadTrade(f"size is {len(payload)} bytes; a trade has {TRADE_SIZE}")
    kind, version, flags, venue, symbol, price, quantity, traded_at, trade_id = _LAYOUT.unpack(payload)
    for field, found, expected in (("kind", kind, TRADE_KIND), ("version", version, TRADE_VERSION)):
        if found != expected:
            raise BadTrade(f"{field} is {found}; it must be {expected}")
    name = _text("venue", venue)
    number = VENUE_NUMBERS.get(name, 0)
    other = "" if number else name
    return PublishedTrade(number, _text("symbol", symbol), price, quantity, traded_at, trade_id, flags, other)


def _text(field: str, padded: bytes) -> str:
    try:
        return padded.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise BadTrade(f"{field} is {padded!r}; it must be ascii") from None


def records(buffer: bytes | bytearray | memoryview) -> Trades:
    """The trades of back-to-back records, without copying. Raises `BadTrade` where `decode` would."""
    if len(buffer) % TRADE_SIZE:
        raise BadTrade(f"size is {len(buffer)} bytes; it must be a multiple of {TRADE_SIZE}")
    trades: Trades = np.frombuffer(buffer, TRADE_DTYPE)
    if len(trades) <= FEW_MAX and all(each.is_trade for each in fields(buffer)):
        return trades
    for field, good in (
        ("kind", trades["kind"] == TRADE_KIND),
        ("version", trades["version"] == TRADE_VERSION),
        ("flags", trades["flags"] & _FLAGS_FORBIDDEN == 0),
        ("venue", _are_printable(trades["venue"])),
        ("quantity", trades["quantity"] >= 0),
        ("traded_at", trades["traded_at"] >= 0),
        ("symbol", _are_printable(trades["symbol"]) & (trades["symbol"] != b"")),
    ):
        if not good.all():
            row = int(np.argmin(good))
            raise BadTrade(f"{field} of record {row} is {trades[field][row]!r}, which is not allowed in a trade")
    return trades


def blank_trades(count: int) -> Trades:
    """`count` records with kind and version set and all other fields zero, to be filled in."""
    trades: Trades = np.zeros(count, TRADE_DTYPE)
    trades["kind"] = TRADE_KIND
    trades["version"] = TRADE_VERSION
    return trades


def _are_printable(names: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Which names consist of printable characters without blanks."""
    names = np.ascontiguousarray(names)
    characters = names.view(np.uint8).reshape(-1, names.dtype.itemsize)
    printable = (characters > ord(" ")) & (characters <= ord("~"))
    good: npt.NDArray[np.bool_] = printable.sum(axis=1) == np.char.str_len(names)
    return good
