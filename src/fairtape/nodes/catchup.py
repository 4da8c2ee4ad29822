"""Catching up: a site that missed more than the ring can repair reads another site's journal (R_x).

The unit is a journal entry in its canonical encoding. It is split into chunks, reassembled, and taken into the order as
if it had come by the ring. An entry is identified by the position before it, so both sides mean the same entry whatever
else their journals hold.

The client does not know where entries end before it has them. So it numbers the chunks that it asks for, from its
position on through all entries that follow, and requests ranges of numbers far ahead of what has arrived. The numbers
decide what is requested, and what has to be requested again; a chunk itself says of which entry it is. The client keeps
all state (decision 70, Catching up ahead). The server only remembers where entries begin in the numbering of a client,
and does without where it has forgotten.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final

from fairtape.core.effects import FetchChunks, Ordered, Send
from fairtape.core.entries import Entry, Extract, Position, decode_entry, position_of
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.congestion_window import REQUEST_MAX, WINDOW_MAX, CongestionWindow
from fairtape.nodes.journal_position import Disagreement
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.wire.frames import Malformed, NodeId
from fairtape.wire.membership import CHUNKS_MAX, POSITION, CatchUp, HistoryChunk, chunk_size

UNANSWERED_MAX: Final = 3  # timeouts, or responses without a chunk, before the next site is asked
PENDING_MAX: Final = 1_024  # requests of others that wait for the journal
PENDING_CHUNKS_MAX: Final = 2_048  # of the requests of one site that wait
MARKS_MAX: Final = 1_024  # beginnings of entries that the server remembers of a client
CLIENTS_MAX: Final = 64  # of which it remembers any


@dataclass(slots=True)
class _PartialEntry:
    """The received chunks of one entry."""

    after: Position
    chunks: int
    check: int
    held: dict[int, bytes] = field(default_factory=dict)
    first_missing: int = 0  # no chunk before it is missing

    @property
    def is_whole(self) -> bool:
        return len(self.held) == self.chunks

    def missing(self) -> int:
        """The first missing chunk; the number of chunks if none is missing."""
        while self.first_missing in self.held:
            self.first_missing += 1
        return self.first_missing


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A range of chunk numbers that was requested."""

    number: int
    count: int
    asked_at: Instant


class CatchUpReader:
    """Requests chunks of the entries after a position, and reassembles them."""

    def __init__(self) -> None:
        self.ask_at: Instant = NEVER
        self._position = Position(0, 0)
        self._base = 0  # the number of the first chunk after that position
        self._next = 0  # the first number that was not requested yet
        self._partial: dict[int, _PartialEntry] = {}  # by the number of the first chunk
        self._asked: dict[int, _Request] = {}  # the latest request of each chunk that has not arrived
        self._requests: deque[_Request] = deque()  # in the order in which they were made
        self._overtaken: deque[tuple[_Request, Instant]] = deque()  # and since when
        self._repairs: deque[tuple[int, int]] = deque()  # numbers and counts of chunks to be requested again
        self._window = CongestionWindow(0)
        self._retry_period: Duration = 0
        self._paced_at: Instant = 0  # no request before
        self._ahead_at: Instant = 0  # no request of further chunks before: the server had no more
        self._deferred_until: Instant | None = None  # the next entry is complete and may not be taken before
        self._quiet_since: Instant = 0
        self._unanswered = 0  # timeouts and ends of journals in a row
        self._server = 0

    @property
    def unordered(self) -> int:
        """The chunks that are requested or held, of entries after the next one."""
        held = sum(len(partial.held) for number, partial in self._partial.items() if number != self._base)
        return held + len(self._asked)

    def start(self, position: Position, retry_period: Duration, now: Instant) -> None:
        """Request what follows a position, unless that is under way."""
        if self.ask_at == NEVER:
            self._retry_period = retry_period
            self._window = CongestionWindow(retry_period)
            self._next = max(self._next, now)  # a server that remembers an earlier incarnation does not mix them up
            self._unanswered = self._server = 0  # the likeliest site first
            self._restart(position, now)

    def stop(self) -> None:
        if self.ask_at != NEVER:
            self._restart(self._position, 0)
            self.ask_at = NEVER

    def check_clock(self, now: Instant) -> None:
        """A clock that was set back must not extend the wait."""
        if self._quiet_since > now and self.ask_at < NEVER:
            self._restart(self._position, now)

    def next_server(self, servers: Sequence[NodeId]) -> NodeId:
        """The site to ask now. After `UNANSWERED_MAX` requests without a useful response it is the next one."""
        if self._unanswered >= UNANSWERED_MAX:
            self._unanswered = 0
            self._server += 1
            backoff, self._window = self._window.backoff, CongestionWindow(self._retry_period)
            self._window.backoff = backoff
        return servers[self._server % len(servers)]

    def requests(self, position: Position, now: Instant) -> list[tuple[int, int, int]]:
        """The requests to make now: chunks after the position, numbers of chunks, and the number of the first."""
        self._follow(position, now)
        if self._deferred_until is not None:
            found = self._poll(now)
        else:
            if self._asked and self._quiet_since + self._window.timeout <= now:
                self._time_out(now)
            found = list(self._next_requests(now))
        self._set_timer(now)
        return [(number - self._base, count, number) for number, count in found]

    def take(self, history: HistoryChunk, position: Position, now: Instant) -> bool:
        """Add one chunk; whether the next entry is complete.

        Sites that do not know of a Break may hold another entry after the same position. What contradicts what is held
        here starts everything anew.
        """
        self._follow(position, now)
        number, first = history.number, history.number - history.chunk
        if not self._base <= first < self._limit:
            return False
        self._unanswered = 0
        self._quiet_since = now
        if self._asked.pop(number, None) is not None and history.asked_at <= now:
            self._window.arrived(history.asked_at, now)
            self._find_losses(history.asked_at, now)
        after = Position(history.formation, history.after)
        partial = self._partial.get(first)
        if partial is None:
            partial = self._partial[first] = _PartialEntry(after, history.chunks, history.check)
        if partial.after != after or (partial.chunks, partial.check) != (history.chunks, history.check):
            self._start_anew(now)
            return False
        partial.held[history.chunk] = history.data
        self._check_next(now)
        self._set_timer(now)
        return first == self._base and partial.is_whole

    def entry_after(self, position: Position) -> Entry | None:
        """The entry after `position`, if it is complete. Raises `Malformed` if it is not a valid entry."""
        partial = self._partial.get(self._base)
        if partial is None or position != self._position or not partial.is_whole:
            return None
        try:
            return decode_entry(b"".join(partial.held[chunk] for chunk in range(partial.chunks)))
        except Malformed:
            self._restart(position, self._quiet_since)
            raise

    def entry_taken(self, entry: Entry, now: Instant) -> None:
        """The next entry was taken into the order."""
        partial = self._partial.pop(self._base)
        self._base += partial.chunks
        self._next = max(self._next, self._base)
        self._position = position_of(entry)
        self._deferred_until = None
        self._check_next(now)
        self._set_timer(now)

    def defer(self, now: Instant) -> None:
        """The next entry is complete and may not be taken yet: ask later whether it may."""
        self._deferred_until = now + self._retry_period
        self._set_timer(now)

    def refused(self, position: Position, now: Instant) -> None:
        """The next entry does not continue the order: its server or this site will learn of a formation."""
        self._restart(position, now)
        self._ahead_at = now + self._retry_period
        self._set_timer(now)

    def ended(self, number: int, now: Instant) -> None:
        """The server has nothing from this number on: request what follows, but not at once."""
        if not self._base <= number <= self._next:
            return
        self._unanswered += 1  # another site may have more
        self._quiet_since = now
        self._window.backoff = 0
        self._next = number
        for beyond in [each for each in self._asked if each >= number]:
            del self._asked[beyond]
        self._repairs = deque((at, min(count, number - at)) for at, count in self._repairs if at < number)
        for beyond in [each for each in self._partial if each >= number]:
            del self._partial[beyond]
        if self._base not in self._partial:
            self._deferred_until = None  # another server had that entry
        self._ahead_at = now + self._retry_period
        self._set_timer(now)

    # Requests.

    def _next_requests(self, now: Instant) -> Iterator[tuple[int, int]]:
        while self._paced_at <= now:
            allowed = self._window.request_max(len(self._asked), repairs=bool(self._repairs))
            found = self._take_range(allowed, now) if allowed else None
            if found is None:
                return
            number, count = found
            request = _Request(number, count, now)
            if not self._asked:
                self._quiet_since = now
            self._asked.update(dict.fromkeys(range(number, number + count), request))
            self._requests.append(request)
            gap = self._window.gap_after(count)
            self._paced_at = max(self._paced_at, now - max(self._window.burst_period, gap)) + gap
            yield number, count

    def _take_range(self, count_max: int, now: Instant) -> tuple[int, int] | None:
        """The next chunks to request: what was lost, or what lies ahead."""
        while self._repairs:
            first, count = self._repairs.popleft()
            number, end = max(first, self._base), first + count  # late chunks may have completed an entry meanwhile
            if number >= end:
                continue
            if end - number > count_max:
                self._repairs.appendleft((number + count_max, end - number - count_max))
            return number, min(end - number, count_max)
        count = min(count_max, self._limit - self._next)
        if now < self._ahead_at or count <= 0:
            return None
        number, self._next = self._next, self._next + count
        return number, count

    @property
    def _limit(self) -> int:
        """The number beyond which nothing is requested or held: the next entry may be large, what follows may not."""
        partial = self._partial.get(self._base)
        return self._base + WINDOW_MAX + (0 if partial is None else partial.chunks)

    def _poll(self, now: Instant) -> list[tuple[int, int]]:
        """The last chunk of the next entry again: with it comes how much is settled by now."""
        assert self._deferred_until is not None
        if self._deferred_until > now:
            return []
        self._deferred_until = now + self._retry_period
        self._unanswered += 1
        return [(self._base + self._partial[self._base].chunks - 1, 1)]

    def _set_timer(self, now: Instant) -> None:
        if self._deferred_until is not None:
            self.ask_at = self._deferred_until
            return
        timeout_at = self._quiet_since + self._window.timeout if self._asked else NEVER
        ready_at = NEVER
        if self._window.request_max(len(self._asked), repairs=bool(self._repairs)):
            if self._repairs:
                ready_at = self._paced_at
            elif self._next < self._limit:
                ready_at = max(self._paced_at, self._ahead_at)
        self.ask_at = max(min(timeout_at, ready_at), 0)
        assert self.ask_at < NEVER or self._asked, f"nothing to wait for at {now}"

    # Losses.

    def _find_losses(self, answered_at: Instant, now: Instant) -> None:
        """Find what is lost: it was overtaken by the response to a later request, and did not come soon after that."""
        reordering = self._window.reordering
        while self._requests and self._requests[0].asked_at + reordering < answered_at:
            self._overtaken.append((self._requests.popleft(), now))
        while self._overtaken and self._overtaken[0][1] + reordering < now:
            request, _ = self._overtaken.popleft()
            numbers = range(request.number, request.number + request.count)
            lost = [number for number in numbers if self._asked.get(number) is request]
            self._window.lost(len(lost), whole=len(lost) == request.count)
            self._lose(lost)

    def _lose(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._asked[number]
        self._repairs.extend(_ranges(numbers))

    def _time_out(self, now: Instant) -> None:
        self._unanswered += 1
        self._requests.clear()
        self._overtaken.clear()
        self._lose(sorted(self._asked))
        self._repairs = deque(sorted(self._repairs))
        self._window.timed_out()
        self._quiet_since = self._paced_at = now

    # Numbering.

    def _follow(self, position: Position, now: Instant) -> None:
        """Something else has moved the position of this site: what is held no longer follows it."""
        if position != self._position:
            self._restart(position, now)

    def _check_next(self, now: Instant) -> None:
        """What is missing of the next entry is under way; if not, numbers of different servers do not fit together."""
        partial = self._partial.get(self._base)
        missing = self._base + (0 if partial is None else partial.missing())
        contradicts = partial is not None and partial.after != self._position
        is_whole = partial is not None and partial.is_whole
        lost = missing < self._next and missing not in self._asked and not self._repairs
        if contradicts or (lost and not is_whole):
            self._start_anew(now)

    def _start_anew(self, now: Instant) -> None:
        self._restart(self._position, now)
        self._ahead_at = now + self._retry_period
        self._set_timer(now)

    def _restart(self, position: Position, now: Instant) -> None:
        """Number from this position on. The numbers are new ones, so that late chunks are not mistaken."""
        self._position = position
        self._base = self._next = self._next + WINDOW_MAX + CHUNKS_MAX
        for table in (self._partial, self._asked, self._requests, self._overtaken, self._repairs):
            table.clear()
        self._deferred_until = None
        self._quiet_since = self._paced_at = self._ahead_at = now
        self.ask_at = now


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as consecutive ranges: a first number and a count."""
    first, count = 0, 0
    for number in numbers:
        if number != first + count:
            if count:
                yield first, count
            first, count = number, 0
        count += 1
    if count:
        yield first, count


class CatchUpClient:
    """Adds entries that the ring cannot repair to a receiver's order."""

    def __init__(self, *, me: NodeId, stripe: int, authenticator: MessageAuthenticator) -> None:
        self.reader = CatchUpReader()
        self._latest = 0  # the formation of which all that the reader holds knew
        self._me = me
        self._stripe = stripe
        self._authenticator = authenticator

    def follow(self, receiver: Receiver, now: Instant) -> None:
        """Start when the receiver is stranded, and stop when it is not.

        A new formation may have abandoned what was sent before it was known: that is requested again.
        """
        if receiver.formation.number != self._latest:
            self._latest = receiver.formation.number
            self.reader.stop()
        if receiver.membership.stranded:
            self.reader.start(receiver.position, receiver.formation.timing.retry_period, now)
        elif self.reader.ask_at != NEVER:
            self.reader.stop()

    def ask(self, receiver: Receiver, now: Instant) -> list[Send]:
        """The requests that are due, to one site."""
        servers = self._servers(receiver)
        if not servers:
            self.reader.stop()
            return []
        formation, token = receiver.position
        requests = [
            self._authenticator.for_membership(
                CatchUp(self._stripe, formation, self._me, token, chunk, count, number, now)
            )
            for chunk, count, number in self.reader.requests(receiver.position, now)
        ]
        return [Send(self.reader.next_server(servers), requests)] if requests else []

    def _servers(self, receiver: Receiver) -> list[NodeId]:
        """The sites that may have the missing entries: the parent, the keeper, and all members."""
        formation = receiver.formation
        likely = [receiver.repairs.parent or formation.keeper, formation.keeper, *formation.members]
        return [site for site in dict.fromkeys(likely) if site and site != self._me]

    def take(self, history: HistoryChunk, receiver: Receiver, now: Instant) -> str:
        """Process a response. Returns a counter name. Raises `Disagreement` if the others abandoned our order."""
        if receiver.membership.fenced or self.reader.ask_at == NEVER:  # a fenced site has reported what it holds
            return "unasked"
        known, latest = history.known, receiver.formation.number
        if known < latest and (history.chunks or known):
            return "unknowing"  # a part of what it holds may be abandoned, and it cannot know
        if history.chunks:
            self._take_chunk(history, receiver, now)
            return "past"
        if known:
            self.reader.ended(history.number, now)
        if (history.formation, history.after) == receiver.position:
            return self._take_end(history, receiver, now)
        if known >= latest:  # this site followed the ring meanwhile, and may have caught up by that
            receiver.compare(history.complete_through)
        return "outdated"

    def _take_chunk(self, history: HistoryChunk, receiver: Receiver, now: Instant) -> None:
        if self.reader.take(history, receiver.position, now):
            if self._adopt(receiver, history.settled_through, now):
                receiver.verify(now)
            receiver.catch_up_to(receiver.complete_through, history.settled_through, now)
        elif history.chunk:
            return
        receiver.compare(history.complete_through)

    def _take_end(self, history: HistoryChunk, receiver: Receiver, now: Instant) -> str:
        """Nothing follows the position of this site up to what the other one holds."""
        if not history.known:
            return "past"
        if history.known > receiver.formation.number:
            return "ahead"  # that formation may have abandoned what is held here; its Install comes first
        if self._confirms(history, receiver):
            receiver.verify(now)
        through = (
            history.complete_through
            if receiver.membership.active
            else min(history.complete_through, history.settled_through)
        )
        receiver.catch_up_to(through, history.settled_through, now, known=history.known)
        receiver.compare(history.complete_through)
        return "past"

    @staticmethod
    def _confirms(history: HistoryChunk, receiver: Receiver) -> bool:
        """Whether a site that knows the latest formation, and states where its journal ends, has what is held here.

        Raises `Disagreement` if it holds the order at least as far and has less: the others abandoned the rest.
        """
        ours = receiver.journal_end
        if not history.data or history.complete_through < ours.token:
            return False
        theirs = Position(*POSITION.unpack(history.data))
        if not receiver.membership.verified and theirs < ours and ours.token <= receiver.membership.fixed_through:
            raise Disagreement(theirs.token)
        return True

    def _adopt(self, receiver: Receiver, settled_through: int, now: Instant) -> bool:
        """Take complete entries into the order. A site that is not active takes only what no Break can remove.

        Returns whether an entry was deferred that continues the order here, so nothing here contradicts it.
        """
        while (entry := self.reader.entry_after(receiver.position)) is not None:
            final_through = max(settled_through, receiver.membership.fixed_through)
            unsettled = isinstance(entry, Ordered) and entry.token > final_through
            if unsettled and not receiver.membership.active:
                self.reader.defer(now)
                return entry.formation == receiver.position.formation
            try:
                receiver.adopt(entry)
            except Malformed:
                self.reader.refused(receiver.position, now)
                raise
            self.reader.entry_taken(entry, now)
        return False


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for the journal."""

    request: CatchUp
    skip: int  # chunks from where the journal is read to the first one that is requested


class CatchUpServer:
    """Answers requests from the journal."""

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, datagram_max: int) -> None:
        self._me = me
        self._authenticator = authenticator
        self._chunk_size = chunk_size(datagram_max)
        self._pending: dict[int, PendingRequest] = {}
        self._ticket = 0
        self._marks: dict[NodeId, list[tuple[int, Position]]] = {}  # by client: numbers at which entries begin

    def start_read(self, request: CatchUp) -> FetchChunks | None:
        """What to read from the journal; None if too many requests are pending, or the same one.

        A site that waits repeats its request. Reading the journal for each repetition would keep it waiting.
        """
        pending = [each.request for each in self._pending.values() if each.request.sender == request.sender]
        is_pending = any(each.number == request.number for each in pending)
        if is_pending or len(self._pending) >= PENDING_MAX:
            return None
        if sum(min(each.chunks_max, REQUEST_MAX) for each in pending) >= PENDING_CHUNKS_MAX:
            return None
        number, position = self._begin(request)
        self._ticket += 1
        pending_request = PendingRequest(request, request.number - number)
        self._pending[self._ticket] = pending_request
        count = min(request.chunks_max, REQUEST_MAX)
        skip, size = pending_request.skip, self._chunk_size
        return FetchChunks(position.token, position.formation, skip, count, size, self._ticket)

    def end_read(self, ticket: int) -> PendingRequest | None:
        """The request for which the journal was read. It is no longer pending, whether it can be answered or not."""
        return self._pending.pop(ticket, None)

    @property
    def pending(self) -> int:
        """The requests that wait for the journal."""
        return len(self._pending)

    def forget(self) -> None:
        """The journal was truncated: what was read from it may be gone."""
        self._marks.clear()

    def answer(self, pending: PendingRequest, extract: Extract, receiver: Receiver) -> list[Send]:
        """The response, after the journal was read: the chunks, or where the journal ends.

        That nothing follows is only stated by a journal that was read to its end: otherwise the client would go on with
        a gap.
        """
        request = pending.request
        begin = request.number - pending.skip
        self._note(request.sender, begin + extract.counted, extract.end)
        complete, settled = receiver.complete_through, receiver.survives_through
        known = receiver.formation.number if receiver.membership.verified else 0
        history = [
            HistoryChunk(
                request.stripe,
                after.formation,
                self._me,
                after.token,
                complete,
                settled,
                known,
                chunk,
                chunks,
                data,
                check,
                number,
                request.asked_at,
            )
            for number, (after, chunk, chunks, check, data) in enumerate(extract.chunks, request.number)
        ]
        unknown = not extract.counted and pending.skip == request.chunk  # nothing is beyond the client's position
        nothing_follows = unknown or extract.end == receiver.journal_end
        if extract.exhausted and nothing_follows and len(extract.chunks) < request.chunks_max:
            end, data = extract.end, POSITION.pack(*receiver.journal_end)
            history.append(
                HistoryChunk(
                    request.stripe,
                    end.formation,
                    self._me,
                    end.token,
                    complete,
                    settled,
                    known,
                    0,
                    0,
                    data,
                    number=begin + extract.counted,
                    asked_at=request.asked_at,
                )
            )
        return [Send(request.sender, list(map(self._authenticator.for_membership, history)))] if history else []

    def _begin(self, request: CatchUp) -> tuple[int, Position]:
        """The number and the position from which to read: the last ones known that precede the requested chunks."""
        position = Position(request.formation, request.token)
        number = request.number - request.chunk
        marks = self._marks.get(request.sender)
        if marks:
            if request.number < marks[0][0]:
                marks.clear()  # another numbering, or long ago
            place = bisect_right(marks, request.number, key=itemgetter(0))
            if place and marks[place - 1][0] > number:
                return marks[place - 1]
        return number, position

    def _note(self, client: NodeId, number: int, position: Position) -> None:
        marks = self._marks.pop(client, None) or []
        self._marks[client] = marks
        if len(self._marks) > CLIENTS_MAX:
            del self._marks[next(iter(self._marks))]  # the least recently used
        place = bisect_left(marks, number, key=itemgetter(0))
        if place == len(marks) or marks[place][0] != number:
            marks.insert(place, (number, position))
        del marks[:-MARKS_MAX]
