"""What a process of a deployment opens: its clock, its sockets, its journal, the formation store."""

from collections.abc import Collection
from dataclasses import replace

from fairtape.core.link_faults import LinkFaults
from fairtape.deployment.config.description import Deployment, Node
from fairtape.journal import JournalWriter
from fairtape.net.clock import SharedClock, SystemClock
from fairtape.net.fault_injection import FaultInjector, seeded_injector
from fairtape.net.transports import IpMulticast, Mesh, Transport, interface_at
from fairtape.storage.formation_stores import FormationStore, open_store
from fairtape.wire.frames import NodeId


def clock_of(deployment: Deployment) -> SharedClock | SystemClock:
    """A clock for one process of this machine."""
    return SharedClock() if deployment.shared_clock else SystemClock(declared_bound=deployment.declared_bound)


def open_transport(deployment: Deployment, node: Node) -> Transport:
    """Bind the sockets of one node. Its multicast uses the interface of its own address."""
    if deployment.groups is None:
        return Mesh(node.number, deployment.address_book(), _loop_receivers(deployment))
    groups = replace(deployment.groups, interface=interface_at(node.host))
    return IpMulticast(node.number, deployment.address_book(), groups)


def injector_at(deployment: Deployment, node: Node, *, cut_off: Collection[NodeId] = ()) -> FaultInjector | None:
    """The faults to inject at one node: those of the deployment, and total loss from these senders; None: none."""
    faults = deployment.link_faults
    links, seed = ({}, 0) if faults is None else (faults.at(node.number), faults.seed)
    return seeded_injector(links | dict.fromkeys(cut_off, LinkFaults(loss=1.0)), node.number, seed=seed)


def _loop_receivers(deployment: Deployment) -> dict[int, set[NodeId]]:
    """The sites that may ever belong to a secondary loop: its own, and any of the parent loop as its junction."""
    loops = deployment.topology.loops
    tours = {loop.number: loop.tour for loop in loops}
    return {loop.number: {*loop.tour, *tours[loop.parent]} for loop in loops[1:]}


def open_journal(deployment: Deployment, site: Node) -> JournalWriter:
    """Open the journal of a site for writing."""
    return JournalWriter.open(
        deployment.journal_of(site),
        stripe=deployment.stripe,
        site=site.number,
        sync=deployment.sync,
        sync_period=deployment.sync_period,
    )


def open_formation_store(deployment: Deployment) -> FormationStore:
    """Open the store in which reformation servers record formations."""
    return open_store(deployment.store, access=deployment.access)
