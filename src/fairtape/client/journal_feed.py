"""A feed that reads a site's journal, and what every reader of journals needs to find its place.

A journal is the longest backlog there is: a reader who is slow, or comes back tomorrow, misses nothing. Whoever wrote
it knows nothing of its readers and waits for nobody.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from fairtape.client.errors import ClientError
from fairtape.core.effects import Release
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.deployment.follow.journal_follower import JournalFollower
from fairtape.deployment.follow.site_failover import Restored, Silenced, SiteFailover, Tiding
from fairtape.deployment.follow.site_selection import SiteSelection
from fairtape.journal import Damaged, FormationChanged, JournalEntry, JournalReader
from fairtape.journal.format import HEADER_SIZE
from fairtape.journal.segments import Place, RecordScanner, Segment
from fairtape.net.clock import SharedClock
from fairtape.tape.batches import ROWS_MAX
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import (
    AtInstant,
    AtNumber,
    AtSnapshot,
    Beginning,
    Delivery,
    LastSales,
    Live,
    Start,
)
from fairtape.tape.records import Fresh, Notice, Stale
from fairtape.tape.sales_columns import ColumnSales
from fairtape.wire.frames import NodeId

LOOK_PERIOD: Final = 10 * MILLISECOND  # how often a journal that is read to its end is looked at
SNAPSHOT_BACK_MAX: Final = 1_000_000  # numbers that are read back for the last trade of each symbol


class JournalFeed:
    """One site's journal, from a place on to its end, or for as long as it grows."""

    def __init__(self, directory: Path, *, endless: bool) -> None:
        self.endless = endless
        self.title = f"journal {directory}"
        self._journal = JournalReader.open(directory)
        self._stopped = False
        self._due = 1
        self._sales: LastSales | None = None

    def open(self, start: Start) -> None:
        """Find the number to begin with."""
        if not self._journal.paths():
            raise ClientError(f"target {str(self._journal.directory)!r} holds no journal; {_other(self._journal)}")
        self._due, self._sales = place_to_begin(self._journal, start, lambda: released_end(self._journal))

    def run(self) -> Iterator[Delivery]:
        """What the site released from there on."""
        if self._sales is not None:
            yield self._sales
        opener, bunches = EntryDecoder(self._due), EntryBatcher()
        with self._journal.entries(from_sequence=self._due) as cursor:
            while not self._stopped:
                found = bunches.take(each for each in cursor.everything() if not _is_past(each, self._due))
                yield from opener.opened(found, time.time_ns())
                if not found:
                    if not self.endless:
                        return
                    time.sleep(LOOK_PERIOD / SECOND)

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped = True

    def last_sales(self) -> LastSales:
        """Read back from the last release."""
        return last_sales(self._journal, released_end(self._journal))


def _other(journal: JournalReader) -> str:
    """What the user may have meant. Only the folders are looked into in which this project keeps journals."""
    for pattern in ("*/*.segment", "journals/*/*.segment", "journals/*/*/*.segment"):
        if inside := sorted(path.parent for path in journal.directory.glob(pattern)):
            return f"there is one in {str(inside[0])!r}"
    return "name the directory that a site writes, or the folder of a deployment"


def _is_past(each: JournalEntry | FormationChanged, due: int) -> bool:
    return isinstance(each, FormationChanged) and each.change.sequence < due


class EntryBatcher:
    """Entries, as many at a time as are opened at once.

    A journal may turn out to be damaged in the midst of a bunch. What was read before that is handed out first, because
    a cursor has gone past it and nobody would read it again; the damage is raised when the next bunch is asked for.
    """

    def __init__(self) -> None:
        self._damage: Damaged | None = None

    def take(self, entries: Iterable[JournalEntry | FormationChanged]) -> list[JournalEntry | FormationChanged]:
        """The next bunch; empty where there is nothing for now."""
        damage, self._damage = self._damage, None
        if damage is not None:
            raise damage
        found: list[JournalEntry | FormationChanged] = []
        rows = 0
        try:
            for each in entries:
                found.append(each)
                rows += each.ordered.count if isinstance(each, JournalEntry) else 1
                if rows >= ROWS_MAX:
                    break
        except Damaged as damage:
            if not found:
                raise
            self._damage = damage
        return found


def first_number(journal: JournalReader) -> int:
    """The first number that a journal holds; a site that joined later begins later."""
    place = journal.place(1, None)
    return 1 if place is None else place.sequence


def released_end(journal: JournalReader) -> int:
    """The number behind the last one that was released: found in the last segment, by hopping over it."""
    paths = journal.paths()
    if not paths:
        return 1
    with Segment(paths[-1]) as segment:
        tip = segment.header.tip
    scanner = RecordScanner(Place(paths[-1], HEADER_SIZE, tip.sequence, tip.digest), journal.owner())
    released = tip.released
    try:
        while (step := scanner.next_record()) is not None:
            if isinstance(mark := step[1], Release):
                released = mark.sequence + mark.count
    finally:
        scanner.close()
    return released


def place_to_begin(journal: JournalReader, start: Start, live_end: Callable[[], int]) -> tuple[int, LastSales | None]:
    """The number that is due first, and the last trades before it where they are wanted."""
    match start:
        case Beginning():
            return first_number(journal), None
        case AtNumber(sequence):
            return sequence, None
        case AtInstant(instant):
            place = journal.place(1, instant)
            return (1 if place is None else place.sequence), None
        case AtSnapshot():
            sales = last_sales(journal, live_end())
            return sales.through + 1, sales
        case Live():
            return live_end(), None


def last_sales(journal: JournalReader, end: int) -> LastSales:
    """The last trade of each symbol before number `end`, as far back as is looked, without what was taken back."""
    first = max(first_number(journal), end - SNAPSHOT_BACK_MAX)
    sales = ColumnSales(first)
    opener, bunches = EntryDecoder(first), EntryBatcher()
    with journal.entries(from_sequence=first) as cursor:
        entries = takewhile(lambda each: each.ordered.sequence < end, cursor)
        while found := bunches.take(entries):
            for delivery in opener.opened(found, time.time_ns()):
                sales.note(delivery)
    return LastSales(first, opener.due - 1, sales.lot())


# A feed that hears a deployment on this machine: a site that serves, and another one when that fails.


class DeploymentFeed:
    """The order of a deployment that runs on this machine, from a site that serves."""

    endless: Final = True

    def __init__(self, audience: SiteSelection, title: str) -> None:
        self.title = title
        self._audience = audience
        self._clock = SharedClock()
        self._stopped = False
        self._following: JournalFollower | None = None
        self._sales: LastSales | None = None

    def open(self, start: Start) -> None:
        """Choose a site, and find the number to begin with in its journal."""
        site = self._chosen()
        journal = JournalReader.open(self._audience.journals[site])
        due, self._sales = place_to_begin(journal, start, lambda: released_end(journal))
        self._following = JournalFollower(self._audience.journals, site=site, from_sequence=due)

    def run(self) -> Iterator[Delivery]:
        """What a site that serves released from there on; ends when the deployment is stopped."""
        assert self._following is not None
        following, self._following = self._following, None
        if self._sales is not None:
            yield self._sales
        tuner, opener, bunches = (
            SiteFailover(self._audience, following),
            EntryDecoder(following.following),
            EntryBatcher(),
        )
        try:
            while not self._stopped:
                over = False
                if tuner.is_due():
                    over = self._audience.is_over()
                    yield from notices(tuner.look())
                found = tuner.patiently(lambda: bunches.take(following.everything())) or []
                yield from opener.opened(found, time.time_ns())
                if not found:
                    if over:
                        return
                    time.sleep(LOOK_PERIOD / SECOND)
        finally:
            following.close()

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped = True

    def last_sales(self) -> LastSales:
        """Read back from the last release of a site that serves."""
        site = self._chosen()
        journal = JournalReader.open(self._audience.journals[site])
        return last_sales(journal, released_end(journal))

    def _chosen(self) -> NodeId:
        chosen = self._audience.choose(None, self._clock.now())
        if chosen is None:
            raise ClientError(f"no site of {self.title} runs on this machine; start it with: fairtape up")
        return chosen


def notices(tidings: Iterable[Tiding]) -> Iterator[Notice]:
    """What a client is told. The order is the same at all sites, so which one is heard is not its concern."""
    for tiding in tidings:
        match tiding:
            case Silenced(since=since):
                yield Stale(since)
            case Restored():
                yield Fresh()
