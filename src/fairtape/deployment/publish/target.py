"""Publish targets: what a publisher needs to know about a deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fairtape.deployment.config.description import Deployment, Node, NodeKind, is_temporary, read_deployment
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.publish.source_runtime import SourceConfig
from fairtape.deployment.status_files import RunFolder
from fairtape.net.transports import interface_at
from fairtape.wire.frames import NodeId


@dataclass(frozen=True, slots=True)
class PublishTarget:
    """A deployment that can be published into, as one of its sources."""

    deployment: Deployment
    sources: Mapping[NodeId, Node]

    @property
    def names(self) -> dict[NodeId, str]:
        """Of the sources."""
        return {number: node.name for number, node in self.sources.items()}

    @property
    def command(self) -> str:
        """The command that runs the sites."""
        verb = "listen" if is_temporary(self.deployment.folder) else "up"
        return f"fairtape {verb} {self.deployment.folder}"

    def is_open(self) -> bool:
        """Whether any site runs, as far as this machine knows: with several machines, all may be on others."""
        if not self.deployment.shared_clock:
            return True
        return bool(RunFolder(self.deployment.folder).statuses([site.name for site in self.deployment.sites]))

    def source_config(self, source: NodeId) -> SourceConfig:
        """With the key of this source and the multicast interface of its address. Raises `UserError`."""
        deployment, node = self.deployment, self.sources[source]
        primary, groups = deployment.topology.primary, deployment.groups
        return SourceConfig(
            me=source,
            keys=keys_of(deployment, node),
            timing=primary.timing,
            resilience=deployment.topology.resilience_of(primary.tour),
            pace_max=deployment.topology.pace_max,
            address_book=deployment.address_book(),
            groups=None if groups is None else replace(groups, interface=interface_at(node.host)),
            stripe=deployment.stripe,
            datagram_max=deployment.datagram_max,
            link_faults={} if deployment.link_faults is None else deployment.link_faults.at(source),
            fault_seed=0 if deployment.link_faults is None else deployment.link_faults.seed,
            incarnation_file=deployment.incarnation_file_of(node),
        )


def publish_target(directory: Path) -> PublishTarget:
    """The deployment of this folder. Raises `UserError` where there is none."""
    deployment = read_deployment(directory)
    return PublishTarget(deployment, {node.number: node for node in deployment.of_kind(NodeKind.SOURCE)})
