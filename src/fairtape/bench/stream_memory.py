"""Whether memory stays flat while a long journal streams into a table.

Once a second the memory of this process, of Java and of Python workers is read from the kernel. The way is cut into
fifths by what the table holds: the first one warms up, and the others should not grow.
"""

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fairtape.bench.figures import resident_bytes
from fairtape.bench.pipeline import Step, write_journal
from fairtape.bench.report import Figures
from fairtape.pipeline.source.options import BATCH_ROWS_MAX
from fairtape.pipeline.source.partitions import PartitionName
from fairtape.pipeline.spark.session import spark_session
from fairtape.pipeline.tables.ingest import stream_journals
from fairtape.pipeline.tables.jobs import RAW, folder_of

FIFTHS: Final = 5
BATCHES_MIN: Final = 4  # in each of them
SYMBOLS: Final = 5_000
PER_TOKEN: Final = 500
MESSAGE_BYTES: Final = 64  # of a journal, at least
PERIOD: Final = 1.0  # seconds between two looks
GIGABYTE: Final = 1_000_000_000
_MIB: Final = 1 << 20


@dataclass
class StreamMemory:
    """The most that each kind of process held in each fifth of the way, in MiB."""

    driver: list[int] = field(default_factory=lambda: [0] * FIFTHS)
    java: list[int] = field(default_factory=lambda: [0] * FIFTHS)
    workers: list[int] = field(default_factory=lambda: [0] * FIFTHS)

    def note(self, fifth: int, held: dict[str, int]) -> None:
        """One look."""
        for name, octets in held.items():
            most = getattr(self, name)
            most[fifth] = max(most[fifth], octets // _MIB)

    def growth(self) -> float:
        """All together, at the end by what it was when it was warm."""
        total = [sum(each) for each in zip(self.driver, self.java, self.workers, strict=True)]
        return total[-1] / max(total[1], 1)


def stream_memory(gigabytes: float, master: str, step: Step) -> Figures:
    """Make a journal of this size, stream it into a table, and watch."""
    messages = int(gigabytes * GIGABYTE) // MESSAGE_BYTES
    memory = StreamMemory()
    with TemporaryDirectory(prefix="fairtape-bench-") as place:
        folder = Path(place)
        step(f"writing a journal of {messages:,} messages")
        write_journal(folder / "journal", messages, per_token=PER_TOKEN, symbols=SYMBOLS)
        size = sum(path.stat().st_size for path in (folder / "journal").iterdir())
        spark = spark_session(master)
        try:
            began_at = time.perf_counter()
            batch = min(messages // (FIFTHS * BATCHES_MIN), BATCH_ROWS_MAX)
            query = stream_journals(spark, folder / "journal", folder / RAW, available_now=True, max_rows=batch)
            while not query.awaitTermination(PERIOD):  # type: ignore[arg-type]  # parts of a second are served
                taken = _taken(folder)
                memory.note(min(taken * FIFTHS // messages, FIFTHS - 1), _held())
                step(f"streaming: {taken:,} of {messages:,} messages, {sum(_held().values()) // _MIB:,} MiB")
            spent = time.perf_counter() - began_at
        finally:
            spark.stop()
        assert _taken(folder) == messages
    return {
        "journal_bytes": size,
        "messages": messages,
        "messages_per_s": round(messages / spent),
        "driver_mib": memory.driver,
        "java_mib": memory.java,
        "workers_mib": memory.workers,
        "growth": round(memory.growth(), 3),
    }


def _taken(folder: Path) -> int:
    mark = folder_of(folder, RAW).marks().get(PartitionName(0, 1))
    return 0 if mark is None else mark.next - 1


def _held() -> dict[str, int]:
    """Bytes that this process, Java and its Python workers hold now."""
    held = {"driver": resident_bytes(os.getpid()), "java": 0, "workers": 0}
    children = _children()
    below = list(children[os.getpid()])
    while below:
        pid, name = below.pop()
        held["java" if name == "java" else "workers"] += resident_bytes(pid)
        below += children[pid]
    return held


def _children() -> dict[int, list[tuple[int, str]]]:
    """Of every process: the processes that it started, with their names."""
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        found[int(rest.split()[1])].append((int(process.name), name))
    return found
