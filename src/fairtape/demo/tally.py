"""What the parent has heard so far: the numbers that the live view shows. The report never depends on them."""

from collections import deque
from typing import Final

from fairtape.core.effects import Release
from fairtape.core.instants import Duration, Instant
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
        self.failures: list[str] = []
        self.failed_at: Instant | None = None
        self._releases: dict[int, list[Release]] = {}

    def hear(self, news: object, now: Instant) -> None:
        """Take one piece of news."""
        match news:
            case FloorNews():
                self.published, self.closed = news.published, news.closed
            case SiteNews():
                self._hear_site(news, now)

    def fail(self, sentence: str, now: Instant) -> None:
        """Something broke, and the user must know."""
        if sentence not in self.failures and len(self.failures) < FAILURES_MAX:
            self.failures.append(sentence)
        self.failed_at = self.failed_at or now

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
            failure = news.failure
            self.fail(
                f"{name_of(news.site)} gave up on {name_of(failure.suspect)} at token {failure.token}:"
                f" {failure.reason.value}",
                now,
            )

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
