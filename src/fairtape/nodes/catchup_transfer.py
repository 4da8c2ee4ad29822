"""Catching up: what a site missed for longer than the ring repairs, it takes from another site's journal (R_x).

The unit is the journal's entry, in its canonical bytes: cut into chunks to cross, put together again, and taken into
the order as if it had come by the ring. The one who asks keeps all the state; the one who answers keeps none. An entry
is named by the position that it follows, so both mean the same one whatever else their journals hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from fairtape.core.entries import Entry, Position, decode_entry, position_of
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import PLACE, CatchUp, HistoryChunk, chunk_size

WINDOW: Final = 64  # chunks that are asked for at once: so few that serving them makes no token late
ENTRIES_MAX: Final = 2 * WINDOW  # that wait to be put together
PATIENCE: Final = 3  # questions without any answer before another site is asked


@dataclass(slots=True)
class _Pieces:
    """What has come of one entry."""

    chunks: int
    check: int
    held: dict[int, bytes] = field(default_factory=dict)


class CatchUpReader:
    """Asks for the past, one site after the other, and puts together what comes."""

    def __init__(self) -> None:
        self._pieces: dict[Position, _Pieces] = {}
        self._expected = 0  # chunks of the present question that have not come
        self._unanswered = 0
        self._waits = False  # the next entry is known, and may not be taken yet
        self._server = 0
        self._patience: Duration = 0
        self.ask_at: Instant = NEVER

    def start(self, now: Instant) -> None:
        """Ask at once, unless a question is under way."""
        if self.ask_at == NEVER:
            self.ask_at = now

    def stop(self) -> None:
        """There is nothing to ask for."""
        self.ask_at = NEVER
        self._pieces.clear()
        self._unanswered = 0
        self._waits = False

    @property
    def window(self) -> int:
        """How many chunks to ask for: one is enough to hear whether the next entry may be taken by now."""
        return 1 if self._waits else WINDOW

    def wait(self, now: Instant) -> None:
        """The next entry is here and may not be taken yet: ask again, but not at once."""
        self._waits = True
        self.ask_at = now + self._patience

    def go_forward(self, position: Position) -> None:
        """The entry after `position` was taken."""
        self._waits = False
        del self._pieces[position]

    def mind_clock(self, now: Instant) -> None:
        """A clock that was set back must not make the reader wait for its old time to come again."""
        if now + self._patience < self.ask_at < NEVER:
            self.ask_at = now

    def next_server(self, servers: Sequence[NodeId]) -> NodeId:
        """Whom to ask now. One that stays silent, or knows no more than we do, is followed by the next."""
        if self._unanswered >= PATIENCE:
            self._unanswered = 0
            self._server += 1
        return servers[self._server % len(servers)]

    def asked(self, now: Instant, patience: Duration) -> None:
        """A question has been sent."""
        self._unanswered += 1
        self._expected = self.window
        self._patience = patience
        self.ask_at = now + self._patience

    def first_missing(self, position: Position) -> int:
        """The first chunk of the entry after `position` that is not here; what came of earlier ones is forgotten.

        Where all are here, the last one: whoever sends it again says whether the entry may be taken by now.
        """
        for passed in [known for known in self._pieces if known < position]:
            del self._pieces[passed]
        pieces = self._pieces.get(position)
        if pieces is None:
            return 0
        return next((chunk for chunk in range(pieces.chunks) if chunk not in pieces.held), pieces.chunks - 1)

    def take(self, past: HistoryChunk, now: Instant) -> None:
        """Keep one chunk.

        Sites may hold different entries after one position, while some have not heard of a Break: the latest counts.
        """
        position = Position(past.formation, past.after)
        if position not in self._pieces and len(self._pieces) >= ENTRIES_MAX:
            return
        self._unanswered = 0
        pieces = self._pieces.get(position)
        if pieces is None or (pieces.chunks, pieces.check) != (past.chunks, past.check):
            pieces = self._pieces[position] = _Pieces(past.chunks, past.check)
        pieces.held[past.chunk] = past.data
        self._expected -= 1
        whole = self._expected <= 0  # then there is no need to wait; and while an answer comes, none to ask again
        self.ask_at = now if whole else now + self._patience

    def go_on(self, now: Instant) -> None:
        """The answer has ended: ask for what follows it, unless nothing came at all."""
        if self._expected < self.window:
            self.ask_at = now

    def entry_after(self, position: Position) -> Entry | None:
        """The entry after `position`, if all of it is here. `Malformed` where it makes no sense."""
        pieces = self._pieces.get(position)
        if pieces is None or len(pieces.held) < pieces.chunks:
            return None
        return decode_entry(b"".join(pieces.held[chunk] for chunk in range(pieces.chunks)))


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
            question.stripe, formation, me, after, complete, settled, known, 0, 0, PLACE.pack(*journal_end)
        )
    elif room:
        yield HistoryChunk(question.stripe, formation, me, after, after, 0, 0, 0, 0, b"")
