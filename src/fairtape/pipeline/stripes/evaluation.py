"""Evaluation of a packing on held-back history, beside two other methods.

Results are the number of stripes; how often a stripe exceeded its rate, as customers see it (the part of the time in
which a symbol's stripe was over its rate: the mean over all symbols that a stripe can carry, and the 99th percentile);
and how many stripes a customer must receive for a portfolio of stocks that move together. Whether a single stripe keeps
a bound of one in ten thousand cannot be seen from a few thousand windows.

The other methods are alphabetical ranges with equal rates, as real tapes had them, and the naive planner of
`fairtape.market.stripes`, which uses rates alone. Each is evaluated twice: with as many stripes as the packing,
and with as many as it needs to keep the bound on the history that the packing was made from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from fairtape.market.stripes import STRIPES_MAX, plan_by_rate
from fairtape.pipeline.stripes.overrun_risk import Indices, Limit, Shares, chances
from fairtape.pipeline.stripes.packing import Likeness

PORTFOLIOS: Final = 2_000
PORTFOLIO_SIZE: Final = 20
WORST: Final = 0.99
SCALE: Final = 1_000_000  # rates of the naive planner are whole numbers

Method: TypeAlias = Callable[[Sequence[str], Shares, int], Indices]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The results of one plan."""

    name: str
    stripes: int
    overruns: tuple[float, ...]  # the part of the time, for each limit
    worst: tuple[float, ...]  # the same, at the 99th percentile of symbols
    stripes_per_portfolio: float


def alphabetical(symbols: Sequence[str], rates: Shares, stripes: int) -> Indices:
    """Contiguous ranges of names with about equal rates."""
    order = sorted(range(len(symbols)), key=lambda each: symbols[each])
    middle = np.cumsum(rates[order]) - rates[order] / 2
    places = np.empty(len(symbols), np.int64)
    places[order] = np.minimum(middle / rates.sum() * stripes, stripes - 1).astype(np.int64)
    return places


def by_rate(symbols: Sequence[str], rates: Shares, stripes: int) -> Indices:
    """The naive planner: the busiest first, each to the stripe with the least load."""
    whole = {symbol: int(rate * SCALE) for symbol, rate in zip(symbols, rates.tolist(), strict=True)}
    plan = plan_by_rate(whole, stripes, 1).plan
    return np.array([plan.edge_of(symbol) - 1 for symbol in symbols], np.int64)


METHODS: Final[dict[str, Method]] = {"alphabetical ranges": alphabetical, "rate only": by_rate}


def overruns(limit: Limit, places: Indices, carried: Indices) -> tuple[float, float]:
    """The part of the time in which a symbol's stripe is over its limit: mean and 99th percentile of symbols.

    `carried` are the symbols that a stripe can carry at all; no plan could keep the limit for others.
    """
    grouped = limit.windows.grouped(places, int(places.max()) + 1)
    if not len(carried):
        return 0.0, 0.0
    over = ((grouped.counts > limit.messages_max) @ grouped.weights)[places[carried]]
    return float(over.mean()), float(np.quantile(over, WORST, method="lower"))


def portfolios(likeness: Likeness, rates: Shares, *, seed: int) -> list[Indices]:
    """Portfolios of customers: a stock, drawn by its rate, and others that move with it."""
    rich = np.array([symbol for symbol, peers in enumerate(likeness.peers) if len(peers)], np.int64)
    if not len(rich):
        return []
    chance = np.random.default_rng(seed)
    share = rates[rich] / rates[rich].sum()
    found = []
    for symbol in chance.choice(rich, PORTFOLIOS, p=share).tolist():
        peers, weights = likeness.peers[symbol], likeness.weights[symbol]
        nearest = peers[np.argsort(-weights, kind="stable")][: 2 * PORTFOLIO_SIZE]
        others = chance.permutation(nearest)[: PORTFOLIO_SIZE - 1]
        found.append(np.append(others, symbol))
    return found


def stripes_heard(held: Sequence[Indices], places: Indices) -> float:
    """The mean number of stripes that a portfolio is spread over."""
    return float(np.mean([len(np.unique(places[symbols])) for symbols in held])) if held else 0.0


@dataclass(frozen=True, eq=False)
class PlanEvaluator:
    """Held-back history, on which plans are evaluated."""

    symbols: Sequence[str]
    limits: Sequence[Limit]  # of the held-back time
    carried: Indices
    held: Sequence[Indices]  # portfolios
    bound: float

    def evaluate(self, name: str, places: Indices) -> PlanResult:
        """The results of this plan."""
        found = [overruns(limit, places, self.carried) for limit in self.limits]
        mean, worst = zip(*found, strict=True)
        used = len(np.unique(places))
        return PlanResult(name, used, tuple(mean), tuple(worst), stripes_heard(self.held, places))


def stripes_needed(
    method: Method, symbols: Sequence[str], limits: Sequence[Limit], carried: Indices, bound: float
) -> int | None:
    """The fewest stripes with which a method keeps the bound for every symbol that can be carried, or None.

    `limits` are those that plans are made from. A symbol that no stripe can carry also breaks the bound for the symbols
    beside it, so a method that uses only rates needs stripes until such a symbol is alone.
    """
    rates = limits[0].windows.means
    most = min(len(symbols), STRIPES_MAX - 1)

    def keeps(stripes: int) -> bool:
        places = method(symbols, rates, stripes)
        return bool((chances(limits, places, stripes)[places[carried]] <= bound).all())

    low, high = 1, 1
    while high < most and not keeps(high):
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle + 1, high)
    return high if keeps(high) else None


def compare(ours: Indices, evaluator: PlanEvaluator, past: Sequence[Limit]) -> tuple[PlanResult, ...]:
    """The results of our plan, then of each other method with as many stripes, and with as many as the bound needs.

    `past` are the limits that the plan was made with, without the reserve for new symbols: others keep it, too.
    """
    rates = past[0].windows.means
    stripes = len(np.unique(ours))
    results = [evaluator.evaluate("this plan", ours)]
    for name, method in METHODS.items():
        results.append(evaluator.evaluate(f"{name}, as many stripes", method(evaluator.symbols, rates, stripes)))
        needed = stripes_needed(method, evaluator.symbols, past, evaluator.carried, evaluator.bound)
        if needed is not None:
            results.append(evaluator.evaluate(f"{name}, until in bounds", method(evaluator.symbols, rates, needed)))
    return tuple(results)
