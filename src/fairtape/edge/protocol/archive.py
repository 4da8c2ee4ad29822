"""What was released, by session and number: what repairs and replays read from, and the shelf of the latest.

Only what was released may be in an archive. A journal holds a message before its release, so whoever puts a journal
behind this contract must keep back what is not due.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Duration, Instant
from fairtape.edge.protocol.itch_encoder import ItchEncoder
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import SessionClosed, SessionOpened, Step, StripeMessages, StripeSequencer
from fairtape.formats.framing import PREFIX_SIZE

RECENT_BYTES_MAX: Final = 256 << 20
SESSIONS_MAX: Final = 16_384  # that a shelf knows; the oldest that are over go first
BATCH_COST: Final = 200  # bytes that a lot takes beside its messages


class SessionExtent(NamedTuple):
    """How far a session is."""

    following: int  # the number after the last message that was released
    ended: bool


class MessageArchive(Protocol):
    """Released messages."""

    def current(self, stripe: int) -> str | None:
        """The session that a stripe is in."""

    def extent(self, session: str) -> SessionExtent | None:
        """How far a session is; None where it is unknown."""

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        """Messages from this number on: as many as are at hand, at most `count`; nothing where the first is not."""

    def number_since(self, session: str, since: Duration) -> int | None:
        """A number at or before the first message released at this time of day; None where nobody remembers."""


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
    """An archive of the latest messages of all stripes, in memory; what it no longer has is asked of an older one."""

    def __init__(self, *, bytes_max: int = RECENT_BYTES_MAX, older: MessageArchive | None = None) -> None:
        self._bytes_max = bytes_max
        self._older = older
        self._bytes = 0
        self._sessions: dict[str, _SessionBatches] = {}
        self._current: dict[int, str] = {}
        self._arrivals: deque[str] = deque()  # the session of every lot that is kept, the oldest first

    def take(self, step: Step, at: Instant) -> None:
        """Keep what was just released, under the timestamp of its token."""
        match step:
            case StripeMessages():
                self._keep(step, at)
            case SessionOpened(edition, following):
                for stripe, number in zip(edition.stripes, following, strict=True):
                    name = edition.session(stripe.number)
                    known = self._sessions.setdefault(name, _SessionBatches(edition, number))
                    self._move(known, number)
                    self._current[stripe.number] = name
                self._forget_sessions()
            case SessionClosed(edition):
                for stripe in edition.stripes:
                    self._sessions[edition.session(stripe.number)].ended = True

    def current(self, stripe: int) -> str | None:
        """The session that a stripe is in."""
        return self._current.get(stripe)

    def extent(self, session: str) -> SessionExtent | None:
        """How far a session is."""
        known = self._sessions.get(session)
        if known is None:
            return self._older.extent(session) if self._older else None
        return SessionExtent(known.following, known.ended)

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        """From the shelf, or from the older archive where the first one is not here any more."""
        known = self._sessions.get(session)
        found: list[bytes] = []
        if known is not None and known.batches and known.batches[0].first <= first < known.following:
            place = bisect_right(known.batches, first, key=_first) - 1
            while len(found) < count and place < len(known.batches):
                batch = known.batches[place]
                found += _cut(batch, first + len(found) - batch.first, count - len(found))
                place += 1
        elif self._older is not None:
            return self._older.messages(session, first, count)
        return found

    def number_since(self, session: str, since: Duration) -> int | None:
        """As exact as a token."""
        known = self._sessions.get(session)
        if known is not None and known.batches:
            at = known.edition.plan.midnight_at + since
            place = bisect_left(known.batches, at, key=_at)
            if place == len(known.batches):
                return known.following
            if place or known.batches[0].first == 1:
                return known.batches[place].first
        return self._older.number_since(session, since) if self._older else None

    def _keep(self, batch: StripeMessages, at: Instant) -> None:
        known = self._sessions[batch.session]
        known.batches.append(_Batch(batch.first, batch.size, batch.framed, at))
        known.following = batch.first + batch.count
        self._arrivals.append(batch.session)
        self._bytes += len(batch.framed) + BATCH_COST
        while self._bytes > self._bytes_max:
            oldest = self._sessions.get(self._arrivals.popleft())
            if oldest is not None and oldest.batches:
                self._bytes -= len(oldest.batches.popleft().framed) + BATCH_COST

    def _move(self, known: _SessionBatches, following: int) -> None:
        """An outlet that was given another place goes on there; what is before it must be without a hole."""
        if known.following != following:
            self._bytes -= sum(len(each.framed) + BATCH_COST for each in known.batches)
            known.batches.clear()
            known.following = following

    def _forget_sessions(self) -> None:
        """Sessions that are over make room for new ones."""
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
    """Messages of a lot, without their lengths."""
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


# Where in the order a number of a stripe lies: a sparse index, and the way from there to the message.
#
# The index keeps standings, some messages apart. From the last one before a number the journal is read again, through
# the same striper, until the number comes; so the index may be thin, may be lost, and may be made anew at any time.
# When it is full every other place goes, and new ones are noted half as often.

NUMBERS_MAX: Final = 1 << 20  # numbers of stripes in all places together
SPACING: Final = 4_096  # messages between two places, at first
EDITIONS_MAX: Final = 1_024


class MessageIndex:
    """All editions of one core stripe."""

    def __init__(self, *, numbers_max: int = NUMBERS_MAX, spacing: int = SPACING) -> None:
        self._numbers_max = numbers_max
        self._numbers = 0
        self._spacing = spacing
        self._places: list[StripePosition] = []
        self._editions: list[Edition] = []

    @property
    def editions(self) -> Sequence[Edition]:
        """Those that are remembered, the oldest first."""
        return self._editions

    @property
    def positions(self) -> Sequence[StripePosition]:
        """The places, in order."""
        return self._places

    @property
    def spacing(self) -> int:
        """Messages between two places, by now."""
        return self._spacing

    @classmethod
    def restored(cls, editions: Iterable[Edition], positions: Iterable[StripePosition], spacing: int) -> "MessageIndex":
        """An index as it was; its standings are of these very editions."""
        places = cls(spacing=spacing)
        places._editions = list(editions)
        places._places = list(positions)
        places._numbers = sum(len(place.following) for place in places._places)
        return places

    def note(self, position: StripePosition) -> None:
        """Remember a place, unless it is near the last one. Called once per token, in order."""
        if not self._editions or self._editions[-1] is not position.edition:
            self._editions = [*self._editions[1 - EDITIONS_MAX :], position.edition]
        elif self._places and position.sequence < self._places[-1].sequence + self._spacing:
            return
        self._places.append(position)
        self._numbers += len(position.following)
        if self._numbers > self._numbers_max:
            del self._places[1::2]
            self._numbers = sum(len(place.following) for place in self._places)
            self._spacing *= 2

    def before(self, session: str, number: int) -> StripePosition | None:
        """The last place from which on this number is still to come."""
        found = self._within(session)
        if found is None:
            return None
        places, index = found
        return places[bisect_right(places, number, key=lambda place: place.following[index]) - 1]

    def before_time(self, session: str, at: Instant) -> StripePosition | None:
        """The last place at which no token of this time or later had been numbered."""
        found = self._within(session)
        if found is None:
            return None
        places, _ = found
        return places[max(bisect_right(places, at - 1, key=lambda place: place.at) - 1, 0)]

    def successor(self, edition: Edition) -> Edition | None:
        """The edition that took over from this one."""
        for one, other in zip(self._editions, self._editions[1:], strict=False):
            if one is edition:
                return other
        return None

    def _within(self, session: str) -> tuple[list[StripePosition], int] | None:
        """The places of a session's edition, and the position of its stripe."""
        for edition in reversed(self._editions):
            names = [edition.session(stripe.number) for stripe in edition.stripes]
            if session in names:
                places = [place for place in self._places if place.edition is edition]
                return [StripePosition.fresh(edition), *places], names.index(session)
        return None


def reread(
    place: StripePosition,
    entries: Iterable[Ordered | FormationChange],
    session: str,
    first: int,
    count: int,
    successor: Edition | None = None,
    encoders: Mapping[int, ItchEncoder] | None = None,
) -> list[bytes]:
    """The messages of a session, out of what a journal holds from a place on; as many as the entries yield.

    `encoders`, by the versions of their plans, are there for whoever reads often: to set one up takes a while.
    """
    known = encoders or {}
    recent = RecentMessages()
    sequencer = StripeSequencer(place, encoder=known.get(place.edition.plan.version))
    for step in sequencer.begin():
        recent.take(step, sequencer.at)
    if successor is not None and successor.plan.version != place.edition.plan.version:
        encoder = known.get(successor.plan.version)
        sequencer.change_plan(
            successor.plan, at_sequence=successor.sequence, at=successor.begun_at or 0, encoder=encoder
        )
    for entry in entries:
        extent = recent.extent(session)
        if extent is None or extent.ended or extent.following >= first + count:
            break
        if isinstance(entry, FormationChange):
            sequencer.turn(entry)
        else:
            for step in sequencer.deliver(entry):
                recent.take(step, sequencer.at)
    return list(recent.messages(session, first, count))
