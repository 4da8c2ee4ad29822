"""A campaign: many seeds on all cores. A failing seed is a result and does not stop the others."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from multiprocessing import get_context
from typing import Final, TypeAlias

from fairtape.core.instants import Duration
from fairtape.core.percentiles import Rank, percentile
from fairtape.simulation.cluster_run import NEVER_RAISES, RunOutcome

DIGEST_SIZE: Final = 16
AHEAD_PER_JOB: Final = 4  # seeds submitted ahead of their results
KILLED: Final = "the process that ran it was killed"

RunSeed: TypeAlias = Callable[[int], RunOutcome]
"""Runs the world of one seed; a module-level function or a partial of one, so that it can be pickled."""


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def campaign(seeds: Iterable[int], run: RunSeed, *, jobs: int = 1) -> Iterator[RunOutcome]:
    """The outcomes, in the order in which the runs end."""
    if jobs == 1:
        yield from map(run, seeds)
        return
    waiting = iter(seeds)
    while True:
        # A worker that is killed from outside breaks the pool: its seeds count as failed, a new pool runs the rest.
        try:
            with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
                running = {pool.submit(run, seed): seed for seed in islice(waiting, AHEAD_PER_JOB * jobs)}
                if not running:
                    return
                yield from _outcomes(pool, run, waiting, running)
                return
        except BrokenProcessPool:
            for seed in running.values():
                yield RunOutcome(seed=seed, guarantee=NEVER_RAISES, text=KILLED)


def _outcomes(
    pool: ProcessPoolExecutor,
    run: RunSeed,
    waiting: Iterator[int],
    running: dict["Future[RunOutcome]", int],
) -> Iterator[RunOutcome]:
    while running:
        done, _ = wait(running, return_when="FIRST_COMPLETED")
        for future in sorted(done, key=running.__getitem__):
            outcome = future.result()
            del running[future]
            for seed in islice(waiting, 1):
                running[pool.submit(run, seed)] = seed
            yield outcome


@dataclass(slots=True)
class CampaignTally:
    """The sums over all outcomes of a campaign so far."""

    seeds: int = 0
    all_delivered: int = 0
    reforming: int = 0
    deliveries: int = 0
    messages: int = 0
    late: int = 0
    failures: list[RunOutcome] = field(default_factory=list)
    durations: dict[str, list[Duration]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # the seeds in which each kind took place

    def add(self, outcome: RunOutcome) -> None:
        self.seeds += 1
        self.all_delivered += outcome.all_delivered
        self.reforming += outcome.reforming > 0
        self.deliveries += outcome.deliveries
        self.messages += outcome.messages
        self.late += outcome.late
        for name, took in outcome.durations:
            self.durations.setdefault(name, []).append(took)
        self.counts.update(dict(outcome.counts))
        self.faults.update(set(outcome.faults))
        if outcome.failed:
            self.failures.append(outcome)

    def fault_shares(self) -> dict[str, float]:
        """The share of the seeds in which each kind of fault took place, the most frequent first."""
        return {
            name: count / self.seeds
            for name, count in sorted(self.faults.items(), key=lambda each: (-each[1], each[0]))
        }

    def broken(self) -> dict[str, list[RunOutcome]]:
        """The worlds that broke a guarantee, by guarantee."""
        found: dict[str, list[RunOutcome]] = {}
        for outcome in self.failures:
            found.setdefault(str(outcome.guarantee), []).append(outcome)
        return found


class CampaignDigest:
    """One digest of the histories of many worlds, independent of their order: the sum of their hashed digests."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, outcome: RunOutcome) -> None:
        history = f"{outcome.seed} {outcome.digest} {outcome.guarantee}".encode()
        self._sum += int.from_bytes(blake2b(history, digest_size=DIGEST_SIZE).digest())

    def __str__(self) -> str:
        return f"{self._sum % (1 << 8 * DIGEST_SIZE):0{2 * DIGEST_SIZE}x}"


@dataclass(frozen=True, slots=True)
class Distribution:
    """How long something took in all runs of a campaign."""

    count: int
    median: Duration
    p99: Duration
    longest: Duration

    @classmethod
    def of(cls, took: Iterable[Duration]) -> "Distribution":
        """The distribution of at least one duration."""
        values = list(took)
        median, p99 = percentile(values, 0.5, 0, rank=Rank.LOWER), percentile(values, 0.99, 0, rank=Rank.HIGHER)
        return cls(len(values), median, p99, max(values))


def replay_command(outcome: RunOutcome, *options: str) -> str:
    """The command that repeats this run."""
    return " ".join((f"fairtape check --seed {outcome.seed}", *options))
