"""A ring on real sockets: one plan that all of its processes share, and the seat of each of its nodes.

The plan is a value. It can be sent to a process as it is, and two processes with equal plans understand each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from fairtape.core.effects import Deliver, Report
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration
from fairtape.core.link_faults import LinkFaults
from fairtape.journal import JournalWriter
from fairtape.net.clock import Clock
from fairtape.net.fault_injection import FaultInjector
from fairtape.net.node_runtime import NodeRuntime, Producer
from fairtape.net.transports import AddressBook, Groups, IpMulticast, Mesh, Transport
from fairtape.nodes.receiver import JoinedTooLate, Receiver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.ring.receiver.tracing import Tracer
from fairtape.ring.sender.window import WINDOW_MAX
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.seals import Keys

GATHER_PERIOD_MAX: Final = 1 * MILLISECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """What the processes of one ring must agree on."""

    formation: Formation
    keys: Keys
    book: AddressBook
    groups: Groups | None  # None: a mesh of unicasts, for networks without multicast
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX
    window_max: int = WINDOW_MAX
    link_faults: Mapping[NodeId, Mapping[NodeId, LinkFaults]] = field(default_factory=dict)  # at a node, by sender
    weather_seed: int = 0

    def transport(self, me: NodeId) -> Transport:
        """The way into the core for one node."""
        return Mesh(me, self.book) if self.groups is None else IpMulticast(me, self.book, self.groups)

    def faults_at(self, me: NodeId) -> FaultInjector | None:
        """What is done to the datagrams that reach one node."""
        links = self.link_faults.get(me)
        if not links:
            return None
        return FaultInjector(links, Random(f"{self.weather_seed}/{me}"))  # noqa: S311 - weather, not secrets


def site_runtime(
    plan: RingPlan,
    me: NodeId,
    clock: Clock,
    *,
    journal: Path | None = None,
    consumer: Callable[[Deliver], None] | None = None,
    reporter: Callable[[Report], None] | None = None,
    producer: Producer | None = None,
    tracer: Tracer | None = None,
) -> tuple[Receiver, NodeRuntime]:
    """A receiver and its seat: sockets bound, journal open."""
    try:
        receiver = Receiver(
            me=me,
            formation=plan.formation,
            keys=plan.keys,
            born_at=clock.now(),
            stripe=plan.stripe,
            datagram_max=plan.datagram_max,
            clock_bound=clock.bound,
            tracer=tracer,
        )
    except JoinedTooLate as late:
        raise UserError(str(late)) from None
    writer = None if journal is None else JournalWriter.open(journal, stripe=plan.stripe, site=me)
    seat = NodeRuntime(
        receiver,
        plan.transport(me),
        link_faults=plan.faults_at(me),
        journal=writer,
        consumer=consumer,
        reporter=reporter,
        producer=producer,
    )
    return receiver, seat


def gather_period(plan: RingPlan) -> Duration:
    """How long data may wait for a turn at a site: a good part of a token, and never long enough to fill a buffer."""
    return min(plan.formation.timing.token_period // 2, GATHER_PERIOD_MAX)


def source_of(plan: RingPlan, me: NodeId, clock: Clock) -> Source:
    """A new incarnation of one source, born now."""
    return Source(
        me=me,
        keys=plan.keys.for_source(me),
        timing=plan.formation.timing,
        resilience=plan.formation.resilience,
        incarnation=clock.now(),
        stripe=plan.stripe,
        datagram_max=plan.datagram_max,
        window_max=plan.window_max,
    )


def source_runtime(plan: RingPlan, source: Source, producer: Producer | None = None) -> NodeRuntime:
    """The seat of a source: it hears only the control channel."""
    return NodeRuntime(source, plan.transport(source.me), link_faults=plan.faults_at(source.me), producer=producer)
