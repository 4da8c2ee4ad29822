"""Scale: loops of loops with very many sites, in virtual time, for some hundred tokens.

What grows with the number of sites, and what does not? In each loop one control message is multicast per token, however
many sites there are. When a branch of the multicast tree loses a datagram, everybody behind it misses it; but each site
is asked for repairs only by the members of its own loops, so no site is flooded. Where the members of a loop take turns
in asking (k_p sets, TRMP 2001 §5.2) even a loss that they all share makes one set ask, and the answer serves the rest.

The tree follows the loops, as loops follow the map: the junctions are the backbone, and every loop hangs below its own.
There are no reformation servers in these worlds: the formations are installed at the beginning, and leases are granted
that last. Everything else is as always: real bytes, and the machines that production runs, one for every site.
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
from fairtape.simulation.observer import Observer
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.simulation.world import EPOCH, World
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
WEATHER: Final = LinkFaults(delay=5 * MILLISECOND)  # one for all links: loss is the tree's
LEASE: Final = 3_600 * SECOND
EVENTS_MAX: Final = 100_000_000
MESSAGE_STRIDE: Final = 5  # tokens from one message to the next
SETTLING_TOKENS: Final = 40  # at the end, without messages: what is missing is repaired by then
ASKERS_MAX: Final = 10  # sites in one set S_{i,t}, where receivers take turns in asking
REQUEST_SETS_MIN: Final = 2  # k_p there: with one set there are no turns
SECONDARY_CONTROL_MAX: Final = 1.05  # per token: RMP's way of passing repeats it where the next site was held up
SITES_FROM: Final = 1_001  # node numbers above those of all channels, so that a witness can tell them apart
SECRET: Final = b"a very large realm"

Progress: TypeAlias = Callable[[float], None]
"""Told which share of a run is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One row of the table."""

    sites: int
    levels: int = 2
    taking_turns: bool = False  # whether sets of members take turns in asking for repairs
    tokens: int = 200  # two rounds of a loop of a hundred
    tree_loss: float = 0.002  # of each branch
    seed: int = 1

    def request_sets(self, members: int) -> int:
        """k_p of a loop of so many."""
        return max(-(-members // ASKERS_MAX), REQUEST_SETS_MIN) if self.taking_turns else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was counted."""

    size: Size
    loops: int
    loop_sites: int  # of the largest loop
    request_sets: int  # k_p of the largest loop
    tokens: int  # passed in the primary loop
    loop_tokens: int  # passed in the secondary loop that came least far
    primary_control: float  # control messages per token of the primary loop
    secondary_control: float  # control messages per token of a secondary loop, the mean of all
    losses: int  # copies of datagrams that the tree lost
    requests: int
    requests_max: int  # received by the one site that was asked most
    requests_peak: int  # received by one site in one token period, at most
    repairs: int  # datagrams that were sent again
    lag_max: Duration  # from t_e until the last site held everything up to e
    complete: bool  # whether every site had released every message in the end
    deliveries: int

    @property
    def requests_peak_max(self) -> int:
        """In one token period one set of each loop may ask a site, and those whose answer was lost ask once more."""
        askers = -(-self.loop_sites // self.request_sets)
        return 2 * self.size.levels * askers

    def broken(self) -> list[str]:
        """What was promised, and is not so."""
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
        """NACKs per token at the site that was asked most."""
        return self.requests_max / self.tokens

    @property
    def missed_per_token(self) -> float:
        """Copies lost per token: how often one site would be asked if all sites were to ask it."""
        return self.losses / self.tokens


class Count(Observer):
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
        """A datagram leaves a node."""
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
            self._asked(to, at // TIMING.token_period)
        elif kind in (Kind.ACK, Kind.BLOCK) and node != self._source:
            self.repairs += 1

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:  # noqa: ARG002
        """A site holds everything up to a token."""
        self.lag_max = max(self.lag_max, now - ordered.acknowledged_at)

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """A release."""
        self.released[node] += release.count

    def _asked(self, site: NodeId, period: int) -> None:
        if period != self._period:
            self._lately.clear()
            self._period = period
        self.requests[site] += 1
        self._lately[site] += 1
        self.requests_peak = max(self.requests_peak, self._lately[site])


def measure(size: Size, progress: Progress = lambda _: None) -> Measured:
    """Build a hierarchy of so many sites, let its tokens pass, and count."""
    with uncollected():
        realm = ScaledLoops(size)
        realm.run(progress)
    counted, hierarchy = realm.counted, realm.hierarchy
    return Measured(
        size=size,
        loops=len(hierarchy.loops),
        loop_sites=hierarchy.passes_max,
        request_sets=size.request_sets(hierarchy.passes_max),
        tokens=len(counted.tokens),
        loop_tokens=min(map(len, counted.loop_tokens.values())),
        primary_control=counted.acks / len(counted.tokens),
        secondary_control=counted.loop_acks.total() / sum(map(len, counted.loop_tokens.values())),
        losses=realm.losses,
        requests=counted.requests.total(),
        requests_max=max(counted.requests.values(), default=0),
        requests_peak=counted.requests_peak,
        repairs=counted.repairs,
        lag_max=counted.lag_max,
        complete=len(counted.released) == size.sites and len(set(counted.released.values())) == 1,
        deliveries=realm.world.deliveries,
    )


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector: it would walk through millions of living objects again and again, for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ScaledLoops:
    """Very many sites."""

    def __init__(self, size: Size) -> None:
        self.losses = 0
        self.hierarchy: Hierarchy = plan(size.sites, size.levels, loop_max=MEMBERS_MAX)
        self._size = size
        self._sites = range(SITES_FROM, SITES_FROM + size.sites)
        self._source = self._sites.stop
        self._server = self._sites.stop + 1
        self.counted = Count(self._source)
        self._keys = Keys.from_secret(SECRET, (*self._sites, self._server), (self._source,))
        self._authenticator = MessageAuthenticator(me=self._server, keys=self._keys, peers=(), first_serial=EPOCH)
        self._formations = self._layouts()
        self._encoded = [encode_formation(formation) for formation in self._formations]
        chance = Random(f"multitude {size.seed}")  # noqa: S311 - a simulation
        tree = grown_along(self._formations, self._source, size.tree_loss, chance)
        self.world = World(chance=chance, sky=lambda _origin, _to: WEATHER, tree=tree)
        self.world.turns_max = EVENTS_MAX
        self.world.network.watch = self._watch
        self.world.witnesses.append(self.counted)

    def run(self, progress: Progress) -> None:
        """Install everything, publish a little, and let the tokens pass."""
        belongs: dict[NodeId, list[Formation]] = {node: [] for node in self._sites}
        for formation in self._formations:
            for member in formation.members:
                belongs[member].append(formation)
        for node, formations in belongs.items():
            self._seat(node, formations)
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
        """One formation of each loop."""
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

    def _seat(self, node: NodeId, formations: list[Formation]) -> None:
        """A site asks for repairs in the highest loop that it belongs to. Only those who are asked need a journal."""
        primary, home = self._formations[0], formations[0]
        post = SiteConfig(me=node, reformers=(self._server,), timing=TIMING, home=home.loop)
        site = Site(post, keys=self._keys, born_at=EPOCH, recovered=Recovered.nothing())
        shelf = SimulatedJournal() if len(formations) > 1 or home is primary else None
        self.world.add(node, site, channels=(Channel.DATA, Channel.CONTROL), shelf=shelf)
        for formation in dict.fromkeys((primary, *formations)):
            layout = self._encoded[formation.loop]
            self._tell(node, Install(0, formation.number, self._server, 1, final=True, layout=layout))
        self._tell(node, Grant(0, 1, self._server, 0, 1, EPOCH, EPOCH, 0, LEASE))

    def _tell(self, node: NodeId, message: MembershipMessage) -> None:
        self.world.inject(node, self._authenticator.for_membership(message))

    def _publish(self, source: Source, message: bytes) -> None:
        def offer(now: Instant) -> None:
            taken = source.publish([message], now)
            assert taken == 1

        self.world.touch(self._source, offer)

    def _watch(self, origin: NodeId, to: NodeId, datagram: bytes, delay: Duration | None) -> None:  # noqa: ARG002
        self.losses += delay is None


def grown_along(formations: list[Formation], source: NodeId, loss: float, chance: Random) -> Tree:
    """A tree for the two channels of the core: each member of a loop is tied to one of those before it in the loop.

    The first one of all is tied to the source. The tokens of a secondary loop need no tree: they stay among neighbours.
    """
    ties: dict[NodeId, list[NodeId]] = {source: []}
    for formation in formations:
        for position, member in enumerate(formation.members):
            if member not in ties:
                nearer = formation.members[chance.randrange(position)] if position else source
                ties[nearer].append(member)
                ties[member] = [nearer]
    return Tree({node: tuple(near) for node, near in ties.items()}, loss, channels=frozenset(Channel))
