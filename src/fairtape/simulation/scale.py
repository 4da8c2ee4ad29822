"""Scale: loops of loops with very many sites, in virtual time, for a few dozen tokens.

What grows with the number of sites, and what does not? In each loop one control message is multicast per token, however
many sites there are. When a branch of the multicast tree loses a datagram, everybody behind it misses it; but each site
is asked for repairs only by the members of its own loops, so no site is flooded.

There are no reformation servers in these worlds: the formations are installed at the beginning, and leases are granted
that last. Everything else is as always: real bytes, the machines that production runs.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from fairtape.core.effects import LOOP_CHANNEL, Channel, Ordered, Recovered, Release
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.core.weather import Weather
from fairtape.nodes.postbox import Postbox
from fairtape.nodes.site import Site
from fairtape.nodes.source import Source
from fairtape.nodes.standing import Post
from fairtape.ring.formation import Formation
from fairtape.ring.hierarchy import Hierarchy, plan
from fairtape.ring.layout import encode_formation
from fairtape.simulation.network import Tree
from fairtape.simulation.shelf import Shelf
from fairtape.simulation.witness import Witness
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.frames import Kind, NodeId
from fairtape.wire.governance import Governance, Grant, Install
from fairtape.wire.seals import Keys

TIMING: Final = Timing(
    retry_period=40 * MILLISECOND,
    retries_max=20,
    token_period=20 * MILLISECOND,
    commit_delay=120 * MILLISECOND,
    clock_error_max=10 * MILLISECOND,
)
DELAY: Final = 5 * MILLISECOND
LEASE: Final = 3_600 * SECOND
EVENTS_MAX: Final = 50_000_000
SECRET: Final = b"a very large realm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One row of the table."""

    sites: int
    levels: int = 2
    request_sets: int = 1  # k_p, in every loop
    tokens: int = 16  # that have messages
    tree_loss: float = 0.005  # of each branch
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was counted."""

    size: Size
    loops: int
    loop_sites: int  # of the largest loop
    tokens: int  # passed in the primary loop
    losses: int  # copies of datagrams that the tree lost
    control_per_token_per_loop: float
    requests: int
    requests_max: int  # received by the one site that was asked most, over all tokens
    requests_per_token_max: float  # the same for one token
    complete: bool  # whether every site had released every message in the end
    deliveries: int


class Count(Witness):
    """Counts control messages and requests."""

    def __init__(self) -> None:
        self.acks = 0
        self.loop_tokens: Counter[int] = Counter()
        self.requests: Counter[NodeId] = Counter()
        self.released: Counter[NodeId] = Counter()

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:  # noqa: ARG002
        """A datagram leaves a node."""
        kind = datagram[2]
        if kind == Kind.ACK and to == Channel.CONTROL:
            self.acks += 1
        elif kind == Kind.LOOP_TOKEN:
            self.loop_tokens[to - LOOP_CHANNEL] += 1
        elif kind == Kind.REQUEST:
            self.requests[to] += 1

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """A release."""
        self.released[node] += release.count


def measure(size: Size) -> Measured:
    """Build a hierarchy of so many sites, let its tokens pass, and count."""
    realm = Multitude(size)
    realm.run()
    counted, hierarchy = realm.counted, realm.hierarchy
    tokens = counted.acks
    secondary = sum(counted.loop_tokens.values())
    return Measured(
        size=size,
        loops=len(hierarchy.loops),
        loop_sites=hierarchy.passes_max,
        tokens=tokens,
        losses=realm.losses,
        control_per_token_per_loop=(tokens + secondary) / (tokens * len(hierarchy.loops)),
        requests=counted.requests.total(),
        requests_max=max(counted.requests.values(), default=0),
        requests_per_token_max=max(counted.requests.values(), default=0) / tokens,
        complete=len(counted.released) == size.sites and len(set(counted.released.values())) == 1,
        deliveries=realm.world.deliveries,
    )


class Multitude:
    """Very many sites."""

    def __init__(self, size: Size) -> None:
        self.losses = 0
        self.counted = Count()
        self.hierarchy: Hierarchy = plan(size.sites, size.levels, loop_max=128)
        self._size = size
        self._sites = range(1, size.sites + 1)
        self._source = size.sites + 1
        self._server = size.sites + 2
        self._keys = Keys.from_secret(SECRET, (*self._sites, self._server), (self._source,))
        self._postbox = Postbox(me=self._server, keys=self._keys, peers=(), first_serial=EPOCH)
        chance = Random(f"multitude {size.seed}")  # noqa: S311 - a simulation
        grown = Tree.grown((*self._sites, self._source), size.tree_loss, chance)
        tree = replace(grown, channels=frozenset(Channel))  # the tokens of a loop stay among its neighbours
        self.world = World(chance=chance, sky=lambda _origin, _to: Weather(delay=DELAY), tree=tree)
        self.world.turns_max = EVENTS_MAX
        self.world.network.watch = self._watch
        self.world.witnesses.append(self.counted)
        self._formations = self._layouts()
        self._encoded = [encode_formation(formation) for formation in self._formations]

    def run(self) -> None:
        """Install everything, publish a little with every token, and let the last of it arrive."""
        size, world = self._size, self.world
        belongs: dict[NodeId, list[Formation]] = {node: [] for node in self._sites}
        for formation in self._formations:
            for member in formation.members:
                belongs[member].append(formation)
        for node, formations in belongs.items():
            self._seat(node, formations)
        source = Source(
            me=self._source, keys=self._keys.for_source(self._source), timing=TIMING, resilience=1, incarnation=1
        )
        world.add(self._source, source, channels=(Channel.CONTROL,))
        starts_at = self._formations[0].starts_at
        for token in range(size.tokens):
            at = starts_at + token * TIMING.token_period
            world.at(at, partial(self._publish, source, f"message {token}".encode() * 10))
        world.run(starts_at + size.tokens * TIMING.token_period + TIMING.commit_delay + 4 * TIMING.retry_period)

    def _layouts(self) -> list[Formation]:
        """One formation of each loop; sites are numbered from 1."""
        layouts = []
        for number, loop in enumerate(self.hierarchy.loops):
            layouts.append(
                Formation(
                    number=1,
                    members=tuple(site + 1 for site in loop.members),
                    timing=TIMING,
                    starts_at=EPOCH + 2 * TIMING.retry_period,
                    resilience=0 if number else 1,
                    first_sequence=0 if number else 1,
                    loop=number,
                    request_sets=min(self._size.request_sets, len(loop.members)),
                    keeper=loop.members[0] + 1,
                )
            )
        return layouts

    def _seat(self, node: NodeId, formations: list[Formation]) -> None:
        """A site asks for repairs in the highest loop that it belongs to. Only those who are asked need a journal."""
        primary, home = self._formations[0], formations[0]
        post = Post(me=node, reformers=(self._server,), timing=TIMING, home=home.loop)
        site = Site(post, keys=self._keys, born_at=EPOCH, past=Recovered.nothing())
        shelf = Shelf() if len(formations) > 1 or home is primary else None
        self.world.add(node, site, channels=(Channel.DATA, Channel.CONTROL), shelf=shelf)
        for formation in dict.fromkeys((primary, *formations)):
            layout = self._encoded[formation.loop]
            self._tell(node, Install(0, formation.number, self._server, 1, final=True, layout=layout))
        self._tell(node, Grant(0, 1, self._server, 0, 1, EPOCH, EPOCH, 0, LEASE))

    def _tell(self, node: NodeId, message: Governance) -> None:
        self.world.inject(node, self._postbox.govern(message))

    def _publish(self, source: Source, message: bytes) -> None:
        def offer(now: Instant) -> None:
            taken = source.publish([message], now)
            assert taken == 1

        self.world.touch(self._source, offer)

    def _watch(self, origin: NodeId, to: NodeId, datagram: bytes, delay: Duration | None) -> None:  # noqa: ARG002
        self.losses += delay is None
