"""Symbols into stripes: related ones together, every stripe within its limits, few moves from plan to plan.

Two aims conflict: related stocks belong together, and they burst together. So there are two steps. First *groups* of
related symbols are built: each begins with the busiest symbol that has no place yet, and gains the symbol that is most
like its members and about as busy, until the group needs a part (`GROUP_FILL`) of the capacity of a stripe, or has
`GROUP_MAX` symbols.

Then groups are assigned to stripes, busy beside busy and calm beside calm. What overloads a stripe on a day that is not
in the history is nearly always one symbol with news, and all symbols of its stripe are affected: the harm is the number
of symbols in a stripe times the sum of their risks. Over all stripes that is least where symbols of one stripe are
equally risky, and where stripes have equal sums of the square roots of risks (Cauchy and Schwarz). A symbol's rate
stands for its risk, and `NEWS` is added, because even the calmest symbol may have news tomorrow and hundreds of them in
one stripe would be a risk. Groups are moved out of stripes that still break the bound, to others or to new ones.

A symbol that exceeds the limit alone has a stripe of its own: no packing helps it, and it must not affect others.

Everything here is arithmetic on values: no Spark, no randomness, no files. Ties go to the smaller number, so equal
histories give equal plans.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.pipeline.stripes.overrun_risk import Indices, Limit, Shares

Flags: TypeAlias = npt.NDArray[np.bool_]

TRIES_MAX: Final = 24  # symbols that are tried before a stripe counts as full
SEARCH_STEP: Final = 20  # the number of stripes is raised by 1/20 until it is enough
GROUP_FILL: Final = 0.35  # of a stripe: what a group may need
GROUP_MAX: Final = 32  # symbols of a group, however calm
NEWS: Final = 3e-4  # of a stripe: added to the risk of every symbol
REPAIRED_MAX: Final = 0.2  # of the stripes: where more break the bound, there are too few stripes


@dataclass(frozen=True, slots=True)
class Likeness:
    """Which symbols are related, and how much: for each symbol its peers, with a weight > 0 for each."""

    peers: tuple[Indices, ...]
    weights: tuple[Shares, ...]

    @classmethod
    def of(cls, symbols: int, pairs: Mapping[tuple[int, int], float]) -> "Likeness":
        """From weights of pairs, which are symmetric."""
        both: list[dict[int, float]] = [{} for _ in range(symbols)]
        for (one, other), weight in pairs.items():
            if one != other and weight > 0:
                both[one][other] = both[other][one] = max(weight, both[one].get(other, 0.0))
        ordered = [sorted(each.items()) for each in both]
        peers = tuple(np.array([peer for peer, _ in each], np.int64) for each in ordered)
        return cls(peers, tuple(np.array([weight for _, weight in each]) for each in ordered))

    def grouped(self, places: Indices, stripes: int) -> "Likeness":
        """The likeness of stripes: the sum over their symbols."""
        pairs: dict[tuple[int, int], float] = {}
        for symbol, (peers, weights) in enumerate(zip(self.peers, self.weights, strict=True)):
            for peer, weight in zip(places[peers].tolist(), weights.tolist(), strict=True):
                pair = int(places[symbol]), peer
                if pair[0] < peer:
                    pairs[pair] = pairs.get(pair, 0.0) + weight
        return Likeness.of(stripes, pairs)


@dataclass(frozen=True, slots=True)
class Packing:
    """The stripe of each symbol."""

    places: Indices
    stripes: int
    fill: float  # the part of their capacity that stripes were allowed to use
    lone: frozenset[int]  # stripes of one symbol that exceeds a limit alone

    @property
    def members(self) -> list[list[int]]:
        """The symbols of each stripe."""
        found: list[list[int]] = [[] for _ in range(self.stripes)]
        for symbol, place in enumerate(self.places.tolist()):
            found[place].append(symbol)
        return found


class _Stripes:
    """Stripes that are being filled, with the totals of each in every window of every limit."""

    def __init__(self, limits: Sequence[Limit], bound: float, symbols: int, *, fill: float = 1.0) -> None:
        self._whole = limits
        self._limits = [limit.scaled(fill) for limit in limits]
        self._bound = bound
        self.totals: list[list[Shares]] = []  # of each stripe, for each limit: counts and spread
        self.rates = effective_rates(limits, bound)
        self.places = np.full(symbols, -1, np.int64)
        self.lone: set[int] = set()

    def is_too_busy(self, symbol: int) -> bool:
        """Whether a symbol alone exceeds the full limit."""
        return any(
            limit.chance(limit.windows.counts[symbol], limit.windows.spread[symbol]) > self._bound
            for limit in self._whole
        )

    def open(self) -> int:
        self.totals.append([np.zeros((2, limit.windows.counts.shape[1])) for limit in self._limits])
        return len(self.totals) - 1

    def empty_one(self) -> int:
        """A stripe without a symbol, opened where there is none."""
        found = np.flatnonzero(np.bincount(self.places[self.places >= 0], minlength=len(self.totals)) == 0)
        return int(found[0]) if len(found) else self.open()

    def fits(self, symbol: int, stripe: int) -> bool:
        """Whether the bound is kept with this symbol in this stripe."""
        for limit, (counts, spread) in zip(self._limits, self.totals[stripe], strict=True):
            windows = limit.windows
            if limit.chance(counts + windows.counts[symbol], spread + windows.spread[symbol]) > self._bound:
                return False
        return True

    def chance(self, stripe: int) -> float:
        """The probability that a stripe exceeds a limit."""
        return max(limit.chance(*total) for limit, total in zip(self._limits, self.totals[stripe], strict=True))

    def is_within(self, stripe: int) -> bool:
        return self.chance(stripe) <= self._bound

    def busiest(self, symbols: Iterable[int]) -> list[int]:
        """These symbols, those with the highest effective rates first."""
        return sorted(symbols, key=lambda symbol: (-self.rates[symbol], symbol))

    def put(self, symbol: int, stripe: int) -> None:
        for limit, total in zip(self._limits, self.totals[stripe], strict=True):
            total[0] += limit.windows.counts[symbol]
            total[1] += limit.windows.spread[symbol]
        self.places[symbol] = stripe

    def take(self, symbol: int) -> None:
        for limit, total in zip(self._limits, self.totals[self.places[symbol]], strict=True):
            np.maximum(total[0] - limit.windows.counts[symbol], 0.0, out=total[0])
            np.maximum(total[1] - limit.windows.spread[symbol], 0.0, out=total[1])
        self.places[symbol] = -1


def pack(limits: Sequence[Limit], likeness: Likeness, *, bound: float, reserve: float = 0.0) -> Packing:
    """Few stripes that keep the bound with a part of their capacity in reserve."""
    assert 0.0 < bound < 1.0
    assert 0.0 <= reserve < 1.0
    fill = 1.0 - reserve
    grown = _related_groups(limits, likeness, bound, GROUP_FILL * fill)
    within = [limit.grouped(grown.places, grown.stripes).scaled(fill) for limit in limits]
    alone = {group for group in range(grown.stripes) if _chance(within, group) > bound}
    groups = _SymbolGroups(
        within,
        likeness.grouped(grown.places, grown.stripes),
        _summed(grown, effective_rates(limits, bound) + NEWS),
        _summed(grown, np.ones(len(grown.places))),
        bound,
    )
    spread = _few(groups, [group for group in range(grown.stripes) if group not in alone])
    used = max(spread.values(), default=-1) + 1
    spread |= {group: used + place for place, group in enumerate(sorted(alone))}
    places = np.array([spread[group] for group in grown.places.tolist()], np.int64)
    return Packing(places, used + len(alone), fill, frozenset(spread[group] for group in grown.lone))


@dataclass(frozen=True, slots=True, eq=False)
class _SymbolGroups:
    """Groups of related symbols, before they are assigned to stripes."""

    limits: Sequence[Limit]
    likeness: Likeness
    risks: Shares  # of all symbols of each
    sizes: Shares  # symbols of each
    bound: float


def _summed(grown: Packing, values: Shares) -> Shares:
    """The sum of these values over the symbols of each group."""
    return np.bincount(grown.places, values, minlength=grown.stripes).astype(np.float64)


def _chance(limits: Sequence[Limit], group: int) -> float:
    return max(limit.chance(limit.windows.counts[group], limit.windows.spread[group]) for limit in limits)


def _few(groups: _SymbolGroups, chosen: Sequence[int]) -> dict[int, int]:
    """The stripe of each of these groups, for the first number of stripes that is about enough."""
    first = groups.limits[0]
    means = first.windows.means / first.messages_max
    stripes = max(1, int(means[list(chosen)].sum()))  # fewer could not carry the mean
    while stripes < len(chosen):
        found = _within_bound(groups, _side_by_side(groups, chosen, stripes))
        if found is not None:
            return found
        stripes += max(1, stripes // SEARCH_STEP)
    return {group: stripe for stripe, group in enumerate(chosen)}


def effective_rates(limits: Sequence[Limit], bound: float) -> Shares:
    """The effective bandwidth of each row: its mean, and more of its variance the lower the bound (Kelly 1996, §2).

    It is a statistic of one row, and so it does not overfit: choosing among many places by the probability itself would
    fit the same few busy windows.
    """
    rates = np.zeros(len(limits[0].windows.counts))
    for limit in limits:
        windows = limit.windows
        means = windows.counts @ windows.weights
        squares = (windows.counts * windows.counts + windows.spread) @ windows.weights
        variances = np.maximum(squares - means * means, 0.0) + windows.clump * means
        rates = np.maximum(rates, (means - np.log(bound) / limit.messages_max / 2 * variances) / limit.messages_max)
    return rates


def _side_by_side(groups: _SymbolGroups, chosen: Sequence[int], stripes: int) -> dict[int, int]:
    """Groups from the riskiest to the calmest, cut into stripes with equal sums of the roots of their risks."""
    mean = groups.risks / groups.sizes
    ordered = sorted(chosen, key=lambda group: (-mean[group], group))
    roots = (groups.sizes * np.sqrt(mean))[ordered]
    middles = np.cumsum(roots) - roots / 2
    cut = np.minimum(middles / max(roots.sum(), 1e-300) * stripes, stripes - 1).astype(np.int64)
    return dict(zip(ordered, cut.tolist(), strict=True))


def _within_bound(groups: _SymbolGroups, spread: Mapping[int, int]) -> dict[int, int] | None:
    """These places, with groups moved out of stripes that break the bound; None where too many stripes do.

    A group is moved to the stripe with the least harm, among the first few in which it fits.
    """
    stripes = _Stripes(groups.limits, groups.bound, len(groups.risks))
    for _ in range(max(spread.values()) + 1):
        stripes.open()
    for group, stripe in spread.items():
        stripes.put(group, stripe)
    beyond = [stripe for stripe in range(len(stripes.totals)) if not stripes.is_within(stripe)]
    if len(beyond) > REPAIRED_MAX * len(stripes.totals):
        return None
    for stripe in beyond:
        _relieve(stripes, groups.likeness, stripe)
    moving = [group for group in spread if stripes.places[group] < 0]
    for group in stripes.busiest(moving):
        stripes.put(group, _harmless(stripes, groups, group))
    _, dense = np.unique(stripes.places[list(spread)], return_inverse=True)
    return dict(zip(spread, dense.tolist(), strict=True))


def _harmless(stripes: _Stripes, groups: _SymbolGroups, group: int) -> int:
    """The stripe in which a group does the least harm, or a new one."""
    placed = stripes.places >= 0
    where, count = stripes.places[placed], len(stripes.totals)
    sizes = np.bincount(where, groups.sizes[placed], minlength=count)
    risks = np.bincount(where, groups.risks[placed], minlength=count)
    harm = sizes * groups.risks[group] + groups.sizes[group] * risks
    for stripe in np.argsort(harm, kind="stable")[:TRIES_MAX].tolist():
        if stripes.fits(group, stripe):
            return int(stripe)
    return stripes.open()


def repack(
    limits: Sequence[Limit],
    likeness: Likeness,
    previous: Indices,
    *,
    bound: float,
    reserve: float = 0.0,
    stripes: int = 0,
) -> Packing:
    """The previous places, changed only where needed: new symbols (−1) get one, overfull stripes lose some.

    `stripes` is the number of the previous plan, with empty ones. Symbols that stay may use the reserve, which is for
    that. Symbols that move or are new leave it free.
    """
    full = _Stripes(limits, bound, len(previous))
    for _ in range(max(stripes, int(previous.max(initial=-1)) + 1)):
        full.open()
    for symbol in np.flatnonzero(previous >= 0).tolist():
        full.put(symbol, int(previous[symbol]))
    for stripe in range(len(full.totals)):
        _relieve(full, likeness, stripe)
    kept = _Stripes(limits, bound, len(previous), fill=1.0 - reserve)
    kept.places, kept.totals, kept.lone = full.places, full.totals, full.lone
    for symbol in full.busiest(np.flatnonzero(full.places < 0).tolist()):
        _place(kept, likeness, symbol)
    return Packing(kept.places, len(kept.totals), 1.0 - reserve, frozenset(kept.lone))


def _related_groups(limits: Sequence[Limit], likeness: Likeness, bound: float, fill: float) -> Packing:
    """Groups of related symbols, as stripes that are filled up to `fill`."""
    symbols = len(likeness.peers)
    stripes = _Stripes(limits, bound, symbols, fill=fill)
    for symbol in stripes.busiest(range(symbols)):
        if stripes.places[symbol] < 0:
            _grow(stripes, likeness, symbol)
    return Packing(stripes.places, len(stripes.totals), fill, frozenset(stripes.lone))


def _grow(stripes: _Stripes, likeness: Likeness, seed: int) -> None:
    """Open a stripe for this symbol and add related symbols that fit, those that are about as busy first."""
    stripe = stripes.open()
    stripes.put(seed, stripe)
    if stripes.is_too_busy(seed):
        stripes.lone.add(stripe)
        return
    rates = np.maximum(stripes.rates, 1e-300)
    nearness = np.minimum(rates / rates[seed], rates[seed] / rates)
    pull = np.zeros(len(stripes.places))
    refused = np.zeros(len(stripes.places), bool)
    newest = seed
    for _ in range(GROUP_MAX - 1):
        peers = likeness.peers[newest]
        pull[peers] += likeness.weights[newest] * nearness[peers]
        related = _next(stripes, stripe, np.where((stripes.places < 0) & ~refused, pull, 0.0), refused)
        if related is None:
            break
        newest = related
        stripes.put(newest, stripe)


def _next(stripes: _Stripes, stripe: int, pull: Shares, refused: Flags) -> int | None:
    """The most related symbol that fits. One that does not fit now never will: a stripe only gets fuller."""
    related = np.flatnonzero(pull)
    if len(related) > TRIES_MAX:
        related = related[np.argpartition(-pull[related], TRIES_MAX)[:TRIES_MAX]]
    for symbol in sorted(related.tolist(), key=lambda each: (-pull[each], each)):
        if stripes.fits(symbol, stripe):
            return int(symbol)
        refused[symbol] = True
    return None


def _related_stripes(stripes: _Stripes, likeness: Likeness, symbol: int) -> list[int]:
    """The stripes with related symbols, the most related first."""
    peers, weights = likeness.peers[symbol], likeness.weights[symbol]
    placed = stripes.places[peers] >= 0
    pull = np.bincount(stripes.places[peers][placed], weights[placed], minlength=len(stripes.totals))
    found = np.flatnonzero(pull)
    return sorted(found.tolist(), key=lambda stripe: (-pull[stripe], stripe))


def _relieve(stripes: _Stripes, likeness: Likeness, stripe: int) -> None:
    """Take symbols out of an overfull stripe, as few as possible; one always stays.

    The busiest leave until one symbol would be enough; then, of those that would be, the least related one leaves.
    """
    members = stripes.busiest(np.flatnonzero(stripes.places == stripe).tolist())
    while len(members) > 1 and not stripes.is_within(stripe):
        leaves = members[0]
        if _is_relief(stripes, leaves, stripe):
            enough = [symbol for symbol in members if _is_relief(stripes, symbol, stripe)]
            leaves = min(enough, key=lambda symbol: (_likeness_to(stripes, likeness, symbol, stripe), symbol))
        stripes.take(leaves)
        members.remove(leaves)
    if len(members) == 1 and not stripes.is_within(stripe):
        stripes.lone.add(stripe)


def _is_relief(stripes: _Stripes, symbol: int, stripe: int) -> bool:
    """Whether the stripe is within its limits without this symbol."""
    stripes.take(symbol)
    relieved = stripes.is_within(stripe)
    stripes.put(symbol, stripe)
    return relieved


def _likeness_to(stripes: _Stripes, likeness: Likeness, symbol: int, stripe: int) -> float:
    return float(likeness.weights[symbol][stripes.places[likeness.peers[symbol]] == stripe].sum())


def _place(stripes: _Stripes, likeness: Likeness, symbol: int) -> None:
    """Put a symbol beside related ones, or else where it fits first, or else into a stripe of its own."""
    groups = _related_stripes(stripes, likeness, symbol)
    for stripe in [*groups, *(each for each in range(len(stripes.totals)) if each not in groups)]:
        if stripe not in stripes.lone and stripes.fits(symbol, stripe):
            stripes.put(symbol, stripe)
            return
    stripe = stripes.empty_one()
    stripes.put(symbol, stripe)
    if stripes.is_too_busy(symbol):
        stripes.lone.add(stripe)
