"""The ring of nine cities in virtual time: how long a crash stops it, and how often it reforms needlessly.

The `wan` profile with K = 1, and links with the delays between real cities and their loss. In a *failover* the site
whose turn is next crashes under steady load. A *quiet* ring has no failure at all, so each of its reformations is
false: a loss was mistaken for a failure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from fairtape.core.cities import CITIES, City, faults_between
from fairtape.core.effects import Ordered, Release, Report
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import PROFILES
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId

SITES: Final = tuple(range(1, len(CITIES) + 1))
REFORMERS: Final = (101, 102)
SOURCES: Final = (201, 202, 203)
RESILIENCE: Final = 1
LOAD_PERIOD: Final = 20 * MILLISECOND
WARM_UP: Final = 20 * SECOND
AFTERMATH: Final = 15 * SECOND
EVENTS_MAX: Final = 1_000_000_000  # of a quiet ring
QUIET_LOAD_PERIOD: Final = 200 * MILLISECOND
MINUTES_PER_HOUR: Final = 60
SLICE: Final = 60 * SECOND  # of a quiet ring between two looks at its progress


def city_of(node: NodeId) -> City:
    """Sites in their cities; servers where `fairtape init --cities all` puts them; sources in the first cities."""
    if node in REFORMERS:
        return CITIES[(REFORMERS.index(node) + 1) * len(CITIES) // (len(REFORMERS) + 1)]
    return CITIES[SOURCES.index(node) if node in SOURCES else node - 1]


def nine_cities(*, loss: float, seed: int) -> Cluster:
    """The ring, not started yet."""
    timing = PROFILES["wan"].with_resilience(RESILIENCE)

    def link_faults(origin: NodeId, to: NodeId) -> LinkFaults:
        return faults_between(city_of(origin), city_of(to), loss=loss)

    plan = ClusterPlan(
        topology=Topology(loops=(LoopTopology(number=0, tour=SITES, timing=timing),), resilience=RESILIENCE),
        reformers=REFORMERS,
        sources=SOURCES,
        link_model=link_faults,
        seed=seed,
        leader_lease=timing.lease_period,
    )
    return Cluster(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CityFailover:
    """One crash. All times count from it."""

    seed: int
    declared: Duration  # the first survivor declared a failure, or the reformation began
    began: Duration
    recorded: Duration
    entered: Duration  # by the last survivor
    stall: Duration  # the longest time without a release at a survivor


class _Failover(Observer):
    def __init__(self, cluster: Cluster) -> None:
        self.stall: Duration = 0
        self.declared_at: Instant | None = None
        self.entered_at: Instant = 0
        self.victim: NodeId = 0
        self.awaited = 0
        self._cluster = cluster
        self._released_at: dict[NodeId, Instant] = {}

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        at = self._cluster.world.now
        if self.victim and node != self.victim:
            self.stall = max(self.stall, at - self._released_at.get(node, at))
        self._released_at[node] = at

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:  # noqa: ARG002
        if self.victim and self.declared_at is None:
            self.declared_at = self._cluster.world.now

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        if self.awaited and text.startswith(f"formation {self.awaited} ") and node in SITES:
            self.entered_at = self._cluster.world.now


def fail_over(*, loss: float, seed: int) -> CityFailover:
    """Crash the site whose turn is next, under load, and measure until the others go on."""
    cluster = nine_cities(loss=loss, seed=seed)
    watch = _Failover(cluster)
    checkers = ClusterCheckers(cluster)
    world = cluster.world
    world.observers += [checkers, watch]
    cluster.start()
    until = EPOCH + WARM_UP + AFTERMATH
    _publish(cluster, EPOCH + 2 * SECOND, until, LOAD_PERIOD)
    world.run(EPOCH + WARM_UP + seed * 37 * MILLISECOND % (2 * SECOND))
    formation = checkers.formations()[-1]
    crashed_at = world.now
    watch.victim = formation.holder(formation.current(crashed_at) + 1)
    watch.awaited = formation.number + 1
    world.crash(watch.victim)
    world.run(until)
    leader = cluster.leader()
    assert leader is not None
    decision = next(each for each in leader.primary.decisions if each.formation.number == watch.awaited)
    declared_at = decision.began_at if watch.declared_at is None else min(watch.declared_at, decision.began_at)
    return CityFailover(
        seed=seed,
        declared=declared_at - crashed_at,
        began=decision.began_at - crashed_at,
        recorded=decision.decided_at - crashed_at,
        entered=watch.entered_at - crashed_at,
        stall=watch.stall,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """A ring without any failure."""

    hours: float
    causes: Sequence[str]  # of the reformations

    @property
    def per_hour(self) -> float:
        """False reformations per hour."""
        return len(self.causes) / self.hours


def false_reformations(*, loss: float, minutes: int, seed: int) -> Iterator[QuietHours]:
    """Run a ring in which nothing fails, and yield what happened so far after each simulated minute."""
    cluster = nine_cities(loss=loss, seed=seed)
    cluster.world.turns_max = EVENTS_MAX
    cluster.start()
    cluster.run(WARM_UP)
    causes: list[str] = []
    known = _latest(cluster)
    for minute in range(1, minutes + 1):
        _publish(cluster, cluster.world.now, cluster.world.now + SLICE, QUIET_LOAD_PERIOD)
        cluster.run(SLICE)
        decisions = [each for server in REFORMERS for each in cluster.reformer(server).primary.decisions]
        causes += [each.cause for each in decisions if each.formation.number > known and each.formation.first_sequence]
        known = max(known, _latest(cluster))
        yield QuietHours(hours=minute / MINUTES_PER_HOUR, causes=tuple(causes))


def _publish(cluster: Cluster, begins_at: Instant, until: Instant, period: Duration) -> None:
    """The sources publish in turns."""
    for number, at in enumerate(range(begins_at, until, period)):
        source = SOURCES[number % len(SOURCES)]
        cluster.world.at(at, partial(cluster.publish, source, [f"message {number}".encode()]))


def _latest(cluster: Cluster) -> int:
    """The number of the latest recorded formation of the primary loop."""
    return max((entry.number for entry in cluster.store_access.store.log if entry.loop == 0), default=0)
