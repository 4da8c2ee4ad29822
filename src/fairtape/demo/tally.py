"""What the parent has heard so far: the numbers that the live view shows. The report never depends on them."""

from collections import deque
from dataclasses import replace
from typing import Final

from fairtape.core.effects import Release, Report
from fairtape.core.instants import NEVER, SECOND, Duration, Instant
from fairtape.demo.floors import FloorNews
from fairtape.demo.world import SITES, World, name_of
from fairtape.deployment.sites import SiteNews
from fairtape.market.trades import BadTrade, Trade, decode
from fairtape.ring.formation import Formation
from fairtape.wire.frames import NodeId

TICKER_MAX: Final = 64  # trades
SPREADS_MAX: Final = 256  # tokens that the shown spread covers
UNFINISHED_MAX: Final = 256  # tokens whose release some site has not told yet
FAILURES_MAX: Final = 16
NOTICE_PERIOD: Final = 1 * SECOND  # from the first declared failure to the last: the others have waited as long


class Tally:
    """Fed with news, read by a view."""

    def __init__(self, world: World, formation: Formation) -> None:
        self.world = world
        self.formation = formation
        self.sites: dict[NodeId, SiteNews] = {}
        self.published = 0
        self.closed = False  # the floors have closed, and everything is acknowledged
        self.closing = False  # the user, or the end of the session, asked for it
        self.ticker: deque[tuple[int, Trade]] = deque(maxlen=TICKER_MAX)
        self.spreads: deque[Duration] = deque(maxlen=SPREADS_MAX)
        self._mishaps: list[str] = []
        self._declared: dict[
            Report, dict[str, None]
        ] = {}  # the sites that declared the same failure, at whatever instant
        self.settled_at: Instant = NEVER  # when everyone who can notice a failure has noticed it
        self._releases: dict[int, list[Release]] = {}

    def hear(self, news: object, now: Instant) -> None:
        """Take one piece of news."""
        match news:
            case FloorNews():
                self.published, self.closed = news.published, news.closed
            case SiteNews():
                self._hear_site(news, now)

    def fail(self, sentence: str, *, settled_at: Instant) -> None:
        """Something broke, and the user must know; by `settled_at` there is no more to learn about it."""
        if sentence not in self._mishaps and len(self._mishaps) < FAILURES_MAX:
            self._mishaps.append(sentence)
        self.settled_at = min(self.settled_at, settled_at)

    @property
    def failures(self) -> list[str]:
        """Everything that broke, a sentence each."""
        return self._mishaps + [
            f"{', '.join(sites)} gave up on {name_of(failure.suspect)} at token {failure.token}: {failure.reason.value}"
            for failure, sites in self._declared.items()
        ]

    @property
    def token(self) -> int:
        """The token that is under way: one after the last that any site has heard of."""
        heard = max((news.heard_through for news in self.sites.values()), default=0)
        return max(heard + 1, self.formation.first_token)

    @property
    def delivered_min(self) -> int:
        """The last number that every site has released."""
        if len(self.sites) < len(SITES):
            return 0
        return min(news.sequence for news in self.sites.values())

    @property
    def finished(self) -> bool:
        """Everything published is released everywhere."""
        return self.closed and self.delivered_min >= self.published

    @property
    def late_fraction(self) -> float:
        """The share of all releases of messages that came after their instant."""
        released = sum(news.sequence for news in self.sites.values())
        return sum(news.late for news in self.sites.values()) / released if released else 0.0

    def _hear_site(self, news: SiteNews, now: Instant) -> None:
        self.sites[news.site] = news
        for release in news.releases:
            self._hear_release(release)
        for sequence, payload in news.messages:
            try:
                self.ticker.append((sequence, decode(payload)))
            except BadTrade:
                continue
        if news.failure is not None:
            self._hear_failure(news.site, news.failure, now)

    def _hear_failure(self, site: NodeId, failure: Report, now: Instant) -> None:
        alike = replace(failure, declared_at=0)
        if alike in self._declared or len(self._declared) < FAILURES_MAX:
            self._declared.setdefault(alike, {}).setdefault(name_of(site))
        self.settled_at = min(self.settled_at, now + NOTICE_PERIOD)

    def _hear_release(self, release: Release) -> None:
        """A token's spread is known when all sites have told their release."""
        told = self._releases.setdefault(release.token, [])
        told.append(release)
        if len(told) == len(SITES):
            del self._releases[release.token]
            on_time = [each.released_at for each in told if not each.late]
            if len(on_time) > 1:
                self.spreads.append(max(on_time) - min(on_time))
        elif len(self._releases) > UNFINISHED_MAX:
            del self._releases[next(iter(self._releases))]


def percentile(values: list[int], share: float) -> int | None:
    """The value that this share of all values does not exceed; None where there is none."""
    if not values:
        return None
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
