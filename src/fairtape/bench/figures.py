"""Percentiles, and the memory of a process."""

from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[int], share: float) -> float:
    """The value below which this share of the values lies; 0 where there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])


def resident_bytes() -> int:
    """How much memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096
