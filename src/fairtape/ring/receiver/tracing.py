"""Traces: how every token of other sites reached this site, and what had to be requested.

They show planners how often a link loses an acknowledgment, how long one takes from site to site, and how soon a
request is answered. The receiver reports to a `Tracer`, which makes a record of each token, of each request, and
periodically of each source. No behaviour depends on them.

An acknowledgment that was requested may have been lost, or only late; if it was late, a second copy arrives. So the
record of a requested token stays open for one more wait and counts the copies. A request that arrived before the
acknowledgment was even sent causes no copy, and is counted as `premature`. A repair is the original datagram, so it
does not show which of several requests caused it: the response is attributed to the last one, and its `ack_requests`
or `message_requests` is the number of that request.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from fairtape.core.instants import Duration, Instant
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.recovery import Recovery
from fairtape.ring.receiver.recovery_tables import State
from fairtape.wire.frames import Ack, NodeId, Range

TRACES_MAX: Final = 65_536  # that wait to be taken; further ones are dropped and counted
OPEN_MAX: Final = 4_096  # incomplete or requested tokens
SOURCE_RECORD_TOKENS: Final = 256  # between two records of a source


class TraceKind(IntEnum):
    """The subject of a record."""

    TOKEN = 1  # Ack(e) and Msg(e), from the site whose turn it was
    REQUEST = 2  # one request to another site
    SOURCE = 3  # the messages of a source since its last such record


class Trace(NamedTuple):
    """One record. Instants are by this site's clock, except `sent_at` of a token; 0: it did not happen."""

    kind: int
    premature: int  # TOKEN: requests for Ack(e) that arrived before it was sent
    copies: int  # TOKEN: repeated Acks after a request
    ack_requests: int  # TOKEN: number of requests for Ack(e); REQUEST: the number of this one
    message_requests: int  # the same for Msg(e)
    peer: NodeId  # TOKEN: the token site; REQUEST: the site asked; SOURCE: the source
    formation: int
    token: int  # SOURCE: the last one counted
    due_at: Instant  # TOKEN: t_e
    sent_at: Instant  # TOKEN: by its sender's clock; REQUEST: by this site's
    came_at: Instant  # TOKEN: Ack(e) complete; REQUEST: response received; SOURCE: time of the record
    complete_at: Instant  # TOKEN: Msg(e) complete
    clock_bound: Duration  # TOKEN: the sum of both clocks' bounds
    messages: int  # TOKEN, SOURCE: number of messages
    missing: int  # TOKEN, REQUEST, SOURCE: how many had to be requested


class _OpenTrace:
    """A token that is not complete, or that was requested."""

    __slots__ = (
        "ack_asked_by", "ack_requests", "asked_at", "asked_of", "came_at", "clock_bound", "complete_at", "copies",
        "due_at", "formation", "linger_until", "message_requests", "messages", "missing", "missing_now", "peer",
        "premature", "sent_at",
    )  # fmt: skip

    def __init__(self, peer: NodeId, formation: int, due_at: Instant) -> None:
        self.peer = peer
        self.formation = formation
        self.due_at = due_at
        self.sent_at = self.came_at = self.complete_at = 0
        self.clock_bound = self.messages = self.missing = self.missing_now = self.copies = self.premature = 0
        self.ack_asked_by: list[Instant] = []  # when each request arrived
        self.ack_requests = self.message_requests = 0
        self.asked_of: NodeId | None = None  # the site of a pending request
        self.asked_at: Instant = 0
        self.linger_until: Instant = 0

    def record(self, token: int) -> Trace:
        return Trace(
            TraceKind.TOKEN,
            self.premature,
            self.copies,
            self.ack_requests,
            self.message_requests,
            self.peer,
            self.formation,
            token,
            self.due_at,
            self.sent_at,
            self.came_at,
            self.complete_at,
            self.clock_bound,
            self.messages,
            self.missing,
        )


class Tracer:
    """Makes records and keeps them until they are taken."""

    def __init__(self) -> None:
        self.dropped = 0  # records above `TRACES_MAX`
        self._traces: deque[Trace] = deque()
        self._open: dict[int, _OpenTrace] = {}
        self._lingering: deque[int] = deque()  # complete tokens that were requested, in order of completion
        self._messages: Counter[NodeId] = Counter()  # by source, since its last record
        self._missing: Counter[NodeId] = Counter()
        self._uncounted = 0  # tokens since the last records of sources

    def ack_received(
        self, ack: Ack, ranges: tuple[Range, ...], *, due_at: Instant, clock_bound: Duration, now: Instant
    ) -> None:
        """All parts of Ack(e) were received; it names these ranges."""
        traced = self._opened(ack.token, ack.sender, ack.formation, due_at)
        self._answer(ack.token, traced, now)
        traced.sent_at = ack.sent_at
        traced.premature = sum(there_at < ack.sent_at for there_at in traced.ack_asked_by)
        traced.came_at = now
        traced.clock_bound = clock_bound
        for named in ranges:
            traced.messages += named.count
            self._messages[named.source] += named.count
        self._uncounted += 1
        if self._uncounted >= SOURCE_RECORD_TOKENS:
            self.count_sources(ack.formation, ack.token, now)

    def asked(
        self,
        token: int,
        of: NodeId,
        missing: list[Range] | None,
        *,
        holder: NodeId,
        formation: int,
        due_at: Instant,
        hop: Duration,
        now: Instant,
    ) -> None:
        """A site is asked for Ack(e), or for the `missing` part of Msg(e). The request arrives after `hop`."""
        traced = self._opened(token, holder, formation, due_at)
        self._answer(token, traced, 0)
        traced.asked_of, traced.asked_at = of, now
        if missing is None:
            traced.ack_requests += 1
            traced.ack_asked_by.append(now + hop)
            return
        traced.message_requests += 1
        traced.missing_now = sum(named.count for named in missing)
        if traced.message_requests == 1:
            traced.missing = traced.missing_now
            for named in missing:
                self._missing[named.source] += named.count

    def completed(self, token: int, *, linger: Duration, now: Instant) -> None:
        """Msg(e) is complete. A requested token stays open for `linger`, so that copies are counted."""
        traced = self._open.get(token)
        if traced is None:
            return  # of this site, or from another site's journal
        self._answer(token, traced, now)
        traced.complete_at = now
        if traced.ack_requests:
            traced.linger_until = now + linger
            self._lingering.append(token)
        else:
            self._close(token)

    def copied(self, token: int) -> None:
        """A part of Ack(e) arrived again."""
        if (traced := self._open.get(token)) is not None:
            traced.copies += 1

    def end_formation(self, now: Instant) -> None:
        """Close open records: their tokens are not completed in this formation."""
        for token, traced in list(self._open.items()):
            self._answer(token, traced, 0)
            self._close(token)
        self._lingering.clear()
        if self._uncounted:
            self.count_sources(0, 0, now)

    def count_sources(self, formation: int, token: int, now: Instant) -> None:
        """Record each source: its messages since the last record, and how many had to be requested."""
        for source, messages in sorted(self._messages.items()):
            missing = self._missing[source]
            self._add(Trace(TraceKind.SOURCE, 0, 0, 0, 0, source, formation, token, 0, 0, now, 0, 0, messages, missing))
        self._messages.clear()
        self._missing.clear()
        self._uncounted = 0

    def take(self, now: Instant) -> list[Trace]:
        while self._lingering:
            token = self._lingering[0]
            traced = self._open.get(token)
            if traced is not None and traced.linger_until > now:
                break
            self._lingering.popleft()
            if traced is not None:
                self._close(token)
        taken = list(self._traces)
        self._traces.clear()
        return taken

    def _opened(self, token: int, holder: NodeId, formation: int, due_at: Instant) -> _OpenTrace:
        traced = self._open.get(token)
        if traced is None:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            traced = self._open[token] = _OpenTrace(holder, formation, due_at)
        return traced

    def _answer(self, token: int, traced: _OpenTrace, answered_at: Instant) -> None:
        """End the pending request, answered at this instant; 0: not answered."""
        if traced.asked_of is None:
            return
        wants_ack = not traced.came_at
        self._add(
            Trace(
                TraceKind.REQUEST,
                0,
                0,
                traced.ack_requests if wants_ack else 0,
                0 if wants_ack else traced.message_requests,
                traced.asked_of,
                traced.formation,
                token,
                0,
                traced.asked_at,
                answered_at,
                0,
                0,
                0,
                0 if wants_ack else traced.missing_now,
            )
        )
        traced.asked_of = None

    def _close(self, token: int) -> None:
        self._add(self._open.pop(token).record(token))

    def _add(self, trace: Trace) -> None:
        if len(self._traces) < TRACES_MAX:
            self._traces.append(trace)
        else:
            self.dropped += 1


class TraceCalls:
    """The calls of a receiver to its tracer, with token site, schedule and missing ranges added. No-ops without one."""

    def __init__(
        self,
        tracer: Tracer | None,
        *,
        formations: FormationHistory,
        ordering: Ordering,
        clock_bound: Callable[[], Duration],
    ) -> None:
        self._tracer = tracer
        self._formations = formations
        self._ordering = ordering
        self._clock_bound = clock_bound

    def begin(self, now: Instant) -> None:
        """A new formation begins."""
        if self._tracer is not None:
            self._tracer.end_formation(now)

    def ack_received(self, ack: Ack, now: Instant) -> None:
        """A new part of an acknowledgment was received."""
        if self._tracer is None or not self._ordering.whole(ack.token):
            return
        self._tracer.ack_received(
            ack,
            self._ordering.ranges(ack.token),
            due_at=self._due_at(ack.token),
            clock_bound=ack.clock_bound + self._clock_bound(),
            now=now,
        )

    def copied(self, ack: Ack) -> None:
        """A part was received again. Only the first part of an acknowledgment is counted."""
        if self._tracer is not None and ack.part == 0:
            self._tracer.copied(ack.token)

    def asked(self, site: NodeId, recoveries: Iterable[Recovery], now: Instant) -> None:
        """A site is asked for all that these recoveries miss."""
        if self._tracer is None:
            return
        for recovery in recoveries:
            token = recovery.token
            wants_ack = recovery.state is State.AWAIT_REQUESTED_ACK
            formation = self._formations.of(token)
            self._tracer.asked(
                token,
                site,
                None if wants_ack else self._ordering.missing(token),
                holder=formation.holder(token),
                formation=formation.number,
                due_at=self._due_at(token),
                hop=formation.timing.retry_period // 2,
                now=now,
            )

    def completed(self, token: int, now: Instant) -> None:
        """Msg(e) is complete."""
        if self._tracer is not None:
            self._tracer.completed(token, linger=self._formations.of(token).timing.retry_period, now=now)

    def _due_at(self, token: int) -> Instant:
        formation = self._formations.of(token)
        return formation.scheduled_at(token) if formation.timed else 0
