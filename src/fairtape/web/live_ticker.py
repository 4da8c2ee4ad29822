"""The live end of what one site releases, its recent past, and the last sale of every symbol as of there.

Everything here happens in one thread, so all of it is of one moment: a snapshot ends exactly where the next delivery
begins, and a customer that has read the recent past to its end becomes live without a gap and without a duplicate.
"""

import time
from bisect import bisect_right
from collections import deque
from pathlib import Path
from typing import Final

from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.journal import JournalEntry, JournalFollower, JournalReader, NotificationReceiver
from fairtape.journal.follow import REPAIR_PERIOD_MAX, first_sequence, released_end
from fairtape.tape.batches import TradeBatch
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import Delivery, number_after
from fairtape.tape.records import Break, Placed
from fairtape.tape.sales import Sales

BACK_MAX: Final = 100_000  # sequence numbers that are read back at the start, for the last sale of each symbol
TAIL_ROWS_MAX: Final = 1 << 16  # messages of the recent past that are kept in memory
BREAKS_MAX: Final = 64  # that are kept for customers that resume
PIECE_ROWS: Final = 8_192  # messages of one piece, but at least one entry
PIECE_PERIOD: Final = 2 * MILLISECOND  # for which a piece is read
ADVANCE_PERIOD: Final = 20 * MILLISECOND  # for which the journal is read before a round


class DeliveryReader:
    """The deliveries of one journal from a number on, piece by piece, so that no customer waits for another one."""

    def __init__(self, journal: JournalReader, due: int) -> None:
        self._follower = JournalFollower.of_journal(journal, from_sequence=due, repair_period=REPAIR_PERIOD_MAX)
        self._decoder = EntryDecoder(due)
        self.ends_with_message = False  # the last piece did, so nothing before the next number is missing

    @property
    def due(self) -> int:
        """The number of the next message."""
        return self._decoder.due

    @property
    def formation(self) -> int:
        """The latest formation that was read; 0 where none was."""
        return self._follower.formation

    @property
    def notifications(self) -> NotificationReceiver:
        """The notifications of the site that writes the journal."""
        return self._follower.notifications

    def take(self, period: Duration = PIECE_PERIOD) -> list[Delivery]:
        """The next piece; empty where the journal ends for now."""
        found = self._follower.read(PIECE_ROWS, period)
        if found:
            self.ends_with_message = isinstance(found[-1], JournalEntry)
        return self._decoder.decode(found, time.time_ns())

    def close(self) -> None:
        """Close the files."""
        self._follower.close()


class Tail:
    """The latest deliveries. Each has an index that only grows; sequence numbers ascend within the tail."""

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
        """Add the next one. A Break uses numbers again, so what was before it is dropped."""
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
        """The index of the delivery that holds a number, or of the first notice right before it; None if not here."""
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
        self._first = max(first_sequence(self.journal), released_end(self.journal) - BACK_MAX)
        self._reader = DeliveryReader(self.journal, self._first)
        self.tail = Tail(self._first)
        self.breaks: deque[Break] = deque(maxlen=BREAKS_MAX)
        self.sales = Sales(self._first)
        while self.advance():
            pass

    @property
    def due(self) -> int:
        """The number of the next message."""
        return self.tail.due

    @property
    def read_through(self) -> int:
        """The last number that was read; the message that it belongs to may not be complete yet."""
        return self._reader.due - 1

    @property
    def formation(self) -> int:
        """The formation that numbers the order at its live end; 0 before anything is in it."""
        return self._reader.formation

    @property
    def notifications(self) -> NotificationReceiver:
        """The notifications of the site."""
        return self._reader.notifications

    def begin(self) -> int:
        """The first number that the journal holds."""
        return first_sequence(self.journal)

    def since(self, instant: Instant) -> int:
        """The first number whose token has this timestamp or a later one; the next one where there is none yet."""
        place = self.journal.place(1, instant)
        return self.due if place is None else min(place.sequence, self.due)

    def resume_sequence(self, number: int, formation: int) -> int:
        """Where to resume after this number and formation: at a Break since then that is earlier, or at the number."""
        return min([number, *(each.sequence for each in self.breaks if each.formation > formation)])

    def advance(self, period: Duration = ADVANCE_PERIOD) -> list[Delivery]:
        """What was released since the last time, as much of it as can be read in this period."""
        found = self._reader.take(period)
        for delivery in found:
            if isinstance(delivery, Break):
                self.breaks.append(delivery)
                self._recount(delivery.sequence)
            self.tail.add(delivery)
            self._count(delivery)
        return found

    def update_index(self) -> None:
        """Extend the journal's index, so that replays find their position at once."""
        self.journal.update_index()

    def close(self) -> None:
        self._reader.close()

    def _count(self, delivery: Delivery) -> None:
        self.sales.apply(delivery)
        match delivery:
            case TradeBatch():
                self.messages += delivery.rows
                self.late += int(delivery.places["late"].sum())
            case Placed():
                self.messages += 1
                self.late += delivery.late

    def _recount(self, end: int) -> None:
        """A Break uses numbers from `end` on again: recount up to there, like a server that starts then."""
        self._first = max(self._first, end - BACK_MAX)
        self.sales, self.messages, self.late = Sales(self._first), 0, 0
        past = DeliveryReader(self.journal, self._first)
        while past.due < end and (found := past.take(ADVANCE_PERIOD)):
            for delivery in found:
                if isinstance(delivery, TradeBatch):
                    delivery = delivery.where(delivery.places["sequence"] < end)
                if not isinstance(delivery, Placed) or delivery.sequence < end:
                    self._count(delivery)
        past.close()
