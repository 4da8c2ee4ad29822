"""One seed draws an overload: sources publish more than the processors can carry, for some seconds; then it is calm.

A seed draws a profile, sites on processors, what their work costs, other programs on the same processors, and sources
that offer from well below to several times the capacity, or keep their queues full. About half of the overloads meet
a ring of one formation, the others a deployment that reforms and heals.

The data of a simulated world must stay small. So a block stands for a train of datagrams: it is larger than on a real
network, and the window of a source, which counts bytes, holds as much of a processor's time as in reality.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import exp, log
from random import Random
from typing import Final

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing, profile
from fairtape.ring.membership.topology import PaceRule
from fairtape.simulation.fault_schedule import draw_pace
from fairtape.simulation.processors import SLICE_MAX, CompetingLoad, Costs
from fairtape.simulation.ring_schedule import FIRST_SITE, FIRST_SOURCE
from fairtape.simulation.world import EPOCH, chance_for
from fairtape.wire.frames import NodeId

REFORMERS: Final = (201, 202)
CALM_PERIOD: Final = 200 * MILLISECOND  # with little load, after the overload
CALM_SHARE: Final = 0.1  # of the capacity, in the calm
SOCKETS: Final = (212_992, 1 << 20, 4 << 20, 8 << 20)  # bytes: Linux's default, and what an administrator allows
HEADROOM: Final = 64  # bytes of a datagram that no message uses
FIXED_SHARE_MAX: Final = 0.35  # of a processor, for tokens without messages: else the profile is too fast for it
TURNS_PER_TOKEN: Final = 3  # of a site: its acknowledgment, its release, and one for data
KIB_RECEIVED_MIN: Final = 2_000  # nanoseconds for 1,024 bytes
SITE_PROCESSORS_MAX: Final = 3
HEALING_CAPACITY_MAX: Final = 30e6  # bytes per second: the journals of a deployment are kept in memory
LOADS: Final = (0.3, 0.7, 1.0, 1.5, 2.0, 4.0, None, None, None, None)  # offered, of the capacity; None: sources flood


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRange:
    """What is drawn for one profile, so that an idle world keeps its schedule with ease."""

    delay: tuple[Duration, Duration]  # of the links
    capacity: tuple[float, float]  # bytes per second that the processors can carry
    sites_per_processor: int
    period: tuple[Duration, Duration]  # of the overload
    busy_slice: tuple[Duration, Duration]  # of another program
    block_period: Duration  # that a block takes at capacity: bounds the number of datagrams in a world


RANGES: Final[Mapping[str, ProfileRange]] = {
    "lan": ProfileRange(
        delay=(20 * MICROSECOND, 120 * MICROSECOND),
        capacity=(20e6, 110e6),
        sites_per_processor=2,
        period=(1_400 * MILLISECOND, 1_600 * MILLISECOND),
        busy_slice=(20 * MICROSECOND, 150 * MICROSECOND),
        block_period=200 * MICROSECOND,
    ),
    "metro": ProfileRange(
        delay=(200 * MICROSECOND, 2 * MILLISECOND),
        capacity=(10e6, 60e6),
        sites_per_processor=5,
        period=(1_600 * MILLISECOND, 2_200 * MILLISECOND),
        busy_slice=(200 * MICROSECOND, 2 * MILLISECOND),
        block_period=300 * MICROSECOND,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """Everything that a seed draws."""

    seed: int
    profile: str
    healing: bool  # a deployment that reforms and heals; else a ring of one formation
    sites: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]
    resilience: int
    delay: Duration
    loss: float
    placed: Mapping[NodeId, int]  # the processor of each node
    costs: Costs  # on the fastest processor
    slowness: tuple[float, ...]  # of each processor: how many times as much everything costs there
    loads: tuple[CompetingLoad, ...]
    socket_max: int
    slice_max: int
    datagram_max: int
    load: float | None  # messages offered, as a share of the capacity; None: the sources flood
    period: Duration
    pace: PaceRule | None = None  # of a deployment: the token may be slowed

    @property
    def timing(self) -> Timing:
        """The profile, with the tokens that K more holders take."""
        return profile(self.profile).with_resilience(self.resilience)

    @property
    def begins_at(self) -> Instant:
        """When the overload begins; a deployment has its first formation by then."""
        return _begins_at(healing=self.healing)

    @property
    def calms_at(self) -> Instant:
        return self.begins_at + self.period

    @property
    def ends_at(self) -> Instant:
        """When the sources end."""
        return self.calms_at + CALM_PERIOD

    @property
    def messages_per_block(self) -> int:
        return 2 if self.healing else 8  # the checkers of a deployment take longer for each message

    @property
    def message_size(self) -> int:
        return (self.datagram_max - HEADROOM) // self.messages_per_block

    @property
    def processors(self) -> int:
        return len(self.slowness)

    @property
    def capacity(self) -> float:
        """The messages per second that the processors can carry: the smallest of all processors."""
        return min(map(self._capacity_of, range(self.processors))) * self.messages_per_block

    @property
    def carried(self) -> float:
        """The messages per second that the sources offer, the processors can carry and the sockets can hold.

        A socket must hold what arrives in two token periods: a site that waits for its processor reads nothing.
        """
        offered = self.capacity * (1.0 if self.load is None else min(self.load, 1.0))
        held = self.socket_max * SECOND / (2 * self.timing.token_period)
        return min(offered, held / self.message_size)

    @property
    def late_by_loss(self) -> float:
        """The share of the messages that may be late because a block of their token was lost, whatever the load."""
        blocks = self.carried / self.messages_per_block * self.timing.token_period / SECOND
        return self.loss * max(blocks, 1.0)

    def costs_on(self, processor: int) -> Costs:
        return self.costs.scaled(work=self.slowness[processor], data=self.slowness[processor])

    def fixed_share(self, processor: int) -> float:
        """The share of a processor that tokens without messages take."""
        costs, per_token = self.costs_on(processor), 0
        for node in self._nodes_on(processor):
            turns = TURNS_PER_TOKEN if node in self.sites else 1
            per_token += turns * costs.turn + costs.datagram + (costs.append if node in self.sites else 0)
        return per_token / self.timing.token_period

    def _capacity_of(self, processor: int) -> float:
        """Blocks per second."""
        costs, size, nodes = self.costs_on(processor), self.datagram_max, self._nodes_on(processor)
        messages = self.messages_per_block * costs.message
        receiving = costs.receiving(1, size) + messages + costs.turn * size // SLICE_MAX
        sending = costs.sending(size) / len(self.sources)
        per_block = sum(receiving if node in self.sites else sending for node in nodes if node not in REFORMERS)
        taken = sum(load.busy_share for load in self.loads if load.processor == processor)
        return max(1 - taken - self.fixed_share(processor), 0.01) * SECOND / max(per_block, 1)

    def _nodes_on(self, processor: int) -> list[NodeId]:
        return [node for node, at in self.placed.items() if at == processor]

    def describe(self) -> str:
        """One line for the output of `fairtape check`."""
        offered = "flooding" if self.load is None else f"{self.load:g} times the capacity"
        stalls = sum(len(load.stalls) for load in self.loads)
        busy = sum(load.busy_slice > 0 for load in self.loads)
        return (
            f"{self.profile}, {'a deployment' if self.healing else 'a ring'}, {len(self.sites)} sites and "
            f"{len(self.sources)} sources on {self.processors} processors, K={self.resilience}, {offered}, "
            f"{self.capacity * self.message_size / 1e6:.0f} MB/s can be carried, loss {self.loss:.2%}, "
            f"sockets of {self.socket_max >> 10} KiB, {busy} busy programs, {stalls} stalls"
        )


def _begins_at(*, healing: bool) -> Instant:
    return EPOCH + (400 if healing else 50) * MILLISECOND


def draw(seed: int, *, load: float | None = None, slice_max: int = SLICE_MAX) -> Overload:
    """The overload of a seed; `load` and `slice_max` override what it would have."""
    chance = chance_for("overload", seed)
    healing = chance.random() < 0.5
    name = chance.choice(tuple(RANGES))
    ranges = RANGES[name]
    sites = tuple(range(FIRST_SITE, FIRST_SITE + chance.randint(1, 5)))
    sources = tuple(range(FIRST_SOURCE, FIRST_SOURCE + chance.randint(1, 4)))
    placed, used = _draw_places(chance, sites, (*sources, *REFORMERS) if healing else sources, ranges)
    capacity_max = min(ranges.capacity[1], HEALING_CAPACITY_MAX) if healing else ranges.capacity[1]
    wanted = exp(chance.uniform(log(ranges.capacity[0]), log(capacity_max)))
    period = chance.randint(*ranges.period)
    begins_at = _begins_at(healing=healing)
    drawn = Overload(
        seed=seed,
        profile=name,
        healing=healing,
        sites=sites,
        sources=sources,
        resilience=min(chance.randint(0, 2), len(sites) - 1),
        delay=chance.randint(*ranges.delay),
        loss=chance.choice((0.0, 0.0, 0.0, 0.0005, 0.002)),
        placed=placed,
        costs=Costs.draw(chance_for("costs", seed)),
        slowness=tuple(_draw_slowness(chance_for("slowness", seed), max(placed.values()) + 1)),
        loads=tuple(_draw_loads(chance_for("competing load", seed), ranges, used, begins_at, period)),
        socket_max=chance.choice(SOCKETS),
        slice_max=slice_max,
        datagram_max=int(wanted * ranges.block_period / SECOND),
        load=chance.choice(LOADS) if load is None else load,
        period=period,
        pace=_draw_pace(chance_for("pace", seed)) if healing else None,
    )
    return _scaled(drawn, wanted)


def _draw_places(
    chance: Random, sites: tuple[NodeId, ...], others: tuple[NodeId, ...], ranges: ProfileRange
) -> tuple[dict[NodeId, int], int]:
    """The processor of each node, and how many processors have sites. Other nodes share them, or have their own."""
    least = -(-len(sites) // ranges.sites_per_processor)
    used = min(chance.randint(least, SITE_PROCESSORS_MAX), len(sites))
    placed = {site: position % used for position, site in enumerate(sites)}
    shared = chance.random() < 0.4
    for position, node in enumerate(others):
        placed[node] = position % used if shared else used + position
    return placed, used


def _draw_slowness(chance: Random, processors: int) -> Iterator[float]:
    for _ in range(processors):
        yield chance.choice((1.0, 1.0, 1.3, 2.0))


def _draw_pace(chance: Random) -> PaceRule | None:
    """None, the rule of a fault schedule, or one in the proportions of the default: only the windows are shorter."""
    rule, default = draw_pace(chance), PaceRule()
    if rule is not None or chance.random() < 0.5:
        return rule
    window = chance.randint(100, 400) * MILLISECOND
    return replace(default, window=window, quiet_period=window * (default.quiet_period // default.window))


def _draw_loads(
    chance: Random, ranges: ProfileRange, processors: int, begins_at: Instant, period: Duration
) -> Iterator[CompetingLoad]:
    """Busy programs, and virtual machines that are paused, on the processors of the sites."""
    for processor in range(processors):
        busy = chance.random() < 0.25
        stalls = chance.choice((0, 0, 0, 1, 2))
        if busy or stalls:
            yield CompetingLoad(
                processor=processor,
                busy_slice=chance.randint(*ranges.busy_slice) if busy else 0,
                busy_share=chance.uniform(0.1, 0.4) if busy else 0.0,
                stalls=tuple(
                    (begins_at + chance.randrange(period), chance.randint(5, 50) * MILLISECOND) for _ in range(stalls)
                ),
            )


def _scaled(drawn: Overload, wanted: float) -> Overload:
    """With costs such that tokens leave time for messages, and that the capacity is the wanted one, in bytes/s.

    It is smaller where the wanted one would need a processor that is faster than any that was measured.
    """
    excess = max(map(drawn.fixed_share, range(drawn.processors))) / FIXED_SHARE_MAX
    drawn = replace(drawn, costs=drawn.costs.scaled(work=1 / max(excess, 1.0), data=1.0))
    factor = max(drawn.capacity * drawn.message_size / wanted, KIB_RECEIVED_MIN / drawn.costs.kib_received)
    return replace(drawn, costs=drawn.costs.scaled(work=1.0, data=factor))
