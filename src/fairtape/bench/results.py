"""Types of benchmark results, and the resource usage of processes and of the machine."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Self, TypeAlias

MIB: Final = 1 << 20

Result: TypeAlias = float | bool | str | list[str] | list[int] | list[dict[str, float]]
Results: TypeAlias = dict[str, Result]
"""Metrics by their published names, which are the keys of the JSON output."""

Step: TypeAlias = Callable[[str], None]
"""Prints which part of a benchmark runs now."""


def spread_of(name: str, values: Sequence[float], digits: int) -> Results:
    """The median of the rounds, the minimum and the maximum: the speed of a virtual machine varies."""
    return {
        name: _rounded(median(values), digits),
        f"{name}_min": _rounded(min(values), digits),
        f"{name}_max": _rounded(max(values), digits),
    }


def _rounded(value: float, digits: int) -> float:
    return round(value, digits) if digits else round(value)


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, by default of this one; 0 for a process that has ended."""
    try:
        pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def datagrams_dropped() -> int:
    """UDP datagrams that found the buffer of their socket full, on this machine since boot."""
    names, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line[:4] == "Udp:")
    return int(values[names.index("RcvbufErrors")])


@dataclass(frozen=True, slots=True)
class Processors:
    """The time of all processors of this machine since boot, in ticks of the kernel."""

    stolen: int  # time that the host of a virtual machine gave to others
    total: int

    @classmethod
    def read(cls) -> Self:
        ticks = [int(tick) for tick in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
        return cls(ticks[7], sum(ticks))

    def stolen_since(self, before: Self) -> float:
        """The fraction of the time since `before` that the host took."""
        return (self.stolen - before.stolen) / max(self.total - before.total, 1)
