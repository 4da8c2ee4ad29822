"""A source on its sockets, or several at one address: what each needs to publish into a ring, and their runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairtape.core.errors import UserError
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.net.clock import Clock
from fairtape.net.fault_injection import seeded_injector
from fairtape.net.node_runtime import NodeRuntime, Producer
from fairtape.net.transports import AddressBook, Groups, IpMulticast, Mesh, Transport
from fairtape.nodes.source import Source
from fairtape.nodes.source_group import SourceGroup
from fairtape.storage.incarnations import next_incarnations
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.seals import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What one source needs to publish into a ring. Plain values."""

    me: NodeId
    keys: Keys  # its own
    timing: Timing  # of the primary loop, as configured
    resilience: int
    pace_max: int = 1  # how many times its configured period the token may take
    address_book: AddressBook
    groups: Groups | None  # None: a mesh of unicasts
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX
    window_max: int | None = None  # None: as the token period asks for
    link_faults: Mapping[NodeId, LinkFaults] = field(default_factory=dict)  # to inject, by sender
    fault_seed: int = 0
    incarnation_file: Path | None = None  # None: the clock was never set back


def source_of(config: SourceConfig, clock: Clock) -> Source:
    """A new incarnation of one source."""
    return _source(config, new_incarnation([config], clock))


def new_incarnation(configs: Sequence[SourceConfig], clock: Clock) -> int:
    """A number that is higher than all earlier ones of these sources: the first of as many for a new incarnation."""
    files = [config.incarnation_file for config in configs if config.incarnation_file is not None]
    return next_incarnations(files, clock.now()) if files else clock.now()


def group_of(configs: Sequence[SourceConfig], clock: Clock) -> SourceGroup:
    """New incarnations of several sources at one address, with numbers that follow one another."""
    first, *others = configs
    for other in others:
        if other.address_book[other.me] != first.address_book[first.me]:
            raise UserError(f"sources {first.me} and {other.me} have two addresses; sources of one group have the same")
        if other.link_faults != first.link_faults:
            raise UserError(
                f"sources {first.me} and {other.me} have one address and different link faults; put them into one city"
            )
    incarnation = new_incarnation(configs, clock)
    return SourceGroup(_source(config, incarnation + place) for place, config in enumerate(configs))


def _source(config: SourceConfig, incarnation: int) -> Source:
    return Source(
        me=config.me,
        keys=config.keys,
        timing=config.timing,
        resilience=config.resilience,
        pace_max=config.pace_max,
        incarnation=incarnation,
        stripe=config.stripe,
        datagram_max=config.datagram_max,
        window_max=config.window_max,
    )


def source_runtime(
    config: SourceConfig,
    source: Source | SourceGroup,
    producer: Producer | None = None,
    *,
    producer_fd: int | None = None,
) -> NodeRuntime:
    """The runtime of a source, or of a group that it is in. It receives only the control channel."""
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
