"""How likely a stripe is to exceed its rate, told by joint windows of the past.

A window is a moment of the history (a second, or 10 ms) in which *all* symbols were counted at once. Symbols that burst
together did so in the same windows, so their co-movement needs no model: whatever is put into one stripe is added
window by window. That matters here above all, because a planner that puts related stocks together puts together what
bursts together, and a bound that takes symbols for independent would be wrong just where it is used.

A history says nothing below one in its own length, and a stripe that met exactly n messages might as well have met
n + 3. So each window stands for a draw around what was counted or expected there: a Poisson count of clumps, whose rate
itself may vary by bursts of single symbols (`spread`, their variance). With mean R and shape a = R² / spread, all in
clumps, that is a negative binomial count. Its tail is Chernoff's exponent with the factor of Bahadur and Rao (1960),
which needs no special function and is close where Chernoff alone is some five times too high:

    P(X ≥ k) ≈ (R / k)^k ((k + a) / (R + a))^(k + a) / ((1 − e^−θ) √(2π (k + k²/a))),   e^θ = k (R + a) / (R (k + a))

for k > R, and never above Chernoff's bound, which is the same without the denominator.

The chance of a stripe is the weighted mean of this over the windows. Windows without a single message are not kept;
their weight is what the others lack to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import Duration

Counts: TypeAlias = npt.NDArray[np.float32]
Shares: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = npt.NDArray[np.int64]  # the stripe of each symbol

NEED_MAX: Final = 1_024.0
NEED_HALVINGS: Final = 10


class BadHistory(ValueError):
    """A history that says nothing about rates; the message says what is wrong with it."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Joint moments of all symbols, each with the part of the time that it stands for."""

    period: Duration
    counts: Counts  # symbols × windows: messages, or how many were to be expected
    spread: Counts  # of the same shape: by how much bursts of a symbol's own let its expectation vary
    weights: Shares  # of windows; together at most 1
    clump: float = 1.0  # messages that come together, whatever the rate

    def __post_init__(self) -> None:
        if self.counts.ndim != 2 or self.counts.shape[1] != len(self.weights):
            raise BadHistory(
                f"counts are {self.counts.shape} for {len(self.weights)} windows; expected one column each"
            )
        if self.spread.shape != self.counts.shape:
            raise BadHistory(f"spread is {self.spread.shape}; expected the shape of counts, {self.counts.shape}")
        if not np.isfinite(self.counts).all():
            raise BadHistory("some counts of the history are no numbers; mend its volumes")
        if not self.counts.size:
            raise BadHistory("there are no windows with messages in the history; give a longer one")

    @property
    def means(self) -> Shares:
        """Messages of each symbol in a window, over the whole time."""
        return np.asarray(self.counts @ self.weights, np.float64)

    @classmethod
    def counted(cls, period: Duration, counts: Counts, weights: Shares, clump: float = 1.0) -> "Windows":
        """Windows of what really happened, bursts and all."""
        return cls(period, counts, np.zeros_like(counts), weights, clump)

    def grouped(self, places: Places, stripes: int) -> "Windows":
        """The same windows, of stripes instead of symbols. A symbol at −1 is in none."""
        counts, spread = np.zeros((2, stripes, self.counts.shape[1]), np.float32)
        for symbol in np.flatnonzero(places >= 0):
            counts[places[symbol]] += self.counts[symbol]
            spread[places[symbol]] += self.spread[symbol]
        return Windows(self.period, counts, spread, self.weights, self.clump)


@dataclass(frozen=True, eq=False)
class Limit:
    """So many messages of a stripe in one window, and no more."""

    windows: Windows
    messages_max: float

    def scaled(self, share: float) -> "Limit":
        """This limit with a part of its room."""
        return Limit(self.windows, self.messages_max * share)

    def chance(self, counts: Counts | Shares, spread: Counts | Shares) -> float:
        """That a stripe with these messages in the windows exceeds the limit, in any one window."""
        narrow = counts.astype(np.float32), spread.astype(np.float32)
        return float(self.windows.weights @ tail(*narrow, self.messages_max, self.windows.clump))

    def need(self, counts: Counts, spread: Counts, bound: float) -> float:
        """The part of the limit that would be enough for the bound: above 1 where the limit is not."""
        least, most = 0.0, 1.0
        while most < NEED_MAX and self.scaled(most).chance(counts, spread) > bound:
            least, most = most, 2.0 * most
        for _ in range(NEED_HALVINGS):
            middle = (least + most) / 2
            least, most = (middle, most) if self.scaled(middle).chance(counts, spread) > bound else (least, middle)
        return most

    def grouped(self, places: Places, stripes: int) -> "Limit":
        """The same limit over stripes instead of symbols."""
        return Limit(self.windows.grouped(places, stripes), self.messages_max)


def tail(means: Counts, spread: Counts, most: float, clump: float = 1.0) -> Shares:
    """The chance that a count of clumps around each of these means is above `most` messages."""
    least_over = np.float32(max(np.floor(most / clump) + 1.0, 1.0))
    clumps = np.maximum(means / np.float32(clump), np.float32(1e-9))
    # Nearly no bursts are told by a large shape. None is above 1e4, so that nothing is taken for steadier than a
    # hundredth of its mean: no history of a market is, and floats tell no larger shapes apart.
    shape = clumps * clumps / np.maximum(spread / np.float32(clump * clump), clumps * clumps * np.float32(1e-4))
    tilt = np.log(clumps / least_over)
    lift = np.log1p((least_over - clumps) / (clumps + shape))
    exponent = least_over * tilt + (least_over + shape) * lift
    factor = -np.expm1(np.minimum(tilt + lift, -1e-6)) * np.sqrt(2 * np.pi * (least_over + least_over**2 / shape))
    bound = np.exp(np.minimum(exponent, 0.0).astype(np.float64)) / np.maximum(factor, 1.0)
    return np.where(clumps >= least_over, 1.0, bound)


def chances(limits: Sequence[Limit], places: Places, stripes: int) -> npt.NDArray[np.float64]:
    """The chance of each stripe under each limit: stripes × limits."""
    found = np.zeros((stripes, len(limits)))
    for column, limit in enumerate(limits):
        grouped = limit.grouped(places, stripes)
        windows = grouped.windows
        found[:, column] = [grouped.chance(*each) for each in zip(windows.counts, windows.spread, strict=True)]
    return found


def needs(limits: Sequence[Limit], places: Places, stripes: int, bound: float) -> Shares:
    """The part of its room that each stripe needs: of the limit that is the tightest for it."""
    found = np.zeros(stripes)
    for limit in limits:
        windows = limit.grouped(places, stripes).windows
        both = zip(windows.counts, windows.spread, strict=True)
        found = np.maximum(found, [limit.need(*each, bound) for each in both])
    return found
