"""What the children have reported so far, for the live view. The order is checked from the journals, not from this."""

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
from fairtape.market.trades import BadTrade, decode
from fairtape.market.trades import PublishedTrade as Trade
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId

TICKER_MAX: Final = 64  # trades
SPREADS_MAX: Final = 256  # tokens covered by the displayed spread
UNFINISHED_MAX: Final = 256  # tokens whose release some site has not reported yet
FAILURES_MAX: Final = 16
FORMATIONS_MAX: Final = 256  # kept


class DemoTally:
    """The current state: updated by news from the children, read by the view."""

    def __init__(self, world: DemoWorld, forming_since: Instant) -> None:
        self.world = world
        self.forming_since = forming_since
        self.opened_at: Instant = 0  # when the floors began to trade; 0: not yet
        self.killed_at: Instant = 0  # when the victim was killed; 0: not yet
        self.second_feed_lost = False  # all customers of the victim noticed
        self.restored_at: Instant = 0  # when those customers received two feeds again; 0: not yet
        self.formations: deque[FormationNews] = deque(maxlen=FORMATIONS_MAX)
        self.sites: dict[NodeId, SiteNews] = {}
        self.regions: dict[int, RegionNews] = {}
        self.market = TickerNews(0, ())
        self.published = 0
        self.closed = False  # the floors are closed and everything is acknowledged
        self.closing = False  # requested by the user or by the end of the session
        self.ticker: deque[tuple[int, Trade]] = deque(maxlen=TICKER_MAX)
        self.spreads: deque[Duration] = deque(maxlen=SPREADS_MAX)
        self.failures: list[str] = []
        self.settled_at: Instant = NEVER  # when the effects of a failure are known everywhere
        self._releases: dict[int, list[Release]] = {}

    def receive(self, news: object) -> None:
        match news:
            case FloorNews():
                self.published, self.closed = news.published, news.closed
            case SiteNews():
                self._receive_site(news)
            case RegionNews():
                self._receive_region(news)
            case FormationNews():
                self.formations.append(news)
            case TickerNews():
                self.market = news

    def fail(self, sentence: str, *, settled_at: Instant) -> None:
        """Record a failure for the report. The run ends at `settled_at`, when its effects are known."""
        if sentence not in self.failures and len(self.failures) < FAILURES_MAX:
            self.failures.append(sentence)
        self.settled_at = min(self.settled_at, settled_at)

    @property
    def opened(self) -> bool:
        """Whether the ring has formed and the floors have opened."""
        return self.opened_at > 0

    @property
    def formation(self) -> Formation | None:
        """The latest formation."""
        return self.formations[-1].formation if self.formations else None

    @property
    def killed(self) -> NodeId | None:
        return VICTIM if self.killed_at else None

    @property
    def living(self) -> Collection[NodeId]:
        """All receivers except the killed one."""
        return [site for site in SITES if site != self.killed]

    @property
    def token(self) -> int:
        """The current token: one after the highest acknowledged at any site."""
        highest_ack = max((news.highest_ack for news in self.sites.values()), default=0)
        return max(highest_ack + 1, self.formation.first_token if self.formation is not None else 1)

    @property
    def delivered_min(self) -> int:
        """The last sequence number that every living site has released."""
        return min(self.sites[site].sequence if site in self.sites else 0 for site in self.living)

    @property
    def received_min(self) -> int:
        """Trades that every customer has received."""
        served = [number for number, region in enumerate(REGIONS) if self.world.customers_of(region)]
        received = [self.regions[number].trades_min if number in self.regions else 0 for number in served]
        return min(received, default=self.published)

    @property
    def gaps(self) -> int:
        """Messages lost for good, summed over all customers."""
        return sum(news.gaps for news in self.regions.values())

    @property
    def without_second_feed(self) -> int:
        """Customers that do not receive two feeds."""
        return sum(news.without_second_feed for news in self.regions.values())

    @property
    def finished(self) -> bool:
        """Whether everything published is released everywhere and received by every customer."""
        return self.closed and min(self.delivered_min, self.received_min) >= self.published

    @property
    def progress(self) -> tuple[int, ...]:
        """Changes whenever something is released or received anywhere."""
        released = (news.sequence for news in self.sites.values())
        received = (news.trades for news in self.regions.values())
        return (self.published, len(self.formations), sum(released), sum(received))

    @property
    def lacking(self) -> str:
        """Which part of the system has not finished."""
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
        """The share of releases after their commit instant."""
        released = sum(news.sequence for news in self.sites.values())
        return sum(news.late for news in self.sites.values()) / released if released else 0.0

    def publishers(self, region: Region) -> dict[str, NodeId]:
        """The living publisher of each feed of a region."""
        members = self.formation.members if self.formation is not None else ()
        return {feed: site for feed, site in region.assignment(members).items() if site != self.killed}

    def _receive_site(self, news: SiteNews) -> None:
        self.sites[news.site] = news
        for release in news.releases:
            self._receive_release(release)
        for sequence, payload in news.messages:
            try:
                self.ticker.append((sequence, decode(payload)))
            except BadTrade:
                continue

    def _receive_region(self, news: RegionNews) -> None:
        self.regions[news.region] = news
        if self.killed_at and VICTIM in REGIONS[news.region].receivers[: len(REGIONS[news.region].feeds)]:
            if news.without_second_feed == news.customers:
                self.second_feed_lost = True
            elif not news.without_second_feed and self.second_feed_lost and not self.restored_at:
                self.restored_at = news.reported_at

    def _receive_release(self, release: Release) -> None:
        """Compute the spread of a token when all living sites have reported its release."""
        reported = self._releases.setdefault(release.token, [])
        reported.append(release)
        if len(reported) == len(self.living):
            del self._releases[release.token]
            on_time = [each.released_at for each in reported if not each.late]
            if len(on_time) > 1:
                self.spreads.append(max(on_time) - min(on_time))
        elif len(self._releases) > UNFINISHED_MAX:
            del self._releases[next(iter(self._releases))]
