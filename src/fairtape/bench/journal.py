"""`fairtape bench journal`: what an old journal costs, beside a new one.

Costs: the writer of a site writes two journals, one of many segments and one of ten. Its segments are as small as they
can be, because no operation reads more than a few of them, and full ones would hide what it costs to find them. Then
both journals are used in turn, in the same way. First they are opened for writing and for reading at the live end, and
old entries are looked up at random. Then a site appends and syncs, and a reader follows; meanwhile the new journal
grows by a segment or so in each round. Each result is the ratio of two medians. Of a sync, only the work of the site's
own thread is measured, because the disk is synced in the background.

Ring: two deployments of three sites with the timing `metro` run in turn, with the same load. The journals of one are
continued by as many small segments while it is stopped.
"""

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter_ns
from typing import Final, NamedTuple, Self

from fairtape.bench.results import Results, Step
from fairtape.core.effects import Ordered, Release, Span
from fairtape.core.entries import decode_entry
from fairtape.core.instants import MICROSECOND, SECOND
from fairtape.deployment.config.description import Deployment, NodeKind
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import DrillTarget
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.journal import History, JournalFollower, JournalReader, JournalWriter, SyncPolicy, Tip
from fairtape.journal.follow import released_end
from fairtape.journal.writer import SEGMENT_SIZE_MIN
from fairtape.wire.blocks import pack_messages
from fairtape.wire.frames import NodeId

SEGMENTS_NEW: Final = 10
RATIO_MAX: Final = 1.2  # the goal of every ratio
LATE_APART_MAX: Final = 0.005  # the goal: the share of late messages of the old ring beyond that of the new one

STRIPE: Final = 0
SITE: Final = 1
SOURCE: Final = 101
STARTS_AT: Final = 1_750_000_000 * SECOND
FILLER_SIZE: Final = 600  # bytes of a message that fills a segment of the smallest size
MESSAGE_SIZE: Final = 64
PROGRESS_SEGMENTS: Final = 10_000  # between two steps that are shown
PROGRESS_ROUNDS: Final = 10


# Tokens.


def token_after(tip: Tip | None, *, size: int, stripe: int = STRIPE, source: NodeId = SOURCE) -> Ordered:
    """The token that continues a journal, with one message of `size` bytes."""
    formation, token, sequence, at = 1, 1, 1, STARTS_AT
    if tip is not None:
        formation, token, sequence, at = tip.formation, tip.token + 1, tip.sequence, tip.latest_at + MICROSECOND
    span = Span(source, 1, sequence, 1, sequence, (pack_messages([bytes(size)]),), (1,))
    return Ordered(stripe, formation, token, sequence, 1, at, (span,))


def extend(writer: JournalWriter, ordered: Ordered) -> None:
    """Append a token, and release it."""
    at = ordered.acknowledged_at
    writer.append(ordered, at)
    writer.release(Release(ordered.token, ordered.sequence, ordered.count, at, at, late=False, clock_bound=0), at)


def write_filler(journals: Mapping[NodeId, Path], segments: int, step: Step, *, stripe: int = STRIPE) -> None:
    """Continue the journals of these sites, which end alike, by small segments up to as many."""
    with ExitStack() as closing:
        writers = [
            JournalWriter.open(
                directory, stripe=stripe, site=site, sync=SyncPolicy.NEVER, segment_size_max=SEGMENT_SIZE_MIN
            )
            for site, directory in journals.items()
        ]
        for writer in writers:
            closing.enter_context(writer)
        for number in range(segments):
            if number % PROGRESS_SEGMENTS == 0:
                step(f"journals of {segments:,} segments: {number:,} written")
            ordered = token_after(writers[0].tip, size=FILLER_SIZE, stripe=stripe)
            for writer in writers:
                extend(writer, ordered)


# Costs.

APPENDS: Final = 200  # tokens of one measurement
SEGMENT_SIZE: Final = 64 << 10  # while the journals are used: one or two begin in each round
ROWS_MAX: Final = 1_000


class UsedJournal:
    """A journal, with what its site and its readers keep open. Methods return the time that the operation took."""

    def __init__(self, directory: Path, segments: int) -> None:
        self._directory = directory
        self._segments = segments
        self._chance = Random(segments)  # noqa: S311 - a benchmark
        self._writer = self._open()
        self._history = History(directory)
        self._follower = JournalFollower.of_journal(directory, from_sequence=self._tip.released)

    def close(self) -> None:
        self._follower.close()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self) -> float:
        """Append and release tokens; the time of one."""
        began = perf_counter_ns()
        for _ in range(APPENDS):
            self._extend()
        took = perf_counter_ns() - began
        self._writer.flush()
        self._follower.read(ROWS_MAX)
        return took / APPENDS

    def sync(self) -> float:
        """Start the sync that is due after a token, as the thread of a site does."""
        self._extend()
        due_at = self._writer.deadline()
        assert due_at is not None
        began = perf_counter_ns()
        self._writer.wake(due_at)
        self._history.update_index()
        took = perf_counter_ns() - began
        self._writer.flush()
        self._follower.read(ROWS_MAX)
        return took

    def poll(self) -> float:
        """Read a new token as a follower at the live end, and find that there is no other."""
        self._extend()
        began = perf_counter_ns()
        new, none = self._follower.read(ROWS_MAX), self._follower.read(ROWS_MAX)
        took = perf_counter_ns() - began
        assert len(new) == 1
        assert not none
        return took

    def open(self) -> float:
        """Open the journal for writing, as a site that starts, but do not wait for the disk."""
        tip = self._tip
        self._writer.close()
        began = perf_counter_ns()
        writer = self._open(SyncPolicy.NEVER)
        took = perf_counter_ns() - began
        writer.close()
        self._writer = self._open()
        assert self._tip == writer.tip == tip
        return took

    def follow(self) -> float:
        """Open the journal for reading at its live end."""
        began = perf_counter_ns()
        journal = JournalReader.open(self._directory)
        end = released_end(journal)
        follower = JournalFollower.of_journal(journal, from_sequence=end)
        none = follower.read(ROWS_MAX)
        took = perf_counter_ns() - began
        follower.close()
        assert end == self._tip.released
        assert not none
        return took

    def catchup(self) -> float:
        """Find what follows a token of any age, for a site that was away."""
        token = self._chance.randrange(1, self._segments)
        began = perf_counter_ns()
        found = History(self._directory).after(token, 1, formation=self._tip.formation)
        took = perf_counter_ns() - began
        assert decode_entry(found[0]).token == token + 1
        return took

    def retransmit(self) -> float:
        """Find a message of any age by its number, for a customer that missed it, and one by its time."""
        number, at = (self._chance.randrange(1, self._segments + 1) for _ in range(2))
        began = perf_counter_ns()
        by_number = self._first(from_sequence=number)
        by_time = self._first(since=STARTS_AT + (at - 1) * MICROSECOND)
        took = perf_counter_ns() - began
        assert (by_number, by_time) == (number, at)
        return took

    def _first(self, *, from_sequence: int = 1, since: int | None = None) -> int:
        with JournalReader.open(self._directory).entries(from_sequence=from_sequence, since=since) as cursor:
            return next(iter(cursor)).ordered.sequence

    @property
    def _tip(self) -> Tip:
        assert self._writer.tip is not None
        return self._writer.tip

    def _open(self, sync: SyncPolicy = SyncPolicy.INTERVAL) -> JournalWriter:
        return JournalWriter.open(self._directory, stripe=STRIPE, site=SITE, sync=sync, segment_size_max=SEGMENT_SIZE)

    def _extend(self) -> None:
        extend(self._writer, token_after(self._tip, size=MESSAGE_SIZE))


class Operation(NamedTuple):
    """One thing that is measured."""

    measure: Callable[[UsedJournal], float]
    repeats: int  # in a round


READING: Final = {
    "open": Operation(UsedJournal.open, 3),
    "follow": Operation(UsedJournal.follow, 10),
    "catchup": Operation(UsedJournal.catchup, 10),
    "retransmit": Operation(UsedJournal.retransmit, 10),
}
WRITING: Final = {
    "append": Operation(UsedJournal.append, 1),
    "sync": Operation(UsedJournal.sync, 10),
    "poll": Operation(UsedJournal.poll, 10),
}
OPERATIONS: Final = {**WRITING, **READING}


def measure_costs(folder: Path, *, segments: int, rounds: int, step: Step) -> Results:
    """The time of each operation on a journal of as many segments, of ten, and the ratio."""
    sizes = {"new": SEGMENTS_NEW, "old": segments}
    for name, count in sizes.items():
        write_filler({SITE: folder / name}, count, step)
    times: dict[tuple[str, str], list[float]] = {(name, each): [] for name in sizes for each in OPERATIONS}
    with ExitStack() as closing:
        journals = {name: closing.enter_context(UsedJournal(folder / name, count)) for name, count in sizes.items()}
        closing.enter_context(_without_collection())
        for part, operations in (("reading", READING), ("writing", WRITING)):
            for number in range(rounds):
                if number % PROGRESS_ROUNDS == 0:
                    step(f"{part}: round {number + 1} of {rounds}")
                order = list(journals.items())[:: 1 if number % 2 else -1]
                for each, operation in operations.items():
                    for _ in range(operation.repeats):
                        for name, journal in order:
                            times[name, each].append(operation.measure(journal))
    results: Results = {}
    for each in OPERATIONS:
        old, new = median(times["old", each]), median(times["new", each])
        results[f"{each}_ratio"] = round(old / new, 3)
        results[f"{each}_us"], results[f"{each}_new_us"] = round(old / MICROSECOND, 1), round(new / MICROSECOND, 1)
    return results


@contextmanager
def _without_collection() -> Iterator[None]:
    """A collection of garbage would count as the time of one operation."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# Ring.

RINGS: Final = ("new", "old")  # by their journals
RING_SITES: Final = 3
RING_PROFILE: Final = "metro"
RING_RATE: Final = 1_000.0  # messages per second
RING_ROUNDS: Final = 2
SETTLING_MAX: Final = 60.0  # seconds
LOAD_PERIOD: Final = 2 * SECOND  # before a measurement


class RingRun(NamedTuple):
    """What the sites of a ring released in the measured time."""

    messages: int
    late: int
    reformations: int


def measure_ring_age(folder: Path, *, segments: int, seconds: float, step: Step) -> Results:
    """The share of late messages in a ring with old journals, and in one with new ones."""
    rings = {name: create_deployment(folder / name, Draft(loops=(RING_SITES,), profile=RING_PROFILE)) for name in RINGS}
    for name, deployment in rings.items():
        step(f"a ring with {name} journals: the first messages")
        run_ring(deployment, 1.0)
    age_ring(rings["old"], segments, step)
    runs: dict[str, list[RingRun]] = {name: [] for name in rings}
    for number in range(RING_ROUNDS):
        for name, deployment in rings.items():
            step(f"a ring with {name} journals: round {number + 1} of {RING_ROUNDS}")
            runs[name].append(run_ring(deployment, seconds))
    return {
        "ring_late_fraction": _late_fraction(runs["old"]),
        "ring_new_late_fraction": _late_fraction(runs["new"]),
        "ring_messages": sum(run.messages for run in runs["old"]),
        "ring_reformations": sum(run.reformations for run in runs["old"]),
        "ring_new_reformations": sum(run.reformations for run in runs["new"]),
    }


def age_ring(deployment: Deployment, segments: int, step: Step) -> None:
    """Continue the journals of a ring that is stopped, all in the same way."""
    journals = {site.number: deployment.journal_of(site) for site in deployment.sites}
    write_filler(journals, segments, step, stripe=deployment.stripe)


def run_ring(deployment: Deployment, seconds: float) -> RingRun:
    """Run a ring with load, measure it, and stop it when all journals are equal."""
    target = DrillTarget(deployment)
    source = deployment.of_kind(NodeKind.SOURCE)[-1]
    with folder_lock(deployment.folder):
        target.cluster = LocalCluster(deployment)
        try:
            target.cluster.start()
            target.wait_until(target.unsettled, SETTLING_MAX, "all sites to be members")
            target.load.start(source.name, "--load", str(RING_RATE), "--size", str(MESSAGE_SIZE))
            target.wait(LOAD_PERIOD)
            before = target.sites()
            target.wait(int(seconds * SECOND))
            after = target.sites()
            target.load.stop()
            target.wait_until(target.unequal, SETTLING_MAX, "equal journals")
        finally:
            target.load.stop()
            target.cluster.stop()
    both = [(before[name], site) for name, site in after.items() if name in before]
    return RingRun(
        sum(site.messages - earlier.messages for earlier, site in both),
        sum(site.late - earlier.late for earlier, site in both),
        max((site.formation - earlier.formation for earlier, site in both), default=0),
    )


def _late_fraction(runs: Sequence[RingRun]) -> float:
    return round(sum(run.late for run in runs) / max(sum(run.messages for run in runs), 1), 5)


# All of it.


def measure_journal(*, segments: int, rounds: int, seconds: float, only: str, step: Step) -> Results:
    """All results, with the goals that they miss."""
    results: Results = {"segments": segments, "new_segments": SEGMENTS_NEW, "rounds": rounds}
    with tempfile.TemporaryDirectory(prefix="fairtape-journal-", ignore_cleanup_errors=True) as scratch:
        if only in ("all", "costs"):
            results |= measure_costs(Path(scratch), segments=segments, rounds=rounds, step=step)
        if only in ("all", "ring"):
            rings = Path(scratch) / "rings"
            results |= measure_ring_age(rings, segments=segments, seconds=seconds, step=step)
        step("removing the journals")
    return results | {"problems": problems_of(results), "shortfalls": shortfalls_of(results)}


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each."""
    if results.get("ring_messages") == 0:
        return ["ring_messages is 0: the ring with old journals released nothing"]
    return []


def shortfalls_of(results: Results) -> list[str]:
    """Which results miss their goals, one sentence each. The machine may be too busy."""
    found = []
    for each in OPERATIONS:
        ratio = results.get(f"{each}_ratio", RATIO_MAX)
        assert isinstance(ratio, int | float)
        if ratio > RATIO_MAX:
            found.append(f"{each}_ratio is {ratio:g}; the goal is at most {RATIO_MAX:g}")
    old, new = results.get("ring_late_fraction", 0), results.get("ring_new_late_fraction", 0)
    assert isinstance(old, int | float)
    assert isinstance(new, int | float)
    if old > new + LATE_APART_MAX:
        found.append(f"ring_late_fraction is {old:g} with old journals and {new:g} with new ones")
    return found
