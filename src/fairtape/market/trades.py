"""A trade, and the 64 bytes that carry it as one message.

The record has one size and one layout, so a body full of trades is a NumPy array as it stands: `records` looks at a
whole body at once, `decode` at a single message, and both refuse exactly the same bytes. Little-endian, because that
is what every machine that reads it computes in. The spare bytes are zero until a later version gives them a meaning.
"""

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import Instant
from fairtape.market.prices import FIXED_MAX, Price, Quantity
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NUMBER_MAX, BadSymbol, Symbol, checked_symbol

TRADE_KIND: Final = 0x54  # T
TRADE_VERSION: Final = 1
TRADE_SIZE: Final = 64
TRADE_ID_MAX: Final = (1 << 64) - 1

_LAYOUT: Final = struct.Struct("<BBHI16sqqqQQ")
TRADE_DTYPE: Final = np.dtype(
    [
        ("kind", "u1"),
        ("version", "u1"),
        ("venue", "<u2"),
        ("flags", "<u4"),
        ("symbol", f"S{SYMBOL_MAX}"),  # padded with NUL
        ("price", "<i8"),  # 1e-9
        ("quantity", "<i8"),  # 1e-9
        ("traded_at", "<i8"),  # nanoseconds UTC
        ("trade_id", "<u8"),  # the venue's own
        ("spare", "<u8"),
    ]
)
assert _LAYOUT.size == TRADE_DTYPE.itemsize == TRADE_SIZE

Trades: TypeAlias = npt.NDArray[np.void]
"""An array of TRADE_DTYPE."""


class BadTrade(ValueError):
    """Bytes or values that are no trade; the message names the field, what was found and what was expected."""


class TradeFlag(IntFlag):
    """Bits of a trade's flags."""

    BOUGHT = 1  # the buyer came to the market and took what was offered
    SOLD = 2  # the seller did


FLAGS_ALLOWED: Final = int(TradeFlag.BOUGHT | TradeFlag.SOLD)
_FLAGS_FORBIDDEN: Final = np.uint32(~FLAGS_ALLOWED & 0xFFFF_FFFF)


@dataclass(frozen=True, slots=True)
class Trade:
    """One print of one venue."""

    venue: int
    symbol: Symbol
    price: Price
    quantity: Quantity
    traded_at: Instant
    trade_id: int = 0
    flags: int = 0

    def __post_init__(self) -> None:
        for name, limit in _LIMITS:
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise BadTrade(f"{name} is {value}; it must be from 0 to {limit}")
        if self.flags & ~FLAGS_ALLOWED:
            raise BadTrade(f"flags is {self.flags}; only the bits of {FLAGS_ALLOWED} have a meaning")
        try:
            checked_symbol(self.symbol)
        except BadSymbol as error:
            raise BadTrade(str(error)) from None


_LIMITS: Final = (
    ("venue", VENUE_NUMBER_MAX),
    ("price", FIXED_MAX),
    ("quantity", FIXED_MAX),
    ("traded_at", FIXED_MAX),
    ("trade_id", TRADE_ID_MAX),
)


def encode(trade: Trade) -> bytes:
    """The 64 bytes of a trade."""
    return _LAYOUT.pack(
        TRADE_KIND,
        TRADE_VERSION,
        trade.venue,
        trade.flags,
        trade.symbol.encode("ascii"),
        trade.price,
        trade.quantity,
        trade.traded_at,
        trade.trade_id,
        0,
    )


def decode(payload: bytes) -> Trade:
    """The trade in one message. Raises `BadTrade` for anything that `encode` would not have made."""
    if len(payload) != TRADE_SIZE:
        raise BadTrade(f"size is {len(payload)} bytes; a trade has {TRADE_SIZE}")
    kind, version, venue, flags, name, price, quantity, traded_at, trade_id, spare = _LAYOUT.unpack(payload)
    for field, found, expected in (
        ("kind", kind, TRADE_KIND),
        ("version", version, TRADE_VERSION),
        ("spare", spare, 0),
    ):
        if found != expected:
            raise BadTrade(f"{field} is {found}; it must be {expected}")
    try:
        symbol = name.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise BadTrade(f"symbol is {name!r}; it must be ascii") from None
    return Trade(venue, symbol, price, quantity, traded_at, trade_id, flags)


def records(buffer: bytes | bytearray | memoryview) -> Trades:
    """The trades of back-to-back records, without copying. Raises `BadTrade` where `decode` would."""
    if len(buffer) % TRADE_SIZE:
        raise BadTrade(f"size is {len(buffer)} bytes; it must be a multiple of {TRADE_SIZE}")
    trades: Trades = np.frombuffer(buffer, TRADE_DTYPE)
    for field, good in (
        ("kind", trades["kind"] == TRADE_KIND),
        ("version", trades["version"] == TRADE_VERSION),
        ("flags", trades["flags"] & _FLAGS_FORBIDDEN == 0),
        ("spare", trades["spare"] == 0),
        ("price", trades["price"] >= 0),
        ("quantity", trades["quantity"] >= 0),
        ("traded_at", trades["traded_at"] >= 0),
        ("symbol", _are_symbols(trades["symbol"])),
    ):
        if not good.all():
            row = int(np.argmin(good))
            raise BadTrade(f"{field} of record {row} is {trades[field][row]!r}, which no trade has")
    return trades


def blank_trades(count: int) -> Trades:
    """`count` records whose kind and version are set and whose other fields are zero, for a writer to fill."""
    trades: Trades = np.zeros(count, TRADE_DTYPE)
    trades["kind"] = TRADE_KIND
    trades["version"] = TRADE_VERSION
    return trades


def _are_symbols(names: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Which names are symbols: as many characters that leave ink as the name is long, and at least one."""
    names = np.ascontiguousarray(names)
    characters = names.view(np.uint8).reshape(-1, SYMBOL_MAX)
    inked = (characters > ord(" ")) & (characters <= ord("~"))
    lengths = np.char.str_len(names)
    good: npt.NDArray[np.bool_] = (inked.sum(axis=1) == lengths) & (lengths > 0)
    return good
