"""The simulated network: trees, clogs, partitions, drop rules and healing."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fairtape.core.effects import Channel
from fairtape.core.instants import MILLISECOND, Duration
from fairtape.core.link_faults import LinkFaults
from fairtape.simulation.datagram_summary import summarize_datagram
from fairtape.simulation.network import DropRule, Network, Tree
from fairtape.wire.frames import Ack, Kind, NodeId, encode_control
from fairtape.wire.seals import Authenticator

NODES = (1, 2, 3, 4, 5, 6)


class Wire:
    """A network and what it delivered."""

    def __init__(self, link_faults: LinkFaults | None = None, *, tree: Tree | None = None, seed: int = 1) -> None:
        self.arrived: list[tuple[NodeId, bytes]] = []
        self.network = Network(
            link_model=lambda _origin, _to: link_faults or LinkFaults(delay=MILLISECOND),
            chance=Random(seed),
            deliver=self._deliver,
            tree=tree,
        )
        for node in NODES:
            self.network.join(node, [Channel.DATA])

    def _deliver(self, _delay: Duration, node: NodeId, datagram: bytes) -> None:
        self.arrived.append((node, datagram))

    def reached(self, origin: NodeId) -> set[NodeId]:
        self.arrived.clear()
        self.network.multicast(origin, Channel.DATA, b"x")
        return {node for node, _ in self.arrived}


def ack(token: int) -> bytes:
    return Authenticator(bytes(32)).prove(encode_control(Ack(0, 1, 2, token, 1, 0, 0, 0, 1, ()), 1))


def test_a_multicast_reaches_all_nodes_except_its_sender() -> None:
    assert Wire().reached(3) == {1, 2, 4, 5, 6}


@given(seed=some.integers(0, 10_000), origin=some.sampled_from(NODES))
def test_nodes_behind_a_lost_edge_of_the_tree_receive_nothing(seed: int, origin: NodeId) -> None:
    tree = Tree.random(NODES, 0.3, Random(seed))
    reached = Wire(tree=tree, seed=seed).reached(origin) | {origin}
    towards = {origin: origin}
    parents = [origin, *(node for _, node in tree.outward(origin))]
    for position, node in tree.outward(origin):
        towards[node] = parents[position]
    assert all(towards[node] in reached for node in reached)


@given(seed=some.integers(0, 10_000), origin=some.sampled_from(NODES))
def test_a_tree_leads_from_every_node_to_all_others(seed: int, origin: NodeId) -> None:
    tree = Tree.random(NODES, 0.0, Random(seed))
    assert sorted(node for _, node in tree.outward(origin)) == sorted(set(NODES) - {origin})


def test_a_clogged_link_holds_its_datagrams_in_order_until_it_is_unclogged() -> None:
    wire = Wire()
    wire.network.clog(1, 2)
    for text in (b"one", b"two"):
        wire.network.send(1, 2, text)
    wire.network.send(2, 1, b"back")
    assert wire.arrived == [(1, b"back")]
    wire.network.unclog(1, 2)
    assert wire.arrived == [(1, b"back"), (2, b"one"), (2, b"two")]


@given(order=some.permutations([(1, 2), (3, 4), (1, 4), (1, 2)]))
def test_links_may_be_unclogged_in_any_order_and_clogs_nest(order: list[tuple[NodeId, NodeId]]) -> None:
    wire = Wire()
    for origin, to in order:
        wire.network.clog(origin, to)
        wire.network.send(origin, to, b"x")
    for origin, to in reversed(order):
        assert (to, b"x") not in wire.arrived or (origin, to) != (1, 2)
        wire.network.unclog(origin, to)
    assert sorted(node for node, _ in wire.arrived) == [2, 2, 4, 4]


def test_a_partition_cuts_both_directions_and_new_links_too() -> None:
    wire = Wire()
    wire.network.cut((1, 2))
    assert wire.reached(1) == {2}
    assert wire.reached(5) == {3, 4, 6}
    wire.network.mend((1, 2))
    assert wire.reached(1) == {2, 3, 4, 5, 6}


def test_a_rule_drops_matching_datagrams_up_to_its_count() -> None:
    wire = Wire()
    wire.network.rules.append(DropRule(origin=2, to=3, kind=Kind.ACK, token=7, count=1))
    for token in (6, 7, 7):
        wire.network.send(2, 3, ack(token))
    assert [summarize_datagram(datagram).tokens for _, datagram in wire.arrived] == [(6,), (7,)]


@pytest.mark.parametrize("tree", [None, Tree.random(NODES, 1.0, Random(1))])
def test_a_healed_network_loses_and_holds_nothing(tree: Tree | None) -> None:
    wire = Wire(LinkFaults(loss=1.0), tree=tree)
    wire.network.clog(1, 2)
    wire.network.cut((3,))
    wire.network.rules.append(DropRule(count=1_000))
    assert wire.reached(1) == set()
    wire.network.heal()
    assert wire.reached(1) == {2, 3, 4, 5, 6}
