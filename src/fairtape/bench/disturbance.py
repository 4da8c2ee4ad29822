"""Whether other programs disturbed a measurement: their share of the processors, and which rounds count.

Other programs are all processes but this one, its descendants and the kernel's own threads, which also work for the
benchmark: they write its journals. Where the host of a virtual machine took time, `Processors` tells.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar

from fairtape.bench.results import Processors, Results, Step, spread_of

OTHERS_MAX: Final = 0.05  # of all processors: a round with more is discarded
ATTEMPTS_MAX: Final = 3  # of one round
DISCARDED_MAX: Final = 12  # in one run of a benchmark: on a busy machine it would not end

_KERNEL_THREAD: Final = 0x00200000  # PF_KTHREAD
_PARENT, _FLAGS, _TIMES, _TIMES_END = 1, 6, 11, 15  # fields of /proc/PID/stat after the name

Outcome = TypeVar("Outcome")


class ProcessTime(NamedTuple):
    """The processor time of one process and of those of its children that have ended, in ticks of the kernel."""

    pid: int
    parent: int
    of_kernel: bool
    ticks: int


def parse_stat(text: str) -> ProcessTime:
    """The content of /proc/PID/stat. The name of the process may have spaces and brackets."""
    fields = text.rpartition(")")[2].split()
    return ProcessTime(
        pid=int(text.partition(" ")[0]),
        parent=int(fields[_PARENT]),
        of_kernel=bool(int(fields[_FLAGS]) & _KERNEL_THREAD),
        ticks=sum(map(int, fields[_TIMES:_TIMES_END])),
    )


def ticks_of_others(processes: Iterable[ProcessTime], me: int) -> int:
    """The processor time of all programs but `me` and its descendants.

    Only differences mean something: the time of a process that ends is added to that of its parent.
    """
    table = {process.pid: process for process in processes}
    ours = {me: True, 0: False}

    def is_ours(pid: int) -> bool:
        way = []
        while pid not in ours and pid in table:
            way.append(pid)
            pid = table[pid].parent
        found = ours.get(pid, False)
        ours.update(dict.fromkeys(way, found))
        return found

    return sum(each.ticks for each in table.values() if not each.of_kernel and not is_ours(each.pid))


@dataclass(frozen=True, slots=True)
class ProgramTimes:
    """Processor time up to now, in ticks."""

    others: int
    total: int  # of all processors, idle or not

    @classmethod
    def read(cls) -> Self:
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                found.append(parse_stat(path.read_text(errors="replace")))
            except OSError:
                continue  # it has ended
        return cls(ticks_of_others(found, os.getpid()), Processors.read().total)

    def others_since(self, before: Self) -> float:
        """The share of all processors that other programs used since `before`."""
        return max(self.others - before.others, 0) / max(self.total - before.total, 1)


@dataclass(slots=True)
class QuietRounds:
    """Runs rounds, and repeats those that other programs disturbed."""

    step: Step
    read: Callable[[], ProgramTimes] = ProgramTimes.read
    shares: list[float] = field(default_factory=list)  # of other programs, in the rounds that count
    discarded: int = 0
    disturbed: list[str] = field(default_factory=list)  # rounds that count although they were disturbed

    def run(self, name: str, work: Callable[[], Outcome]) -> Outcome:
        """The outcome of the first attempt that nothing disturbed; of the last one, where all were."""
        attempt = 1
        while True:
            self.step(name if attempt == 1 else f"{name}, attempt {attempt}")
            before = self.read()
            outcome = work()
            share = self.read().others_since(before)
            quiet = share <= OTHERS_MAX
            if quiet or attempt == ATTEMPTS_MAX or self.discarded == DISCARDED_MAX:
                break
            self.step(f"{name}: discarded, other programs used {share:.1%} of the processors")
            self.discarded += 1
            attempt += 1
        self.shares.append(share)
        if not quiet:
            self.disturbed.append(name)
        return outcome

    def results(self) -> Results:
        """How much was disturbed."""
        found = spread_of("other_programs_share", self.shares or [0.0], 4)
        return found | {"rounds_discarded": self.discarded, "rounds_disturbed": self.disturbed}


def problems_of_disturbance(results: Results) -> list[str]:
    """One sentence, where rounds count that other programs disturbed."""
    disturbed = results.get("rounds_disturbed", [])
    assert isinstance(disturbed, list)
    if not disturbed:
        return []
    more = ", …" if len(disturbed) > 1 else ""
    used = f"other programs used more than {OTHERS_MAX:.0%} of the processors in every attempt"
    return [f"{used} of {len(disturbed)} rounds ({disturbed[0]}{more}); stop them and measure again"]
