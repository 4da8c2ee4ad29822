"""The simple planner: assigns symbols to stripes by rate, the busiest first, each to the stripe with the least load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from fairtape.core.instants import Instant
from fairtape.market.stripes import BadPlan, CoreStripe, EdgeStripe, Endpoint, StripePlan, following_address
from fairtape.market.symbols import Symbol

BASE: Final = Endpoint("239.196.0.1", 31_001)  # the first address of a plan
CORE_BITS_PER_S_MAX: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """The expected load of a stripe."""

    stripe: int
    symbols: int
    bits_per_s: int
    bits_per_s_max: int

    @property
    def share(self) -> float:
        """The load as a share of the cap; above 1 it does not fit."""
        return self.bits_per_s / self.bits_per_s_max

    @property
    def over(self) -> bool:
        """Whether the load exceeds the cap."""
        return self.bits_per_s > self.bits_per_s_max


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the loads of its stripes."""

    plan: StripePlan
    loads: tuple[Load, ...]  # of each stripe for trades, in the order of their numbers


def plan_by_rate(
    rates: Mapping[Symbol, int],  # bits/s
    stripes: int,
    cap: int,
    *,
    version: int = 1,
    midnight_at: Instant = 0,
    cores: int = 1,
    feeds: Sequence[str] = ("A", "B"),
    venues: Sequence[str] = (),
    base: Endpoint = BASE,
) -> Planned:
    """Spread symbols over this many stripes, at most `cap` bits/s each where possible; the loads show where not.

    Longest processing time first: the highest load is at most 4/3 of the optimum (Graham 1969).
    """
    if stripes < cores:
        raise BadPlan(f"stripes is {stripes}; each of the {cores} core stripes needs at least one")
    for symbol, rate in rates.items():
        if rate < 0:
            raise BadPlan(f"rate of {symbol} is {rate} bits/s; it must not be negative")
    members: list[list[Symbol]] = [[] for _ in range(stripes)]
    totals = [0] * stripes
    heap = [(0, place) for place in range(stripes)]
    heapify(heap)
    for symbol, rate in sorted(rates.items(), key=lambda item: (-item[1], item[0])):
        load, place = heap[0]
        members[place].append(symbol)
        totals[place] = load + rate
        heapreplace(heap, (load + rate, place))
    plan = StripePlan(
        version=version,
        midnight_at=midnight_at,
        core=tuple(_core(number, base) for number in range(cores)),
        edge=tuple(_edges(members, cap=cap, cores=cores, feeds=feeds, venues=venues, base=base)),
    )
    loads = (Load(place + 1, len(members[place]), totals[place], cap) for place in range(stripes))
    return Planned(plan, tuple(loads))


def _core(number: int, base: Endpoint) -> CoreStripe:
    at = Endpoint(following_address(base.address, 2 * number), base.port)
    return CoreStripe(number=number, at=at, bits_per_s_max=CORE_BITS_PER_S_MAX)


def _edges(
    members: Sequence[Sequence[Symbol]],
    *,
    cap: int,
    cores: int,
    feeds: Sequence[str],
    venues: Sequence[str],
    base: Endpoint,
) -> list[EdgeStripe]:
    """The stripes for trades, numbered from 1 on, and after them an opaque one for each core stripe."""

    def edge(number: int, core: int, symbols: Sequence[Symbol], *, opaque: bool) -> EdgeStripe:
        first = 2 * cores + (number - 1) * len(feeds)
        places = ((name, following_address(base.address, first + step)) for step, name in enumerate(feeds))
        return EdgeStripe(
            number=number,
            core=core,
            bits_per_s_max=cap,
            feeds=tuple((name, Endpoint(address, base.port)) for name, address in places),
            symbols=tuple(symbols),
            venues=() if opaque else tuple(venues),
            opaque=opaque,
        )

    stripes = len(members)
    edges = [edge(place + 1, place % cores, symbols, opaque=False) for place, symbols in enumerate(members)]
    return edges + [edge(stripes + core + 1, core, (), opaque=True) for core in range(cores)]
