"""A file of ITCH 5.0 as an exchange's day looks to a decoder: the same mix of messages, thousands of stocks.

Most of a day are orders that come and go; one message in thirty is an execution. Every value has the size that it has
in a real file, because a decoder's time depends on nothing else: no order is followed through its life.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fairtape.formats.fixed_layout import Field, Text
from fairtape.formats.itch.columns import INDEX, TEXT, from_arrow
from fairtape.formats.itch.messages import LAYOUTS
from fairtape.market.symbols import universe

STOCKS: Final = 5_000
DAY: Final = 23_400 * 10**9  # nanoseconds from the open to the close
OPEN: Final = 34_200 * 10**9  # after midnight

MIX: Final[Mapping[str, float]] = {
    "A": 0.425,  # orders
    "F": 0.010,
    "D": 0.410,  # their ends
    "X": 0.015,
    "U": 0.085,
    "E": 0.030,  # executions and trades
    "C": 0.001,
    "P": 0.008,
    "I": 0.014,  # imbalances before the crosses
    "Q": 0.002,
}
"""The share of each letter; what a day has only thousands of, such as its directory, is left out."""

_LETTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "buy_sell": ("B", "S"),
    "printable": ("Y", "N"),
    "imbalance_direction": ("B", "S", "N", "O"),
    "cross_type": ("O", "C", "H"),
    "price_variation": ("L", "1", "2", "A"),
    "attribution": ("NITE", "CDEL", "UBSS", "GSCO"),
}


def itch_day(messages: int, *, seed: int = 1) -> bytes:
    """A file of so many messages."""
    chance = np.random.default_rng(seed)
    letters = chance.choice(len(MIX), size=messages, p=np.array(list(MIX.values())) / sum(MIX.values()))
    times = OPEN + np.sort(chance.integers(0, DAY, messages))
    tables = {}
    for place, letter in enumerate(MIX):
        rows = np.flatnonzero(letters == place)
        columns = {each.name: _column(each, len(rows), chance) for each in LAYOUTS[letter].fields}
        tables[letter] = pa.table({INDEX: rows, **columns, "timestamp_ns": times[rows]})
    return from_arrow(tables, end_mark=True)


def _column(field: Field, rows: int, chance: np.random.Generator) -> Any:
    if field.name == "stock":
        ranks = np.minimum(chance.zipf(1.2, rows) - 1, STOCKS - 1)
        names = pa.array(universe(STOCKS))
        return pa.DictionaryArray.from_arrays(pa.array(ranks, pa.int32()), names)
    if isinstance(field.kind, Text):
        texts = _LETTERS[field.name]
        return pa.array([texts[each] for each in chance.integers(0, len(texts), rows)], TEXT)
    return chance.integers(0, min(field.kind.most, 1 << 40), rows)
