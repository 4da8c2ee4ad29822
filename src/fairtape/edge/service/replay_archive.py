"""The library: everything that a site released, by session and number, out of its journal.

It reads the journal as it grows, numbers what it reads, keeps the latest on a shelf and remembers places, from which
older messages are read again. The journal's release marks decide what is in it: a message that the site holds and has
not released does not exist here.

A journal that was cut since (the site came back, and the others had gone on without its last messages) is read again
from the beginning, for numbers may have changed. A library that has a file for its memory goes on from there when it is
opened again.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.errors import UserError
from fairtape.core.instants import Duration
from fairtape.edge.protocol.archive import RECENT_BYTES_MAX, MessageIndex, RecentMessages, SessionExtent, reread
from fairtape.edge.protocol.sessions import BadSession, Edition, Session, StripePosition
from fairtape.edge.protocol.stripe_sequencer import SessionClosed, SessionOpened, Step
from fairtape.edge.service.checkpoints import EdgeCheckpoint, edition_fields, edition_of, write_whole
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_numbering import StripeNumbering, is_proved
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore
from fairtape.journal import Cursor, Damaged, FormationChanged, JournalEntry, JournalReader
from fairtape.market.stripes import StripePlan

# What a library knows, in a file: a retransmit server that starts again goes on where it was.
#
# Like the checkpoint of an outlet it saves time and proves nothing: it names the last entry that it counts in, and a
# journal that does not have that entry is read from the beginning.

SIZE_MAX: Final = 64 << 20  # bytes of a file
_VERSION: Final = 1
_NUMBERS: Final = np.dtype("<i8")
_FIXED: Final = 4  # numbers of a place before those of its stripes: edition, sequence, at, formation


@dataclass(frozen=True, slots=True)
class SessionExtents:
    """An edition, and how far each of its sessions came."""

    edition: Edition
    extents: tuple[SessionExtent, ...]


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """Everything: the last chapter is the one that goes on."""

    checkpoint: EdgeCheckpoint
    sessions: Sequence[SessionExtents]
    positions: Sequence[StripePosition]  # the places of the index, and the spacing between them
    spacing: int


def save(path: Path, memory: ArchiveSnapshot) -> None:
    """Write it whole or not at all. Raises OSError."""
    editions = {id(each.edition): number for number, each in enumerate(memory.sessions)}
    kept = [each for each in memory.positions if id(each.edition) in editions]
    index = [number for each in (*kept, memory.checkpoint.position) for number in _numbers(each, editions)]
    numbers = np.array(index, _NUMBERS).tobytes()
    head = {
        "version": _VERSION,
        "tag": memory.checkpoint.position.edition.deployment,
        "core": memory.checkpoint.position.edition.core,
        "entry": [memory.checkpoint.formation, memory.checkpoint.token],
        "spacing": memory.spacing,
        "chapters": [{"edition": edition_fields(each.edition), "extents": each.extents} for each in memory.sessions],
        "check": crc32(numbers),
    }
    write_whole(path, json.dumps(head).encode(), b"\n", numbers)


def load(path: Path, settings: EdgeSettings, plan_store: StripePlanStore) -> ArchiveSnapshot | None:
    """What was saved; None where it is not there, or not of this edge."""
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_MAX + 1)
        head, _, numbers = content.partition(b"\n")
        return _snapshot_of(json.loads(head), numbers, settings, plan_store)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, BadSession, PlanUnknown):
        return None


def _snapshot_of(
    head: dict[str, Any], numbers: bytes, settings: EdgeSettings, plan_store: StripePlanStore
) -> ArchiveSnapshot | None:
    if (head["version"], head["tag"], head["core"], head["check"]) != (
        _VERSION,
        settings.tag,
        settings.core,
        crc32(numbers),
    ):
        return None
    sessions = [_session_extents(fields, settings, plan_store) for fields in head["chapters"]]
    *positions, last = _positions(np.frombuffer(numbers, _NUMBERS).tolist(), sessions)
    formation, token = map(int, head["entry"])
    editions = [each.edition for each in sessions]
    if last.edition is not editions[-1]:
        return None
    return ArchiveSnapshot(EdgeCheckpoint(last, formation, token), sessions, positions, int(head["spacing"]))


def _session_extents(fields: dict[str, Any], settings: EdgeSettings, plan_store: StripePlanStore) -> SessionExtents:
    edition = edition_of(fields["edition"], settings, plan_store)
    extents = tuple(SessionExtent(int(following), bool(ended)) for following, ended in fields["extents"])
    if len(extents) != len(edition.stripes):
        raise ValueError("not of this plan")
    return SessionExtents(edition, extents)


def _numbers(place: StripePosition, editions: dict[int, int]) -> tuple[int, ...]:
    return editions[id(place.edition)], place.sequence, place.at, place.formation, *place.following


def _positions(numbers: list[int], sessions: Sequence[SessionExtents]) -> Iterator[StripePosition]:
    start = 0
    while start < len(numbers):
        edition = sessions[numbers[start]].edition
        end = start + _FIXED + len(edition.stripes)
        _, sequence, at, formation, *following = numbers[start:end]
        if len(following) != len(edition.stripes):
            raise ValueError("cut off")
        yield StripePosition(edition, sequence, tuple(following), at, formation)
        start = end


ENTRIES_MAX: Final = 64  # of the journal in one turn, so that customers have theirs
SPACING: Final = 512  # messages between two places: so much is read again for whoever asks for something old
DAMAGES_MAX: Final = 3  # turns in a row that found the journal damaged, before it is read from the beginning


class ReplayArchive:
    """An archive of one site. Raises `PlanUnknown` at birth where the first plan is missing."""

    def __init__(
        self,
        journal: Path,
        settings: EdgeSettings,
        plan_store: StripePlanStore,
        *,
        memory: Path | None = None,
        recent_bytes_max: int = RECENT_BYTES_MAX,
    ) -> None:
        self.plans: dict[int, StripePlan] = {}  # whose sessions were opened
        self.trouble = ""  # why it cannot go on, if so
        self.restarts = 0  # the journal was read from the beginning again
        self._journal = JournalReader(journal)
        self._settings = settings
        self._plan_store = plan_store
        self._recent_bytes_max = recent_bytes_max
        self._damages = 0
        self._snapshot_of = memory
        remembered = None if memory is None else load(memory, settings, plan_store)
        self._begin(remembered if remembered is not None and self._proves(remembered.checkpoint) else None)

    @property
    def sequence(self) -> int:
        """The number in the order that is expected next; 0 while no plan is in force."""
        position = self._numbering.position
        return 0 if position is None else position.sequence

    @property
    def plan(self) -> int:
        """The version in force; 0: none."""
        position = self._numbering.position
        return 0 if position is None else position.edition.plan.version

    def keep_up(self) -> bool:
        """Take in some of what was released since the last time; whether there was any."""
        try:
            self._found += islice(self._cursor.everything(), ENTRIES_MAX - len(self._found))
        except Damaged:
            self._damages += 1
            if self._damages >= DAMAGES_MAX:
                self._restart()
            return False
        except UserError as passing:  # such as too many open files
            self.trouble = str(passing)
            return False
        self._damages = 0
        grew = self._take_all()
        if self._numbering.lost:
            self._restart()
        return grew

    # The contract of an archive.

    def current(self, stripe: int) -> str | None:
        """The session that a stripe is in."""
        return self._recent.current(stripe)

    def extent(self, session: str) -> SessionExtent | None:
        """How far a session is; None where it is unknown."""
        return self._recent.extent(session)

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        """From the shelf, or from the journal."""
        return self._recent.messages(session, first, count)

    def number_since(self, session: str, since: Duration) -> int | None:
        """A number at or before the first message released at this time of day."""
        return self._recent.number_since(session, since)

    def snapshot_writer(self) -> Callable[[], None] | None:
        """How to write down what is known now, in whatever thread; None where there is nothing, or no file for it.

        Raises OSError when it is called.
        """
        path, found = self._snapshot_of, self._snapshot()
        return None if path is None or found is None else lambda: save(path, found)

    def close(self) -> None:
        """Give the files back."""
        self._cursor.close()

    def _snapshot(self) -> ArchiveSnapshot | None:
        """All that is known; None in the middle of a change, and before anything was released."""
        position = self._numbering.position
        editions = self._index.editions
        if position is None or self._entry is None or not editions or position.edition is not editions[-1]:
            return None
        sessions = [SessionExtents(edition, extents) for edition in editions if (extents := self._extents(edition))]
        known = bool(sessions) and sessions[-1].edition is position.edition
        if not known:
            return None
        index = self._index
        return ArchiveSnapshot(EdgeCheckpoint(position, *self._entry), sessions, tuple(index.positions), index.spacing)

    def _extents(self, edition: Edition) -> tuple[SessionExtent, ...] | None:
        """How far the sessions of an edition are; None where the shelf has forgotten one of them."""
        found = [self._recent.extent(edition.session(stripe.number)) for stripe in edition.stripes]
        known = tuple(extent for extent in found if extent is not None)
        return known if len(known) == len(found) else None

    def _proves(self, checkpoint: EdgeCheckpoint) -> bool:
        try:
            return is_proved(checkpoint, self._journal)
        except UserError:
            return False

    def _begin(self, memory: ArchiveSnapshot | None = None) -> None:
        self._index = MessageIndex(spacing=SPACING)
        if memory is not None:
            editions = [each.edition for each in memory.sessions]
            self._index = MessageIndex.restored(editions, memory.positions, memory.spacing)
        self._entry: tuple[int, int] | None = None  # formation and token of the last one that was taken in
        self._recent = RecentMessages(
            bytes_max=self._recent_bytes_max, older=_JournalArchive(self._journal, self._index, self._plan_store)
        )
        position = None if memory is None else memory.checkpoint.position
        if memory is not None:
            self._entry = memory.checkpoint.formation, memory.checkpoint.token
            self._reopen(memory.sessions)
        self._numbering = StripeNumbering(self._settings, self._plan_store, position)
        self._cursor: Cursor = self._journal.entries(from_sequence=1 if position is None else position.sequence)
        self._found: deque[JournalEntry | FormationChanged] = deque()  # in the journal, and not taken in yet
        self._store(self._numbering.begun())

    def _reopen(self, sessions: Sequence[SessionExtents]) -> None:
        for edition, extents in ((each.edition, each.extents) for each in sessions):
            self.plans[edition.plan.version] = edition.plan
            self._recent.take(SessionOpened(edition, tuple(extent.following for extent in extents)), 0)
            if all(extent.ended for extent in extents):
                self._recent.take(SessionClosed(edition), 0)

    def _restart(self) -> None:
        self.restarts += 1
        self._damages = 0
        self._cursor.close()
        self._journal = JournalReader(self._journal.directory)
        self._begin()

    def _take_all(self) -> bool:
        """What was found, up to a plan that is not here yet; whether there was any."""
        grew = False
        try:
            while self._found:
                self._take(self._found[0])
                self._found.popleft()
                grew = True
        except PlanUnknown as missing:
            self.trouble = str(missing)
        else:
            self.trouble = ""
        return grew

    def _take(self, each: JournalEntry | FormationChanged) -> None:
        if isinstance(each, FormationChanged):
            self._numbering.turn(each.change)
            self._store(self._numbering.begun())
            return
        self._store(self._numbering.deliver(each.ordered))
        self._entry = each.ordered.formation, each.ordered.token
        position = self._numbering.position
        if position is not None:
            self._index.note(position)

    def _store(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, SessionOpened):
                self.plans[step.edition.plan.version] = step.edition.plan
                self._index.note(StripePosition.fresh(step.edition))
            self._recent.take(step, self._numbering.at)


class _JournalArchive:
    """What the shelf no longer has, out of the journal."""

    def __init__(self, journal: JournalReader, index: MessageIndex, plan_store: StripePlanStore) -> None:
        self._journal = journal
        self._index = index
        self._plan_store = plan_store

    def current(self, _stripe: int) -> str | None:
        return None

    def extent(self, _session: str) -> SessionExtent | None:
        return None

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        place = self._index.before(session, first)
        if place is None:
            return ()
        successor = self._index.successor(place.edition)
        try:
            with self._journal.entries(from_sequence=place.sequence) as cursor:
                return reread(place, _contents(cursor), session, first, count, successor, self._plan_store.encoders)
        except UserError:
            return ()  # it is being cut, or cannot be opened now; whoever asks again is answered

    def number_since(self, session: str, since: Duration) -> int | None:
        name = Session.parse(session)
        encoder = self._plan_store.encoders.get(name.version) if name else None
        place = self._index.before_time(session, encoder.plan.midnight_at + since) if encoder else None
        return None if place is None else _number(place, session)


def _contents(cursor: Cursor) -> Iterator[Ordered | FormationChange]:
    return (each.change if isinstance(each, FormationChanged) else each.ordered for each in cursor.everything())


def _number(place: StripePosition, session: str) -> int | None:
    """Where a session stands in a place."""
    edition = place.edition
    for stripe, number in zip(edition.stripes, place.following, strict=True):
        if edition.session(stripe.number) == session:
            return number
    return None
