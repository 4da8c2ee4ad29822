"""A campaign: many seeds over all cores. A failing seed is a result and never stops the others."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Final

from fairtape.simulation.trial import NEVER_RAISES, Outcome, run_seed

AHEAD_PER_JOB: Final = 4  # seeds handed out before their results are taken


def cores() -> int:
    """How many seeds can run at once on this machine."""
    return len(os.sched_getaffinity(0))


def campaign(seeds: Iterable[int], *, loss: float | None = None, jobs: int = 1) -> Iterator[Outcome]:
    """The outcomes, as they come."""
    trial = partial(run_seed, loss=loss)
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
                yield from _outcomes(pool, partial(run_seed, loss=loss), waiting, running)
                return
        except BrokenProcessPool:
            for seed in running.values():
                yield Outcome(seed=seed, guarantee=NEVER_RAISES, text="the process that ran it was killed")


def _outcomes(
    pool: ProcessPoolExecutor,
    trial: "partial[Outcome]",
    waiting: Iterator[int],
    running: dict["Future[Outcome]", int],
) -> Iterator[Outcome]:
    while running:
        done, _ = wait(running, return_when="FIRST_COMPLETED")
        for future in sorted(done, key=running.__getitem__):
            outcome = future.result()
            del running[future]
            for seed in islice(waiting, 1):
                running[pool.submit(trial, seed)] = seed
            yield outcome


@dataclass(slots=True)
class Tally:
    """What a campaign has found so far."""

    seeds: int = 0
    lively: int = 0
    reforming: int = 0
    deliveries: int = 0
    messages: int = 0
    late: int = 0
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self.seeds += 1
        self.lively += outcome.lively
        self.reforming += outcome.reforming > 0
        self.deliveries += outcome.deliveries
        self.messages += outcome.messages
        self.late += outcome.late
        if outcome.failed:
            self.failures.append(outcome)


def replay_command(outcome: Outcome, loss: float | None) -> str:
    """What to type to see this again."""
    return f"fairtape check --seed {outcome.seed}" + ("" if loss is None else f" --loss {loss:g}")
