"""The overload of one seed, built, run and checked.

All guarantees must hold, late releases must be marked, and after the overload everything that a source accepted must
arrive. Within a second the sources must be slowed to what the sites can carry: see `SlowedWithinASecond`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.spans import StreamId
from fairtape.nodes.source import Source
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.cluster_run import ClusterRun, RunOutcome, checked
from fairtape.simulation.fault_schedule import FaultSchedule
from fairtape.simulation.overload import CALM_SHARE, REFORMERS, Overload, draw
from fairtape.simulation.overload_checkers import LATE_SHARE_MAX, Expectation, LateIsMarked, SlowedWithinASecond
from fairtape.simulation.processors import SLICE_MAX, Placement, Processor, start_load
from fairtape.simulation.ring_schedule import ring_plan
from fairtape.simulation.world import Violation, World, chance_for
from fairtape.wire.frames import NodeId

EVENTS_MAX: Final = 2_000_000  # of one world
JITTER: Final = 20  # the mean queueing delay of a link is its delay divided by this
POOL: Final = 61  # different messages of a world, published in turn
FLOOD_QUEUED_MIN: Final = 256 << 10  # bytes in the queue of a flooding source, below which more is published
QUEUED_MAX: Final = 1 << 20  # bytes in the queue of a source, above which its application publishes nothing
PUBLISH_PERIOD: Final = MILLISECOND


class LoadProducer:
    """The application of one source: floods it or publishes at a rate; then little in the calm, and then nothing."""

    def __init__(
        self,
        overload: Overload,
        source: Callable[[], Source],
        *,
        published: dict[StreamId, list[bytes]],
        pool: list[bytes],
    ) -> None:
        sources = len(overload.sources)
        self._source = source
        self._published = published
        self._pool = pool
        self._rate = None if overload.load is None else overload.load * overload.capacity / sources  # messages per s
        self._calm_rate = CALM_SHARE * overload.capacity / sources
        self._calms_at = overload.calms_at
        self._ends_at = overload.ends_at
        self._next_at = overload.begins_at
        self._paid_until = overload.begins_at  # everything that was due until then is published

    def deadline(self) -> Instant | None:
        """At once while the queue of a flooded source is low; else when the next messages are due."""
        if self._next_at >= self._ends_at:
            return None
        if self._rate is None and self._source().queued >= FLOOD_QUEUED_MIN:
            return None
        return self._next_at

    def wake(self, now: Instant) -> None:
        """Publish what is due."""
        size = len(self._pool[0])
        if now >= self._calms_at and self._rate != self._calm_rate:
            self._rate, self._paid_until = self._calm_rate, now
        if self._rate is None:
            self._publish(FLOOD_QUEUED_MIN // size, now)
            return
        count = int((now - self._paid_until) * self._rate / SECOND)
        if count:
            self._paid_until += int(count * SECOND / self._rate)
            self._publish(min(count, (QUEUED_MAX - self._source().queued) // size), now)
        self._next_at = now + max(PUBLISH_PERIOD, int(SECOND / self._rate))

    def _publish(self, count: int, now: Instant) -> None:
        """What does not fit is never published: the application of an overloaded source drops it."""
        if count <= 0:
            return
        source = self._source()
        accepted = self._published.setdefault((source.me, source.incarnation), [])
        messages = [self._pool[number % POOL] for number in range(len(accepted), len(accepted) + count)]
        taken = source.publish_records(b"".join(messages), len(messages[0]), now)
        accepted += messages[:taken]


class LoadedProcessors:
    """The processors of a world, with the applications of its sources and the load that competes with its nodes."""

    def __init__(
        self,
        overload: Overload,
        world: World,
        *,
        source: Callable[[NodeId], Source],
        published: dict[StreamId, list[bytes]],
    ) -> None:
        world.turns_max = EVENTS_MAX
        text = chance_for("text", overload.seed)
        self.processors = [Processor(world) for _ in range(overload.processors)]
        self._overload = overload
        self._source = source
        self._published = published
        self._pool = [text.randbytes(overload.message_size) for _ in range(POOL)]
        for load in overload.loads:
            start_load(world, self.processors[load.processor], load, overload.calms_at)

    def placement(self, node: NodeId) -> Placement:
        overload = self._overload
        producer = None
        if node in overload.sources:
            source = partial(self._source, node)
            producer = LoadProducer(overload, source, published=self._published, pool=self._pool)
        return Placement(
            processor=self.processors[overload.placed[node]],
            costs=overload.costs_on(overload.placed[node]),
            socket_max=overload.socket_max,
            slice_max=overload.slice_max,
            producer=producer,
        )


class OverloadRun(ClusterRun):
    """An overload of a deployment or of a bare ring, built and running."""

    def __init__(self, overload: Overload) -> None:
        self.overload = overload
        self.loaded: LoadedProcessors | None = None
        self.slowed = measure_of(overload)
        super().__init__(schedule_of(overload, self._placement))
        late = LateIsMarked(resilience=overload.resilience, leases=overload.healing)
        self.cluster.world.observers += [late, self.slowed]
        self.cluster.world.at(overload.calms_at, self._count_reformations)

    def outcome(self, broken: Violation | None) -> RunOutcome:
        return with_measures(super().outcome(broken), self.slowed, self.cluster.world)

    def _placement(self, cluster: Cluster, node: NodeId) -> Placement:
        if self.loaded is None:
            self.loaded = LoadedProcessors(
                self.overload, cluster.world, source=cluster.source, published=cluster.published
            )
        return self.loaded.placement(node)

    def _count_reformations(self) -> None:
        """A server also reforms when it receives nothing from a member for a lease. Planned changes do not count."""
        self.slowed.reformations = sum(each.first_sequence > 0 for each in self.checkers.formations()[1:])


def schedule_of(overload: Overload, placement: Callable[[Cluster, NodeId], Placement]) -> FaultSchedule:
    """The deployment or the ring, as a cluster run builds it: without any other fault."""
    plan = deployment_of(overload) if overload.healing else ring_of(overload)
    return FaultSchedule(seed=overload.seed, plan=replace(plan, placement=placement), heals_at=overload.ends_at)


def ring_of(overload: Overload) -> ClusterPlan:
    return ring_plan(
        overload.seed,
        sites=overload.sites,
        sources=overload.sources,
        timing=overload.timing,
        resilience=overload.resilience,
        link_faults=link_of(overload),
        datagram_max=overload.datagram_max,
    )


def deployment_of(overload: Overload) -> ClusterPlan:
    timing, link_faults = overload.timing, link_of(overload)
    return ClusterPlan(
        topology=Topology(
            loops=(LoopTopology(number=0, tour=overload.sites, timing=timing),),
            resilience=overload.resilience,
            pace=overload.pace,
        ),
        reformers=REFORMERS,
        sources=overload.sources,
        link_model=lambda _origin, _to: link_faults,
        seed=overload.seed,
        leader_lease=max(timing.reform_delay, 200 * MILLISECOND),
        datagram_max=overload.datagram_max,
    )


def link_of(overload: Overload) -> LinkFaults:
    return LinkFaults(delay=overload.delay, jitter=overload.delay // JITTER, loss=overload.loss)


def measure_of(overload: Overload) -> SlowedWithinASecond:
    expected = Expectation(
        begins_at=overload.begins_at,
        calms_at=overload.calms_at,
        messages_per_s=overload.carried,
        stalls=tuple(stall for load in overload.loads for stall in load.stalls),
        commit_delay=overload.timing.commit_delay,
        late_share_max=LATE_SHARE_MAX + overload.late_by_loss,
    )
    return SlowedWithinASecond(expected, overload.sites)


def with_measures(outcome: RunOutcome, slowed: SlowedWithinASecond, world: World) -> RunOutcome:
    """The outcome with its counts; it fails if the sources were not slowed and nothing else is broken."""
    missed = slowed.missed()
    if missed is not None and not outcome.failed:
        outcome = replace(outcome, guarantee=type(slowed).__name__, text=f"{type(slowed).__name__}: {missed}")
    return replace(
        outcome,
        counts=(
            ("datagrams lost in sockets", world.datagrams_lost()),
            ("releases after the first second", slowed.counted),
            ("releases late after the first second", slowed.late),
        ),
    )


def run_overload(seed: int, *, load: float | None = None, slice_max: int = SLICE_MAX) -> RunOutcome:
    """Draw, build and run one overload. Never raises: an exception is an outcome."""
    return checked(seed, lambda: OverloadRun(draw(seed, load=load, slice_max=slice_max)))
