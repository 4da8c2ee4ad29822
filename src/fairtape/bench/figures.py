"""What the system says about a process and about itself."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self


def resident_bytes(pid: int | None = None) -> int:
    """How much memory a process holds, this one unless another is named; one that has ended holds none."""
    try:
        pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Processors:
    """The time of all processors of this machine so far, in the kernel's ticks."""

    stolen: int  # this machine is a virtual one, and its host gave the time to others
    total: int

    @classmethod
    def read(cls) -> Self:
        """As the kernel counts it now."""
        ticks = [int(tick) for tick in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
        return cls(ticks[7], sum(ticks))

    def stolen_since(self, before: Self) -> float:
        """The share of the time since then that the host took away."""
        return (self.stolen - before.stolen) / max(self.total - before.total, 1)
