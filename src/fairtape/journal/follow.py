"""Following journals while their sites go on writing.

Every site has the same order, so a follower can go on with the journal of another site. It hands out each message and
each change of formation once. There is one exception. A *Break* is a change of formation after which sequence numbers
may be used again: the follower then goes back to the Break and hands out the numbers from there on again, after it.

A site that comes back truncates what the other sites went on without. For a moment its journal looks damaged. A
follower with a `repair_period` waits that long and looks for its position again.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from fairtape.core.effects import FormationChange, Release
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration
from fairtape.journal.format import HEADER_SIZE, Owner
from fairtape.journal.notifications import IDLE_PERIOD, POLL_PERIOD, NotificationReceiver
from fairtape.journal.reader import Cursor, FormationChanged, JournalEntry, JournalReader
from fairtape.journal.segment_list import BEHIND_MAX
from fairtape.journal.segments import Place, RecordScanner, Segment
from fairtape.wire.frames import NUMBER_MAX, NodeId

REPAIR_PERIOD_MAX: Final = 5 * SECOND  # for which a journal may be unreadable while its site truncates it
REWIND_MAX: Final = 100_000  # sequence numbers that are searched for a Break


class JournalFollower:
    """Reads what one site releases, from a sequence number on, and can go on with another site."""

    def __init__(
        self,
        journals: Mapping[NodeId, Path | JournalReader],
        *,
        site: NodeId | None = None,
        from_sequence: int = 1,
        repair_period: Duration = 0,
    ) -> None:
        """Follow `site`, by default the first. Damage is raised when it has lasted for `repair_period`."""
        self.journals = journals
        self.site = next(iter(journals)) if site is None else site
        self.journal = self._reader(self.site)
        self.next_sequence = from_sequence
        self.formation = 0  # the latest that was read, or that numbered the message before the first; 0: none
        self._repair_period = repair_period
        self._damaged_at: int | None = None  # since when the journal cannot be read
        self._cursor: Cursor | None = None
        self._notifications: NotificationReceiver | None = None
        self._open(from_sequence)
        self.formation = self._formation_before(from_sequence)

    @classmethod
    def of_journal(
        cls, journal: Path | JournalReader, *, from_sequence: int = 1, repair_period: Duration = 0
    ) -> "JournalFollower":
        """Follow one journal alone; a reader may be shared for its index."""
        return cls({0: journal}, from_sequence=from_sequence, repair_period=repair_period)

    def new_entries(self) -> Iterator[JournalEntry | FormationChanged]:
        """What was released since the last call, with the changes of formation. Ends at damage that may be repaired."""
        try:
            for each in self._cursor_here().everything(through=self._announced()):
                if isinstance(each, JournalEntry):
                    self._damaged_at = None
                    self.next_sequence = each.end
                    if each.ordered.formation > self.formation:
                        self.formation = each.ordered.formation
                    yield each
                    continue
                change = each.change
                if change.formation <= self.formation:
                    continue  # another site's journal had it
                if change.sequence >= self._begin:
                    self.formation = change.formation
                    yield each
                elif self.formation and change.broken:  # numbers that were handed out are used again
                    self._open(change.sequence)
                    yield from self.new_entries()
                    return
            self._damaged_at = None
        except UserError:
            now = time.monotonic_ns()
            self._close_cursor()
            self._damaged_at = now if self._damaged_at is None else self._damaged_at
            if now - self._damaged_at >= self._repair_period:
                raise

    def read(self, rows_max: int, period: Duration | None = None) -> list[JournalEntry | FormationChanged]:
        """The next entries, up to about `rows_max` messages or for this period, but at least one; none where it ends.

        What was read before damage is returned first, because the position has moved past it. The next call raises.
        """
        found: list[JournalEntry | FormationChanged] = []
        rows, ends_at = 0, None if period is None else time.monotonic_ns() + period
        try:
            for each in self.new_entries():
                found.append(each)
                rows += each.ordered.count if isinstance(each, JournalEntry) else 1
                if rows >= rows_max or (ends_at is not None and time.monotonic_ns() >= ends_at):
                    break
        except UserError:
            if not found:
                raise
        return found

    def follow(self, site: NodeId) -> None:
        """Go on with the journal of this site; where its order had a Break meanwhile, from the Break on."""
        journal = self._reader(site)
        self._close_cursor()
        self.site, self.journal = site, journal
        if self._notifications is not None:
            self._notifications.follow(journal.directory)

    @property
    def notifications(self) -> NotificationReceiver:
        """The notifications of the site that is followed."""
        if self._notifications is None:
            self._notifications = NotificationReceiver(self.journal.directory)
        return self._notifications

    @property
    def has_all_announced(self) -> bool:
        """Whether everything was read that the site has announced; then another look would find nothing."""
        return self._notifications is not None and self._notifications.is_complete(self.next_sequence - 1)

    def wait(self, period: Duration = IDLE_PERIOD, *, poll_period: Duration = POLL_PERIOD) -> None:
        """After the journal was read to its end: return when it is time to read again, after `period` at the latest.

        A journal without notifications is read again after `poll_period`.
        """
        self.notifications.wait(self.next_sequence - 1, period, poll_period=poll_period)

    def close(self) -> None:
        """Close the files. Reading again opens them."""
        self._close_cursor()
        if self._notifications is not None:
            self._notifications.close()
            self._notifications = None

    def _announced(self) -> int:
        """The last number that is to be found now, if the site has announced it."""
        return NUMBER_MAX if self._notifications is None else self._notifications.announced_after(self.next_sequence)

    def _close_cursor(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _reader(self, site: NodeId) -> JournalReader:
        journal = self.journals[site]
        return journal if isinstance(journal, JournalReader) else JournalReader.open(journal)

    def _cursor_here(self) -> Cursor:
        if self._cursor is None:
            broken = [change.sequence for change in self._changes_behind() if change.broken] if self.formation else []
            self._open(min([self.next_sequence, *broken]))
        assert self._cursor is not None
        return self._cursor

    def _open(self, sequence: int) -> None:
        self._close_cursor()
        self.next_sequence = self._begin = sequence
        self._cursor = self.journal.entries(from_sequence=sequence)

    def _formation_before(self, sequence: int) -> int:
        """The formation that numbered the message before; 0 where the journal has none."""
        if sequence > 1:
            with suppress(UserError), self.journal.entries(from_sequence=sequence - 1) as cursor:
                for entry in cursor:
                    return entry.ordered.formation if entry.ordered.sequence < sequence else 0
        return 0

    def _changes_behind(self) -> Iterator[FormationChange]:
        """Changes of formation in this journal that lie before the next number and were not handed out."""
        with self.journal.entries(from_sequence=max(self.next_sequence - REWIND_MAX, 1)) as past:
            for each in past.everything():
                if isinstance(each, JournalEntry):
                    if each.end >= self.next_sequence:
                        return
                elif self.formation < each.change.formation and each.change.sequence < self.next_sequence:
                    yield each.change


def first_sequence(journal: JournalReader) -> int:
    """The first number that a journal holds; a site that joined later begins later."""
    place = journal.place(1, None)
    return 1 if place is None else place.sequence


def released_end(journal: JournalReader) -> int:
    """The number after the last one that was released. Reads the record heads of the last segment only."""
    with ReleaseScanner(journal) as scanner:
        return scanner.released_end()


class ReleaseScanner:
    """How far a journal is released and ordered: by the record heads of its last segment, then of what is added."""

    def __init__(self, journal: JournalReader, owner: Owner | None = None) -> None:
        """Without an `owner`, the segments must belong to that of the journal."""
        self._journal = journal
        self._owner = owner
        self._scanner: RecordScanner | None = None
        self._released = 1

    def released_end(self) -> int:
        """The number after the last released one; 1 while the journal is empty."""
        if self._scanner is None or self._scanner.is_truncated:
            self._open(listed=False)
        if not self._scan(segments_max=BEHIND_MAX):
            self._open(listed=True)
            self._scan()
        return self._released

    def ordered_end(self) -> int:
        """The number after the last one that the site holds, released or not."""
        self.released_end()
        return 1 if self._scanner is None else self._scanner.sequence

    def close(self) -> None:
        if self._scanner is not None:
            self._scanner.close()
            self._scanner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, *, listed: bool) -> None:
        self.close()
        last = self._journal.last_path(listed=listed)
        if last is None:
            return
        with Segment(last) as segment:
            tip = segment.header.tip
        place = Place(last, HEADER_SIZE, tip.sequence, tip.digest)
        self._scanner = RecordScanner(place, self._owner or self._journal.owner())
        self._released = tip.released

    def _scan(self, *, segments_max: int | None = None) -> bool:
        """Scan to the end; False after this many further segments."""
        scanner = self._scanner
        if scanner is None:
            return True
        number = scanner.segment.header.number
        while (step := scanner.next_record()) is not None:
            if isinstance(mark := step[1], Release):
                self._released = mark.sequence + mark.count
            if segments_max is not None and scanner.segment.header.number > number + segments_max:
                return False
        return True
