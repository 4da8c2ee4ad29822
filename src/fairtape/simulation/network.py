"""The simulated network: loss, delay and duplication of datagrams between nodes.

Each direction of each pair of nodes is a link with its own fault probabilities. A multicast may follow a tree; then a
loss on an edge is a loss for all nodes behind it, as in a real network. Links clog one by one and unclog in any order.
Partitions cut every link between two sides; single links are cut, too, in one direction or in both. Rules drop the
datagrams that a scenario names.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, TypeAlias

from fairtape.core.effects import Channel
from fairtape.core.instants import MICROSECOND, Duration
from fairtape.core.link_faults import LinkFaults, arrival_delays
from fairtape.simulation.datagram_summary import DatagramSummary, summarize_datagram
from fairtape.wire.frames import Kind, NodeId

HELD_MAX: Final = 10_000  # datagrams on one clogged link; more are lost, as in any router

ScheduleDelivery: TypeAlias = Callable[[Duration, NodeId, bytes], None]
Watch: TypeAlias = Callable[[NodeId, NodeId, bytes, Duration | None], None]
LinkModel: TypeAlias = Callable[[NodeId, NodeId], LinkFaults]
Substitution: TypeAlias = Callable[[NodeId, NodeId, bytes], bytes]


class Link:
    """One direction between two nodes."""

    __slots__ = ("clogs", "cuts", "held", "link_faults", "lossless", "origin", "to")

    def __init__(self, origin: NodeId, to: NodeId, link_faults: LinkFaults) -> None:
        self.origin = origin
        self.to = to
        self.link_faults = link_faults
        self.lossless = replace(link_faults, loss=0.0) if link_faults.loss else link_faults  # if a tree decides loss
        self.clogs = 0
        self.cuts = 0
        self.held: list[bytes] = []


@dataclass(slots=True)
class DropRule:
    """Drop the first `count` datagrams that match."""

    origin: NodeId | None = None
    to: NodeId | None = None
    kind: Kind | None = None
    token: int | None = None
    text: str | None = None  # a part of the datagram's summary, such as 101:5
    count: int = 1

    def matches(self, link: Link, summary: DatagramSummary) -> bool:
        """Whether to drop this datagram; each match uses up one of `count`."""
        applies = (
            self.count > 0
            and self.origin in (None, link.origin)
            and self.to in (None, link.to)
            and self.kind in (None, summary.kind)
            and (self.token is None or self.token in summary.tokens)
            and (self.text is None or self.text in summary.text)
        )
        self.count -= applies
        return applies


@dataclass(frozen=True, slots=True)
class Tree:
    """A multicast tree over all nodes, shared by all senders: datagrams flow outward from the sender."""

    neighbours: Mapping[NodeId, tuple[NodeId, ...]]
    loss: float  # probability per edge; a loss is a loss for all nodes behind the edge
    channels: frozenset[int] | None = None  # the channels that use the tree; None: all

    @classmethod
    def random(cls, nodes: Sequence[NodeId], loss: float, chance: Random) -> "Tree":
        """A random tree: each node is connected to one of the nodes before it."""
        neighbours: dict[NodeId, list[NodeId]] = {node: [] for node in nodes}
        for position, node in enumerate(nodes[1:], start=1):
            parent = nodes[chance.randrange(position)]
            neighbours[parent].append(node)
            neighbours[node].append(parent)
        return cls({node: tuple(ties) for node, ties in neighbours.items()}, loss)

    def outward(self, root: NodeId) -> Iterator[tuple[int, NodeId]]:
        """(position of the parent, node) in the order in which a datagram from `root` (position 0) reaches them."""
        queue = [(root, root)]
        for position, (node, came_from) in enumerate(queue):
            for neighbour in self.neighbours[node]:
                if neighbour != came_from:
                    queue.append((neighbour, node))  # breadth-first: the loop goes on over what is appended
                    yield position, neighbour


class Network:
    """All links, and the channels that each node receives."""

    def __init__(
        self,
        *,
        link_model: LinkModel,
        chance: Random,
        deliver: ScheduleDelivery,
        tree: Tree | None = None,
        echo: bool = False,
    ) -> None:
        self.rules: list[DropRule] = []
        self.watch: Watch | None = None
        self.substitution: Substitution | None = None  # what a node of two faces sends instead, by origin and receiver
        self._link_model = link_model
        self._chance = chance
        self._deliver = deliver
        self._tree = tree
        self._echo = echo  # whether nodes receive their own multicasts, as some hosts do
        self._listeners: dict[int, list[NodeId]] = {channel: [] for channel in Channel}
        self._loops: dict[NodeId, tuple[int, ...]] = {}  # the channels of secondary loops that a node receives
        self._links: dict[tuple[NodeId, NodeId], Link] = {}
        self._fan_outs: dict[tuple[NodeId, int], list[Link]] = {}
        self._branches: dict[tuple[NodeId, int], list[tuple[int, Link | None]]] = {}
        self._sides: list[tuple[NodeId, ...]] = []
        self._cut_links: Counter[tuple[NodeId, NodeId]] = Counter()  # cut one by one, each direction for itself

    def join(self, node: NodeId, channels: Iterable[int]) -> None:
        """Subscribe a node to these channels."""
        for channel in channels:
            self._listeners.setdefault(channel, []).append(node)
        self._fan_outs.clear()
        self._branches.clear()

    def listen(self, node: NodeId, channels: Iterable[int]) -> None:
        """Replace the channels of secondary loops that a node receives."""
        for channel in self._loops.pop(node, ()):
            self._listeners[channel].remove(node)
        self._loops[node] = tuple(channels)
        self.join(node, self._loops[node])

    def heal(self) -> None:
        """End all clogs, partitions and rules, and all loss and duplication; delays stay."""
        self.rules.clear()
        self._tree = None
        self.substitution = None
        for side in list(self._sides):
            self.mend(side)
        self.mend_links(tuple(self._cut_links.elements()))
        link_model = self._link_model
        self._link_model = lambda origin, to: replace(link_model(origin, to), loss=0.0, duplication=0.0)
        for link in self._links.values():
            link.link_faults = link.lossless = replace(link.link_faults, loss=0.0, duplication=0.0)
            while link.clogs:
                self.unclog(link.origin, link.to)

    def send(self, origin: NodeId, to: NodeId, datagram: bytes) -> None:
        link = self._link(origin, to)
        self._cross(link, datagram, link.link_faults)

    def multicast(self, origin: NodeId, channel: int, datagram: bytes) -> None:
        if self._tree is not None and (self._tree.channels is None or channel in self._tree.channels):
            self._cross_tree(self._tree.loss, self._branches_of(origin, channel), datagram)
            return
        fan = self._fan_outs.get((origin, channel))
        if fan is None:
            fan = self._fan_out(origin, channel)
        for link in fan:
            self._cross(link, datagram, link.link_faults)

    def clog(self, origin: NodeId, to: NodeId) -> None:
        """Hold all datagrams on this link. Clogs nest."""
        self._link(origin, to).clogs += 1

    def unclog(self, origin: NodeId, to: NodeId) -> None:
        """End one clog; after the last, held datagrams arrive in order, a microsecond apart."""
        link = self._link(origin, to)
        if link.clogs == 0:
            return  # healed in the meantime
        link.clogs -= 1
        if link.clogs == 0:
            held, link.held = link.held, []
            for position, datagram in enumerate(held):
                self._arrive(link, datagram, position * MICROSECOND)

    def cut(self, side: tuple[NodeId, ...]) -> None:
        """Cut every link between `side` and the other nodes."""
        self._sides.append(side)
        for link in self._links.values():
            link.cuts += _crosses(link, side)

    def mend(self, side: tuple[NodeId, ...]) -> None:
        """End one partition."""
        if side not in self._sides:
            return  # healed in the meantime
        self._sides.remove(side)
        for link in self._links.values():
            link.cuts -= _crosses(link, side)

    def cut_links(self, links: Iterable[tuple[NodeId, NodeId]]) -> None:
        """Cut these links, each from its first node to its second. Cuts nest."""
        for origin, to in links:
            self._cut_links[origin, to] += 1
            if (known := self._links.get((origin, to))) is not None:
                known.cuts += 1

    def mend_links(self, links: Iterable[tuple[NodeId, NodeId]]) -> None:
        """End one cut of each of these links."""
        for origin, to in links:
            if not self._cut_links[origin, to]:
                continue  # healed in the meantime
            self._cut_links[origin, to] -= 1
            if (known := self._links.get((origin, to))) is not None:
                known.cuts -= 1

    def is_open(self, origin: NodeId, to: NodeId) -> bool:
        """Whether datagrams pass from one node to another: the link is neither cut nor clogged."""
        known = self._links.get((origin, to))
        if known is not None:
            return not known.cuts and not known.clogs
        return not self._cuts_of(origin, to)

    def _cross(self, link: Link, datagram: bytes, link_faults: LinkFaults) -> None:
        if self.substitution is not None:
            datagram = self.substitution(link.origin, link.to, datagram)
        if (link.cuts or link.clogs or self.rules) and self._blocks(link, datagram):
            return
        arrivals = arrival_delays(link_faults, self._chance)
        if self.watch is not None:
            for delay in arrivals or (None,):
                self.watch(link.origin, link.to, datagram, delay)
        deliver = self._deliver
        for delay in arrivals:
            deliver(delay, link.to, datagram)

    def _blocks(self, link: Link, datagram: bytes) -> bool:
        if link.cuts:
            self._drop(link, datagram)
            return True
        if self.rules:
            summary = summarize_datagram(datagram)
            if any(rule.matches(link, summary) for rule in self.rules):
                self._drop(link, datagram)
                return True
        if link.clogs:
            if len(link.held) < HELD_MAX:
                link.held.append(datagram)
            else:
                self._drop(link, datagram)
            return True
        return False

    def _cross_tree(self, loss: float, branches: list[tuple[int, Link | None]], datagram: bytes) -> None:
        chance = self._chance.random
        reached = [True]
        for parent, link in branches:
            here = reached[parent] and chance() >= loss
            reached.append(here)
            if link is None:
                continue
            if here:
                self._cross(link, datagram, link.lossless)
            else:
                self._drop(link, datagram)

    def _drop(self, link: Link, datagram: bytes) -> None:
        if self.watch is not None:
            self.watch(link.origin, link.to, datagram, None)

    def _arrive(self, link: Link, datagram: bytes, delay: Duration) -> None:
        if self.watch is not None:
            self.watch(link.origin, link.to, datagram, delay)
        self._deliver(delay, link.to, datagram)

    def _link(self, origin: NodeId, to: NodeId) -> Link:
        link = self._links.get((origin, to))
        if link is None:
            link = self._links[origin, to] = Link(origin, to, self._link_model(origin, to))
            link.cuts = self._cuts_of(origin, to)
        return link

    def _cuts_of(self, origin: NodeId, to: NodeId) -> int:
        sides = sum((origin in side) != (to in side) for side in self._sides)
        return sides + self._cut_links[origin, to]

    def _fan_out(self, origin: NodeId, channel: int) -> list[Link]:
        receivers = [node for node in self._listeners.get(channel, ()) if self._echo or node != origin]
        fan = self._fan_outs[origin, channel] = [self._link(origin, node) for node in receivers]
        return fan

    def _branches_of(self, origin: NodeId, channel: int) -> list[tuple[int, Link | None]]:
        branches = self._branches.get((origin, channel))
        if branches is None:
            assert self._tree is not None
            links = {link.to: link for link in self._fan_out(origin, channel)}
            branches = [(parent, links.get(node)) for parent, node in self._tree.outward(origin)]
            if origin in links:
                branches.append((0, links[origin]))
            self._branches[origin, channel] = branches
        return branches


def _crosses(link: Link, side: tuple[NodeId, ...]) -> bool:
    return (link.origin in side) != (link.to in side)
