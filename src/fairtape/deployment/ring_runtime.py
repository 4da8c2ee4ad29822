"""Node runtimes for a ring plan or a source: transport, injected faults, journal, receiver or source."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Final

from fairtape.core.effects import Deliver, Report
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.deployment.ring_plan import RingPlan, SourceConfig
from fairtape.journal import JournalWriter
from fairtape.net.clock import Clock
from fairtape.net.fault_injection import FaultInjector
from fairtape.net.node_runtime import NodeRuntime, Producer
from fairtape.net.transports import IpMulticast, Mesh, Transport
from fairtape.nodes.receiver import JoinedTooLate, Receiver
from fairtape.nodes.source import Source
from fairtape.ring.receiver.tracing import Tracer
from fairtape.wire.frames import NodeId

GATHER_PERIOD_MAX: Final = 1 * MILLISECOND


def ring_transport(plan: RingPlan | SourceConfig, me: NodeId) -> Transport:
    """Bind the sockets of one node."""
    return Mesh(me, plan.book) if plan.groups is None else IpMulticast(me, plan.book, plan.groups)


def fault_injector(links: Mapping[NodeId, LinkFaults], me: NodeId, *, seed: int) -> FaultInjector | None:
    """The faults to inject into the datagrams that one node receives, by sender; None: none."""
    return FaultInjector(links, Random(f"{seed}/{me}")) if links else None  # noqa: S311 - injected faults, no secrets


def gather_period(timing: Timing) -> Duration:
    """How long a site may let data wait in its sockets: half a token, and never long enough to fill a buffer."""
    return min(timing.token_period // 2, GATHER_PERIOD_MAX)


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
    """A receiver and its runtime, with sockets bound and journal open."""
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
    runtime = NodeRuntime(
        receiver,
        ring_transport(plan, me),
        link_faults=fault_injector(plan.link_faults.get(me, {}), me, seed=plan.fault_seed),
        journal=writer,
        consumer=consumer,
        reporter=reporter,
        producer=producer,
    )
    return receiver, runtime


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


def source_runtime(config: SourceConfig, source: Source, producer: Producer | None = None) -> NodeRuntime:
    """The runtime of a source. It receives only the control channel."""
    faults = fault_injector(config.link_faults, config.me, seed=config.fault_seed)
    return NodeRuntime(source, ring_transport(config, config.me), link_faults=faults, producer=producer)
