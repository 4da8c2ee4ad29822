"""Lots: many trades at once, as columns. What travels from a feed to its reader; single records are made at the end.

A lot is two arrays of equal length: the trades as they were published (64 bytes each, not copied on their way from a
journal), and where each stands and when it was where. So filters, slices and counts cost some nanoseconds for a trade,
and whoever wants Arrow never pays for a Python object per trade.
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

# Trades as an Arrow table with the columns that fairtape's own files have: what a Parquet file of trades is made of.
#
# Prices and quantities are decimals with nine places, exactly the integers of the record; times count nanoseconds. A
# record without a venue has an empty one. `runtime.tradefiles` reads the columns back, value for value.

Table: TypeAlias = Any  # of pyarrow, which declares no types

FIXED: Final = pa.decimal128(38, DECIMALS)


def trades_to_arrow(trades: Trades) -> Table:
    """The trades in their order, one in each row. Where no trade has a venue, there is no such column."""
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
    """A decimal is one integer of 128 bits; the upper half only repeats the sign."""
    halves = np.empty((len(values), 2), np.int64)
    halves[:, 0] = values
    halves[:, 1] = values >> 63
    return pa.Array.from_buffers(FIXED, len(values), [None, pa.py_buffer(halves)])


Arrow: TypeAlias = Any  # an array, a batch or a schema of pyarrow, which declares no types
PlaceRows: TypeAlias = npt.NDArray[np.void]

ROWS_MAX: Final = 1 << 16  # of a lot, but for the last token of a bunch: so large pieces are worked on at once
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
"""An array of it says where trades stand; times that do not exist are ABSENT."""

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
"""The columns of a batch. Prices and quantities are decimals with nine places, times count nanoseconds.

The names are those that `fairtape publish` looks for in a file, so a tape that was saved as Parquet can be published.
"""


class TradeBatch(NamedTuple):
    """Trades with ascending places in the order."""

    trades: Trades
    places: PlaceRows

    @property
    def rows(self) -> int:
        """How many trades (`len` of a tuple counts its parts)."""
        return len(self.trades)

    @property
    def first(self) -> int:
        """The number of the first one."""
        return int(self.places["sequence"][0])

    @property
    def last(self) -> int:
        """The number of the last one."""
        return int(self.places["sequence"][-1])

    def slice(self, start: int, end: int | None = None) -> "TradeBatch":
        """The trades of these rows, without copying."""
        return TradeBatch(self.trades[start:end], self.places[start:end])

    def where(self, chosen: Values) -> "TradeBatch":
        """The trades that a mask or a list of rows chooses."""
        return TradeBatch(self.trades[chosen], self.places[chosen])

    def only(self, symbols: Arrow) -> "TradeBatch":
        """The trades of these symbols (`symbol_set`)."""
        wanted = pc.is_in(_fixed_names(self.trades["symbol"]), value_set=symbols).to_numpy(zero_copy_only=False)
        return self if wanted.all() else self.where(wanted)

    def latest(self) -> Values:
        """The rows of the last trade of each symbol, ascending."""
        backwards = _fixed_names(self.trades["symbol"][::-1]).dictionary_encode().indices.to_numpy()
        _, first_seen = np.unique(backwards, return_index=True)
        rows: Values = np.sort(self.rows - 1 - first_seen)
        return rows

    def records(self) -> Iterator[Trade]:
        """One value for each trade. No step of it runs Python code, so a Ctrl-C never comes between two of them."""
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
        """The lot as a RecordBatch of SCHEMA."""
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
    """Lots that follow one another as one."""
    if len(batches) == 1:
        return batches[0]
    trades = np.concatenate([raw_rows(batch.trades) for batch in batches]).view(TRADE_DTYPE)
    return TradeBatch(trades, np.concatenate([raw_rows(batch.places) for batch in batches]).view(PLACE_DTYPE))


def raw_rows(table: Values) -> Values:
    """The same rows as plain bytes: NumPy copies those at once, and otherwise field by field."""
    return table.view(f"V{table.dtype.itemsize}")


def symbol_set(symbols: Sequence[Symbol]) -> Arrow:
    """Symbols as `TradeBatch.only` wants them."""
    padded = [symbol.encode("ascii").ljust(SYMBOL_MAX, b"\0") for symbol in symbols]
    return pa.array(padded, pa.binary(SYMBOL_MAX))


def dictionary_codes(names: Values) -> tuple[Values, list[bytes]]:
    """Padded names by numbers, and the names that have them, in the order in which they first stand."""
    found = _fixed_names(names).dictionary_encode()
    return found.indices.to_numpy(), [name.rstrip(b"\0") for name in found.dictionary.to_pylist()]


def _fixed_names(names: Values) -> Arrow:
    """Padded names as Arrow's binary of one size, which it hashes fast."""
    width = names.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(names), [None, pa.py_buffer(np.ascontiguousarray(names))])


def _named(names: Values) -> Arrow:
    """Names as a dictionary of strings: a lot has few symbols, many times over."""
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
