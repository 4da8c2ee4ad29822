"""The edge of a deployment: the edge publisher in a site's process, and the process of its retransmit server."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.deployment.config.description import Deployment, Node
from fairtape.deployment.config.process_names import EDGE
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.resources import clock_of
from fairtape.deployment.status import EdgeStatus
from fairtape.deployment.status_files import RunFolder, StatusFile
from fairtape.edge.service.publisher import EdgePublisher
from fairtape.edge.service.replay_archive import ReplayArchive, snapshot_path
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_numbering import checkpoint_path
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore
from fairtape.edge.status import PublisherStatus
from fairtape.net.driver import allow_files
from fairtape.net.transports import interface_at

FILES_NEEDED: Final = 2_048  # open files of a retransmit server: replays, and the journals that they read


def edge_of(deployment: Deployment) -> EdgeSettings:
    """The settings of the edge; a `UserError` where the deployment has none."""
    if deployment.edge is None:
        raise UserError(
            f"{deployment.folder} has no edge; list the publishers in its file, under [edge], as `fairtape init --edge`"
            " writes them"
        )
    return deployment.edge


def stripe_plans_of(deployment: Deployment) -> StripePlanStore:
    """The stripe plans of a deployment."""
    return StripePlanStore(deployment.folder, deployment.stripe)


class SilencedPublisher:
    """Replaces a publisher without a socket: the site continues, and its status says why nothing is sent."""

    def __init__(self, feed: str, reason: str) -> None:
        self._feed = feed
        self._reason = reason
        self._unsent = 0

    def delivered(self, delivery: Deliver) -> None:
        self._unsent += delivery.release.count

    def on_formation(self, change: FormationChange) -> None:
        pass

    def assign(self, feeds: Collection[str], now: Instant) -> None:
        pass

    def deadline(self) -> Instant | None:
        return None

    def wake(self, now: Instant) -> None:
        pass

    def status(self) -> PublisherStatus:
        return PublisherStatus(
            feed=self._feed, speaks=False, reason=self._reason, plan=None, marks=(), unsent=self._unsent
        )

    def close(self) -> None:
        pass


def open_publisher(
    deployment: Deployment, node: Node, journal: Path, log: Callable[[str], None]
) -> EdgePublisher | SilencedPublisher | None:
    """The publisher of a site; None where it is not listed."""
    settings = deployment.edge
    if settings is None or node.name not in settings.publishers:
        return None
    try:
        return EdgePublisher(
            settings,
            node.name,
            plan_store=stripe_plans_of(deployment),
            journal=journal,
            checkpoint_file=checkpoint_path(deployment.folder, node.name),
            interface=interface_at(node.host),
            log=log,
        )
    except UserError as error:
        log(f"edge: {error}")
        return SilencedPublisher(settings.publishers[node.name].feed, str(error))


def run_edge(deployment: Deployment, node: Node) -> None:
    """Run the retransmit server of a site until SIGINT or SIGTERM."""
    settings = edge_of(deployment)
    place = settings.publishers.get(node.name)
    if place is None:
        raise UserError(f"SITE is {node.name!r}; publishers are {', '.join(settings.publishers)}")
    journal = deployment.journal_of(node)
    journal.mkdir(parents=True, exist_ok=True)
    allow_files(FILES_NEEDED)
    clock = clock_of(deployment)
    try:
        snapshot = snapshot_path(deployment.folder, node.name)
        archive = ReplayArchive(journal, settings, stripe_plans_of(deployment), snapshot=snapshot)
    except PlanUnknown as missing:
        raise UserError(str(missing)) from None
    server = RetransmitServer(settings, place, archive, clock, interface=interface_at(node.host))
    name = f"{node.name}{EDGE}"
    status_file = StatusFile(RunFolder(deployment.folder), name)

    def status(now: Instant) -> EdgeStatus:
        return EdgeStatus(name=name, node=node.number, written_at=now, server=server.status())

    with Interrupts() as interrupts:

        def ended() -> bool:
            status_file.keep_posted(clock.now(), status)
            return interrupts.count > 0

        try:
            server.run(ended)
        finally:
            status_file.close(replace(status(clock.now()), ended=True))
            server.close()
