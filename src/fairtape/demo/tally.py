"""The state of a running demonstration: from the status files and journals of the deployment, and from the children.

The view shows it. The order is checked from the journals after the run, not from this.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from fairtape.core.effects import Deliver, Release
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.spans import messages
from fairtape.demo.customers import RegionNews
from fairtape.demo.floors import FloorNews
from fairtape.demo.world import REGIONS, SITES, VICTIM, DemoWorld, region_of
from fairtape.deployment.config.description import Deployment
from fairtape.deployment.status import DecisionStatus, ReformerStatus, SiteStatus
from fairtape.deployment.status_files import RunFolder
from fairtape.journal import FormationChanged, JournalEntry, JournalFollower
from fairtape.journal.follow import REPAIR_PERIOD_MAX
from fairtape.market.trades import BadTrade, PublishedTrade, decode
from fairtape.tape.ticker import Ticker
from fairtape.wire.frames import NodeId

TICKER_MAX: Final = 64  # trades
SPREADS_MAX: Final = 256  # tokens covered by the displayed spread
UNFINISHED_MAX: Final = 256  # tokens whose release is not yet in the journals of all sites
FAILURES_MAX: Final = 16
TICKER_SITE: Final = next(iter(SITES))  # the order is the same everywhere, so any site can feed the ticker


@dataclass(frozen=True, slots=True, kw_only=True)
class FormationView:
    """A formation, as the status of a site shows it."""

    number: int
    members: tuple[NodeId, ...]
    first_token: int
    starts_at: Instant
    token_period: Duration

    def holder(self, token: int) -> NodeId:
        """The site whose turn it is to send Ack(token)."""
        return self.members[(token - self.first_token) % len(self.members)]

    def current(self, now: Instant) -> int:
        """The token that is due."""
        return self.first_token + max(now - self.starts_at, 0) // self.token_period


@dataclass(slots=True)
class SiteTally:
    """What one site has done."""

    sequence: int = 0  # the last one released
    late: int = 0  # messages
    requests: int = 0  # retransmission requests that it sent
    repairs: int = 0  # datagrams that it retransmitted to others
    lost: int = 0  # datagrams that fault injection dropped


class DemoTally:
    """The current state: updated by the parent of the demonstration, read by the view."""

    def __init__(self, world: DemoWorld, deployment: Deployment, forming_since: Instant) -> None:
        self.world = world
        self.deployment = deployment
        self.forming_since = forming_since
        self.opened_at: Instant = 0  # when the floors began to trade; 0: not yet
        self.killed_at: Instant = 0  # when the victim was killed; 0: not yet
        self.second_feed_lost = False  # all customers of the victim noticed
        self.restored_at: Instant = 0  # when those customers received two feeds again; 0: not yet
        self.formations: dict[int, FormationView] = {}
        self.decisions: dict[int, DecisionStatus] = {}  # by formation
        self.sites = {site: SiteTally() for site in SITES}
        self.regions: dict[int, RegionNews] = {}
        self.published = 0
        self.closed = False  # the floors are closed and everything is acknowledged
        self.closing = False  # requested by the user or by the end of the session
        self.ticker = Ticker()
        self.trades: deque[tuple[int, PublishedTrade]] = deque(maxlen=TICKER_MAX)
        self.spreads: deque[Duration] = deque(maxlen=SPREADS_MAX)
        self.failures: list[str] = []
        self.settled_at: Instant = NEVER  # when the effects of a failure are known everywhere
        self._releases: dict[int, list[Release]] = {}

    def receive(self, news: object) -> None:
        """News of a child."""
        match news:
            case FloorNews():
                self.published, self.closed = news.published, news.closed
            case RegionNews():
                self._receive_region(news)

    def update_site(self, status: SiteStatus) -> None:
        """The status of a site."""
        counts, site = status.counts, self.sites[status.node]
        site.requests = counts.get("requests_sent", 0) + counts.get("holes_asked", 0)
        site.repairs = counts.get("repairs", 0)
        site.lost = counts.get("injected_losses", 0)
        if status.schedule is not None and status.formation not in self.formations:
            self.formations[status.formation] = FormationView(
                number=status.formation,
                members=tuple(self.deployment.nodes[name].number for name in status.members),
                first_token=status.schedule.first_token,
                starts_at=status.schedule.starts_at,
                token_period=status.schedule.token_period,
            )

    def update_decisions(self, status: ReformerStatus) -> None:
        """The formations that a reformation server decided."""
        self.decisions |= {each.formation: each for each in status.decisions}

    def add_entry(self, node: NodeId, entry: JournalEntry | FormationChanged) -> None:
        """An entry that a site has released, or a change of formation at its place in the order."""
        if isinstance(entry, FormationChanged):
            if node == TICKER_SITE:
                self.ticker.on_formation(entry.change)
            return
        assert entry.release is not None
        site, release = self.sites[node], entry.release
        site.sequence = entry.end - 1
        site.late += release.count if release.late else 0
        self._add_release(release)
        if node == TICKER_SITE:
            self.ticker.apply(Deliver(entry.ordered, release))
            self._add_trades(entry)

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
    def formation(self) -> FormationView | None:
        """The latest formation."""
        return self.formations[max(self.formations)] if self.formations else None

    @property
    def killed(self) -> NodeId | None:
        return VICTIM if self.killed_at else None

    @property
    def living(self) -> Collection[NodeId]:
        """All sites except the killed one."""
        return [site for site in SITES if site != self.killed]

    @property
    def delivered_min(self) -> int:
        """The last sequence number that every living site has released."""
        return min(self.sites[site].sequence for site in self.living)

    @property
    def received_min(self) -> int:
        """Trades that every customer has received."""
        served = [number for number in range(len(REGIONS)) if self.world.customers_of(number)]
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
        released = (site.sequence for site in self.sites.values())
        received = (news.trades for news in self.regions.values())
        return (self.published, len(self.formations), sum(released), sum(received))

    @property
    def lacking(self) -> str:
        """Which part of the system has not finished."""
        if not self.closed:
            return "the ring"
        sites = [SITES[site].name for site in self.living if self.sites[site].sequence < self.published]
        return ", ".join(sites) or "some customers"

    @property
    def late_fraction(self) -> float:
        """The share of releases after their commit instant."""
        released = sum(site.sequence for site in self.sites.values())
        return sum(site.late for site in self.sites.values()) / released if released else 0.0

    def publishers(self, region: int) -> dict[str, NodeId]:
        """The living publisher of each feed of a region."""
        members = self.formation.members if self.formation is not None else ()
        assigned = region_of(self.deployment, region).assignment(members)
        return {feed: site for feed, site in assigned.items() if site != self.killed}

    def _receive_region(self, news: RegionNews) -> None:
        self.regions[news.region] = news
        place = region_of(self.deployment, news.region)
        if self.killed_at and VICTIM in place.receivers[: len(place.feeds)]:
            if news.without_second_feed == news.customers:
                self.second_feed_lost = True
            elif not news.without_second_feed and self.second_feed_lost and not self.restored_at:
                self.restored_at = news.reported_at

    def _add_trades(self, entry: JournalEntry) -> None:
        latest = [each for span in entry.ordered.spans for each in messages(span)]
        for sequence, payload in latest[-TICKER_MAX:]:
            try:
                self.trades.append((sequence, decode(payload)))
            except BadTrade:
                continue

    def _add_release(self, release: Release) -> None:
        """Compute the spread of a token when all living sites have released it."""
        reported = self._releases.setdefault(release.token, [])
        reported.append(release)
        if len(reported) == len(self.living):
            del self._releases[release.token]
            on_time = [each.released_at for each in reported if not each.late]
            if len(on_time) > 1:
                self.spreads.append(max(on_time) - min(on_time))
        elif len(self._releases) > UNFINISHED_MAX:
            del self._releases[next(iter(self._releases))]


class DeploymentReader:
    """Reads the status files and the journals of the deployment into a tally."""

    def __init__(self, deployment: Deployment, tally: DemoTally) -> None:
        self._deployment = deployment
        self._tally = tally
        self._run = RunFolder(deployment.folder)
        self._followers: dict[NodeId, JournalFollower] = {}

    def update(self) -> None:
        """Read what is new."""
        sites = self._run.statuses_of(SiteStatus, [node.name for node in self._deployment.sites])
        for site in sites.values():
            self._tally.update_site(site)
        servers = self._run.statuses_of(ReformerStatus, [node.name for node in self._deployment.reformers])
        for server in servers.values():
            self._tally.update_decisions(server)
        self._follow(sites)
        for node, follower in self._followers.items():
            for entry in follower.new_entries():
                self._tally.add_entry(node, entry)

    def close(self) -> None:
        for follower in self._followers.values():
            follower.close()

    def _follow(self, sites: Mapping[str, SiteStatus]) -> None:
        """Follow the journals of sites that have started, which have one."""
        for name, status in sites.items():
            if status.node not in self._followers:
                journal = self._deployment.journal_of(self._deployment.nodes[name])
                self._followers[status.node] = JournalFollower.of_journal(journal, repair_period=REPAIR_PERIOD_MAX)
