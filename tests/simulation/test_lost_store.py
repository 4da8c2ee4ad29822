"""The formation store is restored from an old backup, or lost, while the ring runs or stands still."""

from functools import partial

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.ring.membership.topology import Excess, LoopTopology
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_run import why_unsettled
from fairtape.simulation.world import EPOCH
from fairtape.wire.membership import OperatorVerb
from simulation.fault_free_cluster import TIMING, fault_free_cluster, load

LOOP = LoopTopology(number=1, tour=(5, 6), timing=TIMING, junction=2)


def changed_cluster(
    seed: int, *, excess: Excess = Excess.CONTINUE, loops: tuple[LoopTopology, ...] = ()
) -> tuple[Cluster, ClusterCheckers]:
    """A cluster under load, after several planned changes and a crash of the leading server: its term is 2."""
    cluster, checkers = fault_free_cluster(seed=seed, excess=excess, loops=loops)
    load(cluster, since=300 * MILLISECOND, until=12 * SECOND, period=23 * MILLISECOND)
    world = cluster.world
    world.run(EPOCH + 600 * MILLISECOND)
    leader = cluster.leader()
    assert leader is not None
    world.crash(leader.config.me)
    world.run(EPOCH + 1_500 * MILLISECOND)
    world.restart(leader.config.me, cluster.new_incarnation(leader.config.me))
    for number, verb in enumerate((OperatorVerb.RETIRE, OperatorVerb.ADMIT) * 2):
        world.at(EPOCH + SECOND * 2 + number * 500 * MILLISECOND, partial(cluster.command, verb, 4))
    world.run(EPOCH + 4 * SECOND)
    assert len(checkers.formations()) >= 5
    return cluster, checkers


def restart(cluster: Cluster, *nodes: int) -> None:
    for node in nodes:
        cluster.world.restart(node, cluster.new_incarnation(node))


def settle(cluster: Cluster, checkers: ClusterCheckers) -> None:
    """The ring goes on with all sites, though the backup knows of no order to admit one again."""
    cluster.command(OperatorVerb.ADMIT, 4)
    cluster.world.run(EPOCH + 20 * SECOND)
    assert why_unsettled(cluster) is None
    checkers.finish()


@pytest.mark.parametrize("excess", [Excess.CONTINUE, Excess.HALT])
@pytest.mark.parametrize("records", [2, 4, 6])
def test_with_all_sites_in_the_latest_formation_nothing_is_lost(records: int, excess: Excess) -> None:
    """They answer from memory: no Break, and no operator.  Decision 69, Lost formations."""
    cluster, checkers = changed_cluster(records, excess=excess)
    lost = checkers.formations()[-1].number
    cluster.store_access.restore_records(records)
    cluster.run(6 * SECOND)
    assert checkers.formations()[-1].number > lost
    assert not any(formation.broken for formation in checkers.formations())
    settle(cluster, checkers)


@pytest.mark.parametrize("records", [2, 4])
@pytest.mark.parametrize(
    ("nodes", "broken"),
    [
        ((1, 2, 3, 4), False),  # the leader goes on, and remembers the formation
        ((101, 102), False),  # the sites do
        ((1, 101, 102), True),  # a restarted site may have lost what others counted on
        ((1, 2, 3, 4, 101, 102), True),
    ],
)
def test_an_order_without_its_proof_goes_on_with_a_break(records: int, nodes: tuple[int, ...], *, broken: bool) -> None:
    """The numbers are not given again.  Decision 69, Lost formations."""
    cluster, checkers = changed_cluster(records)
    lost = checkers.formations()[-1].number
    cluster.store_access.restore_records(records)
    restart(cluster, *nodes)
    cluster.run(6 * SECOND)
    assert checkers.formations()[-1].number > lost
    assert any(formation.broken for formation in checkers.formations()) == broken
    settle(cluster, checkers)


def test_under_halt_the_operator_decides() -> None:
    cluster, checkers = changed_cluster(1, excess=Excess.HALT)
    lost = checkers.formations()[-1].number
    cluster.store_access.restore_records(4)
    restart(cluster, 1, 2, 3, 4, 101, 102)
    cluster.run(6 * SECOND)
    assert checkers.formations()[-1].number == lost
    leader = cluster.leader()
    assert leader is not None
    assert leader.primary.phase.name == "HALTED"
    cluster.command(OperatorVerb.RESUME)
    cluster.run(SECOND)
    assert checkers.formations()[-1].broken
    settle(cluster, checkers)


def test_a_site_that_was_cut_off_does_not_keep_a_lost_number() -> None:
    """It alone knows the latest formation, and reports it when the others have gone on."""
    cluster, checkers = changed_cluster(3)
    lost = checkers.formations()[-1].number
    cluster.world.network.cut((3,))
    cluster.run(SECOND)
    cluster.store_access.restore_records(5)
    restart(cluster, 1, 2, 4, 101, 102)
    cluster.run(5 * SECOND)
    cluster.world.network.mend((3,))
    cluster.run(2 * SECOND)
    assert checkers.formations()[-1].number > lost + 1
    settle(cluster, checkers)


def test_secondary_loops_go_on_above_their_lost_numbers() -> None:
    cluster, checkers = changed_cluster(2, loops=(LOOP,))
    restart(cluster, 6)
    cluster.run(SECOND)
    store = cluster.store_access.store
    lost = max(entry.number for entry in store.log if entry.loop == 1)
    cluster.store_access.restore_records(len([entry for entry in store.log if entry.number > 1]))
    cluster.run(SECOND)
    settle(cluster, checkers)
    assert max(entry.number for entry in store.log if entry.loop == 1) > lost


@pytest.mark.parametrize("restarted", [(), (1, 2, 3, 4)])
def test_an_empty_store_is_one_that_has_lost_all_formations(restarted: tuple[int, ...]) -> None:
    """It is another one, so only the operator may say so.  Decision 63, One store; decision 69, Lost formations."""
    cluster, checkers = changed_cluster(4)
    lost = checkers.formations()[-1].number
    cluster.store_access.lose()
    restart(cluster, *restarted)
    cluster.run(6 * SECOND)
    assert checkers.formations()[-1].number == lost
    cluster.command(OperatorVerb.ADOPT)
    cluster.run(6 * SECOND)
    assert not any("is refused" in text for _, _, text in checkers.notices)
    assert checkers.formations()[-1].number > lost
    assert any(formation.broken for formation in checkers.formations()) == bool(restarted)
    settle(cluster, checkers)
