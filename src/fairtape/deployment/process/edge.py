"""The edge of a deployment: a site's station in its process, and the retransmit server that is a process beside it."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.deployment.config.description import Deployment, Node, interface_at
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.supervisor import BESIDE
from fairtape.deployment.status_files import RunFolder, Status, StatusFile
from fairtape.edge.service.checkpoints import checkpoint_path, snapshot_path
from fairtape.edge.service.publisher import EdgePublisher
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore
from fairtape.net.driver import allow_files

JOURNALS: Final = "journals"
FILES_NEEDED: Final = 2_048  # open files of a retransmit server: replays, and the journals that they read


def edge_of(deployment: Deployment) -> EdgeSettings:
    """The edge, which must be there."""
    if deployment.edge is None:
        raise UserError(
            f"{deployment.folder} has no edge; name the stations in its file, under [edge], as `fairtape init --edge`"
            " writes them"
        )
    return deployment.edge


def edge_names(deployment: Deployment) -> list[str]:
    """The processes beside the sites."""
    return [] if deployment.edge is None else [f"{site}{BESIDE}" for site in deployment.edge.publishers]


def stripe_plans_of(deployment: Deployment) -> StripePlanStore:
    """Its stripe plans."""
    return StripePlanStore(deployment.folder, deployment.stripe)


class SilencedPublisher:
    """Stands in for a station that has no socket: the site goes on, and its status says why it is not heard."""

    def __init__(self, feed: str, words: str) -> None:
        self._status = {"feed": feed, "speaks": False, "words": words, "plan": None, "marks": []}
        self._unsent = 0

    def delivered(self, delivery: Deliver) -> None:
        """Count it."""
        self._unsent += delivery.release.count

    def turned(self, change: FormationChange) -> None:
        """Nothing to do."""

    def assign(self, feeds: Collection[str], now: Instant) -> None:
        """Nothing to do."""

    def deadline(self) -> Instant | None:
        """Never."""
        return None

    def wake(self, now: Instant) -> None:
        """Nothing to do."""

    def status(self) -> dict[str, Any]:
        """Why it is silent."""
        return {**self._status, "unsent": self._unsent}

    def close(self) -> None:
        """Nothing to give back."""


def open_publisher(
    deployment: Deployment, node: Node, journal: Path, log: Callable[[str], None]
) -> EdgePublisher | SilencedPublisher | None:
    """The outlet of a site; None where the deployment gives it none."""
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
    except UserError as complaint:
        log(f"edge: {complaint}")
        return SilencedPublisher(settings.publishers[node.name].feed, str(complaint))


def run_edge(deployment: Deployment, node: Node) -> None:
    """The life of a retransmit server, until SIGINT or SIGTERM."""
    settings = edge_of(deployment)
    place = settings.publishers.get(node.name)
    if place is None:
        raise UserError(f"SITE is {node.name!r}; stations are {', '.join(settings.publishers)}")
    journal = deployment.folder / JOURNALS / node.name
    journal.mkdir(parents=True, exist_ok=True)
    allow_files(FILES_NEEDED)
    clock = deployment.clock()
    try:
        memory = snapshot_path(deployment.folder, node.name)
        archive = ReplayArchive(journal, settings, stripe_plans_of(deployment), memory=memory)
    except PlanUnknown as missing:
        raise UserError(str(missing)) from None
    server = RetransmitServer(settings, place, archive, clock, interface=interface_at(node.host))
    name = f"{node.name}{BESIDE}"
    bulletin = StatusFile(RunFolder(deployment.folder), name)

    def page(now: Instant) -> Status:
        return {"name": name, "kind": "edge", "node": node.number, "written_at_ns": now, **server.status()}

    with Interrupts() as interrupts:

        def ended() -> bool:
            bulletin.keep_posted(clock.now(), page)
            return interrupts.count > 0

        try:
            server.run(ended)
        finally:
            bulletin.close({**page(clock.now()), "ended": True})
            server.close()
