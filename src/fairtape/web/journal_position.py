"""A place in a site's journal from which it is read, piece by piece, while the site goes on writing.

A site that comes back may cut off what the others went on without. For a moment its journal looks damaged; then the
place is looked for again. If the order had a Break meanwhile, numbers may be used otherwise from there on, and they
are handed out again, behind the Break that says so.
"""

import time
from collections.abc import Iterator
from typing import Final

from fairtape.core.effects import FormationChange
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration
from fairtape.journal import Cursor, FormationChanged, JournalEntry, JournalReader
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import Delivery

REPAIR_PERIOD_MAX: Final = 5 * SECOND  # for which a journal may be unreadable while its site cuts it back
REWIND_MAX: Final = 100_000  # numbers that are searched for a Break
PIECE_ROWS: Final = 8_192  # messages of one piece, but at least one entry
PIECE_PERIOD: Final = 2 * MILLISECOND  # for which a piece is read: nobody waits longer for somebody else's past


class JournalPosition:
    """What a site released, from a number on."""

    def __init__(self, journal: JournalReader, due: int) -> None:
        self._journal = journal
        self._opener = EntryDecoder(due)
        self._begin = due
        self._formation = 0  # the last one that was met
        self._cursor: Cursor | None = journal.entries(from_sequence=due)
        self._damaged_at: int | None = None  # since when it cannot be read, by the steady clock
        self.settled = False  # the last that was handed out are messages, and nothing of the next number

    @property
    def due(self) -> int:
        """The number of the next message."""
        return self._opener.due

    @property
    def formation(self) -> int:
        """The last formation that was met; 0 where none was."""
        return self._formation

    def take(self, *, rows_max: int = PIECE_ROWS, period: Duration = PIECE_PERIOD) -> list[Delivery]:
        """The next piece; empty where the journal ends for now."""
        found: list[JournalEntry | FormationChanged] = []
        ends_at, rows = time.monotonic_ns() + period, 0
        try:
            for each in self._entries():
                found.append(each)
                rows += each.ordered.count if isinstance(each, JournalEntry) else 1
                if rows >= rows_max or time.monotonic_ns() >= ends_at:
                    break
            self._damaged_at = None
        except UserError:
            if not self._is_bearable():
                raise
            self.close()
        if found:
            self.settled = isinstance(found[-1], JournalEntry)
        return self._opener.decode(found, time.time_ns())

    def close(self) -> None:
        """Give the files back."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _entries(self) -> Iterator[JournalEntry | FormationChanged]:
        if self._cursor is None:
            self._find_again()
        assert self._cursor is not None
        for each in self._cursor.everything():
            if isinstance(each, JournalEntry):
                self._formation = max(self._formation, each.ordered.formation)
            elif each.change.formation <= self._formation or each.change.sequence < self._begin:
                continue
            else:
                self._formation = each.change.formation
            yield each

    def _is_bearable(self) -> bool:
        """Whether the place may be looked for again next time; what is damaged for long is damaged indeed."""
        now = time.monotonic_ns()
        if self._damaged_at is None:
            self._damaged_at = now
        return now - self._damaged_at <= REPAIR_PERIOD_MAX

    def _find_again(self) -> None:
        broken = [change.sequence for change in self._changes_behind() if change.broken]
        self._begin = min([self.due, *broken])
        self._cursor = self._journal.entries(from_sequence=self._begin)

    def _changes_behind(self) -> Iterator[FormationChange]:
        """Changes of formation before the number that is due, of which nobody here was told."""
        with self._journal.entries(from_sequence=max(self.due - REWIND_MAX, 1)) as past:
            for each in past.everything():
                if isinstance(each, JournalEntry):
                    if each.end >= self.due:
                        return
                elif self._formation < each.change.formation and each.change.sequence < self.due:
                    yield each.change
