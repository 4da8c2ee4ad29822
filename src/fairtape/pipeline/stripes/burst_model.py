"""A model of bursts within a day: from messages of a day to messages of a second or of 10 ms.

Daily volumes have no times within the day. This model supplies them; everything that is drawn from it depends on its
seed alone. In a window of the day the rate of symbol i is

    (messages of the day) · u(x) · M · G(group of i) · B(i)      all factors with mean 1

- u(x) is the day's shape at x, from open (0) to close (1): a wide U, high in the first twentieth (2.6 times the mean
  at the open), low at noon, higher again before the close;
- M is a burst of the whole market, G of a group of related stocks, B of one stock: log-normal, because reactions
  multiply. The sigmas are such that the busiest second of a day is some 10 to 20 times the mean one, as on the
  consolidated tape of the United States;
- activity is a cascade: what makes the days of a stock differ makes its hours and seconds differ. So the sigma of B is
  in proportion to that of the stock's own days, within bounds: calm stocks are calm within the day;
- in 10 ms B varies more, and messages come in clumps: one large order meets several resting ones, and each meeting is
  a message.

A planner gets the rates without B, and the variance that B adds: at a bound of one in ten thousand, the behaviour of a
single stock cannot be learned from samples, but its variance can. An evaluation gets B drawn, with the sigmas of the
days that are evaluated. Windows are drawn more often near open and close, where limits break, and weighted accordingly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import MILLISECOND, SECOND, Duration
from fairtape.pipeline.stripes.overrun_risk import Counts, Indices, Shares, Windows

SESSION_PERIOD: Final = 23_400 * SECOND  # 9:30 to 16:00
SHARES_PER_MESSAGE: Final = 200  # the mean size of a trade in 2016
FINE_PERIOD: Final = 10 * MILLISECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """The constants of the model."""

    session_period: Duration = SESSION_PERIOD
    open_height: float = 2.2
    open_width: float = 0.05  # of the session
    close_height: float = 1.6
    close_width: float = 0.04
    market_sigma: float = 0.35
    group_sigma: float = 0.35
    own_ratio: float = 1.3  # of the sigma of a stock's seconds to that of its days
    own_min: float = 0.3
    own_max: float = 1.1
    fine_sigma: float = 0.8  # of a stock's own bursts within a second
    clump: float = 3.0  # messages, likewise
    edges_share: float = 0.5  # of the windows that are drawn in the busy first and last tenth

    def own(self, daily: npt.NDArray[Any], period: Duration) -> Shares:
        """The sigma of B for each stock in such a window."""
        means = np.maximum(daily.mean(axis=1), 1e-9)
        ratio = daily.std(axis=1) / means
        sigmas = np.clip(self.own_ratio * np.sqrt(np.log1p(ratio * ratio)), self.own_min, self.own_max)
        return np.asarray(sigmas if period >= SECOND else np.hypot(sigmas, self.fine_sigma), np.float64)

    def clump_of(self, period: Duration) -> float:
        """Messages that come together in such a window. Within a second clumps do not matter."""
        return self.clump if period < SECOND else 1.0

    def shape(self, at: npt.NDArray[np.float64]) -> Shares:
        """u(x), with mean 1 over the session."""
        peaks = self.open_height * np.exp(-at / self.open_width)
        peaks += self.close_height * np.exp(-(1.0 - at) / self.close_width)
        mean = self.open_height * self.open_width + self.close_height * self.close_width  # the far ends are nothing
        return np.asarray((1.0 - mean) + peaks, np.float64)


def expected_windows(
    daily: npt.NDArray[Any],  # symbols × days: messages
    groups: Indices,  # of each symbol; −1 where it has none
    *,
    period: Duration,
    count: int,
    seed: int,
    bursts: Bursts = Bursts(),  # noqa: B008 - a frozen value
) -> Windows:
    """Windows of random days and times with the expected messages of each symbol, for planning."""
    counts, weights, _ = _drawn(daily, groups, period, count, seed, bursts)
    own = np.expm1(bursts.own(daily, period) ** 2)
    spread = (counts * counts * own[:, None].astype(np.float32)).astype(np.float32)
    return Windows(period, counts, spread, weights, bursts.clump_of(period))


def drawn_windows(
    daily: npt.NDArray[Any],
    groups: Indices,
    *,
    period: Duration,
    count: int,
    seed: int,
    bursts: Bursts = Bursts(),  # noqa: B008 - a frozen value
) -> Windows:
    """The same with drawn messages, including bursts of single symbols and clumps, for evaluation."""
    counts, weights, chance = _drawn(daily, groups, period, count, seed, bursts)
    clump = bursts.clump_of(period)
    for row, sigma in zip(counts, bursts.own(daily, period).tolist(), strict=True):
        row[:] = clump * chance.poisson(row * _lognormal(chance, sigma, count) / clump)
    return Windows.counted(period, counts, weights, clump)


def _drawn(
    daily: npt.NDArray[Any], groups: Indices, period: Duration, count: int, seed: int, bursts: Bursts
) -> tuple[Counts, Shares, np.random.Generator]:
    """Rates without B, the weights of windows, and the generator to continue with."""
    chance = np.random.default_rng([seed, period])
    days = chance.integers(0, daily.shape[1], count)
    at, weights = _times(chance, count, bursts.edges_share)
    level = bursts.shape(at) * _lognormal(chance, bursts.market_sigma, count) * (period / bursts.session_period)
    factors = _lognormal(chance, bursts.group_sigma, (int(groups.max(initial=-1)) + 2, count))
    factors[-1] = 1.0  # of those without a group, who are at −1
    counts = np.empty((len(daily), count), np.float32)
    for symbol, row in enumerate(daily):
        counts[symbol] = row[days] * level * factors[groups[symbol]]
    return counts, weights, chance


def _times(chance: np.random.Generator, count: int, edges_share: float) -> tuple[Shares, Shares]:
    """Times of the session, and weights that undo the preference for its ends."""
    edges = round(count * edges_share)
    near = chance.random(edges) * 0.2
    near = np.where(near < 0.1, near, 0.8 + near)
    middle = 0.1 + 0.8 * chance.random(count - edges)
    weights = np.concatenate([np.full(edges, 0.2 / max(edges, 1)), np.full(count - edges, 0.8 / max(count - edges, 1))])
    return np.concatenate([near, middle]), weights


def _lognormal(chance: np.random.Generator, sigma: float, size: int | Sequence[int]) -> Any:
    """Factors with mean 1."""
    return chance.lognormal(-sigma * sigma / 2, sigma, size)
