"""A virtual machine stands still, and its clock with it: what it then releases late is marked."""

from functools import partial

import pytest

from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.ring.receiver.release import LATE_AFTER
from fairtape.simulation.clocks import DriftingClock, Piece, clock_standing_still
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_run import why_unsettled
from fairtape.simulation.world import EPOCH, Observer, World
from fairtape.wire.frames import NodeId
from simulation.fault_free_cluster import TIMING, fault_free_cluster, load

SEEDS = range(1, 6)
STOPS_AT = EPOCH + SECOND
CORRECTED_AT = EPOCH + 3 * SECOND
BOUND = 100_000


class TrueLateness(Observer):
    """How late each site releases by true time, and whether it says so."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.unmarked: dict[NodeId, list[Duration]] = {}  # how late, of those that were late and not marked
        self.released_at: dict[NodeId, Instant] = {}  # the last one

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        self.released_at[node] = self._world.now
        late = self._world.now - release.commit_at
        if late > LATE_AFTER and not release.late:
            self.unmarked.setdefault(node, []).append(late)


def run(*, sites: int, period: Duration, seed: int) -> tuple[Cluster, ClusterCheckers, TrueLateness]:
    stops_at = STOPS_AT + seed * 7 * MILLISECOND
    clock = clock_standing_still(at=stops_at, period=period, corrected_at=CORRECTED_AT, bound=BOUND)
    cluster, checkers = fault_free_cluster(sites=sites, clocks={2: clock}, seed=seed)
    lateness = TrueLateness(cluster.world)
    cluster.world.observers.append(lateness)
    load(cluster, since=300 * MILLISECOND, until=3_400 * MILLISECOND)
    cluster.world.at(stops_at, partial(cluster.world.pause, 2))
    cluster.world.at(stops_at + period, partial(cluster.world.resume, 2))
    cluster.world.run(EPOCH + 5 * SECOND)
    return cluster, checkers, lateness


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sites", [2, 3, 5])
@pytest.mark.parametrize("period", [30 * MILLISECOND, 100 * MILLISECOND, 300 * MILLISECOND])
def test_what_a_site_releases_after_its_clock_stood_still_is_marked(sites: int, period: Duration, seed: int) -> None:
    """The others' datagrams come from its future. Decision 59, Acknowledgments from the future.

    After a short pause not enough of the others have sent anything; then one token is released before they have.
    """
    cluster, checkers, lateness = run(sites=sites, period=period, seed=seed)
    unmarked = lateness.unmarked.pop(2, [])
    assert len(unmarked) <= (period < TIMING.commit_delay)
    assert lateness.unmarked == {}
    assert checkers.late_at[2] > 100  # it releases nothing until its clock is corrected, and then everything
    assert lateness.released_at[2] - CORRECTED_AT < SECOND
    assert why_unsettled(cluster) is None
    checkers.finish()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sites", [3, 4])
def test_a_member_whose_clock_is_ahead_makes_no_other_doubt_its_own(sites: int, seed: int) -> None:
    ahead = DriftingClock([Piece(0, 0, 0), Piece(STOPS_AT, 50 * MILLISECOND, 0)], bound=BOUND)
    cluster, checkers = fault_free_cluster(sites=sites, clocks={1: ahead}, seed=seed)
    load(cluster, since=300 * MILLISECOND, until=1_900 * MILLISECOND)
    cluster.run(2_100 * MILLISECOND)
    assert {checkers.late_at[site] for site in range(2, sites + 1)} == {0}
    assert {cluster.site(site).clock_bound() <= TIMING.clock_error_max for site in range(2, sites + 1)} == {True}
