"""Archives of released messages by session and number, which repairs and replays read.

`MessageArchive` is the contract: an archive holds released messages only. A journal holds a message before its release,
so an archive over a journal must hold back what is not released yet. `RecentMessages` keeps the latest messages in
memory. `MessageIndex` and `reread` find older ones in a journal.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Duration, Instant
from fairtape.edge.protocol.itch_codec import ItchEncoder
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import (
    SessionClosed,
    SessionOpened,
    StripeMessages,
    StripeSequencer,
    StripeStep,
)
from fairtape.formats.framing import PREFIX_SIZE

RECENT_BYTES_MAX: Final = 256 << 20
SESSIONS_MAX: Final = 16_384  # of recent messages; the oldest that have ended are dropped first
BATCH_COST: Final = 200  # bytes of memory of a batch besides its messages


class SessionExtent(NamedTuple):
    """The length of a session so far."""

    following: int  # the number after the last released message
    ended: bool


class MessageArchive(Protocol):
    """Released messages by session and number."""

    def current(self, stripe: int) -> str | None:
        """The current session of a stripe."""

    def extent(self, session: str) -> SessionExtent | None:
        """The extent of a session; None where it is unknown."""

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        """At most `count` consecutive messages from this number on; none where the first is not stored."""

    def number_since(self, session: str, since: Duration) -> int | None:
        """A number at or before the first message released at this time of day; None where it is unknown."""


class _Batch(NamedTuple):
    first: int
    size: int  # of each message; 0 where they differ
    framed: bytes
    at: Instant


@dataclass(slots=True)
class _SessionBatches:
    edition: Edition
    following: int
    ended: bool = False
    batches: deque[_Batch] = field(default_factory=deque)


class RecentMessages:
    """An archive of the latest messages of all stripes, in memory. An `older` archive has what was dropped."""

    def __init__(self, *, bytes_max: int = RECENT_BYTES_MAX, older: MessageArchive | None = None) -> None:
        self._bytes_max = bytes_max
        self._older = older
        self._bytes = 0
        self._sessions: dict[str, _SessionBatches] = {}
        self._current: dict[int, str] = {}
        self._arrivals: deque[str] = deque()  # the session of every stored batch, the oldest first

    def take(self, step: StripeStep, at: Instant) -> None:
        """Store what was just released, with the timestamp of its token."""
        match step:
            case StripeMessages():
                self._append(step, at)
            case SessionOpened(edition, following):
                for stripe, number in zip(edition.stripes, following, strict=True):
                    name = edition.session(stripe.number)
                    known = self._sessions.setdefault(name, _SessionBatches(edition, number))
                    self._continue_at(known, number)
                    self._current[stripe.number] = name
                self._drop_sessions()
            case SessionClosed(edition):
                for stripe in edition.stripes:
                    self._sessions[edition.session(stripe.number)].ended = True

    def current(self, stripe: int) -> str | None:
        return self._current.get(stripe)

    def extent(self, session: str) -> SessionExtent | None:
        known = self._sessions.get(session)
        if known is None:
            return self._older.extent(session) if self._older else None
        return SessionExtent(known.following, known.ended)

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        known = self._sessions.get(session)
        found: list[bytes] = []
        if known is not None and known.batches and known.batches[0].first <= first < known.following:
            index = bisect_right(known.batches, first, key=_first) - 1
            while len(found) < count and index < len(known.batches):
                batch = known.batches[index]
                found += _cut(batch, first + len(found) - batch.first, count - len(found))
                index += 1
        elif self._older is not None:
            return self._older.messages(session, first, count)
        return found

    def number_since(self, session: str, since: Duration) -> int | None:
        """As precise as tokens are."""
        known = self._sessions.get(session)
        if known is not None and known.batches:
            at = known.edition.plan.midnight_at + since
            index = bisect_left(known.batches, at, key=_at)
            if index == len(known.batches):
                return known.following
            if index or known.batches[0].first == 1:
                return known.batches[index].first
        return self._older.number_since(session, since) if self._older else None

    def _append(self, batch: StripeMessages, at: Instant) -> None:
        known = self._sessions[batch.session]
        known.batches.append(_Batch(batch.first, batch.size, batch.framed, at))
        known.following = batch.first + batch.count
        self._arrivals.append(batch.session)
        self._bytes += len(batch.framed) + BATCH_COST
        while self._bytes > self._bytes_max:
            oldest = self._sessions.get(self._arrivals.popleft())
            if oldest is not None and oldest.batches:
                self._bytes -= len(oldest.batches.popleft().framed) + BATCH_COST

    def _continue_at(self, known: _SessionBatches, following: int) -> None:
        """Continue a session at another number; messages before it are dropped, so that there is no hole."""
        if known.following != following:
            self._bytes -= sum(len(each.framed) + BATCH_COST for each in known.batches)
            known.batches.clear()
            known.following = following

    def _drop_sessions(self) -> None:
        """Drop the oldest sessions that have ended, beyond SESSIONS_MAX."""
        for name in list(self._sessions):
            if len(self._sessions) <= SESSIONS_MAX:
                return
            if self._sessions[name].ended:
                gone = self._sessions.pop(name)
                self._bytes -= sum(len(each.framed) + BATCH_COST for each in gone.batches)


def _first(batch: _Batch) -> int:
    return batch.first


def _at(batch: _Batch) -> Instant:
    return batch.at


def _cut(batch: _Batch, skip: int, count: int) -> list[bytes]:
    """Messages of a batch, without their length prefixes."""
    framed = batch.framed
    if batch.size:
        step = batch.size + PREFIX_SIZE
        starts = range(skip * step + PREFIX_SIZE, min((skip + count) * step, len(framed)), step)
        return [framed[start : start + batch.size] for start in starts]
    found: list[bytes] = []
    at = 0
    while at < len(framed) and len(found) < skip + count:
        start = at + PREFIX_SIZE
        at = start + (framed[at] << 8 | framed[at + 1])
        found.append(framed[start:at])
    return found[skip:]


NUMBERS_MAX: Final = 1 << 20  # numbers of stripes in all positions together
SPACING: Final = 4_096  # messages between two positions, at first
EDITIONS_MAX: Final = 1_024


class MessageIndex:
    """A sparse index from the numbers of stripes to positions in the order, over all editions of one core stripe.

    From the last position before a number the journal is read again, through the same sequencer, up to that number. So
    the index may be sparse or lost, and can be rebuilt at any time. When it is full, every other position is dropped
    and new ones are noted half as often.
    """

    def __init__(self, *, numbers_max: int = NUMBERS_MAX, spacing: int = SPACING) -> None:
        self._numbers_max = numbers_max
        self._numbers = 0
        self._spacing = spacing
        self._positions: list[StripePosition] = []
        self._editions: list[Edition] = []

    @property
    def editions(self) -> Sequence[Edition]:
        return self._editions  # the oldest first

    @property
    def positions(self) -> Sequence[StripePosition]:
        return self._positions

    @property
    def spacing(self) -> int:
        return self._spacing

    @classmethod
    def restored(cls, editions: Iterable[Edition], positions: Iterable[StripePosition], spacing: int) -> "MessageIndex":
        """A saved index. Its positions refer to these very edition objects."""
        index = cls(spacing=spacing)
        index._editions = list(editions)
        index._positions = list(positions)
        index._numbers = sum(len(position.following) for position in index._positions)
        return index

    def note(self, position: StripePosition) -> None:
        """Add a position, unless it is near the last one. Called once per token, in order."""
        if not self._editions or self._editions[-1] is not position.edition:
            self._editions = [*self._editions[1 - EDITIONS_MAX :], position.edition]
        elif self._positions and position.sequence < self._positions[-1].sequence + self._spacing:
            return
        self._positions.append(position)
        self._numbers += len(position.following)
        if self._numbers > self._numbers_max:
            del self._positions[1::2]
            self._numbers = sum(len(position.following) for position in self._positions)
            self._spacing *= 2

    def before(self, session: str, number: int) -> StripePosition | None:
        """The last position at or before this number."""
        found = self._edition_of(session)
        if found is None:
            return None
        edition, stripe = found
        start, end = self._range_of(edition)
        last = bisect_right(self._positions, number, start, end, key=lambda position: position.following[stripe]) - 1
        return self._positions[last] if last >= start else StripePosition.fresh(edition)

    def before_time(self, session: str, at: Instant) -> StripePosition | None:
        """The last position before any token of this time or later."""
        found = self._edition_of(session)
        if found is None:
            return None
        edition, _ = found
        start, end = self._range_of(edition)
        last = bisect_right(self._positions, at - 1, start, end, key=lambda position: position.at) - 1
        return self._positions[last] if last >= start else StripePosition.fresh(edition)

    def successor(self, edition: Edition) -> Edition | None:
        """The edition after this one."""
        for one, other in zip(self._editions, self._editions[1:], strict=False):
            if one is edition:
                return other
        return None

    def _edition_of(self, session: str) -> tuple[Edition, int] | None:
        """The edition of a session, and the index of its stripe."""
        for edition in reversed(self._editions):
            names = [edition.session(stripe.number) for stripe in edition.stripes]
            if session in names:
                return edition, names.index(session)
        return None

    def _range_of(self, edition: Edition) -> tuple[int, int]:
        """The positions of an edition follow one another: the index of the first, and the one after the last."""
        ranks = {id(each): rank for rank, each in enumerate(self._editions)}

        def rank_of(position: StripePosition) -> int:
            return ranks.get(id(position.edition), -1)  # -1: of an edition before these

        rank = ranks[id(edition)]
        return bisect_left(self._positions, rank, key=rank_of), bisect_right(self._positions, rank, key=rank_of)


def reread(
    position: StripePosition,
    entries: Iterable[Ordered | FormationChange],
    session: str,
    first: int,
    count: int,
    successor: Edition | None = None,
    encoders: Mapping[int, ItchEncoder] | None = None,
) -> list[bytes]:
    """The messages of a session, from the entries of a journal after a position; as many as the entries yield.

    `encoders`, by plan version, save their setup, which takes a while.
    """
    known = encoders or {}
    recent = RecentMessages()
    sequencer = StripeSequencer(position, encoder=known.get(position.edition.plan.version))
    for step in sequencer.begin():
        recent.take(step, sequencer.at)
    if successor is not None and successor.plan.version != position.edition.plan.version:
        encoder = known.get(successor.plan.version)
        sequencer.change_plan(
            successor.plan, at_sequence=successor.sequence, at=successor.begun_at or 0, encoder=encoder
        )
    for entry in entries:
        extent = recent.extent(session)
        if extent is None or extent.ended or extent.following >= first + count:
            break
        if isinstance(entry, FormationChange):
            sequencer.on_formation(entry)
        else:
            for step in sequencer.deliver(entry):
                recent.take(step, sequencer.at)
    return list(recent.messages(session, first, count))
