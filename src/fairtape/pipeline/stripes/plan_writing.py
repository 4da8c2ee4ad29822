"""Places as a stripe plan: numbers and addresses, kept from the previous plan wherever there is one.

A customer's settings name stripes and addresses. So a stripe that was in the previous plan keeps its number and
its groups, a new one takes what nobody had, and a symbol that the history does not know stays where it was. Rates are
those that were asked for, of all stripes: they are what symbols were packed by.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from fairtape.core.instants import Instant
from fairtape.formats.itch.ticker import MPID_MAX
from fairtape.market.stripes import LISTINGS_MAX, CoreStripe, EdgeStripe, Endpoint, StripePlan, following_address
from fairtape.pipeline.stripes.limits import Places


@dataclass(frozen=True, eq=False)
class PlanLayout:
    """What is to be written down."""

    symbols: tuple[str, ...]
    venues: tuple[str, ...]
    places: Places  # of symbols, in edge stripes
    cores: Places  # of edge stripes, in core stripes
    feeds: tuple[str, ...]
    base: Endpoint


def places_in(plan: StripePlan, symbols: tuple[str, ...]) -> Places:
    """Where the symbols are in a plan, counting its stripes for trades from 0 on; −1 where it does not name them."""
    named = {
        symbol: place
        for place, stripe in enumerate(stripe for stripe in plan.edge if not stripe.opaque)
        for symbol in stripe.symbols
    }
    return np.array([named.get(symbol, -1) for symbol in symbols], np.int64)


def plan_of(
    layout: PlanLayout, edge_bits_per_s: int, core_bits_per_s: int, midnight_at: Instant, previous: StripePlan | None
) -> tuple[StripePlan, tuple[int, ...]]:
    """The plan, one version above the previous one, and the numbers of its stripes for trades."""
    addresses = _unused(layout.base, previous)
    cores = [replace(core, bits_per_s_max=core_bits_per_s) for core in previous.core] if previous else []
    for number in _unused_numbers(int(layout.cores.max()) + 1 - len(cores), [core.number for core in cores], first=0):
        at = Endpoint(next(addresses), layout.base.port)
        next(addresses)  # of its acknowledgments
        cores.append(CoreStripe(number=number, at=at, bits_per_s_max=core_bits_per_s))
    before = [stripe for stripe in previous.edge if not stripe.opaque] if previous else []
    opaque = {stripe.core: stripe for stripe in previous.edge if stripe.opaque} if previous else {}
    taken = [stripe.number for stripe in (*before, *opaque.values())]
    fresh = _unused_numbers(len(layout.cores) - len(before) + len(cores) - len(opaque), taken, first=1)
    feeds = previous.feeds if previous else layout.feeds
    members = _members(layout, before)
    venues = _venues(layout) or tuple(before[0].venues if before else ())  # days of volumes know of none

    def edge(place: int, old: EdgeStripe | None, core: int, *, is_opaque: bool = False) -> EdgeStripe:
        ways = old.feeds if old else tuple((name, Endpoint(next(addresses), layout.base.port)) for name in feeds)
        return EdgeStripe(
            number=old.number if old else next(fresh_numbers),
            core=core,
            bits_per_s_max=edge_bits_per_s,
            feeds=ways,
            symbols=() if is_opaque else tuple(members[place]),
            venues=() if is_opaque else venues,
            opaque=is_opaque,
        )

    fresh_numbers = iter(fresh)
    edges = [
        edge(place, before[place] if place < len(before) else None, cores[core].number)
        for place, core in enumerate(layout.cores.tolist())
    ]
    numbers = tuple(each.number for each in edges)
    edges += [edge(-1, opaque.get(core.number), core.number, is_opaque=True) for core in cores]
    version = previous.version + 1 if previous else 1
    return StripePlan(version=version, midnight_at=midnight_at, core=tuple(cores), edge=tuple(edges)), numbers


def _members(layout: PlanLayout, before: list[EdgeStripe]) -> dict[int, list[str]]:
    """The symbols of each stripe, those among them of which the history knows nothing."""
    found: dict[int, list[str]] = defaultdict(list)
    for symbol, place in zip(layout.symbols, layout.places.tolist(), strict=True):
        found[place].append(symbol)
    known = set(layout.symbols)
    for place, stripe in enumerate(before):
        found[place] += [symbol for symbol in stripe.symbols if symbol not in known]
    return found


def _venues(layout: PlanLayout) -> tuple[str, ...]:
    """Venues that a directory can name, if there are not too many listings with them."""
    venues = tuple(name for name in layout.venues if 0 < len(name) <= MPID_MAX)
    return venues if len(layout.symbols) * max(len(venues), 1) <= LISTINGS_MAX else ()


def _unused_numbers(wanted: int, taken: list[int], *, first: int) -> list[int]:
    """Numbers behind the highest that was ever given out, so that none means two things."""
    start = max(taken, default=first - 1) + 1
    return list(range(start, start + max(wanted, 0)))


def _unused(base: Endpoint, previous: StripePlan | None) -> Iterator[str]:
    """Addresses behind all that the previous plan uses."""
    used = {base.address} if previous is None else _used(previous)
    last = max(used, key=lambda address: tuple(map(int, address.split("."))))
    return (following_address(last, step) for step in count(0 if previous is None else 1))


def _used(plan: StripePlan) -> set[str]:
    cores = {following_address(core.at.address, step) for core in plan.core for step in (0, 1)}
    return cores | {endpoint.address for stripe in plan.edge for _, endpoint in stripe.feeds}
