"""One receiver's recovery of one acknowledgment in isolation."""

from dataclasses import dataclass, field, replace
from enum import IntEnum

from fairtape.core.instants import MILLISECOND, Instant
from fairtape.core.timing import Timing
from fairtape.ring.receiver.recovery import Recoveries
from fairtape.ring.receiver.recovery_tables import State

T_R = 100 * MILLISECOND
E = 5  # the token that is recovered
T_E = 1_000 * T_R  # t_e
TIMING = Timing(retry_period=T_R, retries_max=3, token_period=T_R, commit_delay=T_R)


@dataclass(slots=True)
class HeldTokens:
    """The tokens whose messages are all held."""

    held: set[int] = field(default_factory=set)

    def holds_messages(self, token: int) -> bool:
        return token in self.held


@dataclass(frozen=True, slots=True)
class Step:
    """One transition of the machine, as observed."""

    at: IntEnum
    on: IntEnum
    to: IntEnum
    retries: int


class RecoveryRun:
    """Ack(e) at one receiver: the figure's machine, run by the real `Recoveries`."""

    def __init__(self, *, retries_max: int = 3, merged: bool = True, timed: bool = True) -> None:
        self.steps: list[Step] = []
        self.asked_at: list[Instant] = []
        self.held_tokens = HeldTokens()
        timing = replace(TIMING, retries_max=retries_max, merged=merged)
        self.recoveries = Recoveries(timing=timing, timed=timed, tokens=self.held_tokens, observe=self._saw)

    def _saw(self, token: int, at: IntEnum, on: IntEnum, to: IntEnum, retries: int) -> None:
        assert token == E
        self.steps.append(Step(at, on, to, retries))
        if to in (State.AWAIT_REQUESTED_ACK, State.AWAIT_REQUESTED_MESSAGES):
            self.asked_at.append(self.recoveries.now)

    @property
    def state(self) -> IntEnum:
        return self.steps[-1].to if self.steps else State.AWAIT_ACK

    @property
    def retries(self) -> int:
        return self.steps[-1].retries if self.steps else 0

    def silence(self) -> None:
        """Ack(e) has not come by t_e + T_R/2."""
        self.recoveries.overdue(E, T_E + T_R // 2, T_E + T_R // 2)

    def ack(self, at: Instant) -> None:
        self.recoveries.acknowledged(E, at)

    def messages(self, at: Instant) -> None:
        self.held_tokens.held.add(E)
        self.recoveries.messages_arrived(at)

    def wait(self) -> Instant:
        """Let the current wait expire; returns when."""
        at = self.expires_at
        self.recoveries.wake(at)
        return at

    @property
    def expires_at(self) -> Instant:
        self.recoveries.due_requests(
            self.recoveries.now + self.recoveries.timing.request_delay
        )  # send collected requests: only the wait is left
        return self.recoveries.deadline()

    def wait_out(self) -> Instant:
        """Let waits expire until the machine has ended; returns when."""
        at = self.recoveries.now
        while self.state < State.REFORM:
            at = self.wait()
        return at

    def path(self) -> list[tuple[IntEnum, IntEnum, IntEnum]]:
        return [(step.at, step.on, step.to) for step in self.steps]
