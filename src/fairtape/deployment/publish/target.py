"""Publish targets: what a publisher needs to know about the ring of a folder, temporary or a deployment."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fairtape.deployment.config.description import FILE, Deployment, NodeKind, read_deployment
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.config.ring_folder import SOURCES, RingFolder
from fairtape.deployment.ring_plan import RingPlan
from fairtape.deployment.status_files import RunFolder
from fairtape.net.transports import interface_at
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTarget:
    """A ring that can be published into."""

    plan: RingPlan  # without keys
    names: Mapping[NodeId, str]  # of the sources
    command: str  # the command that runs the sites
    is_open: Callable[[], bool]  # whether any site runs, as far as this machine knows
    keys_of: Callable[[NodeId], Keys]
    interfaces: Mapping[NodeId, str]  # for the multicast of each source; default: that of the plan

    def plan_for(self, source: NodeId) -> RingPlan:
        """The plan with the key and the interface of one source."""
        groups = self.plan.groups
        if groups is not None and source in self.interfaces:
            groups = replace(groups, interface=self.interfaces[source])
        return replace(self.plan, keys=self.keys_of(source), groups=groups)


def publish_target(directory: Path) -> PublishTarget:
    """The ring of this folder. Raises `UserError` where there is none."""
    if (directory / FILE).exists():
        return _deployment_target(read_deployment(directory))
    folder = RingFolder(directory)
    plan = folder.read()
    return PublishTarget(
        plan=plan,
        names={node: venue.name for node, venue in SOURCES.items() if node in plan.book},
        command=f"fairtape listen {directory}",
        is_open=lambda: folder.running,
        keys_of=folder.keys_of,
        interfaces={},
    )


def _deployment_target(deployment: Deployment) -> PublishTarget:
    """A source needs the timing and the resilience of the primary loop. Its plan has no real formation."""
    run, primary = RunFolder(deployment.folder), deployment.topology.primary
    plan = RingPlan(
        formation=Formation(
            number=1,
            members=primary.tour,
            timing=primary.timing,
            starts_at=0,
            resilience=deployment.topology.resilience_of(primary.tour),
        ),
        keys=Keys({}, {}),
        book=deployment.book(),
        groups=deployment.groups,
        stripe=deployment.stripe,
        datagram_max=deployment.datagram_max,
    )
    sources = {node.number: node for node in deployment.of_kind(NodeKind.SOURCE)}
    return PublishTarget(
        plan=plan,
        names={number: node.name for number, node in sources.items()},
        command=f"fairtape up {deployment.folder}",
        # With several machines, all sites may be on others.
        is_open=lambda: not deployment.shared_clock or bool(run.statuses([site.name for site in deployment.sites])),
        keys_of=lambda number: keys_of(deployment, sources[number]),
        interfaces={number: interface_at(node.host) for number, node in sources.items()},
    )
