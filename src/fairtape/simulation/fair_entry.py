"""Fair entry, measured: bids leave all regions at the same instant, and one of them is first. TRMP 2001 §7.2.

Three ways in, in one world with the delays between real cities, so that each sees the very same races:

- *The rotating portal.* Gateways are sources of a ring. Whoever is near the token site of the moment is first, and the
  token spends equal amounts of time everywhere.
- *Direct sending.* Everybody sends to one venue, in the first of the regions.
- *Hold and release*, as CloudEx does it: the gateway of each region stamps the bid with its own clock, the venue holds
  it until a fixed delay after the stamp, and takes what it holds in the order of the stamps. What comes later than that
  is taken as it comes. It is as fair as the clocks are good, and as honest as the gateways: the last way of the table
  is the same one with a gateway in the last region that stamps early by what clocks may be wrong by.

Traders stand beside the gateways of their regions. Nobody is told anything before, and no region is busier than others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import erfc, exp, gamma, inf, sqrt
from random import Random
from statistics import median
from struct import Struct
from typing import Final

from fairtape.core.effects import Channel, Effect, Ordered, Release, Send
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.spans import messages
from fairtape.core.timing import PROFILES
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.cities import CITIES, City, faults_between, round_trip
from fairtape.simulation.clocks import SimulatedClock, wandering
from fairtape.simulation.observer import Observer
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import Keys

REGIONS_MIN: Final = 2
REGIONS_MAX: Final = len(CITIES)
APART: Final = (0, 2, 3, 5, 7, 8, 6, 1, 4)  # the cities of CITIES, so that the first six are far from one another
FIRST_GATEWAY: Final = 101
FIRST_TRADER: Final = 201
VENUE: Final = 301
LOSS: Final = 0.01  # of every link
CLOCK_BOUND: Final = 1 * MILLISECOND  # what a daemon keeps between continents
HOLD_SHARE: Final = 1.2  # a bid is held for the longest way, and a fifth more
BREAK: Final = (SECOND // 2, 3 * SECOND // 2)  # between two races
EVENTS_MAX: Final = 50_000_000

_BID: Final = Struct("<IHq")  # the race, the region, the stamp


@dataclass(frozen=True, slots=True)
class EntryPath:
    """How the races went by one way in: how often each region was first, and how long the first bid took."""

    name: str
    firsts: tuple[int, ...]
    delays: tuple[Duration, ...] = ()

    @property
    def races(self) -> int:
        """How many."""
        return sum(self.firsts)

    @property
    def ratio(self) -> float:
        """The luckiest region against the unluckiest; 1 is fair."""
        return max(self.firsts) / min(self.firsts) if min(self.firsts) else inf

    @property
    def chi_square(self) -> float:
        """How far the counts are from equal ones."""
        expected = self.races / len(self.firsts)
        return sum((count - expected) ** 2 for count in self.firsts) / expected if expected else 0.0

    @property
    def p_value(self) -> float:
        """How likely counts at least this unequal are where all regions have the same chance."""
        return chi_square_tail(self.chi_square, len(self.firsts) - 1)

    @property
    def delay(self) -> Duration:
        """From the bid to its place, in the median race."""
        return int(median(self.delays)) if self.delays else 0

    def __add__(self, other: "EntryPath") -> "EntryPath":
        assert self.name == other.name
        firsts = tuple(a + b for a, b in zip(self.firsts, other.firsts, strict=True))
        return EntryPath(self.name, firsts, self.delays + other.delays)


def chi_square_tail(value: float, freedom: int) -> float:
    """The chance that a chi-square variable with so many degrees of freedom is at least `value`, in closed form."""
    half = value / 2
    if freedom % 2 == 0:
        return exp(-half) * sum(half**i / gamma(i + 1) for i in range(freedom // 2))
    odd = sum(half**i / gamma(i + 1.5) for i in range((freedom - 1) // 2))
    return erfc(sqrt(half)) + exp(-half) * sqrt(half) * odd


def regions(count: int) -> tuple[City, ...]:
    """So many cities, far from one another as long as that is possible."""
    return tuple(CITIES[place] for place in APART[:count])


@dataclass(slots=True)
class Bidder:
    """Sends each bid to the venue, stamped by its own clock, and again until the venue has answered."""

    region: int
    retry_period: Duration
    open: dict[int, tuple[Instant, bytes]] = field(default_factory=dict)
    _effects: list[Effect] = field(default_factory=list)

    def bid(self, race: int, now: Instant) -> None:
        """Enter a race."""
        self._send(race, _BID.pack(race, self.region, now), now)

    def _send(self, race: int, bid: bytes, now: Instant) -> None:
        self.open[race] = now + self.retry_period, bid
        self._effects.append(Send(VENUE, [bid]))

    def receive(self, datagram: bytes, now: Instant) -> None:  # noqa: ARG002
        """The venue has it."""
        self.open.pop(_BID.unpack(datagram)[0], None)

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        """Several answers."""
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        """Send again what was not answered."""
        for race, (due_at, bid) in list(self.open.items()):
            if due_at <= now:
                self._send(race, bid, now)

    def deadline(self) -> Instant | None:
        """The next one that is overdue."""
        return min((due_at for due_at, _ in self.open.values()), default=None)

    def drain(self) -> list[Effect]:
        """What there is to send."""
        effects, self._effects = self._effects, []
        return effects


@dataclass(slots=True)
class BidVenue:
    """One place for all: it notes when each bid came, and answers."""

    arrivals: dict[int, dict[int, tuple[Instant, Instant]]] = field(default_factory=dict)  # race: region: came, stamp
    _effects: list[Effect] = field(default_factory=list)

    def receive(self, datagram: bytes, now: Instant) -> None:
        """A bid, perhaps not for the first time."""
        race, region, stamp = _BID.unpack(datagram)
        self.arrivals.setdefault(race, {}).setdefault(region, (now, stamp))
        self._effects.append(Send(FIRST_TRADER + region, [datagram]))

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        """Several bids."""
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        """It waits for nothing."""

    def deadline(self) -> Instant | None:
        """Never."""
        return None

    def drain(self) -> list[Effect]:
        """The answers."""
        effects, self._effects = self._effects, []
        return effects


class Races(Observer):
    """One world, and all races in it."""

    def __init__(self, cities: Sequence[City], *, races: int, seed: int) -> None:
        self._cities = cities
        self._count = races
        self._chance = Random(f"races {seed}")  # noqa: S311 - a simulation
        self._timing = PROFILES["wan"]
        self._venue = BidVenue()
        self._began_at: dict[int, Instant] = {}
        self._portal: dict[int, tuple[int, Instant]] = {}  # of each race: which region was first, and when
        self.world = World(chance=Random(f"entry {seed}"), sky=self._sky)  # noqa: S311
        self.world.turns_max = EVENTS_MAX
        self.world.witnesses.append(self)
        self._ends_at = self._schedule()
        self._seat_nodes(seed)

    def run(self) -> tuple[EntryPath, ...]:
        """Let them all be run."""
        self.world.run(self._ends_at)
        longest = max(round_trip(self._cities[0], each) for each in self._cities) // 2
        hold = int(longest * HOLD_SHARE)
        return (
            self._way("rotating portal", [self._portal.get(race) for race in range(self._count)]),
            self._way("direct to one venue", [self._first(race, None) for race in range(self._count)]),
            self._way("hold and release", [self._first(race, hold) for race in range(self._count)]),
            self._way("hold, one stamps early", [self._first(race, hold, CLOCK_BOUND) for race in range(self._count)]),
        )

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """What the order says, read at one site: it is the same at all."""
        if node != 1:
            return
        for span in ordered.spans:
            for _, payload in messages(span):
                race = int.from_bytes(payload)
                self._portal.setdefault(race, (span.source - FIRST_GATEWAY, ordered.acknowledged_at))

    def _way(self, name: str, firsts: Sequence[tuple[int, Instant] | None]) -> EntryPath:
        counts, delays = [0] * len(self._cities), []
        for race, first in enumerate(firsts):
            assert first is not None
            region, at = first
            counts[region] += 1
            delays.append(at - self._began_at[race])
        return EntryPath(name, tuple(counts), tuple(delays))

    def _first(self, race: int, hold: Duration | None, cheat: Duration = 0) -> tuple[int, Instant]:
        """Whom the venue takes first, and when."""
        taken = []
        for region, (came_at, stamp) in self._venue.arrivals[race].items():
            if hold is None:
                taken.append((came_at, came_at, region))
            else:
                shown = stamp - (cheat if region == len(self._cities) - 1 else 0)
                taken.append((max(came_at, shown + hold), shown, region))
        at, _, region = min(taken)
        return region, at

    def _sky(self, origin: NodeId, to: NodeId) -> LinkFaults:
        return faults_between(self._city(origin), self._city(to), loss=LOSS)

    def _city(self, node: NodeId) -> City:
        if node == VENUE:
            return self._cities[0]
        first = max(base for base in (1, FIRST_GATEWAY, FIRST_TRADER) if base <= node)
        return self._cities[node - first]

    def _schedule(self) -> Instant:
        """Races at random moments, far enough from one another to be races of their own."""
        at = EPOCH + 2 * SECOND
        for race in range(self._count):
            at += self._chance.randrange(*BREAK)
            self._began_at[race] = at
            self.world.at(at, partial(self._start, race))
        return at + 20 * SECOND

    def _start(self, race: int) -> None:
        """Everybody bids at once. Whom the world lets go first in this instant is as open as anything."""
        for region in self._chance.sample(range(len(self._cities)), len(self._cities)):
            gateway, trader = self.world.machine(FIRST_GATEWAY + region), self.world.machine(FIRST_TRADER + region)
            assert isinstance(gateway, Source)
            assert isinstance(trader, Bidder)
            self.world.touch(FIRST_GATEWAY + region, partial(_publish, gateway, race))
            self.world.touch(FIRST_TRADER + region, partial(trader.bid, race))

    def _seat_nodes(self, seed: int) -> None:
        count = len(self._cities)
        sites, sources = tuple(range(1, count + 1)), tuple(range(FIRST_GATEWAY, FIRST_GATEWAY + count))
        keys = Keys.from_secret(b"a race", sites, sources)
        formation = Formation(number=1, members=sites, timing=self._timing, starts_at=EPOCH + SECOND, resilience=1)
        for site in sites:
            clock = self._clock(seed, site)
            receiver = Receiver(me=site, formation=formation, keys=keys, born_at=EPOCH, clock_bound=lambda: CLOCK_BOUND)
            self.world.add(site, receiver, channels=(Channel.DATA, Channel.CONTROL), clock=clock)
        for source in sources:
            machine = Source(me=source, keys=keys.for_source(source), timing=self._timing, resilience=1, incarnation=1)
            self.world.add(source, machine, channels=(Channel.CONTROL,), clock=self._clock(seed, source))
        self.world.add(VENUE, self._venue, clock=self._clock(seed, VENUE))
        for region in range(count):
            trader = Bidder(region, self._timing.retry_period)
            self.world.add(FIRST_TRADER + region, trader, clock=self._clock(seed, FIRST_TRADER + region))

    def _clock(self, seed: int, node: NodeId) -> SimulatedClock:
        chance = Random(f"clock {seed} {node}")  # noqa: S311
        return wandering(chance, since=EPOCH, until=self._ends_at, bound=CLOCK_BOUND)


def _publish(gateway: Source, race: int, now: Instant) -> None:
    taken = gateway.publish([race.to_bytes(4)], now)
    assert taken == 1


def race(seed: int, *, count: int, races: int) -> tuple[EntryPath, ...]:
    """The races of one world."""
    return Races(regions(count), races=races, seed=seed).run()
