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
from fairtape.edge.protocol.archive import SHELF_BYTES_MAX, MessageIndex, RecentMessages, SessionExtent, reread
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
    chapters: Sequence[SessionExtents]
    standings: Sequence[StripePosition]  # the places of the index, and the spacing between them
    spacing: int


def save(path: Path, memory: ArchiveSnapshot) -> None:
    """Write it whole or not at all. Raises OSError."""
    editions = {id(chapter.edition): number for number, chapter in enumerate(memory.chapters)}
    kept = [each for each in memory.standings if id(each.edition) in editions]
    places = [number for each in (*kept, memory.checkpoint.standing) for number in _numbers(each, editions)]
    numbers = np.array(places, _NUMBERS).tobytes()
    head = {
        "version": _VERSION,
        "tag": memory.checkpoint.standing.edition.deployment,
        "core": memory.checkpoint.standing.edition.core,
        "entry": [memory.checkpoint.formation, memory.checkpoint.token],
        "spacing": memory.spacing,
        "chapters": [
            {"edition": edition_fields(chapter.edition), "extents": chapter.extents} for chapter in memory.chapters
        ],
        "check": crc32(numbers),
    }
    write_whole(path, json.dumps(head).encode(), b"\n", numbers)


def load(path: Path, settings: EdgeSettings, catalogue: StripePlanStore) -> ArchiveSnapshot | None:
    """What was saved; None where it is not there, or not of this edge."""
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_MAX + 1)
        head, _, numbers = content.partition(b"\n")
        return _memory(json.loads(head), numbers, settings, catalogue)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, BadSession, PlanUnknown):
        return None


def _memory(
    head: dict[str, Any], numbers: bytes, settings: EdgeSettings, catalogue: StripePlanStore
) -> ArchiveSnapshot | None:
    if (head["version"], head["tag"], head["core"], head["check"]) != (
        _VERSION,
        settings.tag,
        settings.core,
        crc32(numbers),
    ):
        return None
    chapters = [_chapter(fields, settings, catalogue) for fields in head["chapters"]]
    *standings, last = _standings(np.frombuffer(numbers, _NUMBERS).tolist(), chapters)
    formation, token = map(int, head["entry"])
    editions = [chapter.edition for chapter in chapters]
    if last.edition is not editions[-1]:
        return None
    return ArchiveSnapshot(EdgeCheckpoint(last, formation, token), chapters, standings, int(head["spacing"]))


def _chapter(fields: dict[str, Any], settings: EdgeSettings, catalogue: StripePlanStore) -> SessionExtents:
    edition = edition_of(fields["edition"], settings, catalogue)
    extents = tuple(SessionExtent(int(following), bool(ended)) for following, ended in fields["extents"])
    if len(extents) != len(edition.stripes):
        raise ValueError("not of this plan")
    return SessionExtents(edition, extents)


def _numbers(place: StripePosition, editions: dict[int, int]) -> tuple[int, ...]:
    return editions[id(place.edition)], place.sequence, place.at, place.formation, *place.following


def _standings(numbers: list[int], chapters: Sequence[SessionExtents]) -> Iterator[StripePosition]:
    start = 0
    while start < len(numbers):
        edition = chapters[numbers[start]].edition
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
        catalogue: StripePlanStore,
        *,
        memory: Path | None = None,
        shelf_bytes_max: int = SHELF_BYTES_MAX,
    ) -> None:
        self.plans: dict[int, StripePlan] = {}  # whose sessions were opened
        self.words = ""  # why it cannot go on, if so
        self.restarts = 0  # the journal was read from the beginning again
        self._journal = JournalReader(journal)
        self._settings = settings
        self._catalogue = catalogue
        self._shelf_bytes_max = shelf_bytes_max
        self._damages = 0
        self._memory = memory
        remembered = None if memory is None else load(memory, settings, catalogue)
        self._begin(remembered if remembered is not None and self._proves(remembered.checkpoint) else None)

    @property
    def sequence(self) -> int:
        """The number in the order that is expected next; 0 while no plan is in force."""
        standing = self._reckoning.standing
        return 0 if standing is None else standing.sequence

    @property
    def plan(self) -> int:
        """The version in force; 0: none."""
        standing = self._reckoning.standing
        return 0 if standing is None else standing.edition.plan.version

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
            self.words = str(passing)
            return False
        self._damages = 0
        grew = self._take_all()
        if self._reckoning.lost:
            self._restart()
        return grew

    # The contract of an archive.

    def current(self, stripe: int) -> str | None:
        """The session that a stripe is in."""
        return self._shelf.current(stripe)

    def extent(self, session: str) -> SessionExtent | None:
        """How far a session is; None where it is unknown."""
        return self._shelf.extent(session)

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        """From the shelf, or from the journal."""
        return self._shelf.messages(session, first, count)

    def number_since(self, session: str, since: Duration) -> int | None:
        """A number at or before the first message released at this time of day."""
        return self._shelf.number_since(session, since)

    def remembering(self) -> Callable[[], None] | None:
        """How to write down what is known now, in whatever thread; None where there is nothing, or no file for it.

        Raises OSError when it is called.
        """
        path, found = self._memory, self._told()
        return None if path is None or found is None else lambda: save(path, found)

    def close(self) -> None:
        """Give the files back."""
        self._cursor.close()

    def _told(self) -> ArchiveSnapshot | None:
        """All that is known; None in the middle of a change, and before anything was released."""
        standing = self._reckoning.standing
        editions = self._places.editions
        if standing is None or self._entry is None or not editions or standing.edition is not editions[-1]:
            return None
        chapters = [SessionExtents(edition, extents) for edition in editions if (extents := self._extents(edition))]
        known = bool(chapters) and chapters[-1].edition is standing.edition
        if not known:
            return None
        places = self._places
        return ArchiveSnapshot(
            EdgeCheckpoint(standing, *self._entry), chapters, tuple(places.standings), places.spacing
        )

    def _extents(self, edition: Edition) -> tuple[SessionExtent, ...] | None:
        """How far the sessions of an edition are; None where the shelf has forgotten one of them."""
        found = [self._shelf.extent(edition.session(stripe.number)) for stripe in edition.stripes]
        known = tuple(extent for extent in found if extent is not None)
        return known if len(known) == len(found) else None

    def _proves(self, checkpoint: EdgeCheckpoint) -> bool:
        try:
            return is_proved(checkpoint, self._journal)
        except UserError:
            return False

    def _begin(self, memory: ArchiveSnapshot | None = None) -> None:
        self._places = MessageIndex(spacing=SPACING)
        if memory is not None:
            editions = [chapter.edition for chapter in memory.chapters]
            self._places = MessageIndex.restored(editions, memory.standings, memory.spacing)
        self._entry: tuple[int, int] | None = None  # formation and token of the last one that was taken in
        self._shelf = RecentMessages(
            bytes_max=self._shelf_bytes_max, older=_Past(self._journal, self._places, self._catalogue)
        )
        standing = None if memory is None else memory.checkpoint.standing
        if memory is not None:
            self._entry = memory.checkpoint.formation, memory.checkpoint.token
            self._reopen(memory.chapters)
        self._reckoning = StripeNumbering(self._settings, self._catalogue, standing)
        self._cursor: Cursor = self._journal.entries(from_sequence=1 if standing is None else standing.sequence)
        self._found: deque[JournalEntry | FormationChanged] = deque()  # in the journal, and not taken in yet
        self._shelve(self._reckoning.begun())

    def _reopen(self, chapters: Sequence[SessionExtents]) -> None:
        for edition, extents in ((each.edition, each.extents) for each in chapters):
            self.plans[edition.plan.version] = edition.plan
            self._shelf.take(SessionOpened(edition, tuple(extent.following for extent in extents)), 0)
            if all(extent.ended for extent in extents):
                self._shelf.take(SessionClosed(edition), 0)

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
            self.words = str(missing)
        else:
            self.words = ""
        return grew

    def _take(self, each: JournalEntry | FormationChanged) -> None:
        if isinstance(each, FormationChanged):
            self._reckoning.turn(each.change)
            self._shelve(self._reckoning.begun())
            return
        self._shelve(self._reckoning.deliver(each.ordered))
        self._entry = each.ordered.formation, each.ordered.token
        standing = self._reckoning.standing
        if standing is not None:
            self._places.note(standing)

    def _shelve(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, SessionOpened):
                self.plans[step.edition.plan.version] = step.edition.plan
                self._places.note(StripePosition.fresh(step.edition))
            self._shelf.take(step, self._reckoning.at)


class _Past:
    """What the shelf no longer has, out of the journal."""

    def __init__(self, journal: JournalReader, places: MessageIndex, catalogue: StripePlanStore) -> None:
        self._journal = journal
        self._places = places
        self._catalogue = catalogue

    def current(self, _stripe: int) -> str | None:
        return None

    def extent(self, _session: str) -> SessionExtent | None:
        return None

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        place = self._places.before(session, first)
        if place is None:
            return ()
        successor = self._places.successor(place.edition)
        try:
            with self._journal.entries(from_sequence=place.sequence) as cursor:
                return reread(place, _contents(cursor), session, first, count, successor, self._catalogue.presses)
        except UserError:
            return ()  # it is being cut, or cannot be opened now; whoever asks again is answered

    def number_since(self, session: str, since: Duration) -> int | None:
        name = Session.parse(session)
        press = self._catalogue.presses.get(name.version) if name else None
        place = self._places.before_time(session, press.plan.midnight_at + since) if press else None
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
