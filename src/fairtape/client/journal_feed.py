"""Feeds from journals: of one journal, or of a deployment that runs on this machine.

A journal keeps everything, so a reader that is slow, or resumes the next day, misses nothing. A site notifies its
readers of releases and does not wait for them.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from fairtape.client.errors import ClientError
from fairtape.deployment.follow.site_failover import SiteEvent, SiteFailover, SiteRestored, SiteSilent
from fairtape.journal import JournalEntry, JournalFollower, JournalReader
from fairtape.journal.follow import first_sequence, released_end
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
from fairtape.tape.sales import Sales
from fairtape.wire.frames import NodeId

SNAPSHOT_BACK_MAX: Final = 1_000_000  # sequence numbers that are read back for the last trade of each symbol


class JournalFeed:
    """One site's journal, from a position on to its end, or for as long as it grows."""

    def __init__(self, directory: Path, *, endless: bool) -> None:
        self.endless = endless
        self.title = f"journal {directory}"
        self._journal = JournalReader.open(directory)
        self._stopped = False
        self._due = 1
        self._sales: LastSales | None = None

    def open(self, start: Start) -> None:
        if self._journal.last_path() is None:
            raise ClientError(f"target {str(self._journal.directory)!r} holds no journal; {_suggestion(self._journal)}")
        self._due, self._sales = starting_position(self._journal, start, lambda: released_end(self._journal))

    def run(self) -> Iterator[Delivery]:
        """What the site released from there on."""
        if self._sales is not None:
            yield self._sales
        decoder = EntryDecoder(self._due)
        with closing(JournalFollower.of_journal(self._journal, from_sequence=self._due)) as follower:
            while not self._stopped:
                found = follower.read(ROWS_MAX)
                yield from decoder.decode(found, time.time_ns())
                if not found and not self.endless:
                    return
                if not found or follower.has_all_announced:
                    follower.wait()

    def stop(self) -> None:
        self._stopped = True

    def last_sales(self) -> LastSales:
        """Read back from the last release."""
        return last_sales(self._journal, released_end(self._journal))


def _suggestion(journal: JournalReader) -> str:
    """What the user may have meant. Searches only the folders in which this project keeps journals."""
    for pattern in ("*/*.segment", "journals/*/*.segment", "journals/*/*/*.segment"):
        if inside := sorted(path.parent for path in journal.directory.glob(pattern)):
            return f"there is one in {str(inside[0])!r}"
    return "name the directory that a site writes, or the folder of a deployment"


def starting_position(
    journal: JournalReader, start: Start, live_end: Callable[[], int]
) -> tuple[int, LastSales | None]:
    """The number that is due first, and the last trades before it for a snapshot."""
    match start:
        case Beginning():
            return first_sequence(journal), None
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
    """The last valid trade of each symbol before number `end`, at most `SNAPSHOT_BACK_MAX` numbers back."""
    first = max(first_sequence(journal), end - SNAPSHOT_BACK_MAX)
    sales, decoder = Sales(first), EntryDecoder(first)
    with closing(JournalFollower.of_journal(journal, from_sequence=first)) as follower:
        while decoder.due < end and (found := follower.read(ROWS_MAX)):
            entries = [each for each in found if isinstance(each, JournalEntry) and each.ordered.sequence < end]
            for delivery in decoder.decode(entries, time.time_ns()):
                sales.apply(delivery)
    return LastSales(first, decoder.due - 1, sales.last_sales())


class DeploymentFeed:
    """The order of a deployment on this machine, from a site that serves, and from another when that fails."""

    endless: Final = True

    def __init__(self, failover: SiteFailover, title: str) -> None:
        self.title = title
        self._failover = failover
        self._stopped = False
        self._follower: JournalFollower | None = None
        self._sales: LastSales | None = None

    def open(self, start: Start) -> None:
        """Choose a site, and find the number to begin with in its journal."""
        site = self._chosen()
        journal = JournalReader.open(self._failover.journals[site])
        due, self._sales = starting_position(journal, start, lambda: released_end(journal))
        self._follower = self._failover.follow(site, from_sequence=due)

    def run(self) -> Iterator[Delivery]:
        """What a site that serves released from there on; ends when the deployment is stopped."""
        assert self._follower is not None
        follower, self._follower = self._follower, None
        if self._sales is not None:
            yield self._sales
        decoder = EntryDecoder(follower.next_sequence)
        try:
            while not self._stopped:
                yield from notices(self._failover.check())
                found = follower.read(ROWS_MAX)
                yield from decoder.decode(found, time.time_ns())
                if not found and self._failover.is_over:
                    return
                if not found or follower.has_all_announced:
                    follower.wait()
        finally:
            follower.close()

    def stop(self) -> None:
        self._stopped = True

    def last_sales(self) -> LastSales:
        """Read back from the last release of a site that serves."""
        site = self._chosen()
        journal = JournalReader.open(self._failover.journals[site])
        return last_sales(journal, released_end(journal))

    def _chosen(self) -> NodeId:
        chosen = self._failover.choose()
        if chosen is None:
            raise ClientError(f"no site of {self.title} runs on this machine; start it with: fairtape up")
        return chosen


def notices(events: Iterable[SiteEvent]) -> Iterator[Notice]:
    """The records of outages. All sites have the same order, so a change of site is none."""
    for event in events:
        match event:
            case SiteSilent(since=since):
                yield Stale(since)
            case SiteRestored():
                yield Fresh()
