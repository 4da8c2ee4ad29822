"""The probability that a stripe exceeds its rate, from joint windows of the history.

A window is a moment of the history (a second, or 10 ms) in which *all* symbols were counted at once. Symbols that burst
together did so in the same windows, so their co-movement needs no model: the counts of the symbols of a stripe are
added window by window. This matters because a planner that puts related stocks into one stripe puts bursts together; a
bound that assumes independent symbols would be wrong exactly there.

A history of n windows says nothing about probabilities below 1/n, and a stripe that had exactly k messages could as
well have had k + 3. So each window stands for a draw around what was counted or expected there: a Poisson count of
clumps, whose rate itself may vary by bursts of single symbols (`spread`, their variance). With mean R and shape
a = R² / spread, all in clumps, that is a negative binomial count. Its tail is Chernoff's exponent with the factor of
Bahadur and Rao (1960), which needs no special function and is close where Chernoff alone is some five times too high:

    P(X ≥ k) ≈ (R / k)^k ((k + a) / (R + a))^(k + a) / ((1 − e^−θ) √(2π (k + k²/a))),   e^θ = k (R + a) / (R (k + a))

for k > R, and never above Chernoff's bound, which is the same without the denominator.

The probability for a stripe is the weighted mean of this over the windows. Windows without a message are not kept;
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
Indices: TypeAlias = npt.NDArray[np.int64]  # the stripe of each symbol

NEED_MAX: Final = 1_024.0
NEED_HALVINGS: Final = 10


class BadHistory(ValueError):
    """A history from which rates cannot be computed."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Joint windows of all symbols, each with the part of the time that it stands for."""

    period: Duration
    counts: Counts  # symbols × windows: messages, counted or expected
    spread: Counts  # of the same shape: the variance of the expectation by bursts of single symbols
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
            raise BadHistory("some counts of the history are not numbers; correct its volumes")
        if not self.counts.size:
            raise BadHistory("there are no windows with messages in the history; give a longer one")

    @property
    def means(self) -> Shares:
        """The mean messages of each symbol in a window."""
        return np.asarray(self.counts @ self.weights, np.float64)

    @classmethod
    def counted(cls, period: Duration, counts: Counts, weights: Shares, clump: float = 1.0) -> "Windows":
        """Windows of counted messages, which include bursts."""
        return cls(period, counts, np.zeros_like(counts), weights, clump)

    def grouped(self, places: Indices, stripes: int) -> "Windows":
        """The same windows, of stripes instead of symbols. A symbol at −1 is in none."""
        counts, spread = np.zeros((2, stripes, self.counts.shape[1]), np.float32)
        for symbol in np.flatnonzero(places >= 0):
            counts[places[symbol]] += self.counts[symbol]
            spread[places[symbol]] += self.spread[symbol]
        return Windows(self.period, counts, spread, self.weights, self.clump)


@dataclass(frozen=True, eq=False)
class Limit:
    """The most messages of a stripe in one window."""

    windows: Windows
    messages_max: float

    def scaled(self, share: float) -> "Limit":
        """A part of this limit."""
        return Limit(self.windows, self.messages_max * share)

    def chance(self, counts: Counts | Shares, spread: Counts | Shares) -> float:
        """The probability that a stripe with these counts exceeds the limit in a window."""
        narrow = counts.astype(np.float32), spread.astype(np.float32)
        return float(self.windows.weights @ tail(*narrow, self.messages_max, self.windows.clump))

    def need(self, counts: Counts, spread: Counts, bound: float) -> float:
        """The part of the limit that would be enough for the bound; above 1 where the limit is too low."""
        least, most = 0.0, 1.0
        while most < NEED_MAX and self.scaled(most).chance(counts, spread) > bound:
            least, most = most, 2.0 * most
        for _ in range(NEED_HALVINGS):
            middle = (least + most) / 2
            least, most = (middle, most) if self.scaled(middle).chance(counts, spread) > bound else (least, middle)
        return most

    def grouped(self, places: Indices, stripes: int) -> "Limit":
        """The same limit over stripes instead of symbols."""
        return Limit(self.windows.grouped(places, stripes), self.messages_max)


def tail(means: Counts, spread: Counts, most: float, clump: float = 1.0) -> Shares:
    """The probability that a count of clumps around each of these means is above `most` messages."""
    least_over = np.float32(max(np.floor(most / clump) + 1.0, 1.0))
    clumps = np.maximum(means / np.float32(clump), np.float32(1e-9))
    # A large shape means few bursts. It is at most 1e4, which is a standard deviation of a hundredth of the mean: no
    # market is steadier, and floats cannot distinguish larger shapes.
    shape = clumps * clumps / np.maximum(spread / np.float32(clump * clump), clumps * clumps * np.float32(1e-4))
    tilt = np.log(clumps / least_over)
    lift = np.log1p((least_over - clumps) / (clumps + shape))
    exponent = least_over * tilt + (least_over + shape) * lift
    factor = -np.expm1(np.minimum(tilt + lift, -1e-6)) * np.sqrt(2 * np.pi * (least_over + least_over**2 / shape))
    bound = np.exp(np.minimum(exponent, 0.0).astype(np.float64)) / np.maximum(factor, 1.0)
    return np.where(clumps >= least_over, 1.0, bound)


def chances(limits: Sequence[Limit], places: Indices, stripes: int) -> npt.NDArray[np.float64]:
    """The probability that each stripe exceeds each limit: stripes × limits."""
    found = np.zeros((stripes, len(limits)))
    for column, limit in enumerate(limits):
        grouped = limit.grouped(places, stripes)
        windows = grouped.windows
        found[:, column] = [grouped.chance(*each) for each in zip(windows.counts, windows.spread, strict=True)]
    return found


def needs(limits: Sequence[Limit], places: Indices, stripes: int, bound: float) -> Shares:
    """The part of its capacity that each stripe needs, by its tightest limit."""
    found = np.zeros(stripes)
    for limit in limits:
        windows = limit.grouped(places, stripes).windows
        both = zip(windows.counts, windows.spread, strict=True)
        found = np.maximum(found, [limit.need(*each, bound) for each in both])
    return found
