"""What the parent has heard so far: the numbers that the live view shows. The order is never judged by them."""

from collections import deque
from collections.abc import Collection
from typing import Final

from fairtape.core.effects import Release
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.demo.customers import RegionNews
from fairtape.demo.floors import FloorNews
from fairtape.demo.receivers import TickerNews
from fairtape.demo.reformers import FormationNews
from fairtape.demo.world import REGIONS, SITES, VICTIM, DemoWorld
from fairtape.deployment.process.temporary_site import SiteNews
from fairtape.edge.protocol.feed_assignment import Region
from fairtape.market.trades import BadTrade, Trade, decode
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId

TICKER_MAX: Final = 64  # trades
SPREADS_MAX: Final = 256  # tokens that the shown spread covers
UNFINISHED_MAX: Final = 256  # tokens whose release some site has not told yet
FAILURES_MAX: Final = 16
FORMATIONS_MAX: Final = 256  # that are remembered


class DemoTally:
    """Fed with news, read by a view."""

    def __init__(self, world: DemoWorld, gathers_since: Instant) -> None:
        self.world = world
        self.gathers_since = gathers_since
        self.opened_at: Instant = 0  # when the floors began to trade; 0: not yet
        self.killed_at: Instant = 0  # when the victim was killed; 0: not yet
        self.deafened = False  # all of its customers noticed
        self.restored_at: Instant = 0  # when all of its customers heard two receivers again; 0: not yet
        self.formations: deque[FormationNews] = deque(maxlen=FORMATIONS_MAX)
        self.sites: dict[NodeId, SiteNews] = {}
        self.regions: dict[int, RegionNews] = {}
        self.market = TickerNews(0, ())
        self.published = 0
        self.closed = False  # the floors have closed, and everything is acknowledged
        self.closing = False  # the user, or the end of the session, asked for it
        self.ticker: deque[tuple[int, Trade]] = deque(maxlen=TICKER_MAX)
        self.spreads: deque[Duration] = deque(maxlen=SPREADS_MAX)
        self.failures: list[str] = []
        self.settled_at: Instant = NEVER  # when everyone who can notice a failure has noticed it
        self._releases: dict[int, list[Release]] = {}

    def hear(self, news: object) -> None:
        """Take one piece of news."""
        match news:
            case FloorNews():
                self.published, self.closed = news.published, news.closed
            case SiteNews():
                self._hear_site(news)
            case RegionNews():
                self._hear_region(news)
            case FormationNews():
                self.formations.append(news)
            case TickerNews():
                self.market = news

    def fail(self, sentence: str, *, settled_at: Instant) -> None:
        """Something broke, and the user must know; by `settled_at` there is no more to learn about it."""
        if sentence not in self.failures and len(self.failures) < FAILURES_MAX:
            self.failures.append(sentence)
        self.settled_at = min(self.settled_at, settled_at)

    @property
    def opened(self) -> bool:
        """Whether there was a ring, and the floors began to trade."""
        return self.opened_at > 0

    @property
    def formation(self) -> Formation | None:
        """The latest one."""
        return self.formations[-1].formation if self.formations else None

    @property
    def killed(self) -> NodeId | None:
        """The receiver that is gone."""
        return VICTIM if self.killed_at else None

    @property
    def living(self) -> Collection[NodeId]:
        """All receivers but that one."""
        return [site for site in SITES if site != self.killed]

    @property
    def token(self) -> int:
        """The token that is under way: one after the last that any site has heard of."""
        heard = max((news.highest_ack for news in self.sites.values()), default=0)
        return max(heard + 1, self.formation.first_token if self.formation is not None else 1)

    @property
    def delivered_min(self) -> int:
        """The last number that every site has released, but for one that was killed."""
        return min(self.sites[site].sequence if site in self.sites else 0 for site in self.living)

    @property
    def heard_min(self) -> int:
        """The trades that every customer has heard."""
        served = [number for number, region in enumerate(REGIONS) if self.world.customers_of(region)]
        heard = [self.regions[number].trades_min if number in self.regions else 0 for number in served]
        return min(heard, default=self.published)

    @property
    def gaps(self) -> int:
        """Messages that a customer missed for good."""
        return sum(news.gaps for news in self.regions.values())

    @property
    def deaf(self) -> int:
        """Customers that do not hear two receivers."""
        return sum(news.deaf for news in self.regions.values())

    @property
    def finished(self) -> bool:
        """Everything published is released everywhere, and every customer has heard it."""
        return self.closed and min(self.delivered_min, self.heard_min) >= self.published

    @property
    def progress(self) -> tuple[int, ...]:
        """Changes whenever something is released or heard anywhere."""
        released = (news.sequence for news in self.sites.values())
        heard = (news.trades for news in self.regions.values())
        return (self.published, len(self.formations), sum(released), sum(heard))

    @property
    def lacking(self) -> str:
        """Who keeps it from being finished."""
        if not self.closed:
            return "the ring"
        sites = [
            SITES[site].name
            for site in self.living
            if site not in self.sites or self.sites[site].sequence < self.published
        ]
        return ", ".join(sites) or "some customers"

    @property
    def late_fraction(self) -> float:
        """The share of all releases of messages that came after their instant."""
        released = sum(news.sequence for news in self.sites.values())
        return sum(news.late for news in self.sites.values()) / released if released else 0.0

    def speakers(self, region: Region) -> dict[str, NodeId]:
        """Who speaks to a region, as far as they are alive."""
        members = self.formation.members if self.formation is not None else ()
        return {feed: site for feed, site in region.assignment(members).items() if site != self.killed}

    def _hear_site(self, news: SiteNews) -> None:
        self.sites[news.site] = news
        for release in news.releases:
            self._hear_release(release)
        for sequence, payload in news.messages:
            try:
                self.ticker.append((sequence, decode(payload)))
            except BadTrade:
                continue

    def _hear_region(self, news: RegionNews) -> None:
        self.regions[news.region] = news
        if self.killed_at and VICTIM in REGIONS[news.region].receivers[: len(REGIONS[news.region].feeds)]:
            if news.deaf == news.customers:
                self.deafened = True
            elif not news.deaf and self.deafened and not self.restored_at:
                self.restored_at = news.told_at

    def _hear_release(self, release: Release) -> None:
        """A token's spread is known when all sites have told their release."""
        told = self._releases.setdefault(release.token, [])
        told.append(release)
        if len(told) == len(self.living):
            del self._releases[release.token]
            on_time = [each.released_at for each in told if not each.late]
            if len(on_time) > 1:
                self.spreads.append(max(on_time) - min(on_time))
        elif len(self._releases) > UNFINISHED_MAX:
            del self._releases[next(iter(self._releases))]
