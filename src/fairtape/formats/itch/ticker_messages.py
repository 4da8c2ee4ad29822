"""The unified ticker as ITCH 5.0 messages, for customers of the edge's plain mode.

A session begins with a system event (S, code O) and its directory, and ends with a system event (code C). The
directory is fixed before the session begins, so that every site of the edge makes the same bytes and numbers from the
same sequence, whenever it started. One *listing* is a symbol at a venue and has a stock locate of its own, 1 for the
first. A directory message (R) names its symbol; if it has a venue, a market participant message (L) names it as the
MPID. A trade is one message:

| field of P | carries |
| --- | --- |
| stock locate | the listing: symbol and venue |
| tracking number | the trade's flags |
| timestamp | the instant of the trade, since midnight UTC of the session's day |
| order reference number | the venue's trade id |
| buy/sell indicator | S if the buyer was the aggressor, else B |
| shares, stock, price | quantity, symbol, price |
| match number | the global sequence number |

ITCH cannot represent a fraction of a share, a price below zero or finer than a hundredth of a cent, a symbol of more
than 8 or a venue of more than 4 characters, or a listing that is not in the directory. Such a trade is sent *wide*, as
one message of a type that ITCH 5.0 does not have, so that its clients skip it: the letter T, the common head, the match
number, then the 64 bytes of the trade's record. Nothing is rounded and nothing is left out.

A cancel is a broken trade (B) with the match number of the trade, and with the stock locate of the listing that the
cancel names: if that is not the trade's listing, the cancel does not apply. A correction is a broken trade and the new
trade, in this order, under the number of the correction. The tracking number of such a broken trade is 1, which
distinguishes it from a cancel that is followed by an unrelated trade.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import Instant
from fairtape.formats.byte_columns import Values, slot, write_numbers
from fairtape.formats.fixed_layout import Text
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.messages import LAYOUTS, LOCATE_MAX, PRICE_UNIT, STOCK_MAX, TIMESTAMP_MAX, BadItch
from fairtape.market import trades as market
from fairtape.market.prices import ONE
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NAME_MAX, VENUE_NUMBERS, BadName, checked_symbol, checked_venue
from fairtape.market.trades import TRADE_SIZE, BadTrade, PublishedTrade, TradeFlag, Trades

WIDE: Final = "T"
MPID_MAX: Final = 4
START, END = "O", "C"
CORRECTED: Final = 1  # the tracking number of a broken trade that the next message replaces
_U32_MAX: Final = (1 << 32) - 1
_WIDE_HEAD: Final = struct.Struct(">cHH6sQ")
WIDE_SIZE: Final = _WIDE_HEAD.size + TRADE_SIZE
_P: Final = LAYOUTS[itch.ItchTrade.LETTER]


class Listing(NamedTuple):
    """A symbol at a venue."""

    symbol: str
    venue: str  # empty where it has none


@dataclass(frozen=True, slots=True)
class PrintedTrade:
    """A trade of the ticker."""

    number: int  # the global sequence number
    trade: PublishedTrade


@dataclass(frozen=True, slots=True)
class CanceledPrint:
    """The trade with this number is void; if it is corrected, the trade that follows replaces it."""

    number: int
    canceled_at: Instant
    listing: Listing | None = None  # in the cancel; None where it is not in the directory
    corrected: bool = False


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """The session begins or ends."""

    code: str
    happened_at: Instant


TickerRecord: TypeAlias = PrintedTrade | CanceledPrint | SessionEvent | Listing


class TickerItch:
    """Writes the messages of one session."""

    def __init__(self, listings: Iterable[Listing], *, midnight_at: Instant) -> None:
        self._listings = tuple(listings)
        self._midnight_at = midnight_at
        _check_directory(self._listings)
        self._locates = {_key(listing): locate for locate, listing in enumerate(self._listings, 1)}
        stocks = [listing.symbol.ljust(STOCK_MAX).encode("ascii") for listing in self._listings]
        self._stocks = np.array([b"", *stocks], f"S{STOCK_MAX}")

    def opening(self, at: Instant) -> list[bytes]:
        """The start of messages and the directory."""
        messages: list[itch.ItchMessage] = [itch.ItchSystemEvent(0, 0, self._since(at), START)]
        for locate, listing in enumerate(self._listings, 1):
            messages.append(_directory(locate, self._since(at), listing.symbol))
            if listing.venue:
                head = (locate, 0, self._since(at))
                messages.append(itch.MarketParticipantPosition(*head, listing.venue, listing.symbol, "N", "N", "A"))
        return [itch.encode(message) for message in messages]

    def closing(self, at: Instant) -> bytes:
        """The end of messages."""
        return itch.encode(itch.ItchSystemEvent(0, 0, self._since(at), END))

    def trade(self, number: int, trade: PublishedTrade) -> bytes:
        return self.trades(np.array([number], np.uint64), market.records(market.encode(trade)))[0]

    def trades(self, numbers: npt.NDArray[np.uint64], trades: Trades) -> list[bytes]:
        """One message per trade, in order."""
        locates = self._locates_of(trades)
        since = trades["traded_at"] - self._midnight_at
        price, finer = np.divmod(trades["price"], PRICE_UNIT)
        shares, fraction = np.divmod(trades["quantity"], ONE)
        narrow = (locates > 0) & (since >= 0) & (since <= TIMESTAMP_MAX) & (finer == 0) & (fraction == 0)
        narrow &= (price >= 0) & (price <= _U32_MAX) & (shares <= _U32_MAX)
        rows = np.zeros((len(trades), _P.size), np.uint8)
        rows[:, 0] = ord(_P.letter)
        columns = {
            "stock_locate": locates,
            "tracking_number": trades["flags"],
            "timestamp_ns": since,
            "order_reference": trades["trade_id"],
            "buy_sell": _indicators(trades["flags"]),
            "shares": shares,
            "stock": self._stocks[locates],
            "price": price,
            "match_number": numbers,
        }
        for field in _P.fields:
            if isinstance(field.kind, Text):
                slot(rows, field.start, f"S{field.kind.width}")[:] = columns[field.name]
            else:
                write_numbers(rows, field.start, field.kind.width, columns[field.name])
        octets = rows.tobytes()
        messages = [octets[at : at + _P.size] for at in range(0, len(octets), _P.size)]
        for place in np.flatnonzero(~narrow).tolist():
            head = (int(locates[place]), 0, min(max(int(since[place]), 0), TIMESTAMP_MAX))
            messages[place] = _wide(head, int(numbers[place]), trades[place].tobytes())
        return messages

    def cancel(self, number: int, *, at: Instant, listing: Listing | None = None) -> bytes:
        """The trade with this number is void."""
        return self._broken(number, at, listing, 0)

    def correct(self, wrong: int, *, at: Instant, number: int, trade: PublishedTrade) -> tuple[bytes, bytes]:
        """The trade with the number `wrong` is void; `trade` replaces it, under a number of its own."""
        broken = self._broken(wrong, at, Listing(trade.symbol, trade.venue_name), CORRECTED)
        return broken, self.trade(number, trade)

    def _broken(self, number: int, at: Instant, listing: Listing | None, tracking: int) -> bytes:
        locate = 0 if listing is None else self._locates.get(_key(listing), 0)
        return itch.encode(itch.ItchBrokenTrade(locate, tracking, self._since(at), number))

    def _since(self, at: Instant) -> int:
        return at - self._midnight_at

    def _locates_of(self, trades: Trades) -> Values:
        """The locate of each trade's listing; 0 where the directory has none."""
        names = np.empty(len(trades), [("venue", f"S{VENUE_NAME_MAX}"), ("symbol", f"S{SYMBOL_MAX}")])
        names["venue"], names["symbol"] = trades["venue"], trades["symbol"]
        octets, size = names.tobytes(), names.dtype.itemsize
        find = self._locates.get
        return np.fromiter(
            (find(octets[at : at + size], 0) for at in range(0, len(octets), size)), np.int64, len(trades)
        )


def _check_directory(listings: Sequence[Listing]) -> None:
    if len(listings) > LOCATE_MAX:
        raise BadItch(f"listings are {len(listings)}; a session has at most {LOCATE_MAX}")
    if len(set(listings)) != len(listings):
        raise BadItch("a listing is in the directory twice")
    for listing in listings:
        if not fits_directory(listing):
            limits = f"a symbol of 1 to {STOCK_MAX} and a venue of at most {MPID_MAX} characters, none of them blank"
            raise BadItch(f"listing is {listing.symbol!r} at {listing.venue!r}; it must be {limits}")


def fits_directory(listing: Listing) -> bool:
    """Whether the names of a listing fit into ITCH; trades of others are sent wide."""
    return _is_name(listing.symbol, STOCK_MAX) and (not listing.venue or _is_name(listing.venue, MPID_MAX))


def _is_name(text: str, size_max: int) -> bool:
    return 0 < len(text) <= size_max and all("!" <= character <= "~" for character in text)


def _key(listing: Listing) -> bytes:
    """The bytes of a listing in a trade record."""
    venue, symbol = listing.venue.encode("ascii"), listing.symbol.encode("ascii")
    return venue.ljust(VENUE_NAME_MAX, b"\0") + symbol.ljust(SYMBOL_MAX, b"\0")


def _directory(locate: int, since: int, symbol: str) -> itch.StockDirectory:
    """The directory message of a listing; unknown fields have the values for not available, or other."""
    return itch.StockDirectory(
        locate,
        0,
        since,
        stock=symbol,
        market_category="",
        financial_status="",
        round_lot_size=1,
        round_lots_only="N",
        issue_classification="Q",
        issue_subtype="Z",
        authenticity="P",
        short_sale_threshold="",
        ipo_flag="",
        luld_tier="",
        etp_flag="",
        etp_leverage_factor=0,
        inverse_indicator="N",
    )


def _indicators(flags: Values) -> Values:
    return np.where(flags == TradeFlag.BOUGHT, b"S", b"B").astype("S1")


def _wide(head: tuple[int, int, int], number: int, record: bytes) -> bytes:
    locate, tracking, since = head
    return _WIDE_HEAD.pack(WIDE.encode("ascii"), locate, tracking, since.to_bytes(6, "big"), number) + record


class TickerReader:
    """Reads the messages of one session, with their directory.

    Raises `BadItch` for bytes that `TickerItch` would not have written after the same directory.
    """

    def __init__(self, *, midnight_at: Instant) -> None:
        self._midnight_at = midnight_at
        self._listings: dict[int, Listing] = {}  # by locate, so there are at most LOCATE_MAX

    def read(self, payload: bytes) -> TickerRecord | None:
        """The record in a message; None where the message is not about the ticker."""
        if payload[:1] == WIDE.encode("ascii"):
            return self._read_wide(payload)
        match itch.decode(payload):
            case itch.ItchSystemEvent(_, _, since, code):
                return SessionEvent(code, self._midnight_at + since)
            case itch.StockDirectory() as directory:
                return self._list(directory.stock_locate, Listing(directory.stock, ""))
            case itch.MarketParticipantPosition() as position:
                return self._list(position.stock_locate, Listing(position.stock, position.mpid))
            case itch.ItchBrokenTrade(locate, tracking, since, number):
                listing = self._listings.get(locate)
                return CanceledPrint(number, self._midnight_at + since, listing, corrected=tracking == CORRECTED)
            case itch.ItchTrade() as trade:
                return self._read_trade(trade)
            case _:
                return None

    def _list(self, locate: int, listing: Listing) -> Listing:
        try:
            checked_symbol(listing.symbol)
            if listing.venue:
                checked_venue(listing.venue)
        except BadName as error:
            raise BadItch(f"listing {locate}: {error}") from None
        self._listings[locate] = listing
        return listing

    def _read_trade(self, message: itch.ItchTrade) -> PrintedTrade:
        listing = self._listings.get(message.stock_locate)
        if listing is None or listing.symbol != message.stock:
            known = "nothing" if listing is None else listing.symbol
            raise BadItch(
                f"stock {message.stock!r} has locate {message.stock_locate}, which is {known} in the directory"
            )
        venue = VENUE_NUMBERS.get(listing.venue, 0)
        try:
            trade = PublishedTrade(
                venue,
                listing.symbol,
                message.price * PRICE_UNIT,
                message.shares * ONE,
                self._midnight_at + message.timestamp_ns,
                message.order_reference,
                message.tracking_number,
                "" if venue else listing.venue,
            )
        except BadTrade as error:
            raise BadItch(str(error)) from None
        if message.buy_sell != ("S" if trade.flags == TradeFlag.BOUGHT else "B"):
            raise BadItch(f"buy_sell is {message.buy_sell!r}, which contradicts the flags {trade.flags}")
        return PrintedTrade(message.match_number, trade)

    def _read_wide(self, payload: bytes) -> PrintedTrade:
        if len(payload) != WIDE_SIZE:
            raise BadItch(f"message {WIDE} has {len(payload)} bytes; it must have {WIDE_SIZE}")
        *_, number = _WIDE_HEAD.unpack_from(payload)
        try:
            return PrintedTrade(number, market.decode(payload[_WIDE_HEAD.size :]))
        except BadTrade as error:
            raise BadItch(str(error)) from None
