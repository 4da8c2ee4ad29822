"""Clusters under planned changes: growth, retirement, a clock without reference, and a crash in a secondary loop."""

from functools import partial

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.ring.membership.topology import LoopTopology
from fairtape.simulation.clocks import clock_losing_reference
from fairtape.simulation.cluster_run import why_unsettled
from fairtape.simulation.world import EPOCH
from fairtape.wire.membership import MembershipState, OperatorVerb
from simulation.fault_free_cluster import TIMING, fault_free_cluster, load

SEEDS = range(1, 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_sites_come_and_go_under_load_without_a_gap_and_without_a_late_message(seed: int) -> None:
    """Growth and retirement install formations at a future token: the ring does not stop for them."""
    cluster, checkers = fault_free_cluster(sites=5, late_sites=(4, 5), seed=seed)
    load(cluster, since=3_200 * MILLISECOND, until=5_200 * MILLISECOND)
    world = cluster.world
    world.at(EPOCH + 3_600 * MILLISECOND, partial(cluster.start_site, 4))
    world.at(EPOCH + 3_700 * MILLISECOND, partial(cluster.start_site, 5))
    world.at(EPOCH + 4_300 * MILLISECOND, partial(cluster.command, OperatorVerb.RETIRE, 2))
    world.at(EPOCH + 4_800 * MILLISECOND, partial(cluster.command, OperatorVerb.ADMIT, 2))
    world.run(EPOCH + 6 * SECOND)
    assert why_unsettled(cluster) is None
    checkers.finish()
    layouts = [formation.members for formation in checkers.formations()]
    assert [len(members) for members in layouts] == [3, 4, 5, 4, 5]
    assert not any(formation.first_sequence for formation in checkers.formations()[1:])  # no site was fenced
    old = {site: checkers.late_at[site] for site in (1, 2, 3)}
    assert old == {1: 0, 2: 0, 3: 0}  # new sites release old messages late; the others release nothing late


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("error", [15 * MILLISECOND, -15 * MILLISECOND, 60 * MILLISECOND])
def test_a_site_whose_clock_bound_grows_too_large_withdraws_and_returns(seed: int, error: int) -> None:
    """By planned formations: the others are not affected, and it releases nothing while its clock is not accurate."""
    clock = clock_losing_reference(at=EPOCH + SECOND, period=SECOND, error=error, bound=100_000, step=seed % 2 == 0)
    cluster, checkers = fault_free_cluster(sites=4, clocks={2: clock}, seed=seed)
    load(cluster, since=300 * MILLISECOND, until=2_400 * MILLISECOND)
    cluster.world.run(EPOCH + 1_800 * MILLISECOND)
    assert cluster.site(2).membership_state is MembershipState.OBSERVER
    released = checkers.released_through(2)
    cluster.world.run(EPOCH + 1_900 * MILLISECOND)
    assert checkers.released_through(2) == released
    cluster.world.run(EPOCH + 3 * SECOND)
    assert why_unsettled(cluster) is None
    checkers.finish()
    assert [len(formation.members) for formation in checkers.formations()] == [4, 3, 4]
    assert {checkers.late_at[site] for site in (1, 3, 4)} == {0}
    assert checkers.late_at[2] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_in_a_secondary_loop_delays_nothing_in_the_primary_one(seed: int) -> None:
    """0 late messages there. TRMP 2001 §5.3."""
    loop = LoopTopology(number=1, tour=(5, 6, 7), timing=TIMING, junction=2)
    cluster, checkers = fault_free_cluster(sites=4, loops=(loop,), seed=seed)
    load(cluster, since=300 * MILLISECOND, until=1_800 * MILLISECOND)
    world = cluster.world
    world.at(EPOCH + 800 * MILLISECOND, partial(world.crash, 6))
    world.at(EPOCH + 1_400 * MILLISECOND, lambda: world.restart(6, cluster.new_incarnation(6)))
    world.run(EPOCH + 2_400 * MILLISECOND)
    assert why_unsettled(cluster) is None
    checkers.finish()
    assert len(checkers.formations()) == 1
    assert {checkers.late_at[site] for site in (1, 2, 3, 4)} == {0}
    log = [entry.number for entry in cluster.store_access.store.log if entry.loop == 1]
    assert len(log) >= 3  # without it, and with it again


def test_a_command_to_retire_survives_a_crash_of_the_leading_server() -> None:
    """The operator sends a command once; every reformation server keeps it."""
    cluster, _ = fault_free_cluster(sites=4)
    cluster.world.run(EPOCH + SECOND)
    cluster.command(OperatorVerb.RETIRE, 3)
    cluster.world.run(EPOCH + 1_500 * MILLISECOND)
    leader = cluster.leader()
    assert leader is not None
    cluster.world.crash(leader.config.me)
    cluster.world.run(EPOCH + 3 * SECOND)
    successor = cluster.leader()
    assert successor is not None
    assert successor is not leader
    assert cluster.site(3).membership_state is MembershipState.OBSERVER
    assert 3 in successor.primary.retired
