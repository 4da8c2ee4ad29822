"""Both sides of catching up: a site that takes the past from others, and a site that lets others take it (R_x)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from fairtape.core.effects import Fetch, Ordered, Send
from fairtape.core.entries import Entry, Position, decode_entry, position_of
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.reconfigurable_receiver import Disagreement, ReconfigurableReceiver
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import POSITION, CatchUp, HistoryChunk, chunk_size

# Catching up: what a site missed for longer than the ring repairs, it takes from another site's journal (R_x).
#
# The unit is the journal's entry, in its canonical bytes: cut into chunks to cross, put together again, and taken into
# the order as if it had come by the ring. The one who asks keeps all the state; the one who answers keeps none. An
# entry is named by the position that it follows, so both mean the same one whatever else their journals hold.

WINDOW: Final = 64  # chunks that are asked for at once: so few that serving them makes no token late
ENTRIES_MAX: Final = 2 * WINDOW  # that wait to be put together
UNANSWERED_MAX: Final = 3  # questions without any answer before another site is asked


@dataclass(slots=True)
class _PartialEntry:
    """What has come of one entry."""

    chunks: int
    check: int
    held: dict[int, bytes] = field(default_factory=dict)


class CatchUpReader:
    """Asks for the past, one site after the other, and puts together what comes."""

    def __init__(self) -> None:
        self._partial: dict[Position, _PartialEntry] = {}
        self._expected = 0  # chunks of the present question that have not come
        self._unanswered = 0
        self._deferred = False  # the next entry is known, and may not be taken yet
        self._server = 0
        self._retry_period: Duration = 0
        self.ask_at: Instant = NEVER

    def start(self, now: Instant) -> None:
        """Ask at once, unless a question is under way."""
        if self.ask_at == NEVER:
            self.ask_at = now

    def stop(self) -> None:
        """There is nothing to ask for."""
        self.ask_at = NEVER
        self._partial.clear()
        self._unanswered = 0
        self._deferred = False

    @property
    def window(self) -> int:
        """How many chunks to ask for: one is enough to hear whether the next entry may be taken by now."""
        return 1 if self._deferred else WINDOW

    def defer(self, now: Instant) -> None:
        """The next entry is here and may not be taken yet: ask again, but not at once."""
        self._deferred = True
        self.ask_at = now + self._retry_period

    def entry_taken(self, position: Position) -> None:
        """The entry after `position` was taken."""
        self._deferred = False
        del self._partial[position]

    def check_clock(self, now: Instant) -> None:
        """A clock that was set back must not make the reader wait for its old time to come again."""
        if now + self._retry_period < self.ask_at < NEVER:
            self.ask_at = now

    def next_server(self, servers: Sequence[NodeId]) -> NodeId:
        """Whom to ask now. One that stays silent, or knows no more than we do, is followed by the next."""
        if self._unanswered >= UNANSWERED_MAX:
            self._unanswered = 0
            self._server += 1
        return servers[self._server % len(servers)]

    def asked(self, now: Instant, retry_period: Duration) -> None:
        """A question has been sent."""
        self._unanswered += 1
        self._expected = self.window
        self._retry_period = retry_period
        self.ask_at = now + self._retry_period

    def first_missing(self, position: Position) -> int:
        """The first chunk of the entry after `position` that is not here; what came of earlier ones is forgotten.

        Where all are here, the last one: whoever sends it again says whether the entry may be taken by now.
        """
        for passed in [known for known in self._partial if known < position]:
            del self._partial[passed]
        partial = self._partial.get(position)
        if partial is None:
            return 0
        return next((chunk for chunk in range(partial.chunks) if chunk not in partial.held), partial.chunks - 1)

    def take(self, past: HistoryChunk, now: Instant) -> None:
        """Keep one chunk.

        Sites may hold different entries after one position, while some have not heard of a Break: the latest counts.
        """
        position = Position(past.formation, past.after)
        if position not in self._partial and len(self._partial) >= ENTRIES_MAX:
            return
        self._unanswered = 0
        partial = self._partial.get(position)
        if partial is None or (partial.chunks, partial.check) != (past.chunks, past.check):
            partial = self._partial[position] = _PartialEntry(past.chunks, past.check)
        partial.held[past.chunk] = past.data
        self._expected -= 1
        whole = self._expected <= 0  # then there is no need to wait; and while an answer comes, none to ask again
        self.ask_at = now if whole else now + self._retry_period

    def answer_ended(self, now: Instant) -> None:
        """The answer has ended: ask for what follows it, unless nothing came at all."""
        if self._expected < self.window:
            self.ask_at = now

    def entry_after(self, position: Position) -> Entry | None:
        """The entry after `position`, if all of it is here. `Malformed` where it makes no sense."""
        partial = self._partial.get(position)
        if partial is None or len(partial.held) < partial.chunks:
            return None
        return decode_entry(b"".join(partial.held[chunk] for chunk in range(partial.chunks)))


def answer(
    question: CatchUp,
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
    """The chunks that answer a question, as many as were asked for, and one without data at the end.

    That last one says that nothing follows up to `complete`, and where the journal ends, but only where it is
    `exhausted`. Where it holds more than was read, it claims nothing, and whoever asked may go on asking.
    """
    formation, after, first = question.formation, question.token, question.chunk
    size, room = chunk_size(datagram_max), min(question.chunks_max, WINDOW)
    for encoded in entries:
        chunks, check = -(-len(encoded) // size), crc32(encoded)
        if first >= chunks:  # whoever asks has another entry in mind: let it see ours
            first = 0
        for chunk in range(first, chunks):
            if not room:
                return
            room -= 1
            data = encoded[chunk * size : (chunk + 1) * size]
            yield HistoryChunk(
                question.stripe, formation, me, after, complete, settled, known, chunk, chunks, data, check
            )
        formation, after = position_of(decode_entry(encoded))
        first = 0
    if room and exhausted:
        yield HistoryChunk(
            question.stripe, formation, me, after, complete, settled, known, 0, 0, POSITION.pack(*journal_end)
        )
    elif room:
        yield HistoryChunk(question.stripe, formation, me, after, after, 0, 0, 0, 0, b"")


QUESTIONS_MAX: Final = 64  # of others who catch up, that wait for the journal


class CatchUpClient:
    """Takes into a receiver's order what the ring cannot repair."""

    def __init__(self, *, me: NodeId, stripe: int, authenticator: MessageAuthenticator) -> None:
        self.reader = CatchUpReader()
        self.adopted = 0  # entries
        self._me = me
        self._stripe = stripe
        self._authenticator = authenticator

    def follow(self, receiver: ReconfigurableReceiver, now: Instant) -> None:
        """Begin to ask when the receiver is stranded, and stop when it is not."""
        if receiver.stranded:
            self.reader.start(now)
        elif self.reader.ask_at != NEVER:
            self.reader.stop()

    def ask(self, receiver: ReconfigurableReceiver, now: Instant) -> list[Send]:
        """The next question, to the next site."""
        servers = self._servers(receiver)
        if not servers:
            self.reader.stop()
            return []
        formation, token = receiver.position
        chunk = self.reader.first_missing(receiver.position)
        question = self._authenticator.for_membership(
            CatchUp(self._stripe, formation, self._me, token, chunk, self.reader.window)
        )
        self.reader.asked(now, receiver.formation.timing.retry_period)
        return [Send(self.reader.next_server(servers), [question])]

    def _servers(self, receiver: ReconfigurableReceiver) -> list[NodeId]:
        """Who may have what is missing: the parent, the keeper of the past, and all members."""
        formation = receiver.formation
        likely = [receiver.parent or formation.keeper, formation.keeper, *formation.members]
        return [site for site in dict.fromkeys(likely) if site and site != self._me]

    def take(self, past: HistoryChunk, receiver: ReconfigurableReceiver, now: Instant) -> str:
        """Take an answer; the name of what became of it. `Disagreement` where the others have left us behind."""
        if receiver.fenced or self.reader.ask_at == NEVER:  # a fenced site has given its answer
            return "unasked"
        known, latest = past.known, receiver.formation.number
        if known < latest and (past.chunks or known):
            return "unknowing"  # what it holds may have been left behind, and it could not say so
        if past.chunks:
            self.reader.take(past, now)
            if self._adopt(receiver, past.settled_through, now):
                receiver.verify(now)
            receiver.catch_up_to(receiver.complete_through, past.settled_through, now)
            receiver.compare(past.complete_through)
            return "past"
        if (past.formation, past.after) != receiver.position:
            if known >= latest:  # it followed the ring, and may be level by that
                receiver.compare(past.complete_through)
            return "outdated"
        if not known:
            self.reader.answer_ended(now)
            return "past"
        if known > latest:
            return "ahead"  # what is held here may have been left behind since: that formation will be told, and then
        if self._confirms(past, receiver):
            receiver.verify(now)
        through = past.complete_through if receiver.active else min(past.complete_through, past.settled_through)
        receiver.catch_up_to(through, past.settled_through, now, known=known)
        receiver.compare(past.complete_through)
        return "past"

    @staticmethod
    def _confirms(past: HistoryChunk, receiver: ReconfigurableReceiver) -> bool:
        """Whether one who knows the latest formation, and says where its journal ends, has what is held here.

        `Disagreement` where it holds the order at least as far and has less: the others have left the rest behind.
        """
        ours = receiver.journal_end
        if not past.data or past.complete_through < ours.token:
            return False
        theirs = Position(*POSITION.unpack(past.data))
        if not receiver.verified and theirs < ours and ours.token <= receiver.fixed_through:
            raise Disagreement(theirs.token)
        return True

    def _adopt(self, receiver: ReconfigurableReceiver, settled_through: int, now: Instant) -> bool:
        """Take into the order what has come whole. A site that is not seated takes only what cannot be taken back.

        True where the next one is such: it follows on what is held here, so nothing here contradicts it.
        """
        while (entry := self.reader.entry_after(receiver.position)) is not None:
            unsettled = isinstance(entry, Ordered) and entry.token > max(settled_through, receiver.fixed_through)
            if unsettled and not receiver.active:
                self.reader.defer(now)
                return entry.formation == receiver.position.formation
            self.reader.entry_taken(receiver.position)
            receiver.adopt(entry)
            self.adopted += 1
        return False


class CatchUpServer:
    """Answers from the journal. Keeps a question only while the journal is being read."""

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, datagram_max: int) -> None:
        self._me = me
        self._authenticator = authenticator
        self._datagram_max = datagram_max
        self._questions: dict[int, CatchUp] = {}
        self._ticket = 0

    def start_read(self, question: CatchUp) -> Fetch | None:
        """What to read; None where too many are being served already."""
        if len(self._questions) >= QUESTIONS_MAX:
            return None
        self._ticket += 1
        self._questions[self._ticket] = question
        # Twice what fits, so that an answer has all the chunks that were asked for, and nobody waits for more of it.
        size = 2 * min(question.chunks_max, WINDOW) * chunk_size(self._datagram_max)
        return Fetch(question.token, question.formation, size, self._ticket)

    def answer(self, ticket: int, entries: Sequence[bytes], receiver: ReconfigurableReceiver) -> list[Send]:
        """The answer, now that the journal was read."""
        question = self._questions.pop(ticket, None)
        if question is None:
            return []
        chunks = answer(
            question,
            entries,
            me=self._me,
            complete=receiver.complete_through,
            settled=receiver.survives_through,
            known=receiver.formation.number if receiver.verified else 0,
            exhausted=not entries or position_of(decode_entry(entries[-1])) == receiver.journal_end,
            journal_end=receiver.journal_end,
            datagram_max=self._datagram_max,
        )
        return [Send(question.sender, [self._authenticator.for_membership(chunk) for chunk in chunks])]
