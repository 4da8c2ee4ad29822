"""A feed that hears a deployment on this machine: a site that serves, and another one when that fails."""

import time
from collections.abc import Iterable, Iterator
from typing import Final

from fairtape.client.errors import ClientError
from fairtape.client.journal_feed import LOOK_PERIOD, EntryBatcher, last_sales, place_to_begin, released_end
from fairtape.core.instants import SECOND
from fairtape.deployment.follow.journal_follower import JournalFollower
from fairtape.deployment.follow.site_failover import Restored, Silenced, SiteFailover, Tiding
from fairtape.deployment.follow.site_selection import SiteSelection
from fairtape.journal import JournalReader
from fairtape.net.clock import SharedClock
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import Delivery, LastSales, Start
from fairtape.tape.records import Fresh, Notice, Stale
from fairtape.wire.frames import NodeId


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
