"""Catching up: a site that missed more than the ring can repair reads another site's journal (R_x).

The unit is a journal entry in its canonical encoding. It is split into chunks, reassembled, and taken into the order as
if it had come by the ring. The client keeps all state; the server keeps a request only while it reads its journal. An
entry is identified by the position before it, so both sides mean the same entry whatever else their journals hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from fairtape.core.effects import Fetch, Ordered, Send
from fairtape.core.entries import Entry, Position, decode_entry, position_of
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.journal_position import Disagreement
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import POSITION, CatchUp, HistoryChunk, chunk_size

WINDOW: Final = 64  # chunks of one request: so few that serving them makes no token late
ENTRIES_MAX: Final = 2 * WINDOW  # incomplete entries
UNANSWERED_MAX: Final = 3  # requests without a response before the next site is asked
REQUESTS_MAX: Final = 64  # pending requests of others that wait for the journal


@dataclass(slots=True)
class _PartialEntry:
    """The received chunks of one entry."""

    chunks: int
    check: int
    held: dict[int, bytes] = field(default_factory=dict)


class CatchUpReader:
    """Requests entries from one site after the other, and reassembles them."""

    def __init__(self) -> None:
        self._partial: dict[Position, _PartialEntry] = {}
        self._expected = 0  # missing chunks of the current request
        self._unanswered = 0
        self._deferred = False  # the next entry is complete and may not be taken yet
        self._server = 0
        self._retry_period: Duration = 0
        self.ask_at: Instant = NEVER

    def start(self, now: Instant) -> None:
        """Request at once, unless a request is pending."""
        if self.ask_at == NEVER:
            self.ask_at = now

    def stop(self) -> None:
        self.ask_at = NEVER
        self._partial.clear()
        self._unanswered = 0
        self._deferred = False

    @property
    def partial_entries(self) -> int:
        """The entries of which chunks are held."""
        return len(self._partial)

    @property
    def window(self) -> int:
        """The number of chunks to request: one is enough to learn whether a deferred entry may be taken."""
        return 1 if self._deferred else WINDOW

    def defer(self, now: Instant) -> None:
        """The next entry is complete and may not be taken yet: request again, but not at once."""
        self._deferred = True
        self.ask_at = now + self._retry_period

    def entry_taken(self, position: Position) -> None:
        """The entry after `position` was taken."""
        self._deferred = False
        del self._partial[position]

    def check_clock(self, now: Instant) -> None:
        """A clock that was set back must not extend the wait."""
        if now + self._retry_period < self.ask_at < NEVER:
            self.ask_at = now

    def next_server(self, servers: Sequence[NodeId]) -> NodeId:
        """The site to ask now. After `UNANSWERED_MAX` requests without a useful response it is the next one."""
        if self._unanswered >= UNANSWERED_MAX:
            self._unanswered = 0
            self._server += 1
        return servers[self._server % len(servers)]

    def asked(self, now: Instant, retry_period: Duration) -> None:
        self._unanswered += 1
        self._expected = self.window
        self._retry_period = retry_period
        self.ask_at = now + self._retry_period

    def first_missing(self, position: Position) -> int:
        """The first missing chunk of the entry after `position`. Chunks of earlier entries are dropped.

        If no chunk is missing, it is the last one: its repetition tells whether the entry may be taken by now.
        """
        for passed in [known for known in self._partial if known < position]:
            del self._partial[passed]
        partial = self._partial.get(position)
        if partial is None:
            return 0
        return next((chunk for chunk in range(partial.chunks) if chunk not in partial.held), partial.chunks - 1)

    def take(self, history: HistoryChunk, now: Instant) -> None:
        """Add one chunk.

        Sites that do not know of a Break may hold another entry after the same position: the latest one counts.
        """
        position = Position(history.formation, history.after)
        if position not in self._partial and len(self._partial) >= ENTRIES_MAX:
            return
        self._unanswered = 0
        partial = self._partial.get(position)
        if partial is None or (partial.chunks, partial.check) != (history.chunks, history.check):
            partial = self._partial[position] = _PartialEntry(history.chunks, history.check)
        partial.held[history.chunk] = history.data
        self._expected -= 1
        whole = self._expected <= 0  # then request the next ones at once; while chunks arrive, do not repeat
        self.ask_at = now if whole else now + self._retry_period

    def answer_ended(self, now: Instant) -> None:
        """The response has ended: request what follows, unless nothing arrived at all."""
        if self._expected < self.window:
            self.ask_at = now

    def entry_after(self, position: Position) -> Entry | None:
        """The entry after `position`, if it is complete. Raises `Malformed` if it is not a valid entry."""
        partial = self._partial.get(position)
        if partial is None or len(partial.held) < partial.chunks:
            return None
        return decode_entry(b"".join(partial.held[chunk] for chunk in range(partial.chunks)))


def answer(
    request: CatchUp,
    entries: Sequence[bytes],
    *,
    me: NodeId,
    complete: int,
    settled: int,
    known: int,
    exhausted: bool,
    journal_end: Position,
    datagram_max: int,
) -> Iterator[HistoryChunk]:
    """The chunks that answer a request, as many as requested, and one without data at the end.

    If the journal is `exhausted`, that last one states that nothing follows up to `complete`, and where the journal
    ends. If the journal holds more than was read, it claims nothing, and the client continues.
    """
    formation, after, first = request.formation, request.token, request.chunk
    size, left = chunk_size(datagram_max), min(request.chunks_max, WINDOW)
    for encoded in entries:
        chunks, check = -(-len(encoded) // size), crc32(encoded)
        if first >= chunks:  # the client has chunks of another entry: send all of this one
            first = 0
        for chunk in range(first, chunks):
            if not left:
                return
            left -= 1
            data = encoded[chunk * size : (chunk + 1) * size]
            yield HistoryChunk(
                request.stripe, formation, me, after, complete, settled, known, chunk, chunks, data, check
            )
        formation, after = position_of(decode_entry(encoded))
        first = 0
    if left and exhausted:
        yield HistoryChunk(
            request.stripe, formation, me, after, complete, settled, known, 0, 0, POSITION.pack(*journal_end)
        )
    elif left:
        yield HistoryChunk(request.stripe, formation, me, after, after, 0, 0, 0, 0, b"")


class CatchUpClient:
    """Adds entries that the ring cannot repair to a receiver's order."""

    def __init__(self, *, me: NodeId, stripe: int, authenticator: MessageAuthenticator) -> None:
        self.reader = CatchUpReader()
        self._me = me
        self._stripe = stripe
        self._authenticator = authenticator

    def follow(self, receiver: Receiver, now: Instant) -> None:
        """Start when the receiver is stranded, and stop when it is not."""
        if receiver.membership.stranded:
            self.reader.start(now)
        elif self.reader.ask_at != NEVER:
            self.reader.stop()

    def ask(self, receiver: Receiver, now: Instant) -> list[Send]:
        """The next request, to the next site."""
        servers = self._servers(receiver)
        if not servers:
            self.reader.stop()
            return []
        formation, token = receiver.position
        chunk = self.reader.first_missing(receiver.position)
        request = self._authenticator.for_membership(
            CatchUp(self._stripe, formation, self._me, token, chunk, self.reader.window)
        )
        self.reader.asked(now, receiver.formation.timing.retry_period)
        return [Send(self.reader.next_server(servers), [request])]

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
            self.reader.take(history, now)
            if self._adopt(receiver, history.settled_through, now):
                receiver.verify(now)
            receiver.catch_up_to(receiver.complete_through, history.settled_through, now)
            receiver.compare(history.complete_through)
            return "past"
        if (history.formation, history.after) != receiver.position:
            if known >= latest:  # this site followed the ring meanwhile, and may have caught up by that
                receiver.compare(history.complete_through)
            return "outdated"
        if not known:
            self.reader.answer_ended(now)
            return "past"
        if known > latest:
            return "ahead"  # that formation may have abandoned what is held here; its Install comes first
        if self._confirms(history, receiver):
            receiver.verify(now)
        through = (
            history.complete_through
            if receiver.membership.active
            else min(history.complete_through, history.settled_through)
        )
        receiver.catch_up_to(through, history.settled_through, now, known=known)
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
            unsettled = isinstance(entry, Ordered) and entry.token > max(
                settled_through, receiver.membership.fixed_through
            )
            if unsettled and not receiver.membership.active:
                self.reader.defer(now)
                return entry.formation == receiver.position.formation
            self.reader.entry_taken(receiver.position)
            receiver.adopt(entry)
        return False


class CatchUpServer:
    """Answers requests from the journal."""

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, datagram_max: int) -> None:
        self._me = me
        self._authenticator = authenticator
        self._datagram_max = datagram_max
        self._requests: dict[int, CatchUp] = {}
        self._ticket = 0

    def start_read(self, request: CatchUp) -> Fetch | None:
        """What to read from the journal; None if too many requests are pending, or one of the same site.

        A site that waits repeats its request. Reading the journal for each repetition would keep it waiting.
        """
        is_pending = any(each.sender == request.sender for each in self._requests.values())
        if is_pending or len(self._requests) >= REQUESTS_MAX:
            return None
        self._ticket += 1
        self._requests[self._ticket] = request
        # Twice what fits, so that the response has all requested chunks and the client need not wait for more. But an
        # entry takes a chunk or more: the journal is not read beyond what the response has.
        chunks = min(request.chunks_max, WINDOW)
        size = 2 * chunks * chunk_size(self._datagram_max)
        return Fetch(request.token, request.formation, size, self._ticket, count_max=chunks)

    @property
    def pending(self) -> int:
        """The requests that wait for the journal."""
        return len(self._requests)

    def end_read(self, ticket: int) -> CatchUp | None:
        """The request for which the journal was read. It is no longer pending, whether it can be answered or not."""
        return self._requests.pop(ticket, None)

    def answer(self, request: CatchUp, entries: Sequence[bytes], receiver: Receiver) -> Send:
        """The response, after the journal was read."""
        chunks = answer(
            request,
            entries,
            me=self._me,
            complete=receiver.complete_through,
            settled=receiver.survives_through,
            known=receiver.formation.number if receiver.membership.verified else 0,
            exhausted=not entries or position_of(decode_entry(entries[-1])) == receiver.journal_end,
            journal_end=receiver.journal_end,
            datagram_max=self._datagram_max,
        )
        return Send(request.sender, [self._authenticator.for_membership(chunk) for chunk in chunks])
