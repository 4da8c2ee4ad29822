"""Clusters without faults and with a steady load, for tests that change one thing."""

from collections.abc import Mapping
from functools import partial

from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.ring.membership.topology import Excess, LoopTopology, Topology
from fairtape.simulation.clocks import SimulatedClock
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.world import EPOCH
from fairtape.wire.frames import NodeId

SOURCES = (201, 202)
TIMING = Timing(
    retry_period=20 * MILLISECOND,
    retries_max=8,
    token_period=10 * MILLISECOND,
    commit_delay=60 * MILLISECOND,
    clock_error_max=4 * MILLISECOND,
)


def fault_free_cluster(
    *,
    sites: int = 4,
    resilience: int = 1,
    loops: tuple[LoopTopology, ...] = (),
    late_sites: tuple[NodeId, ...] = (),
    clocks: Mapping[NodeId, SimulatedClock] | None = None,
    seed: int = 1,
    loss: float = 0.0,
    request_sets: int = 1,
    tree_loss: float | None = None,
    excess: Excess = Excess.CONTINUE,
) -> tuple[Cluster, ClusterCheckers]:
    """A cluster without faults, with its checkers."""
    tour = tuple(range(1, sites + 1))
    primary = LoopTopology(number=0, tour=tour, timing=TIMING, request_sets=request_sets)
    link_faults = LinkFaults(delay=3 * MILLISECOND, jitter=300_000, loss=loss)
    plan = ClusterPlan(
        topology=Topology(loops=(primary, *loops), resilience=resilience, excess=excess),
        reformers=(101, 102),
        sources=SOURCES,
        link_model=lambda _origin, _to: link_faults,
        seed=seed,
        late_sites=late_sites,
        clocks=clocks or {},
        leader_lease=TIMING.lease_period,
        tree_loss=tree_loss,
    )
    cluster = Cluster(plan)
    checkers = ClusterCheckers(cluster)
    cluster.world.observers.append(checkers)
    cluster.start()
    return cluster, checkers


def load(cluster: Cluster, *, since: Instant, until: Instant, period: Duration = 7 * MILLISECOND) -> None:
    """Two sources publish, in turns."""
    for number, at in enumerate(range(EPOCH + since, EPOCH + until, period)):
        cluster.world.at(at, partial(cluster.publish, SOURCES[number % 2], [f"message {number}".encode()]))
