"""Trades as an Arrow table with the columns that fairtape's own files have: what a Parquet file of trades is made of.

Prices and quantities are decimals with nine places, exactly the integers of the record; times count nanoseconds. A
record without a venue has an empty one. `runtime.tradefiles` reads the columns back, value for value.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from fairtape.formats.byte_columns import Values
from fairtape.market.prices import DECIMALS
from fairtape.market.trades import Trades

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
