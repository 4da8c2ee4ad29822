"""Which site of a deployment to hear: one of this machine that serves, for as long as it does.

Whoever hears a site reads its journal, in the deployment's folder. The site knows nothing of it and waits for nobody.
"""

from pathlib import Path
from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.deployment.config.description import Deployment, NodeKind
from fairtape.deployment.lock_file import is_running
from fairtape.deployment.status import SiteStatus
from fairtape.deployment.status_files import FRESH_PERIOD_MAX, RunFolder
from fairtape.wire.frames import NodeId

FRESH_PERIOD: Final[Duration] = round(FRESH_PERIOD_MAX * SECOND)


class SiteSelection:
    """Those who hear a deployment on this machine."""

    def __init__(self, deployment: Deployment, *, wanted: str | None = None) -> None:
        """`wanted` names the only site to hear; without it, any that serves will do."""
        self._deployment = deployment
        self._run = RunFolder(deployment.folder)
        nodes = deployment.sites if wanted is None else (deployment.node(wanted, NodeKind.SITE, field="--site"),)
        self._nodes = {node.number: node for node in nodes}

    @property
    def journals(self) -> dict[NodeId, Path]:
        """Where the sites write, those that run on this machine."""
        return {number: self._deployment.journal_of(node) for number, node in self._nodes.items()}

    @property
    def names(self) -> dict[NodeId, str]:
        """Of all nodes."""
        return {node.number: node.name for node in self._deployment.nodes.values()}

    def is_over(self) -> bool:
        """Whether nobody runs the deployment here any more."""
        anybody = self._run.statuses([node.name for node in self._deployment.sites])
        return not anybody and not is_running(self._deployment.folder)

    def choose(self, present: NodeId | None, now: Instant) -> NodeId | None:
        """The site to hear from now on: the present one while it serves, or while none does that could replace it."""
        pages = self._pages()
        serving = {number: page for number, page in pages.items() if _serves(page, now)}
        if present is not None and (present in serving or not serving):
            return present
        return max(serving or pages, key=lambda number: pages[number].released_sequence, default=None)

    def serves(self, site: NodeId, now: Instant) -> bool:
        """Whether this site releases what the others release."""
        page = self._pages().get(site)
        return page is not None and _serves(page, now)

    def released_through(self, site: NodeId) -> int:
        """The last number that a site has said to have released."""
        page = self._pages().get(site)
        return 0 if page is None else page.released_sequence

    def _pages(self) -> dict[NodeId, SiteStatus]:
        found = self._run.statuses_of(SiteStatus, [node.name for node in self._nodes.values()])
        return {page.node: page for page in found.values() if not page.ended}


def _serves(page: SiteStatus, now: Instant) -> bool:
    """Whether a site takes part and says so.

    One that only follows, without a seat in any loop, may be far behind; one that is cut off loses its lease first.
    """
    active = (page.is_member and page.lease_left_ms > 0) or bool(page.loops)
    return active and now - page.written_at < FRESH_PERIOD
