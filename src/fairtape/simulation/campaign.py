"""A campaign: many seeds over all cores. A failing seed is a result and never stops the others."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from typing import Final, TypeAlias

from fairtape.core.instants import Duration
from fairtape.core.percentiles import Rank, percentile
from fairtape.simulation.ring_run import NEVER_RAISES, RunOutcome

AHEAD_PER_JOB: Final = 4  # seeds handed out before their results are taken

Run: TypeAlias = Callable[[int], RunOutcome]
"""Runs the world of one seed; a function of a module, or a partial of one, so that another process can find it."""


def cores() -> int:
    """How many seeds can run at once on this machine."""
    return len(os.sched_getaffinity(0))


def campaign(seeds: Iterable[int], trial: Run, *, jobs: int = 1) -> Iterator[RunOutcome]:
    """The outcomes, as they come."""
    if jobs == 1:
        yield from map(trial, seeds)
        return
    waiting = iter(seeds)
    while True:
        # A worker that is killed from outside breaks its pool; the seeds it had are findings, the rest goes on.
        try:
            with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
                running = {pool.submit(trial, seed): seed for seed in islice(waiting, AHEAD_PER_JOB * jobs)}
                if not running:
                    return
                yield from _outcomes(pool, trial, waiting, running)
                return
        except BrokenProcessPool:
            for seed in running.values():
                yield RunOutcome(seed=seed, guarantee=NEVER_RAISES, text="the process that ran it was killed")


def _outcomes(
    pool: ProcessPoolExecutor,
    trial: Run,
    waiting: Iterator[int],
    running: dict["Future[RunOutcome]", int],
) -> Iterator[RunOutcome]:
    while running:
        done, _ = wait(running, return_when="FIRST_COMPLETED")
        for future in sorted(done, key=running.__getitem__):
            outcome = future.result()
            del running[future]
            for seed in islice(waiting, 1):
                running[pool.submit(trial, seed)] = seed
            yield outcome


@dataclass(slots=True)
class CampaignTally:
    """What a campaign has found so far."""

    seeds: int = 0
    lively: int = 0
    reforming: int = 0
    deliveries: int = 0
    messages: int = 0
    late: int = 0
    failures: list[RunOutcome] = field(default_factory=list)
    figures: dict[str, list[Duration]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: RunOutcome) -> None:
        """Count one outcome."""
        self.seeds += 1
        self.lively += outcome.lively
        self.reforming += outcome.reforming > 0
        self.deliveries += outcome.deliveries
        self.messages += outcome.messages
        self.late += outcome.late
        for name, took in outcome.figures:
            self.figures.setdefault(name, []).append(took)
        self.counts.update(dict(outcome.counts))
        if outcome.failed:
            self.failures.append(outcome)


@dataclass(frozen=True, slots=True)
class Distribution:
    """How long something took, over a whole campaign."""

    count: int
    median: Duration
    p99: Duration
    longest: Duration

    @classmethod
    def of(cls, took: Iterable[Duration]) -> "Distribution":
        """Of at least one."""
        values = list(took)
        median, p99 = percentile(values, 0.5, 0, rank=Rank.LOWER), percentile(values, 0.99, 0, rank=Rank.HIGHER)
        return cls(len(values), median, p99, max(values))


def replay_command(outcome: RunOutcome, *options: str) -> str:
    """What to type to see this again."""
    return " ".join((f"fairtape check --seed {outcome.seed}", *options))
