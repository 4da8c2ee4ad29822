"""A feed that reads a file of trades: CSV, Parquet, a day of ITCH 5.0, or DBN.

The sequence number of a trade in a file is its row. It belongs to no order: it has no token and no release. DBN
contains the receive time; for other files it is when this client read them.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from fairtape.client.errors import ClientError
from fairtape.core.instants import Instant
from fairtape.formats.byte_columns import Values
from fairtape.market.trades import Trades
from fairtape.storage.trade_files import DBN, ITCH, TABLES, has_suffix, read_recording, read_trades
from fairtape.tape.batches import PLACE_DTYPE, ROWS_MAX, TradeBatch
from fairtape.tape.feed import AtInstant, AtNumber, AtSnapshot, Delivery, LastSales, Start
from fairtape.tape.records import ABSENT
from fairtape.tape.sales import Sales

SUFFIXES: Final = (*TABLES, *DBN, *ITCH)


class FileFeed:
    """The trades of one file, in its order."""

    endless: Final = False

    def __init__(self, path: Path, *, midnight_at: Instant | None = None, venue: str = "") -> None:
        """`midnight_at` and `venue` are what a file of ITCH does not contain."""
        self.title = f"file {path}"
        self._path = path
        self._midnight_at = midnight_at
        self._venue = venue
        self._start: Start = AtNumber(1)
        self._stopped = False
        self._pieces: Iterator[tuple[Trades, Values | None]] = iter(())
        self._broken: Values = np.zeros(0, np.uint64)  # the match numbers of broken trades in ITCH

    def open(self, start: Start) -> None:
        if isinstance(start, AtSnapshot):
            raise ClientError(f"start is 'snapshot', and {self.title} has no live end; begin with its first trade")
        self._start = start
        self._pieces = self._opened()

    def run(self) -> Iterator[Delivery]:
        """All trades from the start on."""
        for batch in self._batches(self._pieces):
            if self._stopped:
                return
            match self._start:
                case AtNumber(sequence):
                    selected = batch.slice(max(0, min(sequence - batch.first, batch.rows)))
                case AtInstant(instant):
                    # Trades of several venues are not always in the order of their times: all from the first match.
                    reached = np.flatnonzero(batch.trades["traded_at"] >= instant)
                    selected = batch.slice(int(reached[0]) if len(reached) else batch.rows)
                    if len(reached):
                        self._start = AtNumber(1)
                case _:
                    selected = batch
            if selected.rows:
                yield selected

    def stop(self) -> None:
        self._stopped = True

    def last_sales(self) -> LastSales:
        """As of the end of the file, all of which is read; without broken trades."""
        sales, through = Sales(1), 0
        for batch in self._batches(self._opened()):
            sales.apply(batch.where(~np.isin(batch.trades["trade_id"], self._broken)))
            through = batch.last
        return LastSales(1, through, sales.last_sales())

    def _opened(self) -> Iterator[tuple[Trades, Values | None]]:
        if has_suffix(self._path, TABLES):
            return ((trades, None) for trades in read_trades(self._path))
        if self._midnight_at is None and has_suffix(self._path, ITCH):
            raise ClientError(
                f"{self.title} counts its times from midnight; say which one: midnight=datetime(…, tzinfo=…)"
            )
        found = read_recording(self._path, midnight_at=self._midnight_at or 0, venue=self._venue)
        self._broken = found.broken
        return iter([(found.trades, found.received_at)])

    def _batches(self, pieces: Iterator[tuple[Trades, Values | None]]) -> Iterator[TradeBatch]:
        next_sequence = 1
        for trades, received_at in pieces:
            for start in range(0, len(trades), ROWS_MAX):
                piece = trades[start : start + ROWS_MAX]
                received = None if received_at is None else received_at[start : start + ROWS_MAX]
                yield TradeBatch(piece, _places(next_sequence, len(piece), received))
                next_sequence += len(piece)


def _places(first: int, count: int, received_at: Values | None) -> Values:
    places: Values = np.zeros(count, PLACE_DTYPE)
    for name in ("sequence", "source_number", "stripe_number"):
        places[name] = np.arange(first, first + count)
    for name in ("acknowledged_at", "commit_at", "released_at", "clock_bound"):
        places[name] = ABSENT
    places["received_at"] = time.time_ns() if received_at is None else received_at
    return places
