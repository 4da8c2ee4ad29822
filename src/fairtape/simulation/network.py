"""The network of a world: what happens to a datagram between two nodes.

Each direction of each pair of nodes is a link with weather of its own. A multicast may run along a tree, and a loss on
an edge of the tree is then a loss for everybody behind it, as in a real network. Links clog one by one and unclog in
another order; partitions cut every link between two sides; rules drop what a scenario points at.
"""

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

Deliver: TypeAlias = Callable[[Duration, NodeId, bytes], None]
Watch: TypeAlias = Callable[[NodeId, NodeId, bytes, Duration | None], None]
Sky: TypeAlias = Callable[[NodeId, NodeId], LinkFaults]


class Link:
    """One direction between two nodes."""

    __slots__ = ("calm", "clogs", "cuts", "held", "link_faults", "origin", "to")

    def __init__(self, origin: NodeId, to: NodeId, link_faults: LinkFaults) -> None:
        self.origin = origin
        self.to = to
        self.link_faults = link_faults
        self.calm = (
            replace(link_faults, loss=0.0) if link_faults.loss else link_faults
        )  # where the tree already decided about loss
        self.clogs = 0
        self.cuts = 0
        self.held: list[bytes] = []


@dataclass(slots=True)
class Rule:
    """Drop the datagrams that match, `count` of them."""

    origin: NodeId | None = None
    to: NodeId | None = None
    kind: Kind | None = None
    token: int | None = None
    text: str | None = None  # a part of what a bystander reads, such as 101:5
    count: int = 1

    def takes(self, link: Link, sighting: DatagramSummary) -> bool:
        """Whether this datagram is dropped; it then counts."""
        applies = (
            self.count > 0
            and self.origin in (None, link.origin)
            and self.to in (None, link.to)
            and self.kind in (None, sighting.kind)
            and (self.token is None or self.token in sighting.tokens)
            and (self.text is None or self.text in sighting.text)
        )
        self.count -= applies
        return applies


@dataclass(frozen=True, slots=True)
class Tree:
    """A multicast tree over all nodes, shared by all senders: datagrams flow from the sender's place outward."""

    neighbours: Mapping[NodeId, tuple[NodeId, ...]]
    loss: float  # of each edge, for everybody behind it
    channels: frozenset[int] | None = None  # that flow along it; None: all

    @classmethod
    def grown(cls, nodes: Sequence[NodeId], loss: float, chance: Random) -> "Tree":
        """A random tree: each node is tied to one of those before it."""
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
                    queue.append((neighbour, node))  # a breadth-first walk grows what it walks
                    yield position, neighbour


class Network:
    """All links, and who listens where."""

    def __init__(
        self, *, sky: Sky, chance: Random, deliver: Deliver, tree: Tree | None = None, echo: bool = False
    ) -> None:
        self.rules: list[Rule] = []
        self.watch: Watch | None = None
        self._sky = sky
        self._chance = chance
        self._deliver = deliver
        self._tree = tree
        self._echo = echo  # some hosts hear their own multicasts
        self._listeners: dict[int, list[NodeId]] = {channel: [] for channel in Channel}
        self._loops: dict[NodeId, tuple[int, ...]] = {}  # the channels of secondary loops that a node hears
        self._links: dict[tuple[NodeId, NodeId], Link] = {}
        self._fans: dict[tuple[NodeId, int], list[Link]] = {}
        self._branches: dict[tuple[NodeId, int], list[tuple[int, Link | None]]] = {}
        self._sides: list[tuple[NodeId, ...]] = []

    def join(self, node: NodeId, channels: Iterable[int]) -> None:
        """Let a node hear these channels."""
        for channel in channels:
            self._listeners.setdefault(channel, []).append(node)
        self._fans.clear()
        self._branches.clear()

    def listen(self, node: NodeId, channels: Iterable[int]) -> None:
        """Let a node hear these channels of secondary loops, and no others of their kind."""
        for channel in self._loops.pop(node, ()):
            self._listeners[channel].remove(node)
        self._loops[node] = tuple(channels)
        self.join(node, self._loops[node])

    def heal(self) -> None:
        """End all clogs, partitions and rules, and all loss and duplication; delays stay."""
        self.rules.clear()
        self._tree = None
        for side in list(self._sides):
            self.mend(side)
        sky = self._sky
        self._sky = lambda origin, to: replace(sky(origin, to), loss=0.0, duplication=0.0)
        for link in self._links.values():
            link.link_faults = link.calm = replace(link.link_faults, loss=0.0, duplication=0.0)
            while link.clogs:
                self.unclog(link.origin, link.to)

    def send(self, origin: NodeId, to: NodeId, datagram: bytes) -> None:
        """Carry one datagram to one node."""
        link = self._link(origin, to)
        self._cross(link, datagram, link.link_faults)

    def multicast(self, origin: NodeId, channel: int, datagram: bytes) -> None:
        """Carry one datagram to all listeners."""
        if self._tree is not None and (self._tree.channels is None or channel in self._tree.channels):
            self._flow(self._tree.loss, self._branches_of(origin, channel), datagram)
            return
        fan = self._fans.get((origin, channel))
        if fan is None:
            fan = self._fan(origin, channel)
        for link in fan:
            self._cross(link, datagram, link.link_faults)

    def clog(self, origin: NodeId, to: NodeId) -> None:
        """Hold what travels on this link from now on."""
        self._link(origin, to).clogs += 1

    def unclog(self, origin: NodeId, to: NodeId) -> None:
        """Let go what was held; it arrives in order, a microsecond apart. Clogs nest."""
        link = self._link(origin, to)
        if link.clogs == 0:
            return  # healed in the meantime
        link.clogs -= 1
        if link.clogs == 0:
            held, link.held = link.held, []
            for position, datagram in enumerate(held):
                self._arrive(link, datagram, position * MICROSECOND)

    def cut(self, side: tuple[NodeId, ...]) -> None:
        """Cut every link between `side` and the rest."""
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

    def _cross(self, link: Link, datagram: bytes, link_faults: LinkFaults) -> None:
        if (link.cuts or link.clogs or self.rules) and self._hinders(link, datagram):
            return
        arrivals = arrival_delays(link_faults, self._chance)
        if self.watch is not None:
            for delay in arrivals or (None,):
                self.watch(link.origin, link.to, datagram, delay)
        deliver = self._deliver
        for delay in arrivals:
            deliver(delay, link.to, datagram)

    def _hinders(self, link: Link, datagram: bytes) -> bool:
        if link.cuts:
            self._lose(link, datagram)
            return True
        if self.rules:
            sighting = summarize_datagram(datagram)
            if any(rule.takes(link, sighting) for rule in self.rules):
                self._lose(link, datagram)
                return True
        if link.clogs:
            if len(link.held) < HELD_MAX:
                link.held.append(datagram)
            else:
                self._lose(link, datagram)
            return True
        return False

    def _flow(self, loss: float, branches: list[tuple[int, Link | None]], datagram: bytes) -> None:
        chance = self._chance.random
        reached = [True]
        for parent, link in branches:
            here = reached[parent] and chance() >= loss
            reached.append(here)
            if link is None:
                continue
            if here:
                self._cross(link, datagram, link.calm)
            else:
                self._lose(link, datagram)

    def _lose(self, link: Link, datagram: bytes) -> None:
        if self.watch is not None:
            self.watch(link.origin, link.to, datagram, None)

    def _arrive(self, link: Link, datagram: bytes, delay: Duration) -> None:
        if self.watch is not None:
            self.watch(link.origin, link.to, datagram, delay)
        self._deliver(delay, link.to, datagram)

    def _link(self, origin: NodeId, to: NodeId) -> Link:
        link = self._links.get((origin, to))
        if link is None:
            link = self._links[origin, to] = Link(origin, to, self._sky(origin, to))
            link.cuts = sum(_crosses(link, side) for side in self._sides)
        return link

    def _fan(self, origin: NodeId, channel: int) -> list[Link]:
        hearers = [node for node in self._listeners.get(channel, ()) if self._echo or node != origin]
        fan = self._fans[origin, channel] = [self._link(origin, node) for node in hearers]
        return fan

    def _branches_of(self, origin: NodeId, channel: int) -> list[tuple[int, Link | None]]:
        branches = self._branches.get((origin, channel))
        if branches is None:
            assert self._tree is not None
            hearing = {link.to: link for link in self._fan(origin, channel)}
            branches = [(parent, hearing.get(node)) for parent, node in self._tree.outward(origin)]
            if origin in hearing:
                branches.append((0, hearing[origin]))
            self._branches[origin, channel] = branches
        return branches


def _crosses(link: Link, side: tuple[NodeId, ...]) -> bool:
    return (link.origin in side) != (link.to in side)
