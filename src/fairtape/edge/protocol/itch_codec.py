"""ITCH in the sessions of the edge: all trades of a token become the messages of their stripes at once, and back.

The bytes are those of `formats.itch.ticker_messages.TickerItch`. The encoder is vectorized, because it runs when
releases are due. It encodes a token at a time: one lookup finds the listings of all its trades, one NumPy step per
field writes all their messages with their length prefixes, and a sort by stripe leaves each stripe's share as one byte
string, ready to be cut into packets. No object is made per message unless messages of two sizes are mixed. A token of
a few trades is encoded trade by trade, because some forty calls of NumPy take longer.

All stripes of a core stripe share one table of listings, so a token is encoded once and not once per stripe. A stripe's
directory lists its own symbols only. Setting up an encoder takes some 0.1 ms per listing, so it is done when a plan
becomes known, in a background thread, and not when the plan takes over.

A customer has a reader for each session, because each session has its own directory.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import Instant
from fairtape.edge.protocol.sessions import SessionName
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.messages import PRICE_UNIT, TIMESTAMP_MAX
from fairtape.formats.itch.ticker_messages import WIDE, Listing, TickerItch, TickerReader, fits_directory
from fairtape.market import trades as market
from fairtape.market.notices import BadNotice, CancelNotice, CorrectionNotice, StatusNotice, decode_notice
from fairtape.market.prices import ONE
from fairtape.market.stripes import StripePlan
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NAME_MAX
from fairtape.market.trades import (
    FEW_MAX,
    FLAGS_ALLOWED,
    TRADE_DTYPE,
    TRADE_KIND,
    TRADE_SIZE,
    TRADE_VERSION,
    BadTrade,
    TradeFields,
    Trades,
)

NAME_SIZE: Final = 28  # bytes of venue and symbol in a trade record
_SPREAD: Final = 8  # slots per name: then some 6 % of the names share a slot
_BITS_MIN: Final = 8
_FACTORS: Final = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], np.uint64
)  # odd, with irregular bits
_HALF: Final = np.uint64(32)


class SymbolLookup:
    """Finds the listings of all trade records of a token at once; names are numbered from 1 on.

    A name is read as four integers and hashed by four multiplications. The few names that share a slot with another one
    are found one by one.
    """

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
        """The number of the name in each record, given as rows of 64-bit words; 0 where it is unknown."""
        keys = words[:, :4].astype(np.uint64)
        keys[:, 0] >>= _HALF
        found: npt.NDArray[np.int64] = self._slots[self._slots_of(keys)]
        wrong = np.flatnonzero((self._keys[found] != keys).any(axis=1))
        if len(wrong):
            found[wrong] = 0
            for index in wrong.tolist() if self._collisions else ():
                found[index] = self._collisions.get(words[index].tobytes()[4 : 4 + NAME_SIZE], 0)
        return found

    def _slots_of(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        mixed: npt.NDArray[np.uint64] = (keys * _FACTORS).sum(axis=1, dtype=np.uint64)
        return (mixed >> self._shift).astype(np.int64)


UNLISTED_MAX: Final = 1 << 16  # symbols without a listing whose stripe is cached
_U32_MAX: Final = (1 << 32) - 1
_HEAD: Final = np.uint64(TRADE_KIND | TRADE_VERSION << 8)
_HEAD_MASK: Final = np.uint64(0xFFFFFFFF & ~(FLAGS_ALLOWED << 16))

_TOP: Final = [("length", ">u2"), ("letter", "S1"), ("locate", ">u2"), ("tracking", ">u2"), ("upper", ">u2")]
NARROW_TRADE: Final = np.dtype(
    [
        *_TOP,  # `upper` and `lower` are the 48 bits of the timestamp: NumPy has no integer of 6 bytes
        ("lower", ">u4"),
        ("order_reference", ">u8"),
        ("buy_sell", "S1"),
        ("shares", ">u4"),
        ("stock", "S8"),
        ("price", ">u4"),
        ("match_number", ">u8"),
    ]
)
WIDE_TRADE: Final = np.dtype([*_TOP, ("lower", ">u4"), ("match_number", ">u8"), ("record", f"V{TRADE_SIZE}")])
_INDICATORS: Final = np.array([b"B", b"S", b"B", b"B"], "S1")  # by the flags: S where the buyer was the aggressor

# The same messages for a single trade. The length prefix is part of both.
_ONE_NARROW: Final = struct.Struct(">HcHHHIQcI8sIQ")
_ONE_WIDE: Final = struct.Struct(f">HcHHHIQ{TRADE_SIZE}s")
_ONE_INDICATORS: Final = tuple(_INDICATORS.tolist())
_NARROW_LETTER: Final = itch.ItchTrade.LETTER.encode("ascii")
_WIDE_LETTER: Final = WIDE.encode("ascii")
assert (_ONE_NARROW.size, _ONE_WIDE.size) == (NARROW_TRADE.itemsize, WIDE_TRADE.itemsize)

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class StripeShare:
    """One stripe's messages of one token, each with its length prefix."""

    stripe: int  # its index among those of the core stripe
    count: int
    framed: bytes
    size: int  # of each message; 0 where they differ


@dataclass(slots=True)
class _Token:
    """The trades of one token as columns, with their listings and stripes."""

    trades: Trades
    numbers: Array  # in the order
    listings: Array  # 0: none
    stripes: Array
    since: Array
    price: Array
    shares: Array
    narrow: Array  # whether it fits into an ITCH trade message


class ItchEncoder:
    """Encodes the trades of one core stripe under one plan."""

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
        names = [_name(listing) for listing in self._listings]
        self._names = SymbolLookup(names)
        self._numbers = {name: number for number, name in enumerate(names, 1)}  # the same, for one name
        self._templates = _templates(self._listings)
        self._writer = writer = TickerItch(self._listings, midnight_at=self._midnight_at)
        first, *directory = writer.opening(self._midnight_at)
        self._opening: list[list[bytes]] = [[] if stripe.opaque else [first] for stripe in stripes]
        for message in directory:
            self._opening[self._stripe_of[int.from_bytes(message[1:3], "big")]].append(message)
        last = writer.closing(self._midnight_at)
        self._closing: list[list[bytes]] = [[] if stripe.opaque else [last] for stripe in stripes]
        self._unlisted: dict[bytes, int] = {}  # stripes of symbols without a listing

    def openings(self, since: int) -> list[list[bytes]]:
        """For each stripe the start of messages and its directory; nothing for the opaque stripe."""
        return [_stamped(token, since) for token in self._opening]

    def closings(self, since: int) -> list[list[bytes]]:
        """For each stripe the end of messages; nothing for the opaque stripe."""
        return [_stamped(token, since) for token in self._closing]

    def encode(self, octets: bytes, numbers: Sequence[int]) -> tuple[list[StripeShare], list[int]]:
        """Each stripe's share of these records, and the indexes of the records that are no trades."""
        return (self.encode_few if len(numbers) <= FEW_MAX else self.encode_many)(octets, numbers)

    def encode_few(self, octets: bytes, numbers: Sequence[int]) -> tuple[list[StripeShare], list[int]]:
        """`encode`, record by record."""
        shares: dict[int, list[bytes]] = {}
        no_trades: list[int] = []
        for index, (fields, number) in enumerate(zip(market.fields(octets), numbers, strict=True)):
            if fields.is_trade:
                stripe, message = self._encode_one(
                    fields, octets[index * TRADE_SIZE : (index + 1) * TRADE_SIZE], number
                )
                shares.setdefault(stripe, []).append(message)
            else:
                no_trades.append(index)
        return [_share(stripe, messages) for stripe, messages in sorted(shares.items())], no_trades

    def _encode_one(self, trade: TradeFields, record: bytes, number: int) -> tuple[int, bytes]:
        """The stripe and the message of a trade."""
        listing = self._numbers.get(trade.venue + trade.symbol, 0)
        stripe = int(self._stripe_of[listing]) if listing else self._stripe_index(trade.symbol.rstrip(b"\0"))
        since = trade.traded_at - self._midnight_at
        price, price_rest = divmod(trade.price, PRICE_UNIT)
        shares, shares_rest = divmod(trade.quantity, ONE)
        is_narrow = listing and not price_rest and not shares_rest and 0 <= since <= TIMESTAMP_MAX
        if not is_narrow or not 0 <= price <= _U32_MAX or shares > _U32_MAX:
            since = min(max(since, 0), TIMESTAMP_MAX)
            top = _ONE_WIDE.size - 2, _WIDE_LETTER, listing, 0, since >> 32, since & _U32_MAX
            return stripe, _ONE_WIDE.pack(*top, number, record)
        top = _ONE_NARROW.size - 2, _NARROW_LETTER, listing, trade.flags, since >> 32, since & _U32_MAX
        stock = self._listings[listing - 1].symbol.ljust(8).encode("ascii")
        side = _ONE_INDICATORS[trade.flags]
        return stripe, _ONE_NARROW.pack(*top, trade.trade_id, side, shares, stock, price, number)

    def encode_many(self, octets: bytes, numbers: Sequence[int]) -> tuple[list[StripeShare], list[int]]:
        """`encode`, all records at once."""
        trades: Trades = np.frombuffer(octets, TRADE_DTYPE)
        words = np.frombuffer(octets, "<u8").reshape(-1, TRADE_SIZE // 8)
        listings = self._names.find(words)
        sane = (words[:, 0] & _HEAD_MASK == _HEAD) & (trades["quantity"] >= 0) & (trades["traded_at"] >= 0)
        since = trades["traded_at"] - self._midnight_at
        price, shares = trades["price"] // PRICE_UNIT, trades["quantity"] // ONE
        narrow = sane & (listings > 0) & (since >= 0) & (since <= TIMESTAMP_MAX)
        narrow &= (price >= 0) & (price <= _U32_MAX) & (price * PRICE_UNIT == trades["price"])
        narrow &= (shares <= _U32_MAX) & (shares * ONE == trades["quantity"])
        token = _Token(
            trades, np.array(numbers, np.uint64), listings, self._stripe_of[listings], since, price, shares, narrow
        )
        if narrow.all():
            return list(self._shares(token, np.argsort(token.stripes, kind="stable"))), []
        is_trade = self._find_stripes(token, sane)
        order = np.argsort(token.stripes, kind="stable")
        return list(self._shares(token, order[is_trade[order]])), np.flatnonzero(~is_trade).tolist()

    def notice(self, payload: bytes, number: int) -> tuple[int, list[bytes]] | None:
        """The stripe and the messages of a cancel or a correction; None for payloads that ITCH has no message for."""
        try:
            notice = decode_notice(payload)
        except BadNotice:
            return None
        match notice:
            case CancelNotice(wrong, venue, symbol, at):
                messages = [self._writer.cancel(wrong, at=self._within_day(at), listing=Listing(symbol, venue))]
            case CorrectionNotice(wrong, trade, at):
                symbol = trade.symbol
                messages = [*self._writer.correct(wrong, at=self._within_day(at), number=number, trade=trade)]
            case StatusNotice():
                return None
        return self._stripe_index(symbol.encode("ascii")), messages

    def _within_day(self, at: Instant) -> Instant:
        return min(max(at, self._midnight_at), self._midnight_at + TIMESTAMP_MAX)

    def _find_stripes(self, token: _Token, sane: Array) -> Array:
        """Find the stripes of trades without a listing; returns which records are trades."""
        is_trade: Array = sane & (token.listings > 0)
        unlisted = np.flatnonzero(token.listings == 0)
        if not _are_trades(token.trades[unlisted]):
            unlisted = unlisted[sane[unlisted]]
            records = market.fields(token.trades[unlisted].tobytes())
            unlisted = unlisted[np.fromiter((record.is_trade for record in records), bool, len(unlisted))]
        symbols: list[bytes] = token.trades["symbol"][unlisted].tolist()
        token.stripes[unlisted] = [self._stripe_index(symbol) for symbol in symbols]
        is_trade[unlisted] = True
        return is_trade

    def _stripe_index(self, symbol: bytes) -> int:
        index = self._unlisted.get(symbol)
        if index is None:
            if len(self._unlisted) >= UNLISTED_MAX:
                self._unlisted.clear()
            number = self.plan.edge_of(symbol.decode("ascii"), self._core)
            index = self._unlisted[symbol] = self._indexes[number]
        return index

    def _shares(self, token: _Token, order: Array) -> Iterator[StripeShare]:
        """Cut the encoded messages, sorted by stripe, into shares."""
        narrow = token.narrow[order]
        narrow_bytes = self._encode_narrow(token, order[narrow]).tobytes()
        wide_bytes = b"" if narrow.all() else self._encode_wide(token, order[~narrow]).tobytes()
        counts = np.bincount(token.stripes[order])
        begin = narrow_at = wide_at = 0
        for stripe in np.flatnonzero(counts).tolist():
            count = int(counts[stripe])
            kinds = narrow[begin : begin + count]
            narrow_count = int(np.count_nonzero(kinds)) if wide_bytes else count
            narrow_end = narrow_at + narrow_count * NARROW_TRADE.itemsize
            wide_end = wide_at + (count - narrow_count) * WIDE_TRADE.itemsize
            one, other = narrow_bytes[narrow_at:narrow_end], wide_bytes[wide_at:wide_end]
            if not one or not other:
                yield StripeShare(stripe, count, one or other, (NARROW_TRADE if one else WIDE_TRADE).itemsize - 2)
            else:
                yield StripeShare(stripe, count, _interleaved(one, other, kinds.tolist()), 0)
            begin, narrow_at, wide_at = begin + count, narrow_end, wide_end

    def _encode_narrow(self, token: _Token, indexes: Array) -> Array:
        """ITCH trade messages."""
        rows = self._templates[token.listings[indexes]]
        trades = token.trades[indexes]
        _write_since(rows, token.since[indexes])
        flags = trades["flags"]
        rows["tracking"] = flags
        rows["order_reference"] = trades["trade_id"]
        rows["buy_sell"] = _INDICATORS[flags]
        rows["shares"] = token.shares[indexes]
        rows["price"] = token.price[indexes]
        rows["match_number"] = token.numbers[indexes]
        return rows

    def _encode_wide(self, token: _Token, indexes: Array) -> Array:
        """Wide messages: trades that do not fit into an ITCH trade message."""
        rows = np.zeros(len(indexes), WIDE_TRADE)
        rows["length"] = WIDE_TRADE.itemsize - 2
        rows["letter"] = _WIDE_LETTER
        rows["locate"] = token.listings[indexes]
        _write_since(rows, np.clip(token.since[indexes], 0, TIMESTAMP_MAX))
        rows["match_number"] = token.numbers[indexes]
        rows["record"] = token.trades[indexes].view(f"V{TRADE_SIZE}")
        return rows


def _stamped(messages: Sequence[bytes], since: int) -> list[bytes]:
    """The same messages with another timestamp, which has the same offset in all of them."""
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


def _share(stripe: int, messages: list[bytes]) -> StripeShare:
    sizes = set(map(len, messages))
    return StripeShare(stripe, len(messages), b"".join(messages), sizes.pop() - 2 if len(sizes) == 1 else 0)


def _interleaved(narrow_bytes: bytes, wide_bytes: bytes, kinds: Sequence[bool]) -> bytes:
    """Messages of two sizes, merged in their order."""
    pieces = []
    narrow_at = wide_at = 0
    for is_narrow in kinds:
        if is_narrow:
            pieces.append(narrow_bytes[narrow_at : narrow_at + NARROW_TRADE.itemsize])
            narrow_at += NARROW_TRADE.itemsize
        else:
            pieces.append(wide_bytes[wide_at : wide_at + WIDE_TRADE.itemsize])
            wide_at += WIDE_TRADE.itemsize
    return b"".join(pieces)


def _name(listing: Listing) -> bytes:
    """The bytes of a listing in a trade record."""
    venue, symbol = listing.venue.encode("ascii"), listing.symbol.encode("ascii")
    return venue.ljust(VENUE_NAME_MAX, b"\0") + symbol.ljust(SYMBOL_MAX, b"\0")


def _templates(listings: Sequence[Listing]) -> Array:
    """A trade message of each listing, without the fields of the trade; the first row is for no listing."""
    rows = np.zeros(len(listings) + 1, NARROW_TRADE)
    rows["length"] = NARROW_TRADE.itemsize - 2
    rows["letter"] = _NARROW_LETTER
    rows["locate"] = np.arange(len(rows))
    rows["stock"] = [b"", *(listing.symbol.ljust(8).encode("ascii") for listing in listings)]
    return rows


READERS_MAX: Final = 4_096  # sessions; beyond it the oldest is dropped


class SessionReaders:
    """The readers of all received sessions."""

    def __init__(self, plans: Callable[[int], StripePlan | None]) -> None:
        """`plans` finds a plan by its version."""
        self._plans = plans
        self._readers: dict[str, TickerReader] = {}
        self._encoders: dict[tuple[int, int], ItchEncoder] = {}

    def of(self, session: str) -> TickerReader:
        """The reader of a session. It has the directory from the plan, because late joiners did not receive it."""
        reader = self._readers.get(session)
        if reader is None:
            name = SessionName.parse(session)
            plan = self._plans(name.version) if name else None
            if len(self._readers) >= READERS_MAX:
                del self._readers[next(iter(self._readers))]
            reader = self._readers[session] = TickerReader(midnight_at=plan.midnight_at if plan else 0)
            if plan is not None and name is not None:
                self._seed(reader, plan, name.stripe)
        return reader

    def _seed(self, reader: TickerReader, plan: StripePlan, number: int) -> None:
        stripe = plan.stripes.get(number)
        if stripe is None:
            return
        encoder = self._encoders.setdefault((plan.version, stripe.core), ItchEncoder(plan, stripe.core))
        for message in encoder.openings(0)[plan.of_core(stripe.core).index(stripe)]:
            reader.read(message)
