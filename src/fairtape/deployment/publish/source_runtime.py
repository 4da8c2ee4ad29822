"""One source on its sockets: what it needs to publish into a ring, and its runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.net.clock import Clock
from fairtape.net.fault_injection import seeded_injector
from fairtape.net.node_runtime import NodeRuntime, Producer
from fairtape.net.transports import AddressBook, Groups, IpMulticast, Mesh, Transport
from fairtape.nodes.source import Source
from fairtape.ring.sender.window import WINDOW_MAX
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.seals import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What one source needs to publish into a ring. Plain values."""

    me: NodeId
    keys: Keys  # its own
    timing: Timing  # of the primary loop
    resilience: int
    address_book: AddressBook
    groups: Groups | None  # None: a mesh of unicasts
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX
    window_max: int = WINDOW_MAX
    link_faults: Mapping[NodeId, LinkFaults] = field(default_factory=dict)  # to inject, by sender
    fault_seed: int = 0


def source_of(config: SourceConfig, clock: Clock) -> Source:
    """A new incarnation of one source, numbered by the present time."""
    return Source(
        me=config.me,
        keys=config.keys,
        timing=config.timing,
        resilience=config.resilience,
        incarnation=clock.now(),
        stripe=config.stripe,
        datagram_max=config.datagram_max,
        window_max=config.window_max,
    )


def source_runtime(
    config: SourceConfig, source: Source, producer: Producer | None = None, *, producer_fd: int | None = None
) -> NodeRuntime:
    """The runtime of a source. It receives only the control channel."""
    transport: Transport
    if config.groups is None:
        transport = Mesh(config.me, config.address_book)
    else:
        transport = IpMulticast(config.me, config.address_book, config.groups)
    return NodeRuntime(
        source,
        transport,
        link_faults=seeded_injector(config.link_faults, config.me, seed=config.fault_seed),
        producer=producer,
        producer_fd=producer_fd,
    )
