"""A site that lacks the key of a source reports that, and accuses no other site."""

from functools import partial

import pytest

from fairtape.core.effects import Report
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_run import why_unsettled
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipState
from fairtape.wire.seals import Keys
from simulation.fault_free_cluster import SOURCES, TIMING, fault_free_cluster, load

SEEDS = range(1, 6)
LACKED = SOURCES[1]


class Accusations(Observer):
    """Who declares whom failed."""

    def __init__(self) -> None:
        self.made: list[tuple[NodeId, NodeId]] = []

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:  # noqa: ARG002
        self.made.append((node, report.suspect))


def take_key_away(cluster: Cluster, site: NodeId) -> None:
    """Its key file is older than the source."""
    held = cluster.site(site)._keys
    cluster.site(site)._keys = Keys(held.sites, {node: key for node, key in held.sources.items() if node != LACKED})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_site_without_the_key_of_a_source_withdraws_and_returns_with_the_key(seed: int) -> None:
    """The others go on without it.  Decision 61, Missing keys."""
    cluster, checkers = fault_free_cluster(sites=4, seed=seed)
    accusations = Accusations()
    cluster.world.observers.append(accusations)
    take_key_away(cluster, 3)
    load(cluster, since=300 * MILLISECOND, until=2_400 * MILLISECOND)
    cluster.run(1_500 * MILLISECOND)
    assert [suspect for accuser, suspect in accusations.made if accuser == 3] == []
    assert {suspect for _, suspect in accusations.made} <= {3}
    assert cluster.site(3).membership_state is MembershipState.OBSERVER
    later = checkers.formations()[1:]  # a planned change, and the next turn of the site, which it does not take
    assert len(later) <= 2
    assert {tuple(sorted(formation.members)) for formation in later} == {(1, 2, 4)}
    (notice,) = [text for _, node, text in checkers.notices if node == 3 and "key" in text]
    assert f"source {LACKED}" in notice
    assert cluster.site(3).counts["acks_without_key"] > 0
    stalled = max(checkers.late_at[site] for site in (1, 2, 4))
    assert stalled <= 3 * TIMING.reform_delay // TIMING.token_period

    asked = cluster.site(3).counts["past_asked"]
    cluster.run(100 * MILLISECOND)
    assert cluster.site(3).counts["past_asked"] == asked  # it could not read the answers

    cluster.world.restart(3, cluster.new_incarnation(3))
    cluster.run(3 * SECOND)
    assert cluster.site(3).membership_state is MembershipState.MEMBER
    assert why_unsettled(cluster) is None
    checkers.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restarted_site_that_still_lacks_the_key_does_not_ask_for_what_it_cannot_read(seed: int) -> None:
    cluster, checkers = fault_free_cluster(sites=4, seed=seed)
    world = cluster.world
    load(cluster, since=300 * MILLISECOND, until=1_800 * MILLISECOND)
    world.at(EPOCH + 500 * MILLISECOND, partial(world.crash, 3))
    cluster.run(1_500 * MILLISECOND)
    machine = cluster.new_incarnation(3)
    world.restart(3, machine)
    take_key_away(cluster, 3)
    cluster.run(300 * MILLISECOND)
    asked = cluster.site(3).counts["past_asked"]
    cluster.run(SECOND)
    assert cluster.site(3).counts["past_asked"] == asked
    assert any(f"source {LACKED}" in text for _, node, text in checkers.notices if node == 3)
    assert cluster.site(3).membership_state is not MembershipState.MEMBER
    world.restart(3, cluster.new_incarnation(3))
    cluster.run(3 * SECOND)
    assert why_unsettled(cluster) is None
    checkers.finish()
