"""One seed draws a ring of one fixed formation: nodes, timing, links, clocks, load and faults.

Nothing replaces the formation, so only safety is required once a site has crashed or declared a failure. Some rings
have timings that are too tight to work, because protocols break at their limits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from random import Random
from typing import Final

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.clocks import SimulatedClock, drifting_clock
from fairtape.simulation.cluster import RECORD_MAX, ClusterPlan
from fairtape.simulation.fault_schedule import Burst, FaultSchedule
from fairtape.simulation.faults import Clog, Crash, Fault, Partition, Pause, Restart
from fairtape.simulation.world import EPOCH, chance_for
from fairtape.wire.frames import NodeId

FIRST_SITE: Final = 1
FIRST_SOURCE: Final = 101
LOSSES: Final = (0.0, 0.01, 0.05, 0.2)
# The range of retries by loss: enough that loss alone rarely causes a reformation.
RETRIES: Final = {0.0: (3, 8), 0.01: (4, 10), 0.05: (7, 14), 0.2: (18, 32)}
LOSS_MAX: Final = 0.5  # no timing that is drawn here works beyond it
TOKENS: Final = (30, 120)  # the length of the safety phase, in tokens
STARTS_AFTER: Final = 10 * MILLISECOND  # the first token, by a true clock
DELAY_SHARES: Final = (0.1, 1.0)  # of the longest delay, that of each link
FAULTY: Final = 20  # a clock that leaves its bound stays within this many times of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clock errors of the nodes."""

    bound: Duration = 0
    steps: bool = False
    noise: Duration = 0
    faulty: tuple[NodeId, ...] = ()  # sites whose clocks leave their bound
    sources_within: Duration = 0  # above 0: the clocks of sources, which have no bound, are up to this far off and step


def draw_ring(seed: int, *, loss: float | None = None) -> FaultSchedule:
    """The ring of one seed and its faults; `loss` overrides what it would have drawn."""
    chance = chance_for("configuration", seed)
    sites = _draw_sites(chance)
    sources = tuple(range(FIRST_SOURCE, FIRST_SOURCE + chance.randint(1, 6)))
    drawn_loss = chance.choice(LOSSES)
    loss = drawn_loss if loss is None else loss
    delay_max = chance.choice((100 * MICROSECOND, 1 * MILLISECOND, 10 * MILLISECOND, 75 * MILLISECOND))
    jitter = chance.choice((0, delay_max // 50, delay_max // 10))
    resilience = chance.choice((0, 0, 1, chance.randrange(len(sites))))
    resilience = min(resilience, len(sites) - 1)
    timing = _draw_timing(chance, delay_max + 4 * jitter, loss, resilience)
    timed = chance.random() < 0.8
    clocks = replace(_draw_clocks(chance, sites, timing), sources_within=_draw_source_clocks(seed, timing))
    length = chance.randint(*TOKENS) * max(timing.token_period, delay_max)
    heals_at = EPOCH + STARTS_AFTER + 2 * clocks.bound + length
    datagram_max = chance.choice((256, 512, 1_400, 1_400))
    duplication = chance.choice((0.0, 0.0, 0.02, 0.2))
    tree, echo = chance.random() < 0.3, chance.random() < 0.3
    bursts = tuple(_draw_bursts(chance, sources, heals_at))
    faults = tuple(_FaultDrawer(chance, sites, sources, heals_at, timing.reform_delay).draw())
    plan = ring_plan(
        seed,
        sites=sites,
        sources=sources,
        timing=timing,
        resilience=resilience,
        link_faults=LinkFaults(delay=delay_max, jitter=jitter, loss=loss, duplication=duplication),
        datagram_max=datagram_max,
        timed=timed,
        starts_at=EPOCH + STARTS_AFTER + 2 * clocks.bound,
    )
    return FaultSchedule(
        seed=seed,
        plan=replace(
            plan,
            tree_loss=loss if tree else None,
            echo=echo,
            clocks=dict(_clocks_of(clocks, seed, sites, sources, heals_at)),
            record_sources=_draw_record_sources(seed, bursts),
            group=_draw_group(seed, sources),
        ),
        faults=faults,
        intruder_period=chance.choice((0, 0, length // 200)),
        bursts=tuple(sorted(bursts, key=attrgetter("at"))),
        heals_at=heals_at,
        faulty_clocks=clocks.faulty,
    )


def ring_plan(
    seed: int,
    *,
    sites: tuple[NodeId, ...],
    sources: tuple[NodeId, ...],
    timing: Timing,
    resilience: int,
    link_faults: LinkFaults,
    datagram_max: int,
    timed: bool = True,
    starts_at: Instant = EPOCH + STARTS_AFTER,
) -> ClusterPlan:
    """A bare ring: its formation is fixed, and each link has its own share of the delay."""
    return ClusterPlan(
        topology=Topology(
            loops=(LoopTopology(number=0, tour=sites, timing=timing),), resilience=resilience, timed=timed
        ),
        formation=Formation(
            number=1, members=sites, timing=timing, starts_at=starts_at, resilience=resilience, timed=timed
        ),
        reformers=(),
        sources=sources,
        link_model=lambda _origin, _to: link_faults,
        delay_shares=DELAY_SHARES,
        datagram_max=datagram_max,
        seed=seed,
        stream="network",
        secret=b"a swarm",
    )


def _draw_sites(chance: Random) -> tuple[NodeId, ...]:
    count = chance.randint(10, 20) if chance.random() < 0.05 else chance.randint(2, 9)
    sites = list(range(FIRST_SITE, FIRST_SITE + count))
    if chance.random() < 0.5:
        chance.shuffle(sites)  # the order of the token need not be the order of the numbers
    return tuple(sites)


def _draw_timing(chance: Random, one_way: Duration, loss: float, resilience: int) -> Timing:
    """Usually a timing that works (T_R above a round trip, token period above the delay), sometimes one that cannot."""
    strained = chance.random() < 0.1
    retry_period = int(one_way * (chance.uniform(0.8, 2.0) if strained else chance.uniform(2.2, 4.0)))
    low, high = RETRIES[max(known for known in RETRIES if known <= loss)]
    retries_max = chance.randint(1, 3) if strained else chance.randint(low, high)
    token_period = int(one_way * (chance.uniform(0.3, 1.0) if strained else chance.uniform(1.5 + 8 * loss, 6.0)))
    timing = Timing(
        retry_period=retry_period,
        retries_max=retries_max,
        token_period=token_period,
        commit_delay=retry_period,
        merged=chance.random() < 0.6,
    )
    commit_delay = chance.choice((retry_period, 2 * retry_period, timing.reform_delay // 2, timing.reform_delay))
    if chance.random() < 0.15:  # the papers' first system: Δ_T = Δ_C = Δ_R
        return replace(timing, token_period=timing.reform_delay, commit_delay=timing.reform_delay)
    return replace(timing, commit_delay=commit_delay + resilience * token_period)


def _draw_clocks(chance: Random, sites: tuple[NodeId, ...], timing: Timing) -> Clocks:
    bound = chance.choice((0, 0, timing.retry_period // 50, timing.retry_period // 8))
    faulty = bound and chance.random() < 0.1
    return Clocks(
        bound=bound,
        steps=chance.random() < 0.3,
        noise=chance.choice((0, 0, 200)),
        faulty=(chance.choice(sites),) if faulty else (),
    )


def _clocks_of(
    clocks: Clocks, seed: int, sites: Sequence[NodeId], sources: Sequence[NodeId], heals_at: Instant
) -> Iterator[tuple[NodeId, SimulatedClock]]:
    """The clocks that are not true."""
    for node in (*sites, *sources):
        source_error = clocks.sources_within if node in sources else 0
        if clocks.bound or source_error:
            yield (
                node,
                drifting_clock(
                    chance_for(f"clock {node}", seed),
                    since=EPOCH,
                    until=heals_at + 10 * SECOND,
                    bound=clocks.bound,
                    within=source_error or (clocks.bound * FAULTY if node in clocks.faulty else None),
                    steps=clocks.steps or source_error > 0,
                    noise=min(clocks.noise, clocks.bound),
                ),
            )


def _draw_source_clocks(seed: int, timing: Timing) -> Duration:
    return chance_for("source clocks", seed).choice((0, 0, timing.retry_period, 10 * timing.retry_period))


def _draw_record_sources(seed: int, bursts: tuple[Burst, ...]) -> tuple[NodeId, ...]:
    """About half of the sources whose messages have one size, not counting those that are too long for a record."""
    chance = chance_for("records", seed)
    sizes: dict[NodeId, set[int]] = {}
    for burst in bursts:
        sizes.setdefault(burst.source, set()).update(size for size in burst.sizes if size <= RECORD_MAX)
    return tuple(source for source, known in sizes.items() if len(known) == 1 and chance.random() < 0.5)


def _draw_group(seed: int, sources: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """In some worlds with several sources, at least two of them are in one process."""
    chance = chance_for("groups", seed)
    if len(sources) < 2 or chance.random() < 0.7:
        return ()
    return tuple(chance.sample(sources, chance.randint(2, len(sources))))


def _draw_bursts(chance: Random, sources: tuple[NodeId, ...], heals_at: Instant) -> Iterator[Burst]:
    width = heals_at - EPOCH
    for source in sources:
        uniform = chance.choice((0, 0, 8, 44))
        for _ in range(chance.choice((3, 10, 20, 40))):
            count = chance.choice((1, 1, 2, 10, 50, 50, 400))
            sizes = [uniform or chance.randint(1, RECORD_MAX) for _ in range(count)]
            if chance.random() < 0.05:
                sizes.append(chance.randint(1_500, 12_000))
            yield Burst(EPOCH + chance.randrange(width), source, len(sizes), tuple(sizes))


@dataclass(frozen=True, slots=True)
class _FaultDrawer:
    """Draws faults: kind, instant, nodes and period."""

    chance: Random
    sites: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]
    until: Instant
    reform_delay: Duration

    def draw(self) -> Iterator[Fault]:
        """Each kind of fault has its own probability to occur in a world at all."""
        kinds = ((0.4, 12, self._clog), (0.15, 1, self._partition), (0.3, 3, self._pause), (0.3, 3, self._restart))
        for probability, count_max, kind in kinds:
            if self.chance.random() < probability:
                for _ in range(self.chance.randint(1, count_max)):
                    yield from kind()
        if self.chance.random() < 0.15:
            yield Crash(self._instant(), self.chance.choice(self.sites))

    def _instant(self) -> Instant:
        return EPOCH + self.chance.randrange(self.until - EPOCH)

    def _period(self) -> Duration:
        return int(self.reform_delay * self.chance.choice((0.05, 0.2, 0.2, 0.5, 1.5)))

    def _clog(self) -> Iterator[Fault]:
        origin, to = self.chance.sample(self.sites + self.sources, 2)
        yield Clog(self._instant(), origin, to, self._period())

    def _partition(self) -> Iterator[Fault]:
        nodes = self.sites + self.sources
        side = self.chance.sample(nodes, self.chance.randint(1, len(nodes) - 1))
        yield Partition(self._instant(), tuple(side), self._period())

    def _pause(self) -> Iterator[Fault]:
        yield Pause(self._instant(), self.chance.choice(self.sites + self.sources), self._period())

    def _restart(self) -> Iterator[Fault]:
        at, source = self._instant(), self.chance.choice(self.sources)
        yield Crash(at, source)
        yield Restart(at + self._period(), source)
