"""The live end of what one site releases, its recent past, and the last sale of every symbol as of there.

Everything here happens in one thread, so all of it is of one moment: a snapshot ends exactly where the next delivery
begins, and whoever has read the recent past to its end joins the present without a gap and without a double.
"""

from bisect import bisect_right
from collections import deque
from pathlib import Path
from typing import Final

from fairtape.client.journal_feed import first_number, released_end
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.journal import JournalReader
from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import Delivery, number_after
from fairtape.tape.records import Break, Placed
from fairtape.tape.sales_columns import ColumnSales
from fairtape.web.journal_position import JournalPosition

BACK_MAX: Final = 100_000  # numbers that are read back at the start, for the last sale of each symbol
TAIL_ROWS_MAX: Final = 1 << 16  # messages of the recent past that are kept in memory
BREAKS_MAX: Final = 64  # that are remembered for those who come back
ADVANCE_PERIOD: Final = 20 * MILLISECOND  # for which the journal is read before customers get something


class Tail:
    """The latest deliveries. Each has an index that counts up for ever; numbers of the order ascend within the tail."""

    def __init__(self, due: int) -> None:
        self.first = due  # the number with which it begins
        self.start = 0  # the index of the first delivery that is kept
        self._deliveries: list[Delivery] = []
        self._after: list[int] = []  # of each delivery: the number that follows it
        self._rows: list[int] = []
        self._rows_kept = 0

    @property
    def end(self) -> int:
        """The index of the next delivery."""
        return self.start + len(self._deliveries)

    @property
    def due(self) -> int:
        """The number that follows the last delivery."""
        return self._after[-1] if self._after else self.first

    def add(self, delivery: Delivery) -> None:
        """Take in the next one. Behind a Break numbers begin anew, so what was before it is forgotten."""
        if isinstance(delivery, Break):
            self._forget(len(self._deliveries))
            self.first = min(self.due, delivery.sequence)
        after, rows = number_after(delivery, self.due), delivery.rows if isinstance(delivery, TradeBatch) else 1
        self._deliveries.append(delivery)
        self._after.append(after)
        self._rows.append(rows)
        self._rows_kept += rows
        if self._rows_kept > 2 * TAIL_ROWS_MAX:  # seldom, because a list moves up all that is left
            count = kept = 0
            while self._rows_kept - kept > TAIL_ROWS_MAX:
                kept += self._rows[count]
                count += 1
            self._forget(count)

    def at(self, index: int) -> tuple[Delivery, int]:
        """A delivery, and the number that follows it."""
        return self._deliveries[index - self.start], self._after[index - self.start]

    def find(self, number: int) -> int | None:
        """The index of the delivery that holds a number; of the notices before it, where one begins with that number.

        None where it is not here.
        """
        if not self.first <= number <= self.due:
            return None
        place = bisect_right(self._after, number)
        while (
            place
            and self._after[place - 1] == number
            and not isinstance(self._deliveries[place - 1], TradeBatch | Placed)
        ):
            place -= 1
        return self.start + place

    def _forget(self, count: int) -> None:
        if not count:
            return
        self.first = self._after[count - 1]
        self._rows_kept -= sum(self._rows[:count])
        del self._deliveries[:count], self._after[:count], self._rows[:count]
        self.start += count


class LiveTicker:
    """Follows one journal."""

    def __init__(self, directory: Path) -> None:
        """Reads back first, which takes a moment."""
        self.journal = JournalReader.open(directory)
        self.late = 0  # of the messages counted: released after their instant
        self.messages = 0
        self._first = max(first_number(self.journal), released_end(self.journal) - BACK_MAX)
        self._reading = JournalPosition(self.journal, self._first)
        self.tail = Tail(self._first)
        self.breaks: deque[Break] = deque(maxlen=BREAKS_MAX)
        self.sales = ColumnSales(self._first)
        while self.advance():
            pass

    @property
    def due(self) -> int:
        """The number of the next message."""
        return self.tail.due

    @property
    def formation(self) -> int:
        """The formation that numbers the order at its live end; 0 before anything is in it."""
        return self._reading.formation

    def begin(self) -> int:
        """The first number that the journal holds."""
        return first_number(self.journal)

    def since(self, instant: Instant) -> int:
        """The first number whose token has this timestamp or a later one; the next one where there is none yet."""
        place = self.journal.place(1, instant)
        return self.due if place is None else min(place.sequence, self.due)

    def resumption(self, number: int, formation: int) -> int:
        """Where to go on who knows the order up to this number by this formation: at a Break that gave it away."""
        return min([number, *(each.sequence for each in self.breaks if each.formation > formation)])

    def advance(self, period: Duration = ADVANCE_PERIOD) -> list[Delivery]:
        """What was released since the last time, as much of it as can be read in this period."""
        found = self._reading.take(period=period)
        for delivery in found:
            if isinstance(delivery, Break):
                self.breaks.append(delivery)
                self._recount(delivery.sequence)
            self.tail.add(delivery)
            self._count(delivery)
        return found

    def keep_up(self) -> None:
        """Have the journal's index at hand for those who will ask for the past."""
        self.journal.update_index()

    def close(self) -> None:
        """Give the files back."""
        self._reading.close()

    def _count(self, delivery: Delivery) -> None:
        self.sales.note(delivery)
        match delivery:
            case TradeBatch():
                self.messages += delivery.rows
                self.late += int(delivery.places["late"].sum())
            case Placed():
                self.messages += 1
                self.late += delivery.late

    def _recount(self, end: int) -> None:
        """Numbers from `end` on were used otherwise before: count again without them, as a server that starts there."""
        self._first = max(self._first, end - BACK_MAX)
        self.sales, self.messages, self.late = ColumnSales(self._first), 0, 0
        past = JournalPosition(self.journal, self._first)
        while past.due < end and (found := past.take(period=ADVANCE_PERIOD)):
            for delivery in found:
                if isinstance(delivery, TradeBatch):
                    delivery = delivery.where(delivery.places["sequence"] < end)
                if not isinstance(delivery, Placed) or delivery.sequence < end:
                    self._count(delivery)
        past.close()
