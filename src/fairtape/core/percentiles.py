"""Percentiles of measured values, by rank: the result is always one of the values, never an interpolation."""

from collections.abc import Collection
from enum import Enum
from math import ceil
from typing import TypeVar

Number = TypeVar("Number", bound=float)
Default = TypeVar("Default")


class Rank(Enum):
    """Which of n sorted values stands for a share of them."""

    ABOVE = "above"  # the first with that share of all n values below it: index floor(share * n), at most n - 1
    LOWER = "lower"  # index floor(share * (n - 1)), as numpy's method of that name
    HIGHER = "higher"  # index ceil(share * (n - 1)), as numpy's method of that name


def percentile(
    values: Collection[Number], share: float, default: Default, *, rank: Rank = Rank.ABOVE
) -> Number | Default:
    """The value at this share (0.5: median) of the values in any order; `default` if there are none."""
    if not values:
        return default
    last = len(values) - 1
    match rank:
        case Rank.ABOVE:
            index = min(int(share * len(values)), last)
        case Rank.LOWER:
            index = int(share * last)
        case Rank.HIGHER:
            index = ceil(share * last)
    return sorted(values)[index]
