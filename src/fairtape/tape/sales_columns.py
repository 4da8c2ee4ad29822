"""Sales that can be taken back, by columns: the last sale and the volume of every symbol, whatever was void or wrong.

It says the same as the ticker (`fairtape.tape.sales` has the rules: which sales are open, what a correction's place is,
who may take back what), in the columns of a lot: a million trades are looked at in part of a second, and the last sale
of a symbol has all its times and numbers.

Three things are kept. The *window* has the open sales in the order of their numbers; a void one leaves a hole in it,
a corrected one stands at its end, with its rank: the number of the wrong trade, where it counts. When a sale is settled
it leaves the window for the *settled* board, which has the latest of each symbol. The *last* board has what customers
ask for. Trades are added without looking back; only when the last sale of a symbol is taken back is the window searched
for the one before it, which takes a tenth of a millisecond.
"""

from typing import Final, NamedTuple

import numpy as np

from fairtape.formats.byte_columns import Values
from fairtape.market.symbols import Symbol
from fairtape.market.trades import TRADE_DTYPE, blank_trades
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch, coded, join_batches, records_of
from fairtape.tape.decoding import batch_of
from fairtape.tape.feed import Delivery
from fairtape.tape.records import Canceled, Corrected, Revision
from fairtape.tape.sales import OPEN_MAX, SYMBOLS_MAX

ROOM_MIN: Final = 64
HALF: Final = 32  # bits: a sum of quantities has two halves, because 64 are too few for a busy day
HALF_MASK: Final = (1 << HALF) - 1
WAITING_MAX: Final = 4_096  # trades that may wait to be looked at
NOBODY: Final = -1  # whose sale a hole in the window is


class ColumnVolume(NamedTuple):
    """What was traded of a symbol, without what was taken back."""

    quantity: int  # 1e-9; as large as it gets, so never a machine integer
    trades: int


class ColumnSales:
    """Grows with every lot and every revision, in the order of their numbers."""

    def __init__(self, since: int, *, open_max: int = OPEN_MAX, symbols_max: int = SYMBOLS_MAX) -> None:
        self.since = since  # the number from which on trades are counted
        self.unlisted = 0  # trades of symbols beyond the limit
        self.refused = 0  # revisions that changed nothing
        self._open_max = open_max
        self._symbols_max = symbols_max
        self._rows: dict[bytes, int] = {}
        self._window = _Window()
        self._settled = _Board()
        self._last = _Board()
        self._volumes = np.zeros((3, ROOM_MIN), np.int64)  # of each symbol: both halves of the quantity, and trades
        self._latest_at = np.zeros(ROOM_MIN, np.int64)  # of each symbol, while a lot is looked at
        self._waiting: list[TradeBatch] = []  # small lots that nobody has asked about yet: together they cost less
        self._rows_waiting = 0

    def note(self, delivery: Delivery) -> None:
        """Take notice of trades, and of what was said about them; nothing else matters here."""
        if isinstance(delivery, TradeBatch):
            self.sell(delivery)
        elif isinstance(delivery, Canceled | Corrected):
            self.revise(delivery)

    def sell(self, lot: TradeBatch) -> None:
        """Some trades more."""
        self._waiting.append(lot)
        self._rows_waiting += lot.rows
        if self._rows_waiting >= WAITING_MAX:
            self._catch_up()

    def revise(self, revision: Revision) -> bool:
        """A venue takes a trade back or corrects it; whether that counts. Otherwise nothing has changed."""
        self._catch_up()
        slot = self._window.find(revision.number)
        wrong = self._window.lot(slot)
        if not wrong.rows or not _is_own(wrong, revision):
            self.refused += 1
            return False
        row, rank = self._window.void(slot)
        self._tally(row, wrong.trades["quantity"], -1)
        is_last = bool(self._last.ranks[row] == rank)
        if isinstance(revision, Corrected):
            right = batch_of(revision)
            self._tally(row, right.trades["quantity"], 1)
            self._window.add(right, row, rank)
            if is_last:
                self._last.put(row, right, rank)
        elif is_last:
            self._fall_back(row)
        return True

    def symbols(self) -> list[Symbol]:
        """All that were ever traded, by name."""
        self._catch_up()
        return sorted(name.decode("ascii") for name in self._rows)

    def of(self, symbol: Symbol) -> tuple[TradeBatch, ColumnVolume] | None:
        """The last sale of a symbol, a lot of one, or of none where all were taken back; and its volume."""
        self._catch_up()
        row = self._rows.get(symbol.encode("ascii", "replace"))
        if row is None:
            return None
        low, high, trades = self._volumes[:, row].tolist()
        lot = self._last.lot.slice(row, row + 1 if self._last.ranks[row] else row)
        return lot, ColumnVolume((high << HALF) + low, trades)

    def lot(self) -> TradeBatch:
        """The last sale of every symbol that has one, in the order of their numbers."""
        self._catch_up()
        whole = self._last.lot.where(np.flatnonzero(self._last.ranks))
        return whole.where(np.argsort(whole.places["sequence"], kind="stable"))

    def _catch_up(self) -> None:
        if self._waiting:
            waiting, self._waiting, self._rows_waiting = self._waiting, [], 0
            self._sell(join_batches(waiting))

    def _sell(self, lot: TradeBatch) -> None:
        rows = self._rows_of(lot.trades["symbol"])
        listed = rows != NOBODY
        if not listed.all():
            self.unlisted += int(np.count_nonzero(~listed))
            lot, rows = lot.where(listed), rows[listed]
        numbers = lot.places["sequence"]
        self._tally(rows, lot.trades["quantity"], 1)
        latest = self._latest(rows)
        self._last.put(rows[latest], lot.where(latest), numbers[latest])
        self._window.add(lot, rows, numbers)
        excess = self._window.count - self._open_max
        if excess > 0:
            self._settle(excess)

    def _tally(self, rows: Values, quantities: Values, sign: int) -> None:
        low, high, trades = self._volumes
        np.add.at(low, rows, sign * (quantities & HALF_MASK))
        np.add.at(high, rows, sign * (quantities >> HALF))
        np.add.at(trades, rows, sign)

    def _latest(self, rows: Values) -> Values:
        """Where the last one of each symbol stands. Of values for one place, the last is the one that stays."""
        order = np.arange(len(rows))
        self._latest_at[rows] = order
        return np.flatnonzero(self._latest_at[rows] == order)

    def _settle(self, excess: int) -> None:
        """The oldest so many cannot be taken back any more."""
        slots = self._window.leave(excess)
        slots = slots[np.argsort(self._window.ranks[slots], kind="stable")]
        slots = slots[self._window.ranks[slots] > self._settled.ranks[self._window.rows[slots]]]
        slots = slots[self._latest(self._window.rows[slots])]
        self._settled.put(self._window.rows[slots], self._window.lot(slots), self._window.ranks[slots])

    def _fall_back(self, row: Values) -> None:
        """The last sale of a symbol is void: the one before it is the last, if there is one."""
        slots = self._window.of(int(row[0]))
        slots = slots[self._window.ranks[slots] > self._settled.ranks[row]]
        if len(slots):
            latest = slots[[np.argmax(self._window.ranks[slots])]]
            self._last.put(row, self._window.lot(latest), self._window.ranks[latest])
        else:
            self._last.put(row, self._settled.lot.where(row), self._settled.ranks[row])

    def _rows_of(self, names: Values) -> Values:
        """The rows of these symbols; NOBODY where there is no room for one."""
        codes, distinct = coded(names)
        return np.array([self._row(name) for name in distinct], np.int32)[codes]

    def _row(self, symbol: bytes) -> int:
        row = self._rows.get(symbol)
        if row is None:
            row = len(self._rows)
            if row == self._symbols_max:
                return NOBODY
            self._rows[symbol] = row
            if row == len(self._latest_at):
                self._settled.widen()
                self._last.widen()
                self._volumes = np.pad(self._volumes, ((0, 0), (0, row)))
                self._latest_at = np.zeros(2 * row, np.int64)
        return row


class _Board:
    """One sale of each symbol, by the rows of the symbols; a rank of 0 is none."""

    def __init__(self) -> None:
        self.lot = TradeBatch(blank_trades(ROOM_MIN), np.zeros(ROOM_MIN, PLACE_DTYPE))
        self.ranks = np.zeros(ROOM_MIN, np.int64)

    def put(self, rows: Values, lot: TradeBatch, ranks: Values) -> None:
        records_of(self.lot.trades)[rows] = records_of(lot.trades)
        records_of(self.lot.places)[rows] = records_of(lot.places)
        self.ranks[rows] = ranks

    def widen(self) -> None:
        """Have room for twice as many symbols."""
        self.lot = join_batches([self.lot, self.lot])
        self.ranks = np.pad(self.ranks, (0, len(self.ranks)))


class _Window:
    """The open sales, from `start` to `end`, in the order of their numbers, with holes."""

    def __init__(self) -> None:
        self.start = self.end = self.holes = 0
        self._hold(ROOM_MIN)

    @property
    def count(self) -> int:
        """How many sales are open."""
        return self.end - self.start - self.holes

    def lot(self, slots: Values) -> TradeBatch:
        """The sales in these slots."""
        return TradeBatch(self.trades[slots].view(TRADE_DTYPE), self.places[slots].view(PLACE_DTYPE))

    def add(self, lot: TradeBatch, rows: Values, ranks: Values) -> None:
        """Sales with numbers above all others."""
        if self.end + lot.rows > len(self.numbers):
            self._make_room(lot.rows)
        slots = slice(self.end, self.end + lot.rows)
        self.trades[slots], self.places[slots] = records_of(lot.trades), records_of(lot.places)
        self.numbers[slots], self.ranks[slots], self.rows[slots] = lot.places["sequence"], ranks, rows
        self.end += lot.rows

    def find(self, number: int) -> Values:
        """Where the open sale with this number is, if there is one."""
        numbers = self.numbers[self.start : self.end]
        slots = self.start + np.arange(*np.searchsorted(numbers, (number, number + 1)))
        found: Values = slots[self.rows[slots] != NOBODY]
        return found

    def of(self, row: int) -> Values:
        """Where the open sales of a symbol are."""
        return self.start + np.flatnonzero(self.rows[self.start : self.end] == row)

    def void(self, slots: Values) -> tuple[Values, Values]:
        """Make holes; the rows and the ranks of the sales that were there."""
        rows, ranks = self.rows[slots], self.ranks[slots]
        self.rows[slots] = NOBODY
        self.holes += len(slots)
        return rows, ranks

    def leave(self, count: int) -> Values:
        """Let the oldest so many go; where they are until something is added."""
        enough = self.rows[self.start : min(self.start + count + self.holes, self.end)]
        slots: Values = self.start + np.flatnonzero(enough != NOBODY)[:count]
        start = int(slots[-1]) + 1
        self.holes -= start - self.start - count
        self.start = start
        return slots

    def _make_room(self, more: int) -> None:
        """Move up what is open; into arrays half as large again, where less than a quarter would be free."""
        kept = self.count
        chosen: Values | slice = slice(self.start, self.end)
        if self.holes:
            chosen = self.start + np.flatnonzero(self.rows[chosen] != NOBODY)
        columns = [column[chosen] for column in self._columns]
        needed = kept + more
        if 4 * needed > 3 * len(self.numbers):
            self._hold(needed + needed // 2)
        for column, values in zip(self._columns, columns, strict=True):
            column[:kept] = values
        self.start, self.end, self.holes = 0, kept, 0

    def _hold(self, room: int) -> None:
        self.trades: Values = np.empty(room, f"V{TRADE_DTYPE.itemsize}")
        self.places: Values = np.empty(room, f"V{PLACE_DTYPE.itemsize}")
        self.numbers, self.ranks = np.empty(room, np.int64), np.empty(room, np.int64)
        self.rows = np.empty(room, np.int32)

    @property
    def _columns(self) -> tuple[Values, ...]:
        return self.trades, self.places, self.numbers, self.ranks, self.rows


def _is_own(sale: TradeBatch, revision: Revision) -> bool:
    """Whether a revision comes from whoever published a sale, and names its listing."""
    (venue,), (symbol,) = sale.trades["venue"].tolist(), sale.trades["symbol"].tolist()
    named = revision.venue.encode("ascii"), revision.symbol.encode("ascii")
    return bool(sale.places["source"][0] == revision.source) and (venue, symbol) == named
