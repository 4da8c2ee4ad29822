"""Trades that were recorded, whatever the format of their file: what a publisher and a client read.

CSV and Parquet are read piece by piece; a day of ITCH and a DBN file are taken whole, because the price of an execution
may stand anywhere before it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from fairtape.core.errors import FormatError, UserError
from fairtape.core.instants import Instant
from fairtape.formats.byte_columns import Values
from fairtape.formats.dbn import read_dbn
from fairtape.formats.itch.columns import to_arrow
from fairtape.formats.itch.trades import trades_of
from fairtape.market.trades import Trades
from fairtape.storage.trade_files import ignored_columns, read_trades

TABLES: Final = (".csv", ".parquet")
DBN: Final = (".dbn", ".dbn.zst")
ITCH: Final = (".itch", ".itch50", ".nasdaq_itch50")
BROKEN: Final = "B"  # the ITCH message that makes a trade void


class Recording(NamedTuple):
    """A file of DBN or ITCH."""

    trades: Trades
    received_at: Values | None = None  # where the file says it
    broken: Values = np.zeros(0, np.uint64)  # the match numbers of void trades


def is_one_of(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file has such a format, by its name."""
    return path.name.lower().endswith(suffixes)


def read_recording(path: Path, *, midnight_at: Instant, venue: str) -> Recording:
    """A file of DBN or ITCH. `FormatError` where it is none.

    `midnight_at` and `venue` are what a day of ITCH does not say: where its times begin, and whose it is.
    """
    try:
        octets = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if is_one_of(path, DBN):
        found = read_dbn(octets)
        return Recording(found.trades, found.received_at)
    tables = to_arrow(octets)
    trades = trades_of(tables, midnight_at=midnight_at, venue=venue)
    return (
        Recording(trades, broken=tables[BROKEN]["match_number"].to_numpy()) if BROKEN in tables else Recording(trades)
    )


def recorded_trades(path: Path, *, time_unit: str | None, midnight_at: Instant | None, venue: str) -> Iterator[Trades]:
    """The trades of a CSV, Parquet, DBN or ITCH 5.0 file, in its order. A `UserError` names what is wrong with it."""
    if not is_one_of(path, (*DBN, *ITCH)):
        return read_trades(path, time_unit=time_unit)
    if midnight_at is None and is_one_of(path, ITCH):
        raise UserError(f"{path} counts its times from midnight; say which one: --midnight 2019-12-30T00:00:00-05:00")
    try:
        return iter([read_recording(path, midnight_at=midnight_at or 0, venue=venue).trades])
    except FormatError as refused:
        raise UserError(f"{path} cannot be read: {refused}") from None


def unpublished_columns(path: Path) -> tuple[str, ...]:
    """The columns of a table that a trade has no place for; what a feed says beside trades is not counted."""
    return ignored_columns(path) if is_one_of(path, TABLES) else ()
