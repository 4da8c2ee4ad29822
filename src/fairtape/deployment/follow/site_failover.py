"""Which site of a deployment to follow, and when to go on with another one.

A follower reads the journals in the deployment's folder. Sites notify it and do not wait for it. It follows
one site of this machine for as long as that site serves: a site serves while it takes part in a loop, holds its lease
and keeps its status file fresh.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.deployment.config.description import Deployment, NodeKind
from fairtape.deployment.lock_file import is_running
from fairtape.deployment.status import SiteStatus
from fairtape.deployment.status_files import FRESH_PERIOD_MAX, RunFolder
from fairtape.journal import JournalFollower
from fairtape.journal.follow import REPAIR_PERIOD_MAX
from fairtape.net.clock import Clock, SharedClock
from fairtape.wire.frames import NodeId

CHECK_PERIOD: Final = 500 * MILLISECOND  # between two checks of the site: status files are written as often
OUTAGE_MIN: Final = 1 * SECOND  # before an outage is reported; a reformation takes less
FRESH_PERIOD: Final[Duration] = round(FRESH_PERIOD_MAX * SECOND)


@dataclass(frozen=True, slots=True)
class SiteChanged:
    """Another site is followed from now on."""

    before: NodeId
    site: NodeId


@dataclass(frozen=True, slots=True)
class SiteSilent:
    """The followed site does not serve, and no other site here does."""

    site: NodeId
    since: Instant


@dataclass(frozen=True, slots=True)
class SiteRestored:
    """The site serves again."""

    site: NodeId


SiteEvent: TypeAlias = SiteChanged | SiteSilent | SiteRestored


class SiteFailover:
    """Chooses among the sites of a deployment on this machine, and keeps a follower on one that serves."""

    def __init__(self, deployment: Deployment, *, only: str | None = None, clock: Clock | None = None) -> None:
        """`only` names the one site to follow; without it, any that serves."""
        self._deployment = deployment
        self._run = RunFolder(deployment.folder)
        nodes = deployment.sites if only is None else (deployment.node(only, NodeKind.SITE, field="--site"),)
        self._nodes = {node.number: node for node in nodes}
        self._clock = clock or SharedClock()
        self._follower: JournalFollower | None = None
        self._check_at = self._served_at = 0
        self.site: NodeId | None = None  # the one that is watched
        self.is_silent = False  # an outage of it was reported
        self.is_over = False  # at the last check, the deployment did not run here any more

    @property
    def journals(self) -> dict[NodeId, Path]:
        """The journal of each site, whether it exists here or not."""
        return {number: self._deployment.journal_of(node) for number, node in self._nodes.items()}

    @property
    def names(self) -> dict[NodeId, str]:
        """Of all nodes."""
        return {node.number: node.name for node in self._deployment.nodes.values()}

    def choose(self, present: NodeId | None = None) -> NodeId | None:
        """The site to follow: the present one while it serves or no other does, then the one that released most."""
        return self._chosen(self._pages(), present)

    def _chosen(self, pages: Mapping[NodeId, SiteStatus], present: NodeId | None) -> NodeId | None:
        serving = {number: page for number, page in pages.items() if self._serves(page)}
        if present is not None and (present in serving or not serving):
            return present
        return max(serving or pages, key=lambda number: pages[number].released_sequence, default=None)

    def serves(self, site: NodeId) -> bool:
        """Whether this site releases what the others release."""
        return self._serves(self._pages().get(site))

    def released_through(self, site: NodeId) -> int:
        """The last number that a site has reported as released."""
        page = self._pages().get(site)
        return 0 if page is None else page.released_sequence

    def runs(self) -> bool:
        """Whether any site of the deployment runs here, or the program that starts them."""
        sites = self._run.statuses_of(SiteStatus, [node.name for node in self._deployment.sites])
        return bool(sites) or is_running(self._deployment.folder)

    def watch(self, site: NodeId) -> None:
        """Report outages of this site in each `check` from now on."""
        self.site = site
        self._check_at = self._served_at = self._clock.now()
        self.is_silent = self.is_over = False

    def follow(self, site: NodeId, *, from_sequence: int = 1) -> JournalFollower:
        """Watch this site and follow its journal; each `check` keeps the follower on a site that serves."""
        self.watch(site)
        self._follower = JournalFollower(
            self.journals, site=site, from_sequence=from_sequence, repair_period=REPAIR_PERIOD_MAX
        )
        return self._follower

    def check(self) -> Iterator[SiteEvent]:
        """Once per `CHECK_PERIOD`: go on with another site where the watched one does not serve; yields the changes."""
        now = self._clock.now()
        if self.site is None or now < self._check_at:
            return
        self._check_at = now + CHECK_PERIOD
        pages, before = self._pages(), self.site
        chosen = self._chosen(pages, before)
        if chosen is not None and chosen != before:
            if self._follower is not None:
                self._follower.follow(chosen)
            self.site = chosen
            yield SiteChanged(before, chosen)
        serves = self._serves(pages.get(self.site))
        self.is_over = not serves and not self.runs()
        if serves:
            if self.is_silent:
                yield SiteRestored(self.site)
            self.is_silent, self._served_at = False, now
        elif not self.is_silent and now - self._served_at > OUTAGE_MIN:
            self.is_silent = True
            yield SiteSilent(self.site, self._served_at)

    def _pages(self) -> dict[NodeId, SiteStatus]:
        found = self._run.statuses_of(SiteStatus, [node.name for node in self._nodes.values()])
        return {page.node: page for page in found.values() if not page.ended}

    def _serves(self, page: SiteStatus | None) -> bool:
        """A site that takes part in no loop may be far behind. A site that is cut off loses its lease first."""
        if page is None:
            return False
        active = (page.is_member and page.lease_left_ms > 0) or bool(page.loops)
        return active and self._clock.now() - page.written_at < FRESH_PERIOD
