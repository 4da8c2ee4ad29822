"""What was released, by session and number: what repairs and replays read from, and the shelf of the latest.

Only what was released may be in an archive. A journal holds a message before its release, so whoever puts a journal
behind this contract must keep back what is not due.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from fairtape.core.instants import Duration, Instant
from fairtape.edge.protocol.sessions import Edition
from fairtape.edge.protocol.stripe_sequencer import SessionClosed, SessionOpened, Step, StripeMessages
from fairtape.formats.framing import PREFIX_SIZE

SHELF_BYTES_MAX: Final = 256 << 20
SESSIONS_MAX: Final = 16_384  # that a shelf knows; the oldest that are over go first
LOT_COST: Final = 200  # bytes that a lot takes beside its messages


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


class _Kept(NamedTuple):
    first: int
    size: int  # of each message; 0 where they differ
    framed: bytes
    at: Instant


@dataclass(slots=True)
class _Session:
    edition: Edition
    following: int
    ended: bool = False
    lots: deque[_Kept] = field(default_factory=deque)


class RecentMessages:
    """An archive of the latest messages of all stripes, in memory; what it no longer has is asked of an older one."""

    def __init__(self, *, bytes_max: int = SHELF_BYTES_MAX, older: MessageArchive | None = None) -> None:
        self._bytes_max = bytes_max
        self._older = older
        self._bytes = 0
        self._sessions: dict[str, _Session] = {}
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
                    known = self._sessions.setdefault(name, _Session(edition, number))
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
        if known is not None and known.lots and known.lots[0].first <= first < known.following:
            place = bisect_right(known.lots, first, key=_first) - 1
            while len(found) < count and place < len(known.lots):
                lot = known.lots[place]
                found += _cut(lot, first + len(found) - lot.first, count - len(found))
                place += 1
        elif self._older is not None:
            return self._older.messages(session, first, count)
        return found

    def number_since(self, session: str, since: Duration) -> int | None:
        """As exact as a token."""
        known = self._sessions.get(session)
        if known is not None and known.lots:
            at = known.edition.plan.midnight_at + since
            place = bisect_left(known.lots, at, key=_at)
            if place == len(known.lots):
                return known.following
            if place or known.lots[0].first == 1:
                return known.lots[place].first
        return self._older.number_since(session, since) if self._older else None

    def _keep(self, lot: StripeMessages, at: Instant) -> None:
        known = self._sessions[lot.session]
        known.lots.append(_Kept(lot.first, lot.size, lot.framed, at))
        known.following = lot.first + lot.count
        self._arrivals.append(lot.session)
        self._bytes += len(lot.framed) + LOT_COST
        while self._bytes > self._bytes_max:
            oldest = self._sessions.get(self._arrivals.popleft())
            if oldest is not None and oldest.lots:
                self._bytes -= len(oldest.lots.popleft().framed) + LOT_COST

    def _move(self, known: _Session, following: int) -> None:
        """An outlet that was given another place goes on there; what is before it must be without a hole."""
        if known.following != following:
            self._bytes -= sum(len(each.framed) + LOT_COST for each in known.lots)
            known.lots.clear()
            known.following = following

    def _forget_sessions(self) -> None:
        """Sessions that are over make room for new ones."""
        for name in list(self._sessions):
            if len(self._sessions) <= SESSIONS_MAX:
                return
            if self._sessions[name].ended:
                gone = self._sessions.pop(name)
                self._bytes -= sum(len(each.framed) + LOT_COST for each in gone.lots)


def _first(lot: _Kept) -> int:
    return lot.first


def _at(lot: _Kept) -> Instant:
    return lot.at


def _cut(lot: _Kept, skip: int, count: int) -> list[bytes]:
    """Messages of a lot, without their lengths."""
    framed = lot.framed
    if lot.size:
        step = lot.size + PREFIX_SIZE
        starts = range(skip * step + PREFIX_SIZE, min((skip + count) * step, len(framed)), step)
        return [framed[start : start + lot.size] for start in starts]
    found: list[bytes] = []
    at = 0
    while at < len(framed) and len(found) < skip + count:
        start = at + PREFIX_SIZE
        at = start + (framed[at] << 8 | framed[at + 1])
        found.append(framed[start:at])
    return found[skip:]
