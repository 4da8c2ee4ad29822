"""Fair entry, measured: which region wins when all bid at the same instant. TRMP 2001 §7.2.

Three ways to enter a bid are compared on the same races, in one world with the delays between real cities:

- *The rotating portal.* Gateways are sources of a ring. The region nearest to the current token site wins, and the
  token spends the same time at every site.
- *Direct sending.* All regions send to one venue, which is in the first region.
- *Hold and release*, as in CloudEx: the gateway of each region stamps the bid with its own clock. The venue holds it
  until a fixed delay after the stamp and takes held bids in the order of their stamps. A bid that arrives later is
  taken on arrival. This is as fair as the clocks are accurate and the gateways are honest: the last column of the
  table is the same method with a gateway in the last region that stamps early by the clock bound.

Traders are next to the gateways of their regions. All regions have the same information and the same load. For sources
with different loads there is `unequal_load`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from math import erfc, exp, gamma, inf, sqrt
from multiprocessing import get_context
from random import Random
from statistics import median
from struct import Struct
from typing import Final, TypeAlias

from fairtape.core.cities import CITIES, City, faults_between, round_trip
from fairtape.core.effects import Effect, Ordered, Release, Send
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.spans import messages
from fairtape.core.timing import PROFILES
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.clocks import SimulatedClock, drifting_clock
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId

REGIONS_MIN: Final = 2
REGIONS_MAX: Final = len(CITIES)
APART: Final = (0, 2, 3, 5, 7, 8, 6, 1, 4)  # indexes of CITIES, ordered so that the first six are far apart
FIRST_GATEWAY: Final = 101
FIRST_TRADER: Final = 201
VENUE: Final = 301
LOSS: Final = 0.01  # of every link
CLOCK_BOUND: Final = 1 * MILLISECOND  # what a time daemon achieves between continents
HOLD_SHARE: Final = 1.2  # a bid is held for the longest one-way delay times this
BREAK: Final = (SECOND // 2, 3 * SECOND // 2)  # the time between two races
RACES_MAX: Final = 10**7
RACES_PER_WORLD: Final = 250
EVENTS_MAX: Final = 50_000_000

WorldRun: TypeAlias = Callable[[int, int], tuple["EntryPath", ...]]
_BID: Final = Struct("<IHq")  # race, region, stamp


@dataclass(frozen=True, slots=True)
class EntryPath:
    """The results of one way to enter: the count of wins of each region, and the delay of the first bid per race."""

    name: str
    firsts: tuple[int, ...]
    delays: tuple[Duration, ...] = ()

    @property
    def races(self) -> int:
        return sum(self.firsts)

    @property
    def ratio(self) -> float:
        """The most wins of a region divided by the fewest; 1 is fair."""
        return max(self.firsts) / min(self.firsts) if min(self.firsts) else inf

    @property
    def chi_square(self) -> float:
        """The chi-square statistic against equal counts."""
        expected = self.races / len(self.firsts)
        return sum((count - expected) ** 2 for count in self.firsts) / expected if expected else 0.0

    @property
    def p_value(self) -> float:
        """The probability of counts at least this unequal if all regions have the same chance."""
        return chi_square_tail(self.chi_square, len(self.firsts) - 1)

    @property
    def delay(self) -> Duration:
        """The median time from a bid to its place in the order."""
        return int(median(self.delays)) if self.delays else 0

    def __add__(self, other: "EntryPath") -> "EntryPath":
        assert self.name == other.name
        firsts = tuple(a + b for a, b in zip(self.firsts, other.firsts, strict=True))
        return EntryPath(self.name, firsts, self.delays + other.delays)


def chi_square_tail(value: float, freedom: int) -> float:
    """The probability that a chi-square variable with `freedom` degrees of freedom is at least `value`."""
    half = value / 2
    if freedom % 2 == 0:
        return exp(-half) * sum(half**i / gamma(i + 1) for i in range(freedom // 2))
    odd = sum(half**i / gamma(i + 1.5) for i in range((freedom - 1) // 2))
    return erfc(sqrt(half)) + exp(-half) * sqrt(half) * odd


def regions(count: int) -> tuple[City, ...]:
    """The first `count` cities of `APART`."""
    return tuple(CITIES[place] for place in APART[:count])


@dataclass(slots=True)
class Bidder:
    """Sends each bid to the venue, stamped by its own clock, and retransmits it until the venue has answered."""

    region: int
    retry_period: Duration
    open: dict[int, tuple[Instant, bytes]] = field(default_factory=dict)
    _effects: list[Effect] = field(default_factory=list)

    def bid(self, race: int, now: Instant) -> None:
        self._send(race, _BID.pack(race, self.region, now), now)

    def _send(self, race: int, bid: bytes, now: Instant) -> None:
        self.open[race] = now + self.retry_period, bid
        self._effects.append(Send(VENUE, [bid]))

    def receive(self, datagram: bytes, now: Instant) -> None:  # noqa: ARG002
        self.open.pop(_BID.unpack(datagram)[0], None)

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        for race, (due_at, bid) in list(self.open.items()):
            if due_at <= now:
                self._send(race, bid, now)

    def deadline(self) -> Instant | None:
        return min((due_at for due_at, _ in self.open.values()), default=None)

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


@dataclass(slots=True)
class BidVenue:
    """Records the arrival of each bid, and answers. Bids are idempotent."""

    arrivals: dict[int, dict[int, tuple[Instant, Instant]]] = field(default_factory=dict)  # race, region: came, stamp
    _effects: list[Effect] = field(default_factory=list)

    def receive(self, datagram: bytes, now: Instant) -> None:
        race, region, stamp = _BID.unpack(datagram)
        self.arrivals.setdefault(race, {}).setdefault(region, (now, stamp))
        self._effects.append(Send(FIRST_TRADER + region, [datagram]))

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        """The venue has no timer."""

    def deadline(self) -> Instant | None:
        return None

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


class Races(Observer):
    """One world and all its races."""

    def __init__(self, cities: Sequence[City], *, races: int, seed: int) -> None:
        self._cities = cities
        self._count = races
        self._chance = Random(f"races {seed}")  # noqa: S311 - a simulation
        self._timing = PROFILES["wan"]
        self._venue = BidVenue()
        self._portal: dict[int, tuple[int, Instant]] = {}  # by race: the first region, and when
        self._began_at = tuple(self._draw_instants())
        self._ends_at = self._began_at[-1] + 20 * SECOND
        self._cluster = Cluster(self._plan(seed))
        self.world = self._cluster.world
        self.world.turns_max = EVENTS_MAX
        self.world.observers.append(self)
        for race, at in enumerate(self._began_at):
            self.world.at(at, partial(self._start, race))
        self._add_nodes(seed)

    def run(self) -> tuple[EntryPath, ...]:
        self.world.run(self._ends_at)
        longest = max(round_trip(self._cities[0], each) for each in self._cities) // 2
        hold = int(longest * HOLD_SHARE)
        return (
            self._path("rotating portal", [self._portal.get(race) for race in range(self._count)]),
            self._path("direct to one venue", [self._first(race, None) for race in range(self._count)]),
            self._path("hold and release", [self._first(race, hold) for race in range(self._count)]),
            self._path("hold, one stamps early", [self._first(race, hold, CLOCK_BOUND) for race in range(self._count)]),
        )

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """Read the order at one site; it is the same at all."""
        if node != 1:
            return
        for span in ordered.spans:
            for _, payload in messages(span):
                race = int.from_bytes(payload)
                self._portal.setdefault(race, (span.source - FIRST_GATEWAY, ordered.acknowledged_at))

    def _path(self, name: str, firsts: Sequence[tuple[int, Instant] | None]) -> EntryPath:
        counts, delays = [0] * len(self._cities), []
        for race, first in enumerate(firsts):
            assert first is not None
            region, at = first
            counts[region] += 1
            delays.append(at - self._began_at[race])
        return EntryPath(name, tuple(counts), tuple(delays))

    def _first(self, race: int, hold: Duration | None, cheat: Duration = 0) -> tuple[int, Instant]:
        """The region whose bid the venue takes first, and when."""
        taken = []
        for region, (came_at, stamp) in self._venue.arrivals[race].items():
            if hold is None:
                taken.append((came_at, came_at, region))
            else:
                shown = stamp - (cheat if region == len(self._cities) - 1 else 0)
                taken.append((max(came_at, shown + hold), shown, region))
        at, _, region = min(taken)
        return region, at

    def _link_faults(self, origin: NodeId, to: NodeId) -> LinkFaults:
        return faults_between(self._city(origin), self._city(to), loss=LOSS)

    def _city(self, node: NodeId) -> City:
        if node == VENUE:
            return self._cities[0]
        first = max(base for base in (1, FIRST_GATEWAY, FIRST_TRADER) if base <= node)
        return self._cities[node - first]

    def _draw_instants(self) -> Iterator[Instant]:
        """Races begin at random instants, far enough apart not to overlap."""
        at = EPOCH + 2 * SECOND
        for _ in range(self._count):
            at += self._chance.randrange(*BREAK)
            yield at

    def _start(self, race: int) -> None:
        """All regions bid at once; the order of events within this instant is random."""
        for region in self._chance.sample(range(len(self._cities)), len(self._cities)):
            trader = self.world.machine(FIRST_TRADER + region)
            assert isinstance(trader, Bidder)
            self._cluster.publish(FIRST_GATEWAY + region, [race.to_bytes(4)])
            self.world.touch(FIRST_TRADER + region, partial(trader.bid, race))

    def _plan(self, seed: int) -> ClusterPlan:
        count, timing = len(self._cities), self._timing
        sites, sources = tuple(range(1, count + 1)), tuple(range(FIRST_GATEWAY, FIRST_GATEWAY + count))
        return ClusterPlan(
            topology=Topology(loops=(LoopTopology(number=0, tour=sites, timing=timing),), resilience=1),
            formation=Formation(number=1, members=sites, timing=timing, starts_at=EPOCH + SECOND, resilience=1),
            reformers=(),
            sources=sources,
            link_model=self._link_faults,
            clocks={node: self._clock(seed, node) for node in (*sites, *sources)},
            seed=seed,
            stream="entry",
        )

    def _add_nodes(self, seed: int) -> None:
        self._cluster.start()
        self.world.add(VENUE, self._venue, clock=self._clock(seed, VENUE))
        for region in range(len(self._cities)):
            trader = Bidder(region, self._timing.retry_period)
            self.world.add(FIRST_TRADER + region, trader, clock=self._clock(seed, FIRST_TRADER + region))

    def _clock(self, seed: int, node: NodeId) -> SimulatedClock:
        chance = Random(f"clock {seed} {node}")  # noqa: S311
        return drifting_clock(chance, since=EPOCH, until=self._ends_at, bound=CLOCK_BOUND)


def race(seed: int, *, count: int, races: int) -> tuple[EntryPath, ...]:
    """Run all races of one world."""
    return Races(regions(count), races=races, seed=seed).run()


def races_per_world(races: int) -> list[int]:
    """Many races are divided into worlds of at most `RACES_PER_WORLD`, so that the result is the same for any jobs."""
    return [min(RACES_PER_WORLD, races - begun) for begun in range(0, races, RACES_PER_WORLD)]


def run_worlds(seed: int, worlds: Sequence[int], *, count: int, jobs: int) -> Iterator[tuple[EntryPath, ...]]:
    """Run these numbers of races, each in a world of its own, in `jobs` processes."""
    return in_processes(partial(_run_world, count), seed, worlds, jobs=jobs)


def in_processes(run: WorldRun, seed: int, worlds: Sequence[int], *, jobs: int) -> Iterator[tuple[EntryPath, ...]]:
    """Call `run` with the seed of each world and its number of races."""
    seeds = [seed * RACES_MAX + world for world in range(len(worlds))]
    if jobs == 1:
        yield from map(run, seeds, worlds)
        return
    with ProcessPoolExecutor(min(jobs, len(worlds)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, seeds, worlds)


def _run_world(count: int, seed: int, races: int) -> tuple[EntryPath, ...]:
    return race(seed, count=count, races=races)


def sum_paths(worlds: Iterable[tuple[EntryPath, ...]]) -> tuple[EntryPath, ...]:
    """The results of all worlds together; there is at least one."""
    return reduce(lambda total, more: tuple(one + other for one, other in zip(total, more, strict=True)), worlds)
