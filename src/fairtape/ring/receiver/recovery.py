"""Recovery: one run of the figure's machine per token, and all of them side by side.

When tokens pass faster than recoveries end (T-RMP §5) several run at once; what they want is gathered for a moment
and asked of each site in one combined request.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Final, Protocol

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.state_table import StateTable
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.recovery_tables import FIGURE_2, FIGURE_3_MERGED, FIGURE_3_SEPARATE, Event, State
from fairtape.wire.frames import NodeId, Range, Request, request_items_max

RECOVERIES_MAX: Final = 1_024

TransitionObserver = Callable[[int, IntEnum, IntEnum, IntEnum, int], None]
"""Told of every step of every recovery: token, from, event, to, retries so far."""


class TokenState(Protocol):
    """What a recovery must be able to ask about its token."""

    def holds_messages(self, token: int) -> bool:
        """Whether all of Msg(token) is held."""


class Recovery:
    """The extended finite state machine of one acknowledgment at one receiver."""

    __slots__ = (
        "_asks_from", "_recoveries", "ack_retries", "expires_at", "message_retries", "retries_max", "state", "token",
    )  # fmt: skip

    def __init__(self, token: int, recoveries: "Recoveries") -> None:
        self.token = token
        self.state: IntEnum = State.AWAIT_ACK
        self.ack_retries = 0
        self.message_retries = 0
        self.retries_max = recoveries.timing.retries_max
        self.expires_at: Instant = NEVER
        self._asks_from: Instant = NEVER  # before that it is left to others; NEVER: it has not wanted to ask yet
        self._recoveries = recoveries

    @property
    def retries(self) -> int:
        """Requests made so far, of both kinds."""
        return self.ack_retries + self.message_retries

    @property
    def running(self) -> bool:
        """Neither complete nor reforming."""
        return self.state < State.REFORM

    def holds_messages(self) -> bool:
        """Whether all of Msg(e) is held."""
        return self._recoveries.tokens.holds_messages(self.token)

    def ask(self) -> None:
        """Request what is missing, when it is this receiver's turn to ask, and wait T_R for it."""
        recoveries = self._recoveries
        if self._asks_from == NEVER:
            self._asks_from = recoveries.now + recoveries.hold_back(self.token)
        asks_at = max(recoveries.now, self._asks_from)
        self.expires_at = asks_at + recoveries.timing.retry_period
        recoveries.gather(self, asks_at)

    def declare_failure(self) -> None:
        """Give up on the token site."""
        self._recoveries.failed.append(self.token)


class Recoveries:
    """All recoveries of one receiver in one formation. Decides when to ask; says nothing about whom."""

    def __init__(
        self,
        *,
        timing: Timing,
        timed: bool,
        tokens: TokenState,
        observe: TransitionObserver | None = None,
    ) -> None:
        self.timing = timing
        self.hold_back: Callable[[int], Duration] = lambda _: 0  # how long it is left to others to ask (2001 §5.2)
        self.tokens = tokens
        self.now: Instant = 0
        self.failed: list[int] = []  # tokens whose recovery ended in REFORM
        self._table: StateTable[Recovery] = (
            FIGURE_2 if not timed else FIGURE_3_MERGED if timing.merged else FIGURE_3_SEPARATE
        )
        self.running: dict[int, Recovery] = {}  # neither complete nor reforming
        self._observe = observe
        self._gathered: dict[int, Recovery] = {}
        self._held_back: dict[int, tuple[Instant, Recovery]] = {}  # until when asking is left to others
        self._ask_at: Instant = NEVER

    @property
    def has_capacity(self) -> bool:
        """Whether one more recovery may start; a site that was asleep for long catches up step by step."""
        return len(self.running) < RECOVERIES_MAX

    def __len__(self) -> int:
        return len(self.running)

    def acknowledged(self, token: int, now: Instant) -> bool:
        """All parts of Ack(token) are held. True when that completes it."""
        return self._fire(self._recovery(token), Event.ACK, now)

    def overdue(self, token: int, since: Instant, now: Instant) -> None:
        """Ack(token) should be here since then (TRMP): the waits that have passed meanwhile are made up for."""
        recovery, instant = self._recovery(token), min(since, now)  # one that runs has something to wait for
        while recovery.running and instant <= now:
            self._fire(recovery, Event.TIMEOUT, instant)
            instant = recovery.expires_at

    def overtaken(self, token: int, now: Instant) -> None:
        """Ack(token) should be here: a later one is (RMP)."""
        self._fire(self._recovery(token), Event.LATER_ACK, now)

    def messages_arrived(self, now: Instant) -> list[int]:
        """Blocks have come in: the tokens that are complete by it."""
        waiting = [r for r in self.running.values() if r.state is State.AWAIT_REQUESTED_MESSAGES]
        return [r.token for r in waiting if r.holds_messages() and self._fire(r, Event.MESSAGES, now)]

    def wake(self, now: Instant) -> None:
        """Let every wait end whose time is up."""
        for recovery in [r for r in self.running.values() if r.expires_at <= now]:
            self._fire(recovery, Event.TIMEOUT, now)

    def deadline(self) -> Instant:
        """When the next wait ends or gathered requests must go."""
        earliest = self._ask_at
        for until, _ in self._held_back.values():
            earliest = min(earliest, until)
        for recovery in self.running.values():
            earliest = min(earliest, recovery.expires_at)
        return earliest

    def gather(self, recovery: Recovery, asks_at: Instant) -> None:
        """A request is wanted; it goes out a moment later with all others, or when this receiver's turn has come."""
        if asks_at > self.now:
            self._held_back[recovery.token] = asks_at, recovery
            return
        self._gathered[recovery.token] = recovery
        self._ask_at = min(self._ask_at, self.now + self.timing.request_delay)

    def wants(self, now: Instant) -> list[Recovery]:
        """The recoveries whose requests are to be sent now, if it is time to send any."""
        for token in [token for token, (until, _) in self._held_back.items() if until <= now]:
            _, recovery = self._held_back.pop(token)
            if recovery.running:
                self.now = now
                self.gather(recovery, now)
        if self._ask_at > now:
            return []
        self._ask_at = NEVER
        gathered, self._gathered = self._gathered, {}
        return [recovery for recovery in gathered.values() if recovery.running]

    def take_failed(self) -> list[int]:
        """The tokens whose recovery has ended in REFORM since the last call."""
        failed, self.failed = self.failed, []
        return failed

    def forget_through(self, token: int) -> None:
        """Everything up to `token` is in the order, by whatever way it came."""
        tables: tuple[dict[int, Recovery] | dict[int, tuple[Instant, Recovery]], ...] = (
            self.running,
            self._gathered,
            self._held_back,
        )
        for table in tables:
            for passed in [known for known in table if known <= token]:
                del table[passed]

    def stop(self) -> None:
        """Ask for nothing more."""
        self.running.clear()
        self._gathered.clear()
        self._held_back.clear()
        self._ask_at = NEVER

    def _recovery(self, token: int) -> Recovery:
        recovery = self.running.get(token)
        if recovery is None:
            recovery = self.running[token] = Recovery(token, self)
        return recovery

    def _fire(self, recovery: Recovery, event: Event, now: Instant) -> bool:
        self.now = now
        before = recovery.state
        moved = self._table.fire(recovery, event)
        if moved and self._observe is not None:
            self._observe(recovery.token, before, event, recovery.state, recovery.retries)
        if recovery.running:
            return False
        self.running.pop(recovery.token, None)
        self._held_back.pop(recovery.token, None)
        return recovery.state is State.COMPLETE


# Requests: whom to ask for what is missing, and how to say it in few datagrams. T-RMP §5.

REQUESTS_MAX: Final = 16
"""Datagrams that one gathering sends to one site; what does not fit is asked for at the next retry."""


def whom_to_ask(
    recoveries: Iterable[Recovery], *, formations: FormationHistory, me: NodeId, highest_ack: int
) -> dict[NodeId, list[Recovery]]:
    """Each recovery's next site: first the latest token site, which holds everything, then the ones before it."""
    asked: dict[NodeId, list[Recovery]] = {}
    for recovery in recoveries:
        sites = _holders(recovery.token, formations, me, highest_ack)
        site = sites[(recovery.retries - 1) % len(sites)]
        asked.setdefault(site, []).append(recovery)
    return asked


def _holders(token: int, formations: FormationHistory, me: NodeId, highest_ack: int) -> list[NodeId]:
    """Sites that are known to hold Msg(token), latest first; before any is known, the one whose turn it is."""
    lowest = max(token, highest_ack - len(formations.latest.members) + 1)
    known = [formations.holder(later) for later in range(highest_ack, lowest - 1, -1)]
    return [site for site in known if site != me] or [formations.holder(token)]


def combine(
    recoveries: Iterable[Recovery], ordering: Ordering, stripe: int, formation: int, me: NodeId, datagram_max: int
) -> Iterator[Request]:
    """All that these recoveries want of one site, in as few requests as it takes."""
    tokens: list[int] = []
    ranges: list[Range] = []
    for recovery in recoveries:
        if recovery.state is State.AWAIT_REQUESTED_ACK:
            tokens.append(recovery.token)
        else:
            ranges += ordering.missing(recovery.token)
    items_max = request_items_max(datagram_max)
    for _ in range(REQUESTS_MAX):
        if not tokens and not ranges:
            return
        some_tokens, tokens = tokens[:items_max], tokens[items_max:]
        left = items_max - len(some_tokens)
        some_ranges, ranges = ranges[:left], ranges[left:]
        yield Request(stripe, formation, me, tuple(some_tokens), tuple(some_ranges))
