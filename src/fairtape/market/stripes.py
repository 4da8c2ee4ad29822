"""Stripes: which symbols travel together. TRMP 2001 §4.3.

In the core a stripe is wide: a TRMP group of its own, as much as a site can order. At the edge stripes are narrow:
each has a multicast address of its own in every region's feed, and as much load as the least capable customer can
receive. A plan assigns symbols to edge stripes, and edge stripes to core stripes. A symbol that is not in the plan is
assigned by a hash of its name, so that every node finds the same stripe and every trade has one.

A plan has one normal form: lists without an order of their own are sorted when the plan is made. So equal plans have
equal bytes (`fairtape.market.stripe_files` writes them) and the same digest.

`plan_by_rate` is the simple planner: it assigns symbols to stripes by rate, the busiest first, each to the stripe with
the least load.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heapreplace
from typing import Final, NamedTuple
from zlib import crc32

from fairtape.core.addresses import PORT_MAX, find_address, format_address
from fairtape.core.instants import SECOND, Instant
from fairtape.market.symbols import BadName, Symbol, checked_symbol, checked_venue
from fairtape.wire.frames import STRIPE_MAX

DAY: Final = 86_400 * SECOND
VERSION_MAX: Final = 36**3 - 1  # three characters of a session's name
EDGE_MAX: Final = 36**3 - 1  # the highest number of an edge stripe, for the same reason
STRIPES_MAX: Final = 4_096  # edge stripes of one plan
SYMBOLS_MAX: Final = 1 << 16  # symbols in a plan
LISTINGS_MAX: Final = (1 << 16) - 1  # symbols × venues of the stripes of one core stripe: the stock locates of ITCH
FEEDS_MAX: Final = 64
FEED_NAME_MAX: Final = 16
BITS_PER_S_MAX: Final = 10**12
UDP_OVERHEAD: Final = 28  # bytes of the IP and UDP headers of a datagram, which count towards the rate of a stripe

_FEED_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{FEED_NAME_MAX}}}")
_ADDRESS: Final = re.compile(r"(0|[1-9][0-9]{0,2})(?:\.(0|[1-9][0-9]{0,2})){3}")
_MULTICAST: Final = range(224, 240)  # the first number of an IPv4 group

CORE_BITS_PER_S_MAX: Final = 1_000_000_000


class BadPlan(ValueError):
    """A plan that cannot work; the message names the field, what was found and what is expected."""


class Endpoint(NamedTuple):
    """A multicast group and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return format_address(self)

    @classmethod
    def parse(cls, text: str, what: str) -> "Endpoint":
        """The endpoint in text such as 239.195.7.1:31001."""
        found = find_address(text)
        if found is None:
            raise BadPlan(f"{what} is {text!r}; expected an address and a port such as 239.195.7.1:31001")
        return cls(*found)

    def check(self, what: str) -> None:
        """Raise `BadPlan` where it is no multicast group and port."""
        numbers = [int(each) for each in self.address.split(".")] if _ADDRESS.fullmatch(self.address) else []
        if not numbers or numbers[0] not in _MULTICAST or max(numbers) > 255:
            raise BadPlan(f"{what} is {self}; its address must be an IPv4 multicast address such as 239.195.7.1")
        if not 1 <= self.port <= PORT_MAX:
            raise BadPlan(f"{what} is {self}; its port must be from 1 to {PORT_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStripe:
    """A TRMP group of its own."""

    number: int  # the stripe in every frame of that group
    at: Endpoint  # of its data; its acknowledgments have the next address
    bits_per_s_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeStripe:
    """A part of a core stripe that a customer can subscribe to."""

    number: int
    core: int  # the core stripe that it is a part of
    bits_per_s_max: int  # the cap of its sending rate, headers of IP and UDP included
    feeds: tuple[tuple[str, Endpoint], ...]  # the address in each region's feed
    symbols: tuple[Symbol, ...] = ()
    venues: tuple[str, ...] = ()  # whose trades of these symbols have a listing; trades of others are sent wide
    opaque: bool = False  # it carries all messages of the core stripe that are no trades, and nothing else

    def __post_init__(self) -> None:
        for name in ("feeds", "symbols", "venues"):
            object.__setattr__(self, name, tuple(sorted(getattr(self, name))))

    def endpoint(self, feed: str) -> Endpoint:
        """The address of the stripe in this feed."""
        return dict(self.feeds)[feed]


@dataclass(frozen=True, kw_only=True)
class StripePlan:
    """One version of the layout of all stripes."""

    version: int
    midnight_at: Instant  # UTC: the origin of the ITCH timestamps of its sessions
    core: tuple[CoreStripe, ...]
    edge: tuple[EdgeStripe, ...]
    _by_symbol: Mapping[Symbol, EdgeStripe] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("core", "edge"):
            object.__setattr__(self, name, tuple(sorted(getattr(self, name), key=_number)))
        _check(self)
        object.__setattr__(self, "_by_symbol", {symbol: stripe for stripe in self.edge for symbol in stripe.symbols})

    @property
    def feeds(self) -> tuple[str, ...]:
        """The names of the regions' feeds."""
        return tuple(name for name, _ in self.edge[0].feeds)

    @cached_property
    def stripes(self) -> Mapping[int, EdgeStripe]:
        """The edge stripes by their numbers."""
        return {stripe.number: stripe for stripe in self.edge}

    def of_core(self, core: int) -> tuple[EdgeStripe, ...]:
        """The edge stripes of one core stripe, in the order of their numbers."""
        return tuple(stripe for stripe in self.edge if stripe.core == core)

    def core_of(self, symbol: Symbol) -> int:
        """The core stripe in which a symbol is published."""
        named = self._by_symbol.get(symbol)
        return self.core[_stable_hash(symbol) % len(self.core)].number if named is None else named.core

    def edge_of(self, symbol: Symbol, core: int | None = None) -> int:
        """The edge stripe of a symbol that was published in this core stripe.

        A publisher may use another core stripe than the plan's. Then the hash of the name decides, as for symbols that
        are not in the plan.
        """
        core = self.core_of(symbol) if core is None else core
        named = self._by_symbol.get(symbol)
        if named is not None and named.core == core:
            return named.number
        open_stripes = self._open[core]
        return open_stripes[_stable_hash(symbol) // len(self.core) % len(open_stripes)]

    @cached_property
    def _open(self) -> Mapping[int, tuple[int, ...]]:
        """The edge stripes of each core stripe that carry trades."""
        return {
            core.number: tuple(stripe.number for stripe in self.of_core(core.number) if not stripe.opaque)
            for core in self.core
        }


def _number(stripe: CoreStripe | EdgeStripe) -> int:
    return stripe.number


def _stable_hash(symbol: Symbol) -> int:
    """A hash of the name that is the same on every machine and in every version."""
    return crc32(symbol.encode("ascii"))


def _check(plan: StripePlan) -> None:
    if not 1 <= plan.version <= VERSION_MAX:
        raise BadPlan(f"version is {plan.version}; it must be from 1 to {VERSION_MAX}")
    if plan.midnight_at < 0 or plan.midnight_at % DAY:
        raise BadPlan(f"midnight_at is {plan.midnight_at} ns; it must be the beginning of a day, a multiple of {DAY}")
    if not plan.core:
        raise BadPlan("core is empty; a plan has at least one core stripe")
    if not 1 <= len(plan.edge) <= STRIPES_MAX:
        raise BadPlan(f"edge has {len(plan.edge)} stripes; it must have from 1 to {STRIPES_MAX}")
    for core in plan.core:
        _check_stripe("core", core, 0, STRIPE_MAX)
        core.at.check(f"core stripe {core.number}: at")
    for edge in plan.edge:
        _check_edge(plan, edge)
    for name, stripes in (("core", plan.core), ("edge", plan.edge)):
        if repeated := _repeated(stripe.number for stripe in stripes):
            raise BadPlan(f"{name} stripe {repeated[0]} is in the plan twice; give each a number of its own")
    _check_symbols(plan)
    _check_cores(plan)
    _check_addresses(plan)


def _check_stripe(kind: str, stripe: CoreStripe | EdgeStripe, least: int, most: int) -> None:
    if not least <= stripe.number <= most:
        raise BadPlan(f"number of a {kind} stripe is {stripe.number}; it must be from {least} to {most}")
    if not 0 < stripe.bits_per_s_max <= BITS_PER_S_MAX:
        what = f"bits_per_s_max of {kind} stripe {stripe.number}"
        raise BadPlan(f"{what} is {stripe.bits_per_s_max}; it must be above 0 and at most {BITS_PER_S_MAX}")


def _check_edge(plan: StripePlan, edge: EdgeStripe) -> None:
    _check_stripe("edge", edge, 1, EDGE_MAX)
    what = f"edge stripe {edge.number}"
    if edge.core not in {core.number for core in plan.core}:
        known = ", ".join(str(core.number) for core in plan.core)
        raise BadPlan(f"core of {what} is {edge.core}; the plan has only core stripe {known}")
    if edge.opaque and (edge.symbols or edge.venues):
        raise BadPlan(f"{what} is opaque and names symbols or venues; move them to another stripe")
    _check_feeds(plan, edge, what)
    try:
        for symbol in edge.symbols:
            checked_symbol(symbol)
        for venue in edge.venues:
            checked_venue(venue)
    except BadName as error:
        raise BadPlan(f"{what}: {error}") from None
    if repeated := _repeated(edge.venues):
        raise BadPlan(f"venue {repeated[0]} is in {what} twice; name it once")


def _check_feeds(plan: StripePlan, edge: EdgeStripe, what: str) -> None:
    names = tuple(name for name, _ in edge.feeds)
    if not 1 <= len(names) <= FEEDS_MAX or _repeated(names):
        raise BadPlan(f"feeds of {what} are {', '.join(names) or 'none'}; expected 1 to {FEEDS_MAX} different names")
    if names != plan.feeds:
        raise BadPlan(f"feeds of {what} are {', '.join(names)}; those of every stripe must be {', '.join(plan.feeds)}")
    for name, endpoint in edge.feeds:
        if not _FEED_NAME.fullmatch(name):
            raise BadPlan(f"a feed of {what} is called {name!r}; expected 1 to {FEED_NAME_MAX} letters and digits")
        endpoint.check(f"feed {name} of {what}")


def _check_symbols(plan: StripePlan) -> None:
    if repeated := _repeated(symbol for stripe in plan.edge for symbol in stripe.symbols):
        stripes = [str(stripe.number) for stripe in plan.edge if repeated[0] in stripe.symbols]
        raise BadPlan(f"symbol {repeated[0]} is in edge stripes {', '.join(stripes)} more than once; name it once")
    named = sum(len(stripe.symbols) for stripe in plan.edge)
    if named > SYMBOLS_MAX:
        raise BadPlan(f"the plan names {named} symbols; it may name at most {SYMBOLS_MAX}, others are assigned by hash")


def _check_cores(plan: StripePlan) -> None:
    for core in plan.core:
        stripes = plan.of_core(core.number)
        opaque = sum(stripe.opaque for stripe in stripes)
        if opaque != 1:
            raise BadPlan(f"core stripe {core.number} has {opaque} opaque edge stripes; it must have exactly one")
        if len(stripes) < 2:
            raise BadPlan(f"core stripe {core.number} has no edge stripe for trades; add one that is not opaque")
        listings = sum(len(stripe.symbols) * max(len(stripe.venues), 1) for stripe in stripes)
        if listings > LISTINGS_MAX:
            raise BadPlan(
                f"core stripe {core.number} has {listings} listings (symbols times venues); ITCH numbers at most"
                f" {LISTINGS_MAX}: name fewer venues"
            )


def _check_addresses(plan: StripePlan) -> None:
    """A member of a group receives all of its ports, so every stripe of every feed has a group of its own."""
    if repeated := _repeated(address for address, _ in _addresses(plan)):
        users = [user for address, user in _addresses(plan) if address == repeated[0]]
        raise BadPlan(f"address {repeated[0]} is that of {' and of '.join(users)}; give each an address of its own")


def _addresses(plan: StripePlan) -> Iterator[tuple[str, str]]:
    for core in plan.core:
        yield core.at.address, f"core stripe {core.number}"
        yield following_address(core.at.address), f"core stripe {core.number}, acknowledgments"
    for stripe in plan.edge:
        for name, endpoint in stripe.feeds:
            yield endpoint.address, f"edge stripe {stripe.number}, feed {name}"


def following_address(address: str, steps: int = 1) -> str:
    """The IPv4 address this many steps after `address`."""
    value = 0
    for part in address.split("."):
        value = value << 8 | int(part)
    value += steps
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def _repeated(values: Iterator[object] | tuple[object, ...]) -> list[object]:
    """The values that occur more than once, in order."""
    seen: set[object] = set()
    return [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]


BASE: Final = Endpoint("239.196.0.1", 31_001)  # the first address of a plan


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
