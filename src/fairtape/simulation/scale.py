"""Scale: hierarchies of loops with thousands of sites, in virtual time, for a few hundred tokens.

The question is what grows with the number of sites. In each loop one control message is multicast per token, for any
number of sites. A datagram that a branch of the multicast tree loses is lost for all sites behind it, but each site
receives requests only from the members of its own loops, so no site is overloaded. If the members of a loop take turns
in requesting (k_p sets, TRMP 2001 §5.2), only one set requests a shared loss, and the repair serves the others.

The tree follows the loops: the junctions are the backbone, and every loop is below its junction. There are no
reformation servers: formations are installed at the start, with leases that outlast the run. Everything else is as
usual: real bytes, and one production machine per site.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, TypeAlias

from fairtape.core.effects import Channel, Ordered, Recovered, Release
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.site import Site, SiteConfig
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import MEMBERS_MAX, Formation
from fairtape.ring.membership.hierarchy import Hierarchy, plan
from fairtape.ring.membership.layout import encode_formation
from fairtape.simulation.network import Tree
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.simulation.world import EPOCH, Observer, World
from fairtape.wire.frames import Ack, Kind, NodeId, decode_control
from fairtape.wire.membership import Grant, Install, LoopToken, MembershipMessage, decode_membership
from fairtape.wire.seals import Keys

TIMING: Final = Timing(
    retry_period=160 * MILLISECOND,
    retries_max=20,
    token_period=20 * MILLISECOND,
    commit_delay=300 * MILLISECOND,
    clock_error_max=10 * MILLISECOND,
)
LINK_FAULTS: Final = LinkFaults(delay=5 * MILLISECOND)  # for all links; loss is that of the tree
LEASE: Final = 3_600 * SECOND
EVENTS_MAX: Final = 100_000_000
MESSAGE_STRIDE: Final = 5  # tokens from one message to the next
SETTLING_TOKENS: Final = 40  # at the end, without messages: time for the last repairs
ASKERS_MAX: Final = 10  # sites in one set S_{i,t}, if receivers take turns in requesting
REQUEST_SETS_MIN: Final = 2  # k_p in that case: with one set there are no turns
SECONDARY_CONTROL_MAX: Final = 1.05  # per token: event-driven token passing retransmits if the next site was delayed
SITES_FROM: Final = 1_001  # node numbers above those of all channels, so that an observer can tell them apart
SECRET: Final = b"scale"

ReportProgress: TypeAlias = Callable[[float], None]
"""Called with the fraction of a run that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The parameters of one run: one row of the table."""

    sites: int
    levels: int = 2
    taking_turns: bool = False  # whether sets of members take turns in requesting repairs
    tokens: int = 200  # two rounds of a loop of a hundred
    tree_loss: float = 0.002  # of each branch
    seed: int = 1

    def request_sets(self, members: int) -> int:
        """k_p of a loop with this many members."""
        return max(-(-members // ASKERS_MAX), REQUEST_SETS_MIN) if self.taking_turns else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The counters of one run."""

    size: Size
    loops: int
    loop_sites: int  # of the largest loop
    request_sets: int  # k_p of the largest loop
    tokens: int  # passed in the primary loop
    loop_tokens: int  # passed in the slowest secondary loop
    primary_control: float  # control messages per token of the primary loop
    secondary_control: float  # control messages per token of a secondary loop, the mean of all
    losses: int  # copies of datagrams that the tree lost
    requests: int
    requests_max: int  # received by the site with the most requests
    requests_peak: int  # the most that one site received in one token period
    repairs: int  # retransmitted datagrams
    lag_max: Duration  # from t_e until the last site held everything through e
    complete: bool  # whether every site released every message
    deliveries: int

    @property
    def requests_peak_max(self) -> int:
        """In one token period one set of each loop may send requests to a site, twice if a repair was lost."""
        askers = -(-self.loop_sites // self.request_sets)
        return 2 * self.size.levels * askers

    def broken(self) -> list[str]:
        """The promises that were not kept, one sentence each."""
        size = self.size
        promises = {
            "some sites have not released everything": self.complete,
            f"{self.primary_control:.3f} control messages per token of the primary loop": self.primary_control == 1.0,
            f"{self.secondary_control:.3f} control messages per token of a loop": (
                1.0 <= self.secondary_control <= SECONDARY_CONTROL_MAX
            ),
            f"a site was asked {self.requests_peak} times at once": self.requests_peak <= self.requests_peak_max,
        }
        return [f"{size.sites:,} sites, k_p {self.request_sets}: {what}" for what, kept in promises.items() if not kept]

    @property
    def asked_per_token(self) -> float:
        """Requests per token at the site with the most requests."""
        return self.requests_max / self.tokens

    @property
    def missed_per_token(self) -> float:
        """Copies lost per token: the requests that one site would receive if it repaired for all others."""
        return self.losses / self.tokens


class ScaleCounters(Observer):
    """Counts control messages, requests, repairs and releases."""

    def __init__(self, source: NodeId) -> None:
        self.acks = 0
        self.tokens: set[int] = set()
        self.loop_acks: Counter[int] = Counter()
        self.loop_tokens: dict[int, set[int]] = {}
        self.requests: Counter[NodeId] = Counter()
        self.requests_peak = 0
        self.repairs = 0
        self.released: Counter[NodeId] = Counter()
        self.lag_max: Duration = 0
        self._source = source
        self._lately: Counter[NodeId] = Counter()  # requests in this token period
        self._period = 0

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:
        kind = datagram[2]
        if kind == Kind.ACK and to == Channel.CONTROL:
            ack = decode_control(datagram)
            assert isinstance(ack, Ack)
            self.acks += 1
            self.tokens.add(ack.token)
        elif kind == Kind.LOOP_TOKEN:
            passed = decode_membership(datagram)
            assert isinstance(passed, LoopToken)
            self.loop_acks[passed.loop] += 1
            self.loop_tokens.setdefault(passed.loop, set()).add(passed.token)
        elif kind == Kind.REQUEST:
            self._count_request(to, at // TIMING.token_period)
        elif kind in (Kind.ACK, Kind.BLOCK) and node != self._source:
            self.repairs += 1

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:  # noqa: ARG002
        """A site holds everything through a token."""
        self.lag_max = max(self.lag_max, now - ordered.acknowledged_at)

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        self.released[node] += release.count

    def _count_request(self, site: NodeId, period: int) -> None:
        if period != self._period:
            self._lately.clear()
            self._period = period
        self.requests[site] += 1
        self._lately[site] += 1
        self.requests_peak = max(self.requests_peak, self._lately[site])


def measure(size: Size, progress: ReportProgress = lambda _: None) -> Measured:
    """Build a hierarchy of this size, run it and return its counters."""
    with uncollected():
        loops = ScaledLoops(size)
        loops.run(progress)
    counters, hierarchy = loops.counters, loops.hierarchy
    return Measured(
        size=size,
        loops=len(hierarchy.loops),
        loop_sites=hierarchy.passes_max,
        request_sets=size.request_sets(hierarchy.passes_max),
        tokens=len(counters.tokens),
        loop_tokens=min(map(len, counters.loop_tokens.values())),
        primary_control=counters.acks / len(counters.tokens),
        secondary_control=counters.loop_acks.total() / sum(map(len, counters.loop_tokens.values())),
        losses=loops.losses,
        requests=counters.requests.total(),
        requests_max=max(counters.requests.values(), default=0),
        requests_peak=counters.requests_peak,
        repairs=counters.repairs,
        lag_max=counters.lag_max,
        complete=len(counters.released) == size.sites and len(set(counters.released.values())) == 1,
        deliveries=loops.world.deliveries,
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector: it would traverse millions of live objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ScaledLoops:
    """A hierarchy of loops, built and running."""

    def __init__(self, size: Size) -> None:
        self.losses = 0
        self.hierarchy: Hierarchy = plan(size.sites, size.levels, loop_max=MEMBERS_MAX)
        self._size = size
        self._sites = range(SITES_FROM, SITES_FROM + size.sites)
        self._source = self._sites.stop
        self._server = self._sites.stop + 1
        self.counters = ScaleCounters(self._source)
        self._keys = Keys.from_secret(SECRET, (*self._sites, self._server), (self._source,))
        self._authenticator = MessageAuthenticator(me=self._server, keys=self._keys, peers=(), first_serial=EPOCH)
        self._formations = self._layouts()
        self._encoded = [encode_formation(formation) for formation in self._formations]
        chance = Random(f"multitude {size.seed}")  # noqa: S311 - another name would draw other losses
        tree = tree_along(self._formations, self._source, size.tree_loss, chance)
        self.world = World(chance=chance, link_model=lambda _origin, _to: LINK_FAULTS, tree=tree)
        self.world.turns_max = EVENTS_MAX
        self.world.network.watch = self._watch
        self.world.observers.append(self.counters)

    def run(self, progress: ReportProgress) -> None:
        """Install all formations, publish some messages, and run for the given number of tokens."""
        belongs: dict[NodeId, list[Formation]] = {node: [] for node in self._sites}
        for formation in self._formations:
            for member in formation.members:
                belongs[member].append(formation)
        for node, formations in belongs.items():
            self._add_site(node, formations)
        keys = self._keys.for_source(self._source)
        source = Source(me=self._source, keys=keys, timing=TIMING, resilience=1, incarnation=1)
        self.world.add(self._source, source, channels=(Channel.CONTROL,))
        first_at, tokens = self._formations[0].starts_at, self._size.tokens
        for token in range(0, max(tokens - SETTLING_TOKENS, 1), MESSAGE_STRIDE):
            at = first_at + token * TIMING.token_period
            self.world.at(at, partial(self._publish, source, f"message {token}".encode() * 10))
        for token in range(tokens):
            self.world.run(first_at + token * TIMING.token_period)
            progress((token + 1) / tokens)

    def _layouts(self) -> list[Formation]:
        layouts = []
        for number, loop in enumerate(self.hierarchy.loops):
            layouts.append(
                Formation(
                    number=1,
                    members=tuple(self._sites[site] for site in loop.members),
                    timing=TIMING,
                    starts_at=EPOCH + 2 * TIMING.retry_period,
                    resilience=0 if number else 1,
                    first_sequence=0 if number else 1,
                    loop=number,
                    request_sets=self._size.request_sets(len(loop.members)),
                    keeper=self._sites[loop.members[0]],
                )
            )
        return layouts

    def _add_site(self, node: NodeId, formations: list[Formation]) -> None:
        """A site requests repairs in the highest of its loops. Only sites that receive requests need a journal."""
        primary, home = self._formations[0], formations[0]
        config = SiteConfig(me=node, reformers=(self._server,), timing=TIMING, home=home.loop)
        site = Site(config, keys=self._keys, born_at=EPOCH, recovered=Recovered.nothing())
        journal = SimulatedJournal() if len(formations) > 1 or home is primary else None
        self.world.add(node, site, channels=(Channel.DATA, Channel.CONTROL), journal=journal)
        for formation in dict.fromkeys((primary, *formations)):
            layout = self._encoded[formation.loop]
            self._send(node, Install(0, formation.number, self._server, 1, final=True, layout=layout))
        self._send(node, Grant(0, 1, self._server, 0, 1, EPOCH, EPOCH, 0, LEASE))

    def _send(self, node: NodeId, message: MembershipMessage) -> None:
        self.world.inject(node, self._authenticator.for_membership(message))

    def _publish(self, source: Source, message: bytes) -> None:
        def offer(now: Instant) -> None:
            taken = source.publish([message], now)
            assert taken == 1

        self.world.touch(self._source, offer)

    def _watch(self, origin: NodeId, to: NodeId, datagram: bytes, delay: Duration | None) -> None:  # noqa: ARG002
        self.losses += delay is None


def tree_along(formations: list[Formation], source: NodeId, loss: float, chance: Random) -> Tree:
    """A tree for the two channels of the core: each member of a loop is connected to one of the members before it.

    The first member of all is connected to the source. The tokens of a secondary loop need no tree: they stay within
    it.
    """
    neighbours: dict[NodeId, list[NodeId]] = {source: []}
    for formation in formations:
        for position, member in enumerate(formation.members):
            if member not in neighbours:
                parent = formation.members[chance.randrange(position)] if position else source
                neighbours[parent].append(member)
                neighbours[member] = [parent]
    return Tree({node: tuple(near) for node, near in neighbours.items()}, loss, channels=frozenset(Channel))
