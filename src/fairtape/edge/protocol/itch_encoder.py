"""The press: all trades of a token become the ITCH-shaped messages of their stripes at once.

The bytes are those of `fairtape.formats.itch.ticker.TickerItch`; the way is another one, because this runs where
releases are due. The unit is the token: one look-up finds the listings of all its trades, one NumPy step per field
writes all their messages behind their lengths, and a sort by stripe leaves each stripe's share as one piece of bytes,
ready to be cut into packets. No object is made for a message unless it lies beside messages of another size.

All stripes of a core stripe share one table of listings, so that a token is printed once and not once per stripe. A
stripe's directory names its own listings only. Setting up a press takes a while, some 0.1 ms for each listing: that is
done when a plan becomes known, by anybody who has the time, and not when the plan takes over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import Instant
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.messages import TIMESTAMP_MAX
from fairtape.formats.itch.ticker import WIDE, Listing, TickerItch, fits_directory
from fairtape.formats.itch.trades import PRICE_UNIT
from fairtape.market import trades as market
from fairtape.market.notices import BadNotice, Cancel, Correction, VenueStatus, decode_notice
from fairtape.market.prices import ONE
from fairtape.market.stripes import StripePlan
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NAME_MAX
from fairtape.market.trades import FLAGS_ALLOWED, TRADE_DTYPE, TRADE_KIND, TRADE_SIZE, TRADE_VERSION, BadTrade, Trades

# Many names found at once: the listing of every trade record of a token, without a step per record.
#
# A name is the 28 bytes that venue and symbol have in a record. Seen as four integers it is hashed by four
# multiplications; the few names that share a slot with another one are found one by one.

NAME_SIZE: Final = 28
_SPREAD: Final = 8  # slots per name: then some six of a hundred names share a slot
_BITS_MIN: Final = 8
_FACTORS: Final = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64
)  # odd, with bits of no pattern
_HALF: Final = np.uint64(32)


class SymbolLookup:
    """Numbers names from 1 on."""

    def __init__(self, names: Sequence[bytes]) -> None:
        bits = max((len(names) * _SPREAD).bit_length(), _BITS_MIN)
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, np.int64)
        self._keys = np.zeros((len(names) + 1, 4), np.uint64)
        self._keys[0] = ~np.uint64(0)  # no name has these bytes
        for number, name in enumerate(names, 1):
            self._keys[number] = np.frombuffer(bytes(4) + name, "<u8")
        self._keys[:, 0] >>= _HALF
        slots = self._slots_of(self._keys)
        self._collisions: dict[bytes, int] = {}
        for number, name in enumerate(names, 1):
            if self._slots[slots[number]]:
                self._collisions[name] = number
            else:
                self._slots[slots[number]] = number

    def find(self, words: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The number of the name in each record, seen as rows of 64-bit words; 0 where it is unknown."""
        keys = words[:, :4].astype(np.uint64)
        keys[:, 0] >>= _HALF
        found: npt.NDArray[np.int64] = self._slots[self._slots_of(keys)]
        wrong = np.flatnonzero((self._keys[found] != keys).any(axis=1))
        if len(wrong):
            found[wrong] = 0
            for place in wrong.tolist() if self._collisions else ():
                found[place] = self._collisions.get(words[place].tobytes()[4 : 4 + NAME_SIZE], 0)
        return found

    def _slots_of(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        mixed: npt.NDArray[np.uint64] = (keys * _FACTORS).sum(axis=1, dtype=np.uint64)
        return (mixed >> self._shift).astype(np.int64)


UNLISTED_MAX: Final = 1 << 16  # symbols without a listing whose stripe is remembered
_U32_MAX: Final = (1 << 32) - 1
_HEAD: Final = np.uint64(TRADE_KIND | TRADE_VERSION << 8)
_HEAD_MASK: Final = np.uint64(0xFFFFFFFF & ~(FLAGS_ALLOWED << 16))
_FLAGS_SHIFT: Final = np.uint64(16)

_TOP: Final = [("length", ">u2"), ("letter", "S1"), ("locate", ">u2"), ("tracking", ">u2"), ("upper", ">u2")]
NARROW: Final = np.dtype(
    [
        *_TOP,  # `upper` and `lower` are the 48 bits of the timestamp: no processor knows a number of 6 bytes
        ("lower", ">u4"),
        ("order_reference", ">u8"),
        ("buy_sell", "S1"),
        ("shares", ">u4"),
        ("stock", "S8"),
        ("price", ">u4"),
        ("match_number", ">u8"),
    ]
)
BROAD: Final = np.dtype([*_TOP, ("lower", ">u4"), ("match_number", ">u8"), ("record", f"V{TRADE_SIZE}")])
_INDICATORS: Final = np.array([b"B", b"S", b"B", b"B"], "S1")  # by the flags: S where the buyer came to the market

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Share:
    """One stripe's messages of one token, each behind its length."""

    stripe: int  # its position among those of the core stripe
    count: int
    framed: bytes
    size: int  # of each message; 0 where they differ


@dataclass(slots=True)
class _Token:
    """The trades of one token, column by column, and what is known about each of them."""

    trades: Trades
    numbers: Array  # in the order
    listings: Array  # 0: none
    stripes: Array
    since: Array
    price: Array
    shares: Array
    narrow: Array  # it has room in an ITCH trade message


class ItchEncoder:
    """Prints the trades of one core stripe under one plan."""

    def __init__(self, plan: StripePlan, core: int) -> None:
        self.plan = plan
        self._core = core
        self._midnight_at = plan.midnight_at
        stripes = plan.of_core(core)
        self._indexes = {stripe.number: index for index, stripe in enumerate(stripes)}
        listed = [
            (index, Listing(symbol, venue))
            for index, stripe in enumerate(stripes)
            for symbol in stripe.symbols
            for venue in stripe.venues or ("",)
        ]
        listed = [(index, listing) for index, listing in listed if fits_directory(listing)]
        self._listings = [listing for _, listing in listed]
        self._stripe_of = np.array([0, *(index for index, _ in listed)], np.uint16)
        self._names = SymbolLookup([_name(listing) for listing in self._listings])
        self._templates = _templates(self._listings)
        self._writer = writer = TickerItch(self._listings, midnight_at=self._midnight_at)
        first, *directory = writer.opening(self._midnight_at)
        self._opening: list[list[bytes]] = [[] if stripe.opaque else [first] for stripe in stripes]
        for message in directory:
            self._opening[self._stripe_of[int.from_bytes(message[1:3], "big")]].append(message)
        last = writer.closing(self._midnight_at)
        self._closing: list[list[bytes]] = [[] if stripe.opaque else [last] for stripe in stripes]
        self._unlisted: dict[bytes, int] = {}  # stripes of symbols that were looked up one by one

    def openings(self, since: int) -> list[list[bytes]]:
        """For each stripe the start of messages and its part of the directory; nothing for the opaque one."""
        return [_stamped(token, since) for token in self._opening]

    def closings(self, since: int) -> list[list[bytes]]:
        """For each stripe the end of messages; nothing for the opaque one."""
        return [_stamped(token, since) for token in self._closing]

    def encode(self, octets: bytes, numbers: Array) -> tuple[list[Share], list[int]]:
        """Each stripe's share of these records, and the places of those records that are no trades."""
        trades: Trades = np.frombuffer(octets, TRADE_DTYPE)
        words = np.frombuffer(octets, "<u8").reshape(-1, TRADE_SIZE // 8)
        listings = self._names.find(words)
        sane = (words[:, 0] & _HEAD_MASK == _HEAD) & (trades["quantity"] >= 0) & (trades["traded_at"] >= 0)
        since = trades["traded_at"] - self._midnight_at
        price, shares = trades["price"] // PRICE_UNIT, trades["quantity"] // ONE
        narrow = sane & (listings > 0) & (since >= 0) & (since <= TIMESTAMP_MAX)
        narrow &= (price >= 0) & (price <= _U32_MAX) & (price * PRICE_UNIT == trades["price"])
        narrow &= (shares <= _U32_MAX) & (shares * ONE == trades["quantity"])
        token = _Token(trades, numbers, listings, self._stripe_of[listings], since, price, shares, narrow)
        if narrow.all():
            return list(self._shares(token, np.argsort(token.stripes, kind="stable"))), []
        good = self._placed(token, sane)
        order = np.argsort(token.stripes, kind="stable")
        return list(self._shares(token, order[good[order]])), np.flatnonzero(~good).tolist()

    def notice(self, payload: bytes, number: int) -> tuple[int, list[bytes]] | None:
        """The stripe and the messages of a notice about a trade; None where it is none, or ITCH has no word for it."""
        try:
            notice = decode_notice(payload)
        except BadNotice:
            return None
        match notice:
            case Cancel(wrong, venue, symbol, at):
                messages = [self._writer.cancel(wrong, at=self._within_day(at), listing=Listing(symbol, venue))]
            case Correction(wrong, trade, at):
                symbol = trade.symbol
                messages = [*self._writer.correct(wrong, at=self._within_day(at), number=number, trade=trade)]
            case VenueStatus():
                return None
        return self._place_of(symbol.encode("ascii")), messages

    def _within_day(self, at: Instant) -> Instant:
        return min(max(at, self._midnight_at), self._midnight_at + TIMESTAMP_MAX)

    def _placed(self, token: _Token, sane: Array) -> Array:
        """Which records are trades; those without a listing get the stripe of their symbol."""
        good: Array = sane & (token.listings > 0)
        unlisted = np.flatnonzero(token.listings == 0)
        whole = _are_trades(token.trades[unlisted])
        for place, record in zip(unlisted.tolist(), token.trades[unlisted], strict=True):
            if whole or _are_trades(record.tobytes()):
                token.stripes[place] = self._place_of(bytes(record["symbol"]))
                good[place] = True
        return good

    def _place_of(self, symbol: bytes) -> int:
        place = self._unlisted.get(symbol)
        if place is None:
            if len(self._unlisted) >= UNLISTED_MAX:
                self._unlisted.clear()
            number = self.plan.edge_of(symbol.decode("ascii"), self._core)
            place = self._unlisted[symbol] = self._indexes[number]
        return place

    def _shares(self, token: _Token, order: Array) -> Iterator[Share]:
        """Cut what is printed, in the order of the stripes, into the stripes' shares."""
        narrow = token.narrow[order]
        slim = self._slim(token, order[narrow]).tobytes()
        broad = b"" if narrow.all() else self._broad(token, order[~narrow]).tobytes()
        counts = np.bincount(token.stripes[order])
        begin = slim_at = broad_at = 0
        for stripe in np.flatnonzero(counts).tolist():
            count = int(counts[stripe])
            kinds = narrow[begin : begin + count]
            slims = int(np.count_nonzero(kinds)) if broad else count
            slim_end, broad_end = slim_at + slims * NARROW.itemsize, broad_at + (count - slims) * BROAD.itemsize
            one, other = slim[slim_at:slim_end], broad[broad_at:broad_end]
            if not one or not other:
                yield Share(stripe, count, one or other, (NARROW if one else BROAD).itemsize - 2)
            else:
                yield Share(stripe, count, _interleaved(one, other, kinds.tolist()), 0)
            begin, slim_at, broad_at = begin + count, slim_end, broad_end

    def _slim(self, token: _Token, places: Array) -> Array:
        """ITCH trade messages."""
        rows = self._templates[token.listings[places]]
        trades = token.trades[places]
        _write_since(rows, token.since[places])
        flags = trades["flags"]
        rows["tracking"] = flags
        rows["order_reference"] = trades["trade_id"]
        rows["buy_sell"] = _INDICATORS[flags]
        rows["shares"] = token.shares[places]
        rows["price"] = token.price[places]
        rows["match_number"] = token.numbers[places]
        return rows

    def _broad(self, token: _Token, places: Array) -> Array:
        """Wide messages: whatever ITCH has no room for."""
        rows = np.zeros(len(places), BROAD)
        rows["length"] = BROAD.itemsize - 2
        rows["letter"] = WIDE.encode("ascii")
        rows["locate"] = token.listings[places]
        _write_since(rows, np.clip(token.since[places], 0, TIMESTAMP_MAX))
        rows["match_number"] = token.numbers[places]
        rows["record"] = token.trades[places].view(f"V{TRADE_SIZE}")
        return rows


def _stamped(messages: Sequence[bytes], since: int) -> list[bytes]:
    """The same messages at another time: it stands at the same place in all of them."""
    stamp = since.to_bytes(6, "big")
    return [message[:5] + stamp + message[11:] for message in messages]


def _write_since(rows: Array, since: Array) -> None:
    rows["upper"] = since >> 32
    rows["lower"] = since & _U32_MAX


def _are_trades(octets: Trades | bytes) -> bool:
    try:
        market.records(octets if isinstance(octets, bytes) else octets.tobytes())
    except BadTrade:
        return False
    return True


def _interleaved(slim: bytes, broad: bytes, kinds: Sequence[bool]) -> bytes:
    """Messages of two sizes, in their order."""
    pieces = []
    slim_at = broad_at = 0
    for is_slim in kinds:
        if is_slim:
            pieces.append(slim[slim_at : slim_at + NARROW.itemsize])
            slim_at += NARROW.itemsize
        else:
            pieces.append(broad[broad_at : broad_at + BROAD.itemsize])
            broad_at += BROAD.itemsize
    return b"".join(pieces)


def _name(listing: Listing) -> bytes:
    """A listing as the bytes that it has in a record."""
    venue, symbol = listing.venue.encode("ascii"), listing.symbol.encode("ascii")
    return venue.ljust(VENUE_NAME_MAX, b"\0") + symbol.ljust(SYMBOL_MAX, b"\0")


def _templates(listings: Sequence[Listing]) -> Array:
    """A trade message of each listing, in which only the trade is left to be filled in; the first one is of none."""
    rows = np.zeros(len(listings) + 1, NARROW)
    rows["length"] = NARROW.itemsize - 2
    rows["letter"] = itch.ItchTrade.LETTER.encode("ascii")
    rows["locate"] = np.arange(len(rows))
    rows["stock"] = [b"", *(listing.symbol.ljust(8).encode("ascii") for listing in listings)]
    return rows
