"""Recovery: one run of the figure's state machine per token, many in parallel, and the requests that they send.

When tokens pass faster than recoveries end (T-RMP §5), several run at once. Their requests are collected for a moment
and combined into few datagrams per site.
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
REQUESTS_MAX: Final = 16  # datagrams to one site at a time; the rest is requested at the next retry

TransitionObserver = Callable[[int, IntEnum, IntEnum, IntEnum, int], None]
"""Called at every transition of every recovery: token, from, event, to, retries so far."""


class TokenState(Protocol):
    """What a recovery needs to know about its token."""

    def holds_messages(self, token: int) -> bool:
        """Whether all of Msg(token) is held."""


class Recovery:
    """The extended finite state machine of one acknowledgment at one receiver."""

    __slots__ = (
        "_asks_from", "_recoveries", "ack_retries", "began_at", "expires_at", "message_retries", "retries_max",
        "state", "token",
    )  # fmt: skip

    def __init__(self, token: int, recoveries: "Recoveries", began_at: Instant = 0) -> None:
        self.token = token
        self.began_at = began_at
        self.state: IntEnum = State.AWAIT_ACK
        self.ack_retries = 0
        self.message_retries = 0
        self.retries_max = recoveries.timing.retries_max
        self.expires_at: Instant = NEVER
        self._asks_from: Instant = (
            NEVER  # other sites request before that (2001 §5.2); NEVER: no request was needed yet
        )
        self._recoveries = recoveries

    @property
    def retries(self) -> int:
        """Requests so far, of both kinds."""
        return self.ack_retries + self.message_retries

    @property
    def running(self) -> bool:
        """Neither complete nor reforming."""
        return self.state < State.REFORM

    def holds_messages(self) -> bool:
        return self._recoveries.tokens.holds_messages(self.token)

    def ask(self) -> None:
        """Request what is missing once it is this receiver's turn to request, and wait T_R for it.

        A request that is delayed because acknowledgments are late does not delay the end of the wait: the wait counts
        as made (decision 50, Request thresholds).
        """
        recoveries = self._recoveries
        if self._asks_from == NEVER:
            self._asks_from = recoveries.now + recoveries.hold_back(self.token)
        asks_at = max(recoveries.now, self._asks_from)
        self.expires_at = asks_at + recoveries.timing.retry_period
        recoveries.collect(self, max(asks_at, recoveries.requests_from(self.token)))

    def declare_failure(self) -> None:
        self._recoveries.failed.append(self.token)


class Recoveries:
    """All recoveries of one receiver in one formation. Decides when to request, not from which site."""

    def __init__(
        self,
        *,
        timing: Timing,
        timed: bool,
        tokens: TokenState,
        observe: TransitionObserver | None = None,
    ) -> None:
        self.timing = timing
        self.hold_back: Callable[[int], Duration] = lambda _: 0  # the delay before this receiver requests (2001 §5.2)
        self.requests_from: Callable[[int], Instant] = lambda _: 0  # when the first request for a token may be sent
        self.tokens = tokens
        self.now: Instant = 0
        self.failed: list[int] = []  # tokens whose recovery ended in REFORM
        self._table: StateTable[Recovery] = (
            FIGURE_2 if not timed else FIGURE_3_MERGED if timing.merged else FIGURE_3_SEPARATE
        )
        self.running: dict[int, Recovery] = {}  # neither complete nor reforming
        self.suspected_at: int | None = None  # the token whose site does not answer (decision 72, Suspicion)
        self._observe = observe
        self._collected: dict[int, Recovery] = {}
        self._held_back: dict[int, tuple[Instant, Recovery]] = {}  # until when other sites request
        self._ask_at: Instant = NEVER

    @property
    def has_capacity(self) -> bool:
        """Whether one more recovery may start. A site that did not run for long catches up in steps."""
        return len(self.running) < RECOVERIES_MAX

    def __len__(self) -> int:
        return len(self.running)

    def acknowledged(self, token: int, now: Instant) -> bool:
        """All parts of Ack(token) are held. Returns whether that completes the token."""
        if token not in self.running and self._observe is None and self.tokens.holds_messages(token):
            return True  # the usual path, AWAIT_ACK, TEST_MESSAGES, COMPLETE, without running the table
        return self._fire(self._recovery(token, now), Event.ACK, now)

    def overdue(self, token: int, since: Instant, now: Instant) -> None:
        """TRMP: Ack(token) is overdue since `since`. Waits that have passed since then count as made.

        The request is collected from now on: a site that could not run first reads what has arrived meanwhile.
        """
        asks_at = self._ask_at
        recovery, instant = self._recovery(token, now), min(since, now)  # a running recovery has an expiry
        while recovery.running and instant <= now:
            self._fire(recovery, Event.TIMEOUT, instant)
            instant = recovery.expires_at
        self._suspect(recovery, now)
        if self._ask_at < asks_at:
            self._ask_at = min(asks_at, now + self.timing.request_delay)

    def overtaken(self, token: int, now: Instant) -> None:
        """RMP: Ack(token) is missing, because a later one was received."""
        self._fire(self._recovery(token, now), Event.LATER_ACK, now)

    def messages_arrived(self, now: Instant) -> list[int]:
        """Blocks were received. Returns the tokens that they complete."""
        waiting = [r for r in self.running.values() if r.state is State.AWAIT_REQUESTED_MESSAGES]
        return [r.token for r in waiting if r.holds_messages() and self._fire(r, Event.MESSAGES, now)]

    def wake(self, now: Instant) -> None:
        """End every wait that has expired."""
        for recovery in [r for r in self.running.values() if r.expires_at <= now]:
            self._fire(recovery, Event.TIMEOUT, now)
            self._suspect(recovery, now)

    def deadline(self) -> Instant:
        """When the next wait ends or collected requests are due."""
        earliest = self._ask_at
        for until, _ in self._held_back.values():
            earliest = min(earliest, until)
        for recovery in self.running.values():
            earliest = min(earliest, recovery.expires_at)
        return earliest

    def collect(self, recovery: Recovery, asks_at: Instant) -> None:
        """Add a request. It is sent a moment later with all others, or from `asks_at` on."""
        if asks_at > self.now:
            self._held_back[recovery.token] = asks_at, recovery
            self._collected.pop(recovery.token, None)
            return
        self._collected[recovery.token] = recovery
        self._ask_at = min(self._ask_at, self.now + self.timing.request_delay)

    def due_requests(self, now: Instant) -> list[Recovery]:
        """The recoveries whose requests must be sent now."""
        for token in [token for token, (until, _) in self._held_back.items() if until <= now]:
            _, recovery = self._held_back.pop(token)
            if recovery.running:
                self.now = now
                self.collect(recovery, now)
        if self._ask_at > now:
            return []
        self._ask_at = NEVER
        collected, self._collected = self._collected, {}
        return [recovery for recovery in collected.values() if recovery.running]

    def take_failed(self) -> list[int]:
        """The tokens whose recovery ended in REFORM since the last call."""
        failed, self.failed = self.failed, []
        return failed

    def forget_through(self, token: int) -> None:
        """Everything up to `token` is in the order: drop its recoveries."""
        tables: tuple[dict[int, Recovery] | dict[int, tuple[Instant, Recovery]], ...] = (
            self.running,
            self._collected,
            self._held_back,
        )
        for table in tables:
            for passed in [known for known in table if known <= token]:
                del table[passed]
        if self.suspected_at is not None and self.suspected_at <= token:
            self.suspected_at = None

    def stop(self) -> None:
        """Drop all recoveries and requests. What was suspected by then stays."""
        self.running.clear()
        self._collected.clear()
        self._held_back.clear()
        self._ask_at = NEVER

    def _recovery(self, token: int, now: Instant) -> Recovery:
        recovery = self.running.get(token)
        if recovery is None:
            recovery = self.running[token] = Recovery(token, self, now)
        return recovery

    def _suspect(self, recovery: Recovery, now: Instant) -> None:
        """Suspect the site of a token whose Ack was requested in vain for long enough.

        Only requests that were possible count: waits that passed before this recovery began do not.
        """
        timing = self.timing
        waited = now - recovery.began_at >= timing.suspect_retries * timing.retry_period
        if waited and recovery.state is State.AWAIT_REQUESTED_ACK and recovery.ack_retries > timing.suspect_retries:
            self.suspected_at = recovery.token

    def _fire(self, recovery: Recovery, event: Event, now: Instant) -> bool:
        self.now = now
        before = recovery.state
        moved = self._table.fire(recovery, event)
        if recovery.token == self.suspected_at and recovery.state is not State.AWAIT_REQUESTED_ACK:
            self.suspected_at = None
        if moved and self._observe is not None:
            self._observe(recovery.token, before, event, recovery.state, recovery.retries)
        if recovery.running:
            return False
        self.running.pop(recovery.token, None)
        self._held_back.pop(recovery.token, None)
        return recovery.state is State.COMPLETE


def request_targets(
    recoveries: Iterable[Recovery], *, formations: FormationHistory, me: NodeId, highest_ack: int
) -> dict[NodeId, list[Recovery]]:
    """The site that each recovery asks next: the latest token site, which holds everything, then earlier ones."""
    asked: dict[NodeId, list[Recovery]] = {}
    for recovery in recoveries:
        sites = _holders(recovery.token, formations, me, highest_ack)
        site = sites[(recovery.retries - 1) % len(sites)]
        asked.setdefault(site, []).append(recovery)
    return asked


def _holders(token: int, formations: FormationHistory, me: NodeId, highest_ack: int) -> list[NodeId]:
    """Sites that are known to hold Msg(token), latest first; if none is known, the one whose turn it is."""
    lowest = max(token, highest_ack - len(formations.latest.members) + 1)
    known = [formations.holder(later) for later in range(highest_ack, lowest - 1, -1)]
    return [site for site in known if site != me] or [formations.holder(token)]


def combine_requests(
    recoveries: Iterable[Recovery], ordering: Ordering, stripe: int, formation: int, me: NodeId, datagram_max: int
) -> Iterator[Request]:
    """The requests of these recoveries to one site, in few datagrams. T-RMP §5."""
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
        batch_tokens, tokens = tokens[:items_max], tokens[items_max:]
        left = items_max - len(batch_tokens)
        batch_ranges, ranges = ranges[:left], ranges[left:]
        yield Request(stripe, formation, me, tuple(batch_tokens), tuple(batch_ranges))
