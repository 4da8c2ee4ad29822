"""The plan of a ring, which all of its processes must agree on, and the part of it that a source needs.

Both are plain values. They can be sent to another process, and two processes with equal plans interoperate. What a
process opens for them is in `ring_runtime`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.net.transports import AddressBook, Groups
from fairtape.ring.membership.formation import Formation
from fairtape.ring.sender.window import WINDOW_MAX
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.seals import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What one source needs to publish into a ring."""

    me: NodeId
    keys: Keys  # its own
    timing: Timing  # of the primary loop
    resilience: int
    book: AddressBook
    groups: Groups | None  # None: a mesh of unicasts
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX
    window_max: int = WINDOW_MAX
    link_faults: Mapping[NodeId, LinkFaults] = field(default_factory=dict)  # to inject, by sender
    fault_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """Membership, keys, addresses, and the faults to inject."""

    formation: Formation
    keys: Keys
    book: AddressBook
    groups: Groups | None  # None: a mesh of unicasts, for networks without multicast
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX
    window_max: int = WINDOW_MAX
    link_faults: Mapping[NodeId, Mapping[NodeId, LinkFaults]] = field(default_factory=dict)  # at a node, by sender
    fault_seed: int = 0

    def source(self, me: NodeId) -> SourceConfig:
        return SourceConfig(
            me=me,
            keys=self.keys.for_source(me),
            timing=self.formation.timing,
            resilience=self.formation.resilience,
            book=self.book,
            groups=self.groups,
            stripe=self.stripe,
            datagram_max=self.datagram_max,
            window_max=self.window_max,
            link_faults=self.link_faults.get(me, {}),
            fault_seed=self.fault_seed,
        )
