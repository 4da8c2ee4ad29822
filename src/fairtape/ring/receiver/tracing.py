"""Traces: how every token of the others reached this site, and what had to be asked for on the way.

Whoever plans timing wants to know how often a link loses an acknowledgment, how long one takes from site to site, and
how soon a request is answered. Only the receiver knows. It tells a `Tracer`, which makes one record of each token, of
each request, and now and then of each source. Nothing that a machine does depends on them.

An acknowledgment that was asked for may have been lost, or only late: where it was late, a second copy comes. So the
record of a token that was asked for is kept open for one more wait, and counts the copies. A request that was there
before the acknowledgment was even sent brings none, and is counted apart. A repair is the original
datagram, so nobody can tell which of several requests brought it: the answer is noted with the last one, whose
`ack_requests` or `message_requests` says the how-manieth it was.
"""

from collections import Counter, deque
from enum import IntEnum
from typing import Final, NamedTuple

from fairtape.core.instants import Duration, Instant
from fairtape.wire.frames import Ack, NodeId, Range

TRACES_MAX: Final = 65_536  # that wait to be taken; further ones are dropped, and counted
OPEN_MAX: Final = 4_096  # tokens that are asked for, or whose messages are
SOURCE_RECORD_TOKENS: Final = 256  # between two records of each source


class TraceKind(IntEnum):
    """What a record is about."""

    TOKEN = 1  # Ack(e) and Msg(e), from the site whose turn it was
    REQUEST = 2  # one request to another site
    SOURCE = 3  # the messages of a source since its last such record


class Trace(NamedTuple):
    """One record. Instants are those of this site's clock, but for `sent_at` of a token; 0: it did not happen."""

    kind: int
    premature: int  # TOKEN: requests for Ack(e) that were there before it was sent
    copies: int  # TOKEN: of parts of Ack(e) that came again, after it was asked for
    ack_requests: int  # TOKEN: how many were made; REQUEST: the how-manieth for Ack(e) it was
    message_requests: int  # the same for Msg(e)
    peer: NodeId  # TOKEN: whose turn it was; REQUEST: who was asked; SOURCE: the source
    formation: int
    token: int  # SOURCE: the last one that is counted
    due_at: Instant  # TOKEN: t_e, by the schedule
    sent_at: Instant  # TOKEN: by the clock of its sender; REQUEST: by the own one
    came_at: Instant  # TOKEN: all of Ack(e) was here; REQUEST: what was asked for; SOURCE: when it was counted
    complete_at: Instant  # TOKEN: all of Msg(e) was here
    clock_bound: Duration  # TOKEN: of both clocks together
    messages: int  # TOKEN, SOURCE: how many there were
    missing: int  # TOKEN, REQUEST, SOURCE: how many of them had to be asked for


class _OpenTrace:
    """A token that is not complete, or that was asked for."""

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
        self.ack_asked_by: list[Instant] = []  # when each request was there
        self.ack_requests = self.message_requests = 0
        self.asked_of: NodeId | None = None  # a request that is not answered yet
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
    """Makes records of what a receiver tells it, and keeps them until they are taken."""

    def __init__(self) -> None:
        self.dropped = 0  # records for which there was no room
        self._traces: deque[Trace] = deque()
        self._open: dict[int, _OpenTrace] = {}
        self._lingering: deque[int] = deque()  # complete tokens that were asked for, in this order
        self._messages: Counter[NodeId] = Counter()  # by source, since the last census
        self._missing: Counter[NodeId] = Counter()
        self._uncounted = 0  # tokens since then

    def ack_received(
        self, ack: Ack, ranges: tuple[Range, ...], *, due_at: Instant, clock_bound: Duration, now: Instant
    ) -> None:
        """All parts of Ack(e) are here; it names these messages."""
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
        """A site is asked for Ack(e), or for what is `missing` of Msg(e); a `hop` later it knows."""
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
        """All of Msg(e) is here. One that was asked for stays open for so long, so that copies are counted."""
        traced = self._open.get(token)
        if traced is None:
            return  # its own, or one that came with another's journal
        self._answer(token, traced, now)
        traced.complete_at = now
        if traced.ack_requests:
            traced.linger_until = now + linger
            self._lingering.append(token)
        else:
            self._close(token)

    def copied(self, token: int) -> None:
        """A part of Ack(e) came once more."""
        if (traced := self._open.get(token)) is not None:
            traced.copies += 1

    def end_formation(self, now: Instant) -> None:
        """What is open will not be completed in this formation."""
        for token, traced in list(self._open.items()):
            self._answer(token, traced, 0)
            self._close(token)
        self._lingering.clear()
        if self._uncounted:
            self.count_sources(0, 0, now)

    def count_sources(self, formation: int, token: int, now: Instant) -> None:
        """A record of each source: what came of it since the last one, and what of that had to be asked for."""
        for source, messages in sorted(self._messages.items()):
            missing = self._missing[source]
            self._add(Trace(TraceKind.SOURCE, 0, 0, 0, 0, source, formation, token, 0, 0, now, 0, 0, messages, missing))
        self._messages.clear()
        self._missing.clear()
        self._uncounted = 0

    def take(self, now: Instant) -> list[Trace]:
        """All records that are ready."""
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
        """The request under way is over: answered at this instant, or (0) not."""
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
