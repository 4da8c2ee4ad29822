"""From a history to a plan request, a packing and a stripe plan.

Spark counts the history, and the packing assigns symbols to stripes. The last days may be held back: then the plan is
made from the days before, and evaluated on those.

Settings of customers have numbers and addresses of stripes. So a stripe of the previous plan keeps its number and its
groups, a new one gets unused ones, and a symbol that is not in the history stays where it was. All stripes get the
requested rates, by which symbols were packed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.formats.itch.ticker_messages import MPID_MAX
from fairtape.market.stripes import BASE, LISTINGS_MAX, CoreStripe, EdgeStripe, Endpoint, StripePlan, following_address
from fairtape.pipeline.stripes.burst_model import FINE_PERIOD, SHARES_PER_MESSAGE, drawn_windows, expected_windows
from fairtape.pipeline.stripes.evaluation import PlanEvaluator, PlanResult, compare, portfolios
from fairtape.pipeline.stripes.overrun_risk import Indices, Limit, Shares, Windows, needs
from fairtape.pipeline.stripes.packing import Likeness, Packing, pack, repack
from fairtape.pipeline.stripes.rates import (
    Days,
    is_daily,
    joint_windows,
    likeness,
    read_days,
    read_history,
    split_trades,
    trade_symbols,
    trade_venues,
    window_series,
)

HEAD_BITS: Final = 8 * (28 + 20)  # IP, UDP and MoldUDP64 before the messages of a datagram
TRADE_BITS: Final = 8 * (2 + 44)  # a framed trade in it
WATCHED_MAX: Final = 1_500  # the busiest symbols, of which portfolios are made
SECTOR_LIKENESS: Final = 0.5  # of two symbols of one sector; more than a usual correlation, less than a high one
SECTOR_NEIGHBOURS_MAX: Final = 20  # in the list of its sector, on each side, that a symbol is made like
GROUP_LIKENESS_MIN: Final = 0.5  # symbols with this correlation burst together


@dataclass(frozen=True, eq=False)
class PlanLayout:
    """The contents of a stripe plan."""

    symbols: tuple[str, ...]
    venues: tuple[str, ...]
    places: Indices  # of symbols, in edge stripes
    cores: Indices  # of edge stripes, in core stripes
    feeds: tuple[str, ...]
    base: Endpoint


def places_in(plan: StripePlan, symbols: tuple[str, ...]) -> Indices:
    """The stripe of each symbol in a plan, with its stripes for trades counted from 0; −1 where the plan lacks it."""
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
    """The symbols of each stripe, with those of the previous plan that are not in the history."""
    found: dict[int, list[str]] = defaultdict(list)
    for symbol, place in zip(layout.symbols, layout.places.tolist(), strict=True):
        found[place].append(symbol)
    known = set(layout.symbols)
    for place, stripe in enumerate(before):
        found[place] += [symbol for symbol in stripe.symbols if symbol not in known]
    return found


def _venues(layout: PlanLayout) -> tuple[str, ...]:
    """Venues whose names fit a directory, if there are not too many listings with them."""
    venues = tuple(name for name in layout.venues if 0 < len(name) <= MPID_MAX)
    return venues if len(layout.symbols) * max(len(venues), 1) <= LISTINGS_MAX else ()


def _unused_numbers(wanted: int, taken: list[int], *, first: int) -> list[int]:
    """Numbers above the highest that was ever used, so that none has two meanings."""
    start = max(taken, default=first - 1) + 1
    return list(range(start, start + max(wanted, 0)))


def _unused(base: Endpoint, previous: StripePlan | None) -> Iterator[str]:
    """Addresses after all that the previous plan uses."""
    used = {base.address} if previous is None else _used(previous)
    last = max(used, key=lambda address: tuple(map(int, address.split("."))))
    return (following_address(last, step) for step in count(0 if previous is None else 1))


def _used(plan: StripePlan) -> set[str]:
    cores = {following_address(core.at.address, step) for core in plan.core for step in (0, 1)}
    return cores | {endpoint.address for stripe in plan.edge for _, endpoint in stripe.feeds}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The requirements of a plan."""

    edge_bits_per_s: int
    core_bits_per_s: int
    bound: float = 1e-4  # on the probability that a stripe exceeds its rate in a second or in 10 ms
    burst_period: Duration = SECOND // 10  # within which the messages of 10 ms must be sent
    reserve: float = 0.1  # of each stripe, for new symbols
    hold_back: float = 0.0  # of the time
    shares_per_message: float = SHARES_PER_MESSAGE
    windows: int = 800
    seed: int = 1

    def limits(self, windows: tuple[Windows, Windows], bits_per_s: int) -> tuple[Limit, Limit]:
        """In a second every message may have a datagram of its own; those of the same 10 ms share one."""
        second, fine = windows
        burst = bits_per_s * self.burst_period / SECOND
        return (
            Limit(second, bits_per_s / (HEAD_BITS + TRADE_BITS)),
            Limit(fine, max((burst - HEAD_BITS) / TRADE_BITS, 1.0)),
        )


@dataclass(frozen=True, eq=False)
class Held:
    """The part of the history that was held back."""

    windows: tuple[Windows, Windows]
    portfolios: list[Indices]
    description: str


@dataclass(frozen=True, eq=False)
class Study:
    """The results of reading a history."""

    description: str  # of the history
    symbols: tuple[str, ...]
    venues: tuple[str, ...]
    windows: tuple[Windows, Windows]  # of a second, of 10 ms
    likeness: Likeness
    held: Held | None


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan, and its properties."""

    plan: StripePlan
    packing: Packing
    needs: Shares  # of each edge stripe, in the order of the packing: the part of its rate that the bound needs
    numbers: tuple[int, ...]  # of the edge stripes in the plan
    moved: int  # symbols of the previous plan that are elsewhere now
    stayed: int
    results: tuple[PlanResult, ...]


def study(spark: SparkSession, place: Path, request: PlanRequest, sectors: Mapping[str, str] | None = None) -> Study:
    """Read a history of trades or of days."""
    history = read_history(spark, place)
    return (_study_days if is_daily(history) else _study_trades)(spark, history, request, sectors or {})


def _study_days(spark: SparkSession, history: DataFrame, request: PlanRequest, sectors: Mapping[str, str]) -> Study:
    days = read_days(history, request.shares_per_message)
    past, rest = days.split(request.hold_back) if request.hold_back else (days, None)
    alike = _with_sectors(likeness(spark, past.moves), days.symbols, sectors)
    groups = _groups(alike, days.symbols, sectors)
    windows = _of_both(
        lambda period: expected_windows(past.messages, groups, period=period, count=request.windows, seed=request.seed)
    )
    held = None if rest is None else _held_days(spark, rest, past, groups, request)
    return Study(_describe_days(past), days.symbols, (), windows, alike, held)


def _held_days(spark: SparkSession, rest: Days, past: Days, groups: Indices, request: PlanRequest) -> Held:
    watched = np.sort(np.argsort(-past.messages.mean(axis=1), kind="stable")[:WATCHED_MAX])
    together = likeness(spark, rest.moves, among=watched)
    rates = np.zeros(len(rest.symbols))
    rates[watched] = rest.messages[watched].mean(axis=1)
    count, seed = 4 * request.windows, request.seed + 1
    windows = _of_both(lambda period: drawn_windows(rest.messages, groups, period=period, count=count, seed=seed))
    return Held(windows, portfolios(together, rates, seed=seed), _describe_days(rest))


def _study_trades(spark: SparkSession, history: DataFrame, request: PlanRequest, sectors: Mapping[str, str]) -> Study:
    past, rest = split_trades(history, request.hold_back) if request.hold_back else (history, None)
    symbols = trade_symbols(history)
    windows = _of_both(lambda period: joint_windows(past, symbols, period, request.windows))
    alike = _with_sectors(likeness(spark, window_series(windows[0])), symbols, sectors)
    held = None
    if rest is not None:
        later = _of_both(lambda period: joint_windows(rest, symbols, period, 4 * request.windows))
        together = likeness(spark, window_series(later[0]))
        held = Held(later, portfolios(together, later[0].means, seed=request.seed), "the last part of the time")
    return Study(f"{past.count():,} trades", symbols, trade_venues(history), windows, alike, held)


def _of_both(windows: Callable[[Duration], Windows]) -> tuple[Windows, Windows]:
    return windows(SECOND), windows(FINE_PERIOD)


def _describe_days(days: Days) -> str:
    return f"{len(days.dates)} days, {days.dates[0]} to {days.dates[-1]}"


def _with_sectors(alike: Likeness, symbols: tuple[str, ...], sectors: Mapping[str, str]) -> Likeness:
    """Likeness, raised between symbols of one sector that are near one another in its list."""
    if not sectors:
        return alike
    members: dict[str, list[int]] = {}
    for number, symbol in enumerate(symbols):
        if symbol in sectors:
            members.setdefault(sectors[symbol], []).append(number)
    pairs = {
        (one, int(other)): float(weight)
        for one, (peers, weights) in enumerate(zip(alike.peers, alike.weights, strict=True))
        for other, weight in zip(peers, weights, strict=True)
    }
    for of_sector in members.values():
        for step in range(1, min(len(of_sector), SECTOR_NEIGHBOURS_MAX)):
            for one, other in zip(of_sector, of_sector[step:], strict=False):
                pairs[one, other] = pairs[other, one] = pairs.get((one, other), 0.0) + SECTOR_LIKENESS
    return Likeness.of(len(symbols), pairs)


def _groups(alike: Likeness, symbols: tuple[str, ...], sectors: Mapping[str, str]) -> Indices:
    """Groups that burst together: sectors, or, without them, each symbol with those that are most like it."""
    groups = np.full(len(symbols), -1, np.int64)
    if sectors:
        names = {name: number for number, name in enumerate(sorted(set(sectors.values())))}
        return np.array([names.get(sectors.get(symbol, ""), -1) for symbol in symbols], np.int64)
    found = 0
    for symbol in sorted(range(len(symbols)), key=lambda each: (-len(alike.peers[each]), each)):
        if groups[symbol] < 0:
            close = alike.peers[symbol][alike.weights[symbol] >= GROUP_LIKENESS_MIN]
            free = close[groups[close] < 0]
            if len(free):
                groups[free] = groups[symbol] = found
                found += 1
    return groups


def propose(
    studied: Study,
    request: PlanRequest,
    *,
    previous: StripePlan | None = None,
    midnight_at: Instant = 0,
    feeds: tuple[str, ...] = ("A", "B"),
    base: Endpoint = BASE,
) -> Proposal:
    """The plan for a history, changed from the previous one where there is one."""
    edge = request.limits(studied.windows, request.edge_bits_per_s)
    before = None if previous is None else places_in(previous, studied.symbols)
    if previous is None or before is None:
        packing = pack(edge, studied.likeness, bound=request.bound, reserve=request.reserve)
        moved = stayed = 0
    else:
        stripes = sum(not stripe.opaque for stripe in previous.edge)
        packing = repack(edge, studied.likeness, before, bound=request.bound, reserve=request.reserve, stripes=stripes)
        known = before >= 0
        moved = int((packing.places[known] != before[known]).sum())
        stayed = int(known.sum()) - moved
    cores = _cores(studied, request, packing, previous)
    layout = PlanLayout(studied.symbols, studied.venues, packing.places, cores.places, feeds, base)
    plan, numbers = plan_of(layout, request.edge_bits_per_s, request.core_bits_per_s, midnight_at, previous)
    needed = needs(edge, packing.places, packing.stripes, request.bound)
    return Proposal(plan, packing, needed, numbers, moved, stayed, _evaluate(studied, request, packing))


def _cores(studied: Study, request: PlanRequest, packing: Packing, previous: StripePlan | None) -> Packing:
    """Pack edge stripes into core stripes, in the same way."""
    windows = tuple(each.grouped(packing.places, packing.stripes) for each in studied.windows)
    limits = request.limits((windows[0], windows[1]), request.core_bits_per_s)
    alike = studied.likeness.grouped(packing.places, packing.stripes)
    if previous is None:
        return pack(limits, alike, bound=request.bound, reserve=request.reserve)
    order = {core.number: place for place, core in enumerate(previous.core)}
    kept = [order[stripe.core] for stripe in previous.edge if not stripe.opaque]
    before = np.array(kept + [-1] * (packing.stripes - len(kept)), np.int64)
    return repack(limits, alike, before, bound=request.bound, reserve=request.reserve, stripes=len(previous.core))


def _evaluate(studied: Study, request: PlanRequest, packing: Packing) -> tuple[PlanResult, ...]:
    if studied.held is None:
        return ()
    lone = np.isin(packing.places, sorted(packing.lone))
    limits = request.limits(studied.held.windows, request.edge_bits_per_s)
    evaluator = PlanEvaluator(studied.symbols, limits, np.flatnonzero(~lone), studied.held.portfolios, request.bound)
    past = [limit.scaled(1.0 - request.reserve) for limit in request.limits(studied.windows, request.edge_bits_per_s)]
    return compare(packing.places, evaluator, past)
