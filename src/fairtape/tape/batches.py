"""Batches: many trades as columns. Feeds hand over batches; records of single trades are made last, if at all.

A batch is two arrays of equal length: the trades as they were published (64 bytes each, not copied from the journal),
and their places in the order with their times. So filters, slices and counts take some nanoseconds per trade, and a
reader of Arrow needs no Python object per trade.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fairtape.formats.byte_columns import Values
from fairtape.market.prices import DECIMALS
from fairtape.market.symbols import SYMBOL_MAX, Symbol
from fairtape.market.trades import TRADE_DTYPE, Trades
from fairtape.tape.records import ABSENT, Trade

Table: TypeAlias = Any  # of pyarrow, which declares no types

FIXED: Final = pa.decimal128(38, DECIMALS)


def trades_to_arrow(trades: Trades) -> Table:
    """Trades as an Arrow table, one per row, for a Parquet file of trades.

    Prices and quantities are decimals with nine places, exactly the integers of the record; times are nanoseconds. A
    trade without a venue has an empty one; where none has a venue, there is no such column.
    `fairtape.storage.trade_files` reads the columns back, value for value.
    """
    columns = {
        "traded_at_ns": pa.array(trades["traded_at"].astype(np.int64)),
        "symbol": _names(trades["symbol"]),
        "venue": _names(trades["venue"]),
        "price": decimals(trades["price"]),
        "quantity": decimals(trades["quantity"]),
        "trade_id": pa.array(trades["trade_id"].astype(np.uint64)),
        "trade_flags": pa.array(trades["flags"].astype(np.uint16)),
    }
    if not (trades["venue"] != b"").any():
        del columns["venue"]
    return pa.table(columns)


def _names(names: Values) -> Table:
    distinct, places = np.unique(names, return_inverse=True)
    texts = [name.decode("ascii") for name in distinct.tolist()]
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(texts, pa.string()))


def decimals(values: Values) -> Table:
    """Integers of 1e-9 as Arrow decimals: 128 bits each, of which the upper half only repeats the sign."""
    halves = np.empty((len(values), 2), np.int64)
    halves[:, 0] = values
    halves[:, 1] = values >> 63
    return pa.Array.from_buffers(FIXED, len(values), [None, pa.py_buffer(halves)])


Arrow: TypeAlias = Any  # an array, a batch or a schema of pyarrow, which declares no types
PlaceRows: TypeAlias = npt.NDArray[np.void]

ROWS_MAX: Final = 1 << 16  # of a batch; the last token may exceed it
NAMES_MAX: Final = 1 << 16  # symbols and venues whose text is remembered

PLACE_DTYPE: Final = np.dtype(
    [
        ("sequence", "i8"),
        ("source", "i8"),
        ("incarnation", "i8"),
        ("source_number", "i8"),
        ("stripe", "i8"),
        ("stripe_number", "i8"),
        ("acknowledged_at", "i8"),
        ("commit_at", "i8"),
        ("released_at", "i8"),
        ("received_at", "i8"),
        ("clock_bound", "i8"),
        ("late", "?"),
    ],
    align=True,
)
"""The places of trades in the order, and their times; times that do not exist are ABSENT."""

_TIMES: Final = ("acknowledged_at", "commit_at", "released_at", "received_at", "clock_bound")
_NAMES: Final = pa.dictionary(pa.int32(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("source", pa.int64(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),
        pa.field("source_number", pa.int64(), nullable=False),
        pa.field("stripe", pa.int64(), nullable=False),
        pa.field("stripe_number", pa.int64(), nullable=False),
        pa.field("symbol", _NAMES, nullable=False),
        pa.field("venue", _NAMES, nullable=False),
        pa.field("price", FIXED, nullable=False),
        pa.field("quantity", FIXED, nullable=False),
        pa.field("trade_id", pa.uint64(), nullable=False),
        pa.field("trade_flags", pa.uint16(), nullable=False),
        pa.field("traded_at_ns", pa.int64(), nullable=False),
        *(pa.field(f"{name}_ns", pa.int64()) for name in _TIMES),
        pa.field("late", pa.bool_(), nullable=False),
    ]
)
"""The columns of a batch. Prices and quantities are decimals with nine places, times are nanoseconds.

`fairtape publish` looks for these names in a file, so a tape that was saved as Parquet can be published.
"""


class TradeBatch(NamedTuple):
    """Trades in the order of their numbers, and their places."""

    trades: Trades
    places: PlaceRows

    @property
    def rows(self) -> int:
        """The number of trades; `len` of a tuple counts its fields."""
        return len(self.trades)

    @property
    def first(self) -> int:
        return int(self.places["sequence"][0])

    @property
    def last(self) -> int:
        return int(self.places["sequence"][-1])

    def slice(self, start: int, end: int | None = None) -> "TradeBatch":
        """The trades of these rows, without copying."""
        return TradeBatch(self.trades[start:end], self.places[start:end])

    def where(self, chosen: Values) -> "TradeBatch":
        """The trades chosen by a mask or by row numbers."""
        return TradeBatch(self.trades[chosen], self.places[chosen])

    def only(self, symbols: Arrow) -> "TradeBatch":
        """The trades of these symbols (`symbol_set`)."""
        wanted = pc.is_in(fixed_names(self.trades["symbol"]), value_set=symbols).to_numpy(zero_copy_only=False)
        return self if wanted.all() else self.where(wanted)

    def latest(self) -> Values:
        """The rows of the last trade of each symbol, ascending."""
        backwards = fixed_names(self.trades["symbol"][::-1]).dictionary_encode().indices.to_numpy()
        _, first_seen = np.unique(backwards, return_index=True)
        rows: Values = np.sort(self.rows - 1 - first_seen)
        return rows

    def records(self) -> Iterator[Trade]:
        """One record per trade. No step runs Python code, so a Ctrl-C never comes between two records."""
        trades, places = self.trades, self.places
        columns = [
            *(places[name].tolist() for name in PLACE_DTYPE.names or () if name not in (*_TIMES, "late")),
            texts(trades["symbol"]),
            texts(trades["venue"]),
            *(trades[name].tolist() for name in ("price", "quantity", "trade_id", "flags", "traded_at")),
            *(_times(places[name]) for name in _TIMES),
            places["late"].tolist(),
        ]
        return map(tuple.__new__, repeat(Trade), zip(*columns, strict=True))

    def to_arrow(self) -> Arrow:
        """The batch as a RecordBatch of SCHEMA."""
        trades, places = self.trades, self.places
        columns = [
            *(pa.array(places[name]) for name in PLACE_DTYPE.names or () if name not in (*_TIMES, "late")),
            _named(trades["symbol"]),
            _named(trades["venue"]),
            decimals(trades["price"]),
            decimals(trades["quantity"]),
            *(pa.array(trades[name]) for name in ("trade_id", "flags", "traded_at")),
            *(_nullable(places[name]) for name in _TIMES),
            pa.array(places["late"]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def join_batches(batches: Sequence[TradeBatch]) -> TradeBatch:
    """Consecutive batches as one."""
    if len(batches) == 1:
        return batches[0]
    trades = np.concatenate([raw_rows(batch.trades) for batch in batches]).view(TRADE_DTYPE)
    return TradeBatch(trades, np.concatenate([raw_rows(batch.places) for batch in batches]).view(PLACE_DTYPE))


def raw_rows(table: Values) -> Values:
    """The same rows as opaque bytes: NumPy copies those in one piece, and structured rows field by field."""
    return table.view(f"V{table.dtype.itemsize}")


def symbol_set(symbols: Sequence[Symbol]) -> Arrow:
    """Symbols as `TradeBatch.only` takes them."""
    padded = [symbol.encode("ascii").ljust(SYMBOL_MAX, b"\0") for symbol in symbols]
    return pa.array(padded, pa.binary(SYMBOL_MAX))


def dictionary_codes(names: Values) -> tuple[Values, list[bytes]]:
    """Padded names as codes, and the names of the codes, in the order of their first occurrence."""
    found = fixed_names(names).dictionary_encode()
    indices = np.frombuffer(found.indices.buffers()[1], np.int32, len(names))  # `to_numpy` would import pandas
    return indices, [name.rstrip(b"\0") for name in found.dictionary.to_pylist()]


def fixed_names(names: Values) -> Arrow:
    """Padded names as Arrow binaries of a fixed size, which Arrow hashes fast."""
    width = names.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(names), [None, pa.py_buffer(np.ascontiguousarray(names))])


def _named(names: Values) -> Arrow:
    """Names as a dictionary of strings: a batch has few symbols, each many times."""
    codes, distinct = dictionary_codes(names)
    return pa.DictionaryArray.from_arrays(codes, pa.array([name.decode("ascii") for name in distinct], pa.string()))


@lru_cache(maxsize=NAMES_MAX)
def _text(name: bytes) -> str:
    return name.decode("ascii")


def texts(names: Values) -> list[str]:
    return list(map(_text, names.tolist()))


def _times(column: Values) -> list[int | None]:
    found: list[int | None] = column.tolist()
    return [None if value == ABSENT else value for value in found] if ABSENT in column else found


def _nullable(column: Values) -> Arrow:
    return pa.array(column, mask=column == ABSENT) if ABSENT in column else pa.array(column)
