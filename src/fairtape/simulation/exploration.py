"""Exhaustive exploration of the membership: every order of steps up to a depth, breadth first.

From a start state every possible step is taken, then every possible step from each state that was not seen before, and
so on. So the first schedule that breaks a guarantee has the fewest steps. States are compared by a digest. How many
faults a path has had is no part of a state: a state that is reached again with fewer faults is expanded again.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from fairtape.simulation.explored_deployment import (
    FAULTS,
    Deployment,
    DeploymentState,
    Step,
    StepKind,
    possible_steps,
)
from fairtape.simulation.world import Storm, Violation

DIGEST_SIZE: Final = 16
REPORT_EVERY: Final = 1_000  # states
KEPT_MAX: Final = 3  # failures of one guarantee


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an exploration ends."""

    steps: int = 8
    faults: int = 3  # of one path
    states: int = 1_000_000
    seconds: float = 600.0
    failures: int = 10  # that are kept: a few of each guarantee
    only: frozenset[StepKind] = FAULTS  # the faults that are explored


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken guarantee, and the steps from a start state to it."""

    guarantee: str
    text: str
    start: str
    steps: tuple[Step, ...]


@dataclass(slots=True)
class Findings:
    """What an exploration has seen."""

    states: int = 0
    transitions: int = 0  # steps taken: several may lead to one state
    depth: int = 0  # all states within this number of steps were seen
    by_depth: list[int] = field(default_factory=list)  # new states
    failures: list[Failure] = field(default_factory=list)
    failing: Counter[str] = field(default_factory=Counter)  # steps that broke a guarantee, by its name
    ended_by: str = "steps"
    seconds: float = 0.0

    @property
    def branching(self) -> float:
        """The steps that were taken from one state, on average."""
        return self.transitions / max(self.states - self.by_depth[-1], 1) if self.by_depth else 0.0


@dataclass(slots=True)
class _Reached:
    """A state on the frontier, and how it was reached."""

    state: DeploymentState
    faults: int
    number: int


class Exploration:
    """One exploration of one deployment."""

    def __init__(
        self,
        deployment: Deployment,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        progress: Callable[[Findings], object] = lambda _: None,
    ) -> None:
        self.findings = Findings()
        self._deployment = deployment
        self._limits = limits
        self._clock = clock
        self._progress = progress
        self._seen: dict[bytes, int] = {}  # by digest: the fewest faults with which a state was reached
        self._parts: dict[object, int] = {}  # of states
        self._paths: list[tuple[int, Step | str]] = []  # by number of a state: the one before, and the step
        self._ends_at = 0.0

    def run(self, starts: Sequence[tuple[str, DeploymentState]]) -> Findings:
        """Explore from these states, which are named."""
        findings, began_at = self.findings, self._clock()
        self._ends_at = began_at + self._limits.seconds
        frontier = []
        for name, state in starts:
            self._is_new(state, 0)
            self._paths.append((-1, name))
            frontier.append(_Reached(state, 0, len(self._paths) - 1))
        findings.by_depth.append(len(frontier))
        while frontier and findings.depth < self._limits.steps:
            findings.by_depth.append(0)
            frontier = self._expand_all(frontier)
            if findings.ended_by != "steps":
                break
            findings.depth += 1
        findings.seconds = self._clock() - began_at
        return findings

    def _expand_all(self, frontier: list[_Reached]) -> list[_Reached]:
        following: list[_Reached] = []
        for reached in frontier:
            faults_left = self._limits.faults - reached.faults
            for step, cost in possible_steps(self._deployment, reached.state, faults_left):
                if step.kind in FAULTS and step.kind not in self._limits.only:
                    continue
                found = self._take(reached, step, reached.faults + cost)
                if found is not None:
                    following.append(found)
            if self._is_over():
                break
        return following

    def _take(self, reached: _Reached, step: Step, faults: int) -> _Reached | None:
        """The state after a step, if it is to be expanded."""
        findings = self.findings
        findings.transitions += 1
        try:
            state = self._deployment.apply(reached.state, step)
        except Violation as violation:
            self._fail(violation.guarantee, str(violation), reached, step)
            return None
        except (AssertionError, Storm) as error:  # a machine that refuses its own state
            self._fail(type(error).__name__, f"{type(error).__name__}: {error}", reached, step)
            return None
        if not self._is_new(state, faults):
            return None
        self._paths.append((reached.number, step))
        return _Reached(state, faults, len(self._paths) - 1)

    def _is_new(self, state: DeploymentState, faults: int) -> bool:
        """Whether a state was not seen, or only with more faults."""
        digest = blake2b(repr(state.key(self._parts)).encode(), digest_size=DIGEST_SIZE).digest()
        known = self._seen.get(digest)
        if known is not None and known <= faults:
            return False
        self._seen[digest] = faults
        if known is None:
            self.findings.states += 1
            if self.findings.by_depth:
                self.findings.by_depth[-1] += 1
            if self.findings.states % REPORT_EVERY == 0:
                self._progress(self.findings)
        return True

    def _fail(self, guarantee: str, text: str, reached: _Reached, step: Step) -> None:
        """Note a failure. Of each guarantee the first few are kept: they have the fewest steps."""
        findings = self.findings
        findings.failing[guarantee] += 1
        if len(findings.failures) < self._limits.failures and findings.failing[guarantee] <= KEPT_MAX:
            start, steps = self._path(reached.number)
            findings.failures.append(Failure(guarantee, text, start, (*steps, step)))

    def _path(self, number: int) -> tuple[str, tuple[Step, ...]]:
        steps: list[Step] = []
        while True:
            number, step = self._paths[number]
            if isinstance(step, str):
                return step, tuple(reversed(steps))
            steps.append(step)

    def _is_over(self) -> bool:
        findings, limits = self.findings, self._limits
        if len(findings.failures) >= limits.failures:
            findings.ended_by = "failures"
        elif findings.states >= limits.states:
            findings.ended_by = "states"
        elif self._clock() >= self._ends_at:
            findings.ended_by = "seconds"
        return findings.ended_by != "steps"
