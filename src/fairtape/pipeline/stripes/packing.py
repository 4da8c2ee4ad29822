"""Symbols into stripes: related ones together, every stripe within its limits, few moves from plan to plan.

Two wishes are at odds: related stocks belong together, and they burst together. So there are two steps. First
*families* grow: each from the busiest symbol that has no place yet, and again and again the symbol comes in that is
most like those inside and about as busy, until the family needs a part (`FAMILY_FILL`) of what a stripe can carry, or
has `FAMILY_MAX` symbols.

Then families get stripes, the busy beside the busy and the calm beside the calm. For what breaks a stripe on a day that
the history has not seen is nearly always one symbol with news, and whoever is in the same stripe suffers with it: the
harm is the number of symbols in a stripe times the sum of their risks. Over all stripes that is least where symbols of
one stripe are equally risky, and where stripes have equal sums of the square roots of risks (Cauchy and Schwarz). A
symbol's rate stands for its risk, and `NEWS` is added: the calmest of all may be bought up tomorrow, so that hundreds
of them in one stripe would be a bad bet. Stripes that break the bound all the same lose families to others, or to new
ones.

A symbol that exceeds the limit alone has a stripe for itself: no packing helps it, and it shall not spoil others.

Everything here is arithmetic on values: no Spark, no chance, no file. Ties go to the smaller number, so equal histories
give equal plans.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.pipeline.stripes.limits import Limit, Places, Shares

Flags: TypeAlias = npt.NDArray[np.bool_]

TRIES_MAX: Final = 24  # symbols that are tried before a stripe counts as full
SEARCH_STEP: Final = 20  # one in so many more stripes, until there are enough
FAMILY_FILL: Final = 0.35  # of a stripe: what a family may need
FAMILY_MAX: Final = 32  # symbols of a family, however calm
NEWS: Final = 3e-4  # of a stripe: every symbol is as risky as one that needs so much more than it does
MENDED_MAX: Final = 0.2  # of the stripes: where more break the bound, there are too few of them


@dataclass(frozen=True, slots=True)
class Likeness:
    """Which symbols belong together, and how much: for each symbol its peers and a weight above zero for each."""

    peers: tuple[Places, ...]
    weights: tuple[Shares, ...]

    @classmethod
    def of(cls, symbols: int, pairs: Mapping[tuple[int, int], float]) -> "Likeness":
        """From weights of pairs, which hold in both directions."""
        both: list[dict[int, float]] = [{} for _ in range(symbols)]
        for (one, other), weight in pairs.items():
            if one != other and weight > 0:
                both[one][other] = both[other][one] = max(weight, both[one].get(other, 0.0))
        ordered = [sorted(each.items()) for each in both]
        peers = tuple(np.array([peer for peer, _ in each], np.int64) for each in ordered)
        return cls(peers, tuple(np.array([weight for _, weight in each]) for each in ordered))

    def grouped(self, places: Places, stripes: int) -> "Likeness":
        """How much stripes belong together: the sum over their symbols."""
        pairs: dict[tuple[int, int], float] = {}
        for symbol, (peers, weights) in enumerate(zip(self.peers, self.weights, strict=True)):
            for peer, weight in zip(places[peers].tolist(), weights.tolist(), strict=True):
                pair = int(places[symbol]), peer
                if pair[0] < peer:
                    pairs[pair] = pairs.get(pair, 0.0) + weight
        return Likeness.of(stripes, pairs)


@dataclass(frozen=True, slots=True)
class Packing:
    """Where each symbol is."""

    places: Places
    stripes: int
    fill: float  # the part of the room that stripes were allowed to use
    lone: frozenset[int]  # stripes of one symbol that exceeds a limit alone

    @property
    def members(self) -> list[list[int]]:
        """The symbols of each stripe."""
        found: list[list[int]] = [[] for _ in range(self.stripes)]
        for symbol, place in enumerate(self.places.tolist()):
            found[place].append(symbol)
        return found


class _Stripes:
    """Stripes that are being filled: what each has in every window of every limit."""

    def __init__(self, limits: Sequence[Limit], bound: float, symbols: int, *, fill: float = 1.0) -> None:
        self._whole = limits
        self._limits = [limit.scaled(fill) for limit in limits]
        self._bound = bound
        self.totals: list[list[Shares]] = []  # of each stripe, for each limit: counts and spread
        self.rates = effective_rates(limits, bound)
        self.places = np.full(symbols, -1, np.int64)
        self.lone: set[int] = set()

    def is_too_busy(self, symbol: int) -> bool:
        """Whether a symbol exceeds a limit alone, with all of the room."""
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
        """Whether the chance stays below the bound with this symbol in this stripe."""
        for limit, (counts, spread) in zip(self._limits, self.totals[stripe], strict=True):
            windows = limit.windows
            if limit.chance(counts + windows.counts[symbol], spread + windows.spread[symbol]) > self._bound:
                return False
        return True

    def chance(self, stripe: int) -> float:
        """That a stripe exceeds a limit."""
        return max(limit.chance(*total) for limit, total in zip(self._limits, self.totals[stripe], strict=True))

    def is_within(self, stripe: int) -> bool:
        return self.chance(stripe) <= self._bound

    def busiest(self, symbols: Iterable[int]) -> list[int]:
        """These symbols, in the order of what they need."""
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


def pack(limits: Sequence[Limit], likeness: Likeness, *, bound: float, room: float = 0.0) -> Packing:
    """Few stripes that keep the bound with this part of their room left free."""
    assert 0.0 < bound < 1.0
    assert 0.0 <= room < 1.0
    fill = 1.0 - room
    grown = _families(limits, likeness, bound, FAMILY_FILL * fill)
    within = [limit.grouped(grown.places, grown.stripes).scaled(fill) for limit in limits]
    alone = {family for family in range(grown.stripes) if _chance(within, family) > bound}
    families = _Families(
        within,
        likeness.grouped(grown.places, grown.stripes),
        _summed(grown, effective_rates(limits, bound) + NEWS),
        _summed(grown, np.ones(len(grown.places))),
        bound,
    )
    spread = _few(families, [family for family in range(grown.stripes) if family not in alone])
    used = max(spread.values(), default=-1) + 1
    spread |= {family: used + place for place, family in enumerate(sorted(alone))}
    places = np.array([spread[family] for family in grown.places.tolist()], np.int64)
    return Packing(places, used + len(alone), fill, frozenset(spread[family] for family in grown.lone))


@dataclass(frozen=True, slots=True, eq=False)
class _Families:
    """What is known of families when they get their stripes."""

    limits: Sequence[Limit]
    likeness: Likeness
    risks: Shares  # of all symbols of each
    sizes: Shares  # symbols of each
    bound: float


def _summed(grown: Packing, values: Shares) -> Shares:
    """The sum of these values over the symbols of each family."""
    return np.bincount(grown.places, values, minlength=grown.stripes).astype(np.float64)


def _chance(limits: Sequence[Limit], family: int) -> float:
    return max(limit.chance(limit.windows.counts[family], limit.windows.spread[family]) for limit in limits)


def _few(families: _Families, chosen: Sequence[int]) -> dict[int, int]:
    """The stripe of each of these families; the first number of stripes that is about enough for all."""
    first = families.limits[0]
    means = first.windows.means / first.messages_max
    stripes = max(1, int(means[list(chosen)].sum()))  # fewer could not carry the mean
    while stripes < len(chosen):
        found = _within_bound(families, _side_by_side(families, chosen, stripes))
        if found is not None:
            return found
        stripes += max(1, stripes // SEARCH_STEP)
    return {family: stripe for stripe, family in enumerate(chosen)}


def effective_rates(limits: Sequence[Limit], bound: float) -> Shares:
    """What each row needs of a stripe: its mean, and of its variance so much as the bound asks (Kelly 1996, §2).

    It is a statistic of one row, so it can be trusted where the chance itself cannot: whoever chooses among many places
    by what happened in the same few busy windows learns these windows by heart.
    """
    rates = np.zeros(len(limits[0].windows.counts))
    for limit in limits:
        windows = limit.windows
        means = windows.counts @ windows.weights
        squares = (windows.counts * windows.counts + windows.spread) @ windows.weights
        variances = np.maximum(squares - means * means, 0.0) + windows.clump * means
        rates = np.maximum(rates, (means - np.log(bound) / limit.messages_max / 2 * variances) / limit.messages_max)
    return rates


def _side_by_side(families: _Families, chosen: Sequence[int], stripes: int) -> dict[int, int]:
    """Families from the riskiest to the calmest, cut into stripes with equal sums of the roots of their risks."""
    mean = families.risks / families.sizes
    ordered = sorted(chosen, key=lambda family: (-mean[family], family))
    roots = (families.sizes * np.sqrt(mean))[ordered]
    middles = np.cumsum(roots) - roots / 2
    cut = np.minimum(middles / max(roots.sum(), 1e-300) * stripes, stripes - 1).astype(np.int64)
    return dict(zip(ordered, cut.tolist(), strict=True))


def _within_bound(families: _Families, spread: Mapping[int, int]) -> dict[int, int] | None:
    """These places, with families moved out of stripes that break the bound; None where too many of them do.

    A family goes to where it does and suffers the least harm, of the first few places where it fits.
    """
    stripes = _Stripes(families.limits, families.bound, len(families.risks))
    for _ in range(max(spread.values()) + 1):
        stripes.open()
    for family, stripe in spread.items():
        stripes.put(family, stripe)
    beyond = [stripe for stripe in range(len(stripes.totals)) if not stripes.is_within(stripe)]
    if len(beyond) > MENDED_MAX * len(stripes.totals):
        return None
    for stripe in beyond:
        _relieve(stripes, families.likeness, stripe)
    moving = [family for family in spread if stripes.places[family] < 0]
    for family in stripes.busiest(moving):
        stripes.put(family, _harmless(stripes, families, family))
    _, dense = np.unique(stripes.places[list(spread)], return_inverse=True)
    return dict(zip(spread, dense.tolist(), strict=True))


def _harmless(stripes: _Stripes, families: _Families, family: int) -> int:
    """The stripe in which a family does the least harm, or a new one."""
    placed = stripes.places >= 0
    where, count = stripes.places[placed], len(stripes.totals)
    sizes = np.bincount(where, families.sizes[placed], minlength=count)
    risks = np.bincount(where, families.risks[placed], minlength=count)
    harm = sizes * families.risks[family] + families.sizes[family] * risks
    for stripe in np.argsort(harm, kind="stable")[:TRIES_MAX].tolist():
        if stripes.fits(family, stripe):
            return int(stripe)
    return stripes.open()


def repack(
    limits: Sequence[Limit], likeness: Likeness, previous: Places, *, bound: float, room: float = 0.0, stripes: int = 0
) -> Packing:
    """The previous places, changed only where they must be: newcomers (−1) find one, too full stripes lose some.

    `stripes` is how many the previous plan had, empty ones included. What is kept may use all of the room: that is what
    the room was for. What moves or comes anew leaves some again.
    """
    full = _Stripes(limits, bound, len(previous))
    for _ in range(max(stripes, int(previous.max(initial=-1)) + 1)):
        full.open()
    for symbol in np.flatnonzero(previous >= 0).tolist():
        full.put(symbol, int(previous[symbol]))
    for stripe in range(len(full.totals)):
        _relieve(full, likeness, stripe)
    kept = _Stripes(limits, bound, len(previous), fill=1.0 - room)
    kept.places, kept.totals, kept.lone = full.places, full.totals, full.lone
    for symbol in full.busiest(np.flatnonzero(full.places < 0).tolist()):
        _settle(kept, likeness, symbol)
    return Packing(kept.places, len(kept.totals), 1.0 - room, frozenset(kept.lone))


def _families(limits: Sequence[Limit], likeness: Likeness, bound: float, fill: float) -> Packing:
    """Symbols that stay together."""
    symbols = len(likeness.peers)
    stripes = _Stripes(limits, bound, symbols, fill=fill)
    for symbol in stripes.busiest(range(symbols)):
        if stripes.places[symbol] < 0:
            _grow(stripes, likeness, symbol)
    return Packing(stripes.places, len(stripes.totals), fill, frozenset(stripes.lone))


def _grow(stripes: _Stripes, likeness: Likeness, seed: int) -> None:
    """Open a stripe for this symbol and take in as much of its family as fits, those first who are about as busy."""
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
    for _ in range(FAMILY_MAX - 1):
        peers = likeness.peers[newest]
        pull[peers] += likeness.weights[newest] * nearness[peers]
        related = _next(stripes, stripe, np.where((stripes.places < 0) & ~refused, pull, 0.0), refused)
        if related is None:
            break
        newest = related
        stripes.put(newest, stripe)


def _next(stripes: _Stripes, stripe: int, pull: Shares, refused: Flags) -> int | None:
    """The most related symbol that fits. Who does not fit now never will: a stripe only gets fuller."""
    related = np.flatnonzero(pull)
    if len(related) > TRIES_MAX:
        related = related[np.argpartition(-pull[related], TRIES_MAX)[:TRIES_MAX]]
    for symbol in sorted(related.tolist(), key=lambda each: (-pull[each], each)):
        if stripes.fits(symbol, stripe):
            return int(symbol)
        refused[symbol] = True
    return None


def _homes(stripes: _Stripes, likeness: Likeness, symbol: int) -> list[int]:
    """The stripes in which a symbol has family, most of it first."""
    peers, weights = likeness.peers[symbol], likeness.weights[symbol]
    placed = stripes.places[peers] >= 0
    pull = np.bincount(stripes.places[peers][placed], weights[placed], minlength=len(stripes.totals))
    found = np.flatnonzero(pull)
    return sorted(found.tolist(), key=lambda stripe: (-pull[stripe], stripe))


def _relieve(stripes: _Stripes, likeness: Likeness, stripe: int) -> None:
    """Take symbols out of a stripe that got too full, as few as will do; one always stays.

    The busiest leave, until one of them would be enough; then of all who would be, the one with the least family does.
    """
    members = stripes.busiest(np.flatnonzero(stripes.places == stripe).tolist())
    while len(members) > 1 and not stripes.is_within(stripe):
        leaves = members[0]
        if _is_relief(stripes, leaves, stripe):
            enough = [symbol for symbol in members if _is_relief(stripes, symbol, stripe)]
            leaves = min(enough, key=lambda symbol: (_family_in(stripes, likeness, symbol, stripe), symbol))
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


def _family_in(stripes: _Stripes, likeness: Likeness, symbol: int, stripe: int) -> float:
    return float(likeness.weights[symbol][stripes.places[likeness.peers[symbol]] == stripe].sum())


def _settle(stripes: _Stripes, likeness: Likeness, symbol: int) -> None:
    """Put a symbol where its family is, or else where it fits first, or else into a stripe of its own."""
    families = _homes(stripes, likeness, symbol)
    for stripe in [*families, *(each for each in range(len(stripes.totals)) if each not in families)]:
        if stripe not in stripes.lone and stripes.fits(symbol, stripe):
            stripes.put(symbol, stripe)
            return
    stripe = stripes.empty_one()
    stripes.put(symbol, stripe)
    if stripes.is_too_busy(symbol):
        stripes.lone.add(stripe)
