"""A feed that reads a file of trades: CSV, Parquet, a day of ITCH 5.0, or DBN.

A trade in a file has its row as its number, and nobody put it into an order: it has no token and no release. DBN knows
when it was received; of other files it is when this client read them.
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
from fairtape.tape.sales_columns import ColumnSales

SUFFIXES: Final = (*TABLES, *DBN, *ITCH)


class FileFeed:
    """The trades of one file, in its order."""

    endless: Final = False

    def __init__(self, path: Path, *, midnight_at: Instant | None = None, venue: str = "") -> None:
        """`midnight_at` and `venue` are what a file of ITCH does not say: where its times begin, and whose it is."""
        self.title = f"file {path}"
        self._path = path
        self._midnight_at = midnight_at
        self._venue = venue
        self._start: Start = AtNumber(1)
        self._stopped = False
        self._pieces: Iterator[tuple[Trades, Values | None]] = iter(())
        self._broken: Values = np.zeros(0, np.uint64)  # the match numbers of void trades, which ITCH tells

    def open(self, start: Start) -> None:
        """See that it can be read."""
        if isinstance(start, AtSnapshot):
            raise ClientError(f"start is 'snapshot', and {self.title} has no live end; begin with its first trade")
        self._start = start
        self._pieces = self._opened()

    def run(self) -> Iterator[Delivery]:
        """All trades from the place to begin on."""
        for lot in self._lots(self._pieces):
            if self._stopped:
                return
            match self._start:
                case AtNumber(sequence):
                    wanted = lot.slice(max(0, min(sequence - lot.first, lot.rows)))
                case AtInstant(instant):
                    # Trades of several venues are not always in the order of their times: all from the first one on.
                    reached = np.flatnonzero(lot.trades["traded_at"] >= instant)
                    wanted = lot.slice(int(reached[0]) if len(reached) else lot.rows)
                    if len(reached):
                        self._start = AtNumber(1)
                case _:
                    wanted = lot
            if wanted.rows:
                yield wanted

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped = True

    def last_sales(self) -> LastSales:
        """As of the end of the file, all of which is read; without trades that it says were broken."""
        sales, through = ColumnSales(1), 0
        for lot in self._lots(self._opened()):
            sales.note(lot.where(~np.isin(lot.trades["trade_id"], self._broken)))
            through = lot.last
        return LastSales(1, through, sales.lot())

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

    def _lots(self, pieces: Iterator[tuple[Trades, Values | None]]) -> Iterator[TradeBatch]:
        following = 1
        for trades, received_at in pieces:
            for start in range(0, len(trades), ROWS_MAX):
                piece = trades[start : start + ROWS_MAX]
                received = None if received_at is None else received_at[start : start + ROWS_MAX]
                yield TradeBatch(piece, _places(following, len(piece), received))
                following += len(piece)


def _places(first: int, count: int, received_at: Values | None) -> Values:
    places: Values = np.zeros(count, PLACE_DTYPE)
    for name in ("sequence", "source_number", "stripe_number"):
        places[name] = np.arange(first, first + count)
    for name in ("acknowledged_at", "commit_at", "released_at", "clock_bound"):
        places[name] = ABSENT
    places["received_at"] = time.time_ns() if received_at is None else received_at
    return places
