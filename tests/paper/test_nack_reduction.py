"""NACK reduction in a whole loop: fewer requests, a later bound. TRMP 2001 §5.2."""

import pytest

from fairtape.core.effects import Channel, Ordered
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import Kind, NodeId
from simulation.fault_free_cluster import TIMING, fault_free_cluster, load

SITES = 8
SEEDS = range(1, 7)


class Watch(Observer):
    """Counts requests, and measures how long after its time a token was complete."""

    def __init__(self) -> None:
        self.requests = 0
        self.repairs_to_all = 0
        self.longest = 0

    def sent(self, node: NodeId, to: int, datagram: bytes, _at: Instant, /) -> None:
        self.requests += datagram[2] == Kind.REQUEST
        self.repairs_to_all += node <= SITES and to == Channel.DATA

    def appended(self, _node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        self.longest = max(self.longest, now - ordered.acknowledged_at)


def run(sets: int, seed: int) -> Watch:
    cluster, checkers = fault_free_cluster(sites=SITES, request_sets=sets, tree_loss=0.03, seed=seed)
    watch = Watch()
    cluster.world.observers.append(watch)
    load(cluster, since=300 * MILLISECOND, until=1_500 * MILLISECOND)
    cluster.world.run(EPOCH + 2 * SECOND)
    assert len(checkers.formations()) == 1
    return watch


def test_receivers_that_take_turns_ask_less_often() -> None:
    """If a later receiver hears the multicast, it does not request the retransmission.  2001 §5.2."""
    at_once = [run(1, seed) for seed in SEEDS]
    in_turns = [run(4, seed) for seed in SEEDS]
    assert sum(each.requests for each in in_turns) < sum(each.requests for each in at_once) * 9 // 10
    assert all(each.repairs_to_all > 0 for each in in_turns)
    assert all(each.repairs_to_all == 0 for each in at_once)


@pytest.mark.parametrize("sets", [1, 2, 4])
def test_the_bound_grows_by_the_other_sets(sets: int) -> None:
    """Complete or reforming by t_e + Δ_R + (k_p - 1) Δ_T."""
    watch = run(sets, 1)
    assert watch.longest <= TIMING.reform_delay + (sets - 1) * TIMING.token_period
