"""Who leads while the formation store is slow, loses answers or is unavailable, and what the ring notices of it."""

from functools import partial
from random import Random

import pytest

from fairtape.core.effects import Ordered, Release
from fairtape.core.formation_log import Claim, StoreRequest, StoreResponse, Unavailable
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import PROFILES
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_run import ClusterRun
from fairtape.simulation.fault_schedule import draw
from fairtape.simulation.operation_checkers import OperationCheckers
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import OperatorVerb
from simulation.fault_free_cluster import TIMING, fault_free_cluster
from simulation.faulty_store import FaultyStore, LostAnswers, SlowStore

LEASE = TIMING.lease_period


def leader_of(cluster: Cluster) -> NodeId:
    leader = cluster.leader()
    assert leader is not None
    return leader.config.me


class OneLostAnswer(FaultyStore):
    """One claim of a server is carried out, and its answer is lost. Then the server reaches the store once more."""

    def __init__(self, cluster: Cluster, server: NodeId, period: Duration) -> None:
        super().__init__(cluster)
        self._cluster = cluster
        self._server = server
        self._period = period
        self._requests = 0

    def query(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        delay, response = super().query(node, question)
        if node != self._server or (not self._requests and not isinstance(question, Claim)):
            return delay, response
        self._requests += 1
        if self._requests == 1:
            return self._period, Unavailable(question)
        self._cluster.store_access.cut_off.add(node)
        return delay, response


@pytest.mark.parametrize("tenths", [4, 5, 6, 7, 8])
def test_a_refused_claim_and_a_read_extend_no_lead(tenths: int) -> None:
    """Decision 67, Confirmed lead."""
    cluster, checkers = fault_free_cluster()
    checker = OperationCheckers(cluster, checkers.formations)
    cluster.world.run(EPOCH + SECOND)
    leader = leader_of(cluster)
    OneLostAnswer(cluster, leader, LEASE * tenths // 10)
    terms = set()
    for _ in range(3 * LEASE // MILLISECOND):
        cluster.run(MILLISECOND)
        checker.check_leader()
        terms.add(cluster.store_access.store.leadership)
    assert leader_of(cluster) != leader
    assert len({known.term for known in terms if known is not None}) == 2


@pytest.mark.parametrize("seed", range(1, 21))
def test_no_two_servers_lead_though_answers_to_claims_are_lost(seed: int) -> None:
    """In random schedules of faults."""
    running = ClusterRun(draw(seed))
    LostAnswers(running.cluster, 0.3, Random(f"lost answers {seed}"))
    running.cluster.world.run(running.schedule.heals_at)


class ReleaseGap(Observer):
    """How long site 1 released nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._world = cluster.world
        self._released_at: Instant = cluster.world.now
        self._longest: Duration = 0

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        if node == 1:
            self._longest, self._released_at = self.longest, self._world.now

    @property
    def longest(self) -> Duration:
        return max(self._longest, self._world.now - self._released_at)


def lan_cluster(seed: int) -> tuple[Cluster, ClusterCheckers]:
    """Four sites with the `lan` profile, under load for eight seconds. It has run for a second."""
    links = LinkFaults(delay=200_000, jitter=20_000, loss=0.0)
    plan = ClusterPlan(
        topology=Topology(loops=(LoopTopology(number=0, tour=(1, 2, 3, 4), timing=PROFILES["lan"]),)),
        reformers=(101, 102),
        sources=(201, 202),
        link_model=lambda _origin, _to: links,
        seed=seed,
    )
    cluster = Cluster(plan)
    checkers = ClusterCheckers(cluster)
    cluster.world.observers.append(checkers)
    cluster.start()
    for number, at in enumerate(range(EPOCH + SECOND // 2, EPOCH + 8 * SECOND, 2 * MILLISECOND)):
        cluster.world.at(at, partial(cluster.publish, 201 + number % 2, [b"message"]))
    cluster.run(SECOND)
    return cluster, checkers


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_slow_request_to_the_store_silences_no_site(seed: int) -> None:
    """It takes longer than the leader's lease.  Decision 68, Leader's lease."""
    cluster, checkers = lan_cluster(seed)
    gap = ReleaseGap(cluster)
    cluster.world.observers.append(gap)
    slow: list[Claim] = []

    def delay_of(question: StoreRequest) -> Duration | None:
        if slow or not isinstance(question, Claim):
            return None
        slow.append(question)
        return 350 * MILLISECOND

    SlowStore(cluster, delay_of)
    cluster.run(3 * SECOND)
    assert slow
    assert gap.longest <= 5 * MILLISECOND
    assert checkers.late == 0
    assert len(checkers.formations()) == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slow_store_stops_the_ring_once_and_then_no_more(seed: int) -> None:
    """310 ms for each request. Then a planned change stops nothing, though the store takes long to record it."""
    cluster, checkers = lan_cluster(seed)
    gap = ReleaseGap(cluster)
    cluster.world.observers.append(gap)
    SlowStore(cluster, lambda _question: 310 * MILLISECOND)
    cluster.run(3 * SECOND)
    leadership = cluster.store_access.store.leadership
    assert leadership is not None
    assert leadership.term == 2
    assert leadership.lease == 4 * 310 * MILLISECOND
    assert gap.longest < 1_200 * MILLISECOND
    calm = ReleaseGap(cluster)
    cluster.world.observers.append(calm)
    cluster.command(OperatorVerb.RETIRE, 4)
    cluster.run(3 * SECOND)
    assert checkers.formations()[-1].first_sequence == 0
    assert set(checkers.formations()[-1].members) == {1, 2, 3}
    assert calm.longest <= 5 * MILLISECOND
    assert cluster.store_access.store.leadership is not None
    assert cluster.store_access.store.leadership.term == 2
