"""Trades as DBN, Databento's binary encoding, and back. Needs `databento-dbn`, which the extra `dbn` installs.

| field of a trade | field of DBN |
| --- | --- |
| price | price: both in units of 1e-9. DBN's largest value means "none", so that one price is refused |
| quantity | size: whole units only. A fraction, or more than 4,294,967,294, is refused |
| traded_at | ts_event |
| trade_id | sequence: 32 bits. A larger number is refused |
| flags | side of the aggressor: B for the buyer, A for the seller, N for neither; for both, see below |
| symbol, venue | instrument_id: a number within the file, which the metadata maps to a name |

A file of fairtape has the dataset FAIRTAPE. The publisher of its records is 0, because Databento assigns the numbers
of publishers. So the venue is in the name of the instrument, after a blank, which neither a symbol nor a venue can
contain. A trade whose flags name both sides has the side N and the publisher-specific bit of the DBN flags.

In another file the venue is the one that the caller names for the publisher, else the first part of the dataset (XNAS
for XNAS.ITCH). ts_recv is returned beside the trades; ts_in_delta, depth, ts_out and the flags about the feed have no
field in a trade and are dropped.
"""

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fairtape.core.errors import FormatError
from fairtape.formats.byte_columns import Values
from fairtape.market.prices import FIXED_MAX, ONE, format_fixed
from fairtape.market.symbols import BadName, checked_symbol, checked_venue
from fairtape.market.trades import TradeFlag, Trades, blank_trades

DATASET: Final = "FAIRTAPE"
SIZE_MAX: Final = (1 << 32) - 2  # the value above it means "none"
SEQUENCE_MAX: Final = (1 << 32) - 1
BYTES_MAX: Final = 1 << 32  # of a decompressed file: a limit against decompression bombs

RECORD: Final = np.dtype(
    [
        ("length", "u1"),  # in units of 4 bytes
        ("rtype", "u1"),
        ("publisher_id", "<u2"),
        ("instrument_id", "<u4"),
        ("ts_event", "<u8"),
        ("price", "<i8"),
        ("size", "<u4"),
        ("action", "S1"),
        ("side", "S1"),
        ("flags", "u1"),
        ("depth", "u1"),
        ("ts_recv", "<u8"),
        ("ts_in_delta", "<i4"),
        ("sequence", "<u4"),
    ]
)
_LENGTH_UNIT: Final = 4
_TRADE_RTYPE: Final = 0
_LAST: Final = 0x80  # the last record of its event
_OWN: Final = 0x02  # publisher-specific
_MAGIC: Final = b"DBN"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_METADATA_HEAD: Final = 8  # the magic, a version and the size of what follows
_DAY: Final = "datetime64[D]"
_EDGES: Final = ("start_date", "end_date")
DAY: Final = 86_400_000_000_000  # nanoseconds


class BadDbn(FormatError):
    """Bytes that are no trades in DBN, or trades that DBN cannot represent."""


class DbnMissing(FormatError):
    """`databento-dbn` is not installed."""


class DbnTrades(NamedTuple):
    """The trades of a file."""

    trades: Trades
    received_at: npt.NDArray[np.int64]  # ts_recv of each, in nanoseconds UTC


class _Interval(NamedTuple):
    """The days on which an instrument has its number, the last one excluded, in the form of the library."""

    start_date: Any
    end_date: Any
    symbol: str


class _Mapping(NamedTuple):
    """The numbers of one instrument."""

    raw_symbol: str
    intervals: list[_Interval]


def _library() -> ModuleType:
    """The optional library, imported when it is needed."""
    try:
        import databento_dbn
    except ImportError:
        raise DbnMissing("DBN needs the package databento-dbn; install it with: pip install 'fairtape[dbn]'") from None
    return databento_dbn


def write_dbn(trades: Trades, *, received_at: npt.NDArray[np.int64] | None = None) -> bytes:
    """A DBN file of these trades, uncompressed. Without `received_at`, ts_recv is the time of the trade."""
    _check_fits(trades)
    names, instruments = np.unique(trades[["venue", "symbol"]], return_inverse=True)
    records = np.zeros(len(trades), RECORD)
    records["length"] = RECORD.itemsize // _LENGTH_UNIT
    records["rtype"] = _TRADE_RTYPE
    records["instrument_id"] = instruments + 1
    records["ts_event"] = trades["traded_at"]
    records["price"] = trades["price"]
    records["size"] = trades["quantity"] // ONE
    records["action"] = b"T"
    records["side"] = np.array([b"N", b"B", b"A", b"N"])[trades["flags"]]
    records["flags"] = np.where(trades["flags"] == TradeFlag.BOUGHT | TradeFlag.SOLD, _LAST | _OWN, _LAST)
    records["ts_recv"] = trades["traded_at"] if received_at is None else received_at
    records["sequence"] = trades["trade_id"]
    labels = [(symbol + (b" " + venue if venue else b"")).decode("ascii") for venue, symbol in names.tolist()]
    return _metadata(labels, records["ts_recv"]) + records.tobytes()


def _check_fits(trades: Trades) -> None:
    whole = trades["quantity"] % ONE == 0
    for field, good, wanted in (
        ("quantity", whole & (trades["quantity"] // ONE <= SIZE_MAX), f"a whole number up to {SIZE_MAX}"),
        ("trade_id", trades["trade_id"] <= SEQUENCE_MAX, f"at most {SEQUENCE_MAX}"),
        ("price", trades["price"] != FIXED_MAX, f"below {format_fixed(FIXED_MAX)}"),
    ):
        if not good.all():
            place = int(np.argmin(good))
            value = int(trades[field][place])
            found = str(value) if field == "trade_id" else format_fixed(value)
            raise BadDbn(f"{field} of trade {place} is {found}; in DBN it must be {wanted}")


def _metadata(labels: list[str], received_at: Values) -> bytes:
    dbn = _library()
    first, last = (int(received_at.min()), int(received_at.max())) if len(received_at) else (0, 0)
    start_date = np.datetime64(first, "ns").astype(_DAY).item()
    end_date = (np.datetime64(last, "ns").astype(_DAY) + 1).item()
    metadata = dbn.Metadata(
        dataset=DATASET,
        start=first,
        end=last + 1,
        stype_in=dbn.SType.RAW_SYMBOL,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=dbn.Schema.TRADES,
        symbols=labels,
        mappings=[
            _Mapping(label, [_Interval(start_date, end_date, str(number))]) for number, label in enumerate(labels, 1)
        ],
    )
    return bytes(metadata)


def read_dbn(buffer: bytes, *, venues: Mapping[int, str] = MappingProxyType({})) -> DbnTrades:
    """The trades of a DBN file, plain or compressed with zstd. `venues` maps a publisher's number to a venue."""
    octets = _decompressed(buffer) if buffer[: len(_ZSTD_MAGIC)] == _ZSTD_MAGIC else buffer
    metadata, at = _read_metadata(octets)
    records = _records(octets[at:], RECORD.itemsize + (8 if metadata.ts_out else 0))
    for field, good in (
        ("action", records["action"] == b"T"),
        ("price", records["price"] != FIXED_MAX),
        ("size", records["size"] <= SIZE_MAX),
        ("side", np.isin(records["side"], [b"A", b"B", b"N"])),
        ("ts_event", records["ts_event"] <= FIXED_MAX),
        ("ts_recv", records["ts_recv"] <= FIXED_MAX),
    ):
        if not good.all():
            place = int(np.argmin(good))
            raise BadDbn(f"{field} of trade {place} is {records[field][place]!r}, which is not allowed in a trade")
    trades = blank_trades(len(records))
    trades["price"] = records["price"]
    trades["quantity"] = records["size"].astype(np.int64) * ONE
    trades["traded_at"] = records["ts_event"]
    trades["trade_id"] = records["sequence"]
    trades["flags"] = np.select([records["side"] == b"B", records["side"] == b"A"], [1, 2], 0)
    _fill_names(trades, records, metadata, venues)
    return DbnTrades(trades, records["ts_recv"].astype(np.int64))


def _decompressed(buffer: bytes) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(buffer), "zstd") as stream:
            octets: bytes = stream.read(BYTES_MAX)
    except (pa.ArrowException, OSError) as error:
        raise BadDbn(f"the file cannot be decompressed: {error}") from None
    if len(octets) == BYTES_MAX:
        raise BadDbn(f"the file has {BYTES_MAX} bytes or more when decompressed; split it")
    return octets


def _read_metadata(octets: bytes) -> tuple[Any, int]:
    """The metadata of a file, and the offset of its records.

    Only this part is decoded by the library: its decoder of records aborts the process on malformed ones.
    """
    dbn = _library()
    size = _METADATA_HEAD + int.from_bytes(octets[4:_METADATA_HEAD], "little")
    if octets[: len(_MAGIC)] != _MAGIC or len(octets) < size:
        raise BadDbn(f"the file begins with {octets[:_METADATA_HEAD]!r}, which is not complete DBN metadata")
    try:
        metadata = dbn.Metadata.decode(octets[:size])
        mappings = metadata.mappings
    except (dbn.DBNError, ValueError, TypeError, OverflowError) as error:
        raise BadDbn(f"the metadata cannot be read: {error}") from None
    if mappings is not None and metadata.schema not in (dbn.Schema.TRADES, None):
        raise BadDbn(f"the schema is {metadata.schema}; it must be trades")
    return metadata, size


def _records(octets: bytes, size: int) -> npt.NDArray[Any]:
    """The trades among the records. Others, such as messages of a gateway, are skipped by their length."""
    starts: list[int] = []
    at = 0
    while at < len(octets):
        length = octets[at] * _LENGTH_UNIT
        if length < 16 or at + length > len(octets):
            raise BadDbn(f"the record at byte {at} after the metadata has {length} bytes; {len(octets) - at} are left")
        if octets[at + 1] == _TRADE_RTYPE:
            if length != size:
                raise BadDbn(f"the trade at byte {at} after the metadata has {length} bytes; it must have {size}")
            starts.append(at)
        at += length
    windows = np.ndarray((max(len(octets) - size + 1, 0),), f"V{RECORD.itemsize}", octets, strides=(1,))
    records: npt.NDArray[Any] = windows[np.array(starts, np.int64)].view(RECORD)
    return records


def _fill_names(trades: Trades, records: Values, metadata: Any, venues: Mapping[int, str]) -> None:
    """Fill in symbols by instrument and day, and venues by publisher. Each distinct combination is looked up once."""
    ours = metadata.dataset == DATASET
    if ours:
        trades["flags"][(records["flags"] & _OWN != 0) & (records["side"] == b"N")] = 3
    wanted = np.zeros(len(records), [("instrument", "u4"), ("day", "i8"), ("publisher", "u2")])
    wanted["instrument"], wanted["publisher"] = records["instrument_id"], records["publisher_id"]
    wanted["day"] = records["ts_recv"] // np.uint64(DAY)
    distinct, places = np.unique(wanted, return_inverse=True)
    symbols = _symbols(metadata)
    names = np.zeros(len(distinct), [("symbol", trades.dtype["symbol"]), ("venue", trades.dtype["venue"])])
    for place, (instrument, day, publisher) in enumerate(distinct.tolist()):
        label = _label(symbols.get(instrument, []), day, instrument)
        symbol, _, venue = label.partition(" ") if ours else (label, "", _venue(metadata.dataset, publisher, venues))
        try:
            names[place] = (checked_symbol(symbol).encode(), checked_venue(venue).encode() if venue else b"")
        except BadName as error:
            raise BadDbn(f"instrument {instrument}: {error}") from None
    trades["symbol"], trades["venue"] = names["symbol"][places], names["venue"][places]


def _venue(dataset: str, publisher: int, venues: Mapping[int, str]) -> str:
    return venues.get(publisher, dataset.partition(".")[0])


def _label(intervals: list[tuple[int, int, str]], day: int, instrument: int) -> str:
    for first, end, label in intervals:
        if first <= day < end:
            return label
    date = np.datetime64(day, "D")
    raise BadDbn(f"instrument_id {instrument} trades on {date}, but the metadata names no symbol for it on that day")


def _symbols(metadata: Any) -> dict[int, list[tuple[int, int, str]]]:
    """By instrument: (first day, day after the last, name). Days count from 1970."""
    names: dict[int, list[tuple[int, int, str]]] = {}
    by_name = str(metadata.stype_out) == "instrument_id"
    for key, intervals in metadata.mappings.items():
        for interval in intervals:
            number, name = (interval["symbol"], key) if by_name else (key, interval["symbol"])
            if number.isascii() and number.isdigit():
                first, end = (int(np.datetime64(interval[edge], "D").astype(np.int64)) for edge in _EDGES)
                names.setdefault(int(number), []).append((first, end, name))
    return names
