"""The last sale and the volume of every symbol, without canceled trades and with corrected ones.

The ticker, the snapshots of the client and the web server all use this module, so all follow the same rules:

- Only the source that published a trade can cancel or correct it, by the number under which it is known, and by the
  venue and the symbol that it has. Every other notice is refused and changes nothing.
- A sale can be revised while it is *open*: the latest `open_max` sales of all symbols are. Then it is *settled*, and
  only what matters of it is kept: its part of the volume, and the latest settled sale of each symbol. So memory is
  bounded by how long a trade can be revised, and does not grow with the day.
- A corrected sale has the number of its correction and the *place* of the wrong one: the correction of a trade of the
  morning does not become the last sale of the evening.

Sales are kept as columns, so a million trades take a fraction of a second. The *window* has the open sales in the order
of their numbers. A canceled sale leaves a hole in it; a corrected one is appended to it, with its place. A sale that is
settled moves to the *settled* table, which has the latest of each symbol. The *last* table has the last sale of each
symbol. Adding trades never searches the window. Only when the last sale of a symbol is canceled is the window searched
for the one before it, which takes a tenth of a millisecond.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from fairtape.core.instants import Instant
from fairtape.formats.byte_columns import Values
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import Symbol
from fairtape.market.trades import TRADE_DTYPE, blank_trades
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch, dictionary_codes, join_batches, raw_rows, texts
from fairtape.tape.decoding import batch_of
from fairtape.tape.feed import Delivery
from fairtape.tape.records import Canceled, Corrected, Revision

OPEN_MAX: Final = 1 << 18  # sales that can be revised: at 10 a second, those of seven hours
SYMBOLS_MAX: Final = 1 << 16
CAPACITY_MIN: Final = 64
HALF: Final = 32  # bits: a sum of quantities has two halves, because 64 bits are too few for a busy day
HALF_MASK: Final = (1 << HALF) - 1
WAITING_MAX: Final = 4_096  # trades that may wait to be added
NO_SYMBOL: Final = -1  # the row of a hole in the window, or of a symbol beyond the limit


class Sale(NamedTuple):
    """One trade of the ticker."""

    number: int  # in the order
    place: int  # where it counts: its own number, or that of the trade which it corrects
    source: int  # the source that published it
    venue: str
    symbol: Symbol
    price: Price
    quantity: Quantity
    traded_at: Instant


@dataclass(slots=True)
class Volume:
    """What was traded, without canceled trades."""

    quantity: int = 0  # 1e-9; unbounded, so never a machine integer
    trades: int = 0

    def add(self, quantity: Quantity) -> None:
        self.quantity += quantity
        self.trades += 1

    def subtract(self, quantity: Quantity) -> None:
        self.quantity -= quantity
        self.trades -= 1


class NoticeRefusal(Enum):
    """Why a notice was refused."""

    UNKNOWN = "no open trade has this number: it is too old, was revised before, or never existed"
    FOREIGN = "another source published what the notice is about"
    OTHER = "it names another venue or symbol than the trade has"
    CROWDED = "there are too many venues"


class SymbolSales(NamedTuple):
    """The last sale of a symbol and its volume."""

    symbol: Symbol
    batch: TradeBatch  # the last sale; without rows where all were canceled
    place: int  # of the last sale; 0 where there is none
    volume: Volume

    @property
    def last(self) -> Sale | None:
        """The last sale as a row; None where all were canceled."""
        return next(sales_of(self.batch, [self.place]), None) if self.batch.rows else None


def sales_of(batch: TradeBatch, places: list[int]) -> Iterator[Sale]:
    """The trades of a batch as rows, with these places."""
    trades = batch.trades
    return map(
        Sale,
        batch.places["sequence"].tolist(),
        places,
        batch.places["source"].tolist(),
        texts(trades["venue"]),
        texts(trades["symbol"]),
        trades["price"].tolist(),
        trades["quantity"].tolist(),
        trades["traded_at"].tolist(),
    )


class Sales:
    """All symbols. Takes batches of trades and revisions in the order of their numbers."""

    def __init__(self, since: int = 1, *, open_max: int = OPEN_MAX, symbols_max: int = SYMBOLS_MAX) -> None:
        assert open_max > 0
        self.since = since  # the number from which on trades are counted
        self.refused = 0  # revisions that changed nothing
        self._unlisted = 0
        self._open_max = open_max
        self._symbols_max = symbols_max
        self._rows: dict[bytes, int] = {}
        self._window = _Window()
        self._settled = _SymbolTable()
        self._last = _SymbolTable()
        self._volumes = np.zeros((3, CAPACITY_MIN), np.int64)  # per symbol: both halves of the quantity, and trades
        self._latest_at = np.zeros(CAPACITY_MIN, np.int64)  # per symbol, while a batch is added
        self._waiting: list[TradeBatch] = []  # small batches, added together at the next query: that costs less
        self._rows_waiting = 0

    def apply(self, delivery: Delivery) -> None:
        """Take trades and revisions; other deliveries change nothing."""
        if isinstance(delivery, TradeBatch):
            self.add(delivery)
        elif isinstance(delivery, Canceled | Corrected):
            self.revise(delivery)

    def add(self, batch: TradeBatch) -> None:
        """Add trades whose numbers are above all others."""
        self._waiting.append(batch)
        self._rows_waiting += batch.rows
        if self._rows_waiting >= WAITING_MAX:
            self._catch_up()

    def revise(self, revision: Revision) -> Sale | NoticeRefusal:
        """Cancel or correct an open sale. Returns the wrong sale, or why nothing has changed."""
        self._catch_up()
        slot = self._window.find(revision.number)
        wrong = self._window.batch(slot)
        refusal = _refusal(wrong, revision)
        if refusal is not None:
            self.refused += 1
            return refusal
        row, place = self._window.remove(slot)
        self._count(row, wrong.trades["quantity"], -1)
        is_last = bool(self._last.places[row] == place)
        if isinstance(revision, Corrected):
            right = batch_of(revision)
            self._count(row, right.trades["quantity"], 1)
            self._window.append(right, row, place)
            if is_last:
                self._last.put(row, right, place)
        elif is_last:
            self._restore_previous(row)
        return next(sales_of(wrong, place.tolist()))

    def __len__(self) -> int:
        """How many symbols were ever traded."""
        self._catch_up()
        return len(self._rows)

    @property
    def unlisted(self) -> int:
        """Trades of symbols beyond the limit, which are not counted."""
        self._catch_up()
        return self._unlisted

    def lists(self, symbol: Symbol) -> bool:
        """Whether a symbol that was traded is below the limit of symbols."""
        if len(self._rows) + self._rows_waiting < self._symbols_max:
            return True  # the limit was never reached, so no symbol was refused
        self._catch_up()
        return symbol.encode("ascii") in self._rows

    def symbols(self) -> list[Symbol]:
        """All symbols that were ever traded, by name."""
        self._catch_up()
        return sorted(name.decode("ascii") for name in self._rows)

    def of(self, symbol: Symbol) -> SymbolSales | None:
        """The last sale and the volume of a symbol; None where it was never traded."""
        self._catch_up()
        row = self._rows.get(symbol.encode("ascii", "replace"))
        return None if row is None else self._symbol_sales(symbol, row)

    def busiest(self, count: int) -> list[SymbolSales]:
        """The symbols with the most trades, the busiest first."""
        self._catch_up()
        names = list(self._rows)
        rows = np.argsort(-self._volumes[2, : len(names)], kind="stable")[:count]
        return [self._symbol_sales(names[row].decode("ascii"), row) for row in rows.tolist()]

    def last_sales(self) -> TradeBatch:
        """The last sale of every symbol that has one, in the order of their numbers."""
        self._catch_up()
        whole = self._last.batch.where(np.flatnonzero(self._last.places))
        return whole.where(np.argsort(whole.places["sequence"], kind="stable"))

    def open_sales(self) -> Iterator[Sale]:
        """The sales that can be revised, in the order of their numbers."""
        self._catch_up()
        slots = self._window.occupied()
        return sales_of(self._window.batch(slots), self._window.places[slots].tolist())

    def settled(self, symbol: Symbol) -> Sale | None:
        """The latest settled sale of a symbol."""
        self._catch_up()
        row = self._rows[symbol.encode("ascii")]
        place = int(self._settled.places[row])
        return next(sales_of(self._settled.batch.slice(row, row + 1), [place])) if place else None

    def _symbol_sales(self, symbol: Symbol, row: int) -> SymbolSales:
        low, high, trades = self._volumes[:, row].tolist()
        place = int(self._last.places[row])
        batch = self._last.batch.slice(row, row + 1 if place else row)
        return SymbolSales(symbol, batch, place, Volume((high << HALF) + low, trades))

    def _catch_up(self) -> None:
        if self._waiting:
            waiting, self._waiting, self._rows_waiting = self._waiting, [], 0
            self._add(join_batches(waiting))

    def _add(self, batch: TradeBatch) -> None:
        rows = self._rows_of(batch.trades["symbol"])
        listed = rows != NO_SYMBOL
        if not listed.all():
            self._unlisted += int(np.count_nonzero(~listed))
            batch, rows = batch.where(listed), rows[listed]
        numbers = batch.places["sequence"]
        self._count(rows, batch.trades["quantity"], 1)
        latest = self._latest(rows)
        self._last.put(rows[latest], batch.where(latest), numbers[latest])
        self._window.append(batch, rows, numbers)
        excess = self._window.count - self._open_max
        if excess > 0:
            self._settle(excess)

    def _count(self, rows: Values, quantities: Values, sign: int) -> None:
        low, high, trades = self._volumes
        np.add.at(low, rows, sign * (quantities & HALF_MASK))
        np.add.at(high, rows, sign * (quantities >> HALF))
        np.add.at(trades, rows, sign)

    def _latest(self, rows: Values) -> Values:
        """The index of the last trade of each symbol. NumPy keeps the last of several values for one index."""
        order = np.arange(len(rows))
        self._latest_at[rows] = order
        return np.flatnonzero(self._latest_at[rows] == order)

    def _settle(self, excess: int) -> None:
        """Settle the oldest `excess` sales."""
        slots = self._window.remove_oldest(excess)
        slots = slots[np.argsort(self._window.places[slots], kind="stable")]
        slots = slots[self._window.places[slots] > self._settled.places[self._window.rows[slots]]]
        slots = slots[self._latest(self._window.rows[slots])]
        self._settled.put(self._window.rows[slots], self._window.batch(slots), self._window.places[slots])

    def _restore_previous(self, row: Values) -> None:
        """The last sale of a symbol was canceled: the one before it, if any, is the last."""
        slots = self._window.of(int(row[0]))
        slots = slots[self._window.places[slots] > self._settled.places[row]]
        if len(slots):
            latest = slots[[np.argmax(self._window.places[slots])]]
            self._last.put(row, self._window.batch(latest), self._window.places[latest])
        else:
            self._last.put(row, self._settled.batch.where(row), self._settled.places[row])

    def _rows_of(self, names: Values) -> Values:
        """The rows of these symbols; NO_SYMBOL beyond the limit."""
        codes, distinct = dictionary_codes(names)
        return np.array([self._row(name) for name in distinct], np.int32)[codes]

    def _row(self, symbol: bytes) -> int:
        row = self._rows.get(symbol)
        if row is None:
            row = len(self._rows)
            if row == self._symbols_max:
                return NO_SYMBOL
            self._rows[symbol] = row
            if row == len(self._latest_at):
                self._settled.double()
                self._last.double()
                self._volumes = np.pad(self._volumes, ((0, 0), (0, row)))
                self._latest_at = np.zeros(2 * row, np.int64)
        return row


class _SymbolTable:
    """One sale of each symbol, by the rows of the symbols; the place 0 means none."""

    def __init__(self) -> None:
        self.batch = TradeBatch(blank_trades(CAPACITY_MIN), np.zeros(CAPACITY_MIN, PLACE_DTYPE))
        self.places = np.zeros(CAPACITY_MIN, np.int64)

    def put(self, rows: Values, batch: TradeBatch, places: Values) -> None:
        raw_rows(self.batch.trades)[rows] = raw_rows(batch.trades)
        raw_rows(self.batch.places)[rows] = raw_rows(batch.places)
        self.places[rows] = places

    def double(self) -> None:
        """Double the capacity."""
        self.batch = join_batches([self.batch, self.batch])
        self.places = np.pad(self.places, (0, len(self.places)))


class _Window:
    """The open sales, in slots from `start` to `end`, in the order of their numbers, with holes."""

    def __init__(self) -> None:
        self.start = self.end = self.holes = 0
        self._allocate(CAPACITY_MIN)

    @property
    def count(self) -> int:
        """How many sales are open."""
        return self.end - self.start - self.holes

    def batch(self, slots: Values) -> TradeBatch:
        """The sales in these slots."""
        return TradeBatch(self.trades[slots].view(TRADE_DTYPE), self.records[slots].view(PLACE_DTYPE))

    def append(self, batch: TradeBatch, rows: Values, places: Values) -> None:
        """Add sales with numbers above all others."""
        if self.end + batch.rows > len(self.numbers):
            self._make_space(batch.rows)
        slots = slice(self.end, self.end + batch.rows)
        self.trades[slots], self.records[slots] = raw_rows(batch.trades), raw_rows(batch.places)
        self.numbers[slots], self.places[slots], self.rows[slots] = batch.places["sequence"], places, rows
        self.end += batch.rows

    def find(self, number: int) -> Values:
        """The slot of the open sale with this number, if there is one."""
        numbers = self.numbers[self.start : self.end]
        slots = self.start + np.arange(*np.searchsorted(numbers, (number, number + 1)))
        found: Values = slots[self.rows[slots] != NO_SYMBOL]
        return found

    def of(self, row: int) -> Values:
        """The slots of the open sales of a symbol."""
        return self.start + np.flatnonzero(self.rows[self.start : self.end] == row)

    def occupied(self) -> Values:
        """The slots of all open sales."""
        return self.start + np.flatnonzero(self.rows[self.start : self.end] != NO_SYMBOL)

    def remove(self, slots: Values) -> tuple[Values, Values]:
        """Make holes; the rows and the places of the sales that were there."""
        rows, places = self.rows[slots], self.places[slots]
        self.rows[slots] = NO_SYMBOL
        self.holes += len(slots)
        return rows, places

    def remove_oldest(self, count: int) -> Values:
        """Remove the oldest sales; their slots, which stay readable until something is appended."""
        enough = self.rows[self.start : min(self.start + count + self.holes, self.end)]
        slots: Values = self.start + np.flatnonzero(enough != NO_SYMBOL)[:count]
        start = int(slots[-1]) + 1
        self.holes -= start - self.start - count
        self.start = start
        return slots

    def _make_space(self, more: int) -> None:
        """Move the open sales to the front; into arrays half as large again, where less than a quarter stays free."""
        kept = self.count
        chosen: Values | slice = self.occupied() if self.holes else slice(self.start, self.end)
        columns = [column[chosen] for column in self._columns]
        needed = kept + more
        if 4 * needed > 3 * len(self.numbers):
            self._allocate(needed + needed // 2)
        for column, values in zip(self._columns, columns, strict=True):
            column[:kept] = values
        self.start, self.end, self.holes = 0, kept, 0

    def _allocate(self, capacity: int) -> None:
        self.trades: Values = np.empty(capacity, f"V{TRADE_DTYPE.itemsize}")
        self.records: Values = np.empty(capacity, f"V{PLACE_DTYPE.itemsize}")  # rows of PLACE_DTYPE
        self.numbers, self.places = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        self.rows = np.empty(capacity, np.int32)

    @property
    def _columns(self) -> tuple[Values, ...]:
        return self.trades, self.records, self.numbers, self.places, self.rows


def _refusal(sale: TradeBatch, revision: Revision) -> NoticeRefusal | None:
    """Why a revision does not count for the open sale that it names (a batch of one or none)."""
    if not sale.rows:
        return NoticeRefusal.UNKNOWN
    if sale.places["source"][0] != revision.source:
        return NoticeRefusal.FOREIGN
    (venue,), (symbol,) = sale.trades["venue"].tolist(), sale.trades["symbol"].tolist()
    named = revision.venue.encode("ascii"), revision.symbol.encode("ascii")
    return NoticeRefusal.OTHER if (venue, symbol) != named else None
