"""The replay archive: everything that a site released, by session and number, from its journal.

It reads the journal as it grows and numbers what it reads. It keeps the latest messages in memory, and an index from
which older messages are read again. The release marks of the journal decide what is in the archive: a message that the
site holds and has not released is not.

A journal that was truncated (the site came back, and the others had continued without its last messages) is read again
from the beginning, because numbers may have changed.

An archive with a snapshot file continues from the snapshot when it is opened again. Like the checkpoint of a publisher,
the snapshot saves time and proves nothing: it names the last entry that it includes, and a journal without that entry
is read from the beginning.
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
from fairtape.edge.protocol.sessions import BadSession, Edition, SessionName, StripePosition
from fairtape.edge.protocol.stripe_sequencer import SessionClosed, SessionOpened, StripeStep
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_numbering import (
    EDGE_FOLDER,
    EdgeCheckpoint,
    StripeNumbering,
    edition_fields,
    edition_of,
    is_proved,
    write_edge_file,
)
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore
from fairtape.journal import Cursor, Damaged, FormationChanged, JournalEntry, JournalReader
from fairtape.market.stripes import StripePlan
from fairtape.wire.frames import NUMBER_MAX

ENTRIES_MAX: Final = 64  # entries of the journal read per call, so that customers are served in between
SPACING: Final = 512  # messages between two positions of the index: at most these are read again to find an old one
DAMAGES_MAX: Final = 3  # consecutive calls with a damaged journal before it is read from the beginning


@dataclass(frozen=True, slots=True)
class SessionExtents:
    """An edition, and the extents of its sessions."""

    edition: Edition
    extents: tuple[SessionExtent, ...]


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """The state of an archive, without its messages. The last of `sessions` is the edition in force."""

    checkpoint: EdgeCheckpoint
    sessions: Sequence[SessionExtents]
    positions: Sequence[StripePosition]  # of the index
    spacing: int  # of the index


class ReplayArchive:
    """The archive of one site. The constructor raises `PlanUnknown` where the first plan is missing."""

    def __init__(
        self,
        journal: Path,
        settings: EdgeSettings,
        plan_store: StripePlanStore,
        *,
        snapshot: Path | None = None,
        recent_bytes_max: int = RECENT_BYTES_MAX,
    ) -> None:
        self.plans: dict[int, StripePlan] = {}  # of opened sessions, by version
        self.trouble = ""  # why it cannot continue, if so
        self.restarts = 0  # how often the journal was read from the beginning again
        self.has_more = False  # the last call of `update_index` did not reach the end of the journal
        self._journal = JournalReader(journal)
        self._settings = settings
        self._plan_store = plan_store
        self._recent_bytes_max = recent_bytes_max
        self._damages = 0
        self._snapshot_path = snapshot
        saved = None if snapshot is None else load_snapshot(snapshot, settings, plan_store)
        self._begin(saved if saved is not None and self._proves(saved.checkpoint) else None)

    @property
    def directory(self) -> Path:
        """The journal."""
        return self._journal.directory

    @property
    def sequence(self) -> int:
        """The next number of the order; 0 while no plan is in force."""
        position = self._numbering.position
        return 0 if position is None else position.sequence

    @property
    def plan(self) -> int:
        """The version of the plan in force; 0: none."""
        position = self._numbering.position
        return 0 if position is None else position.edition.plan.version

    def update_index(self, *, through: int = NUMBER_MAX) -> bool:
        """Read some of what was released since the last call, `through` this number; returns whether there was any."""
        self.has_more = False
        try:
            following = self._cursor.everything(through=through)
            self._found += islice(following, ENTRIES_MAX - len(self._found))
        except Damaged:
            self._damages += 1
            if self._damages >= DAMAGES_MAX:
                self._restart()
            return False
        except UserError as error:  # temporary, such as too many open files
            self.trouble = str(error)
            return False
        self._damages = 0
        is_full = len(self._found) >= ENTRIES_MAX
        grew = self._take_all()
        self.has_more = is_full and grew
        if self._numbering.lost:
            self._restart()
        return grew

    # The contract of `MessageArchive`.

    def current(self, stripe: int) -> str | None:
        return self._recent.current(stripe)

    def extent(self, session: str) -> SessionExtent | None:
        return self._recent.extent(session)

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        return self._recent.messages(session, first, count)

    def number_since(self, session: str, since: Duration) -> int | None:
        return self._recent.number_since(session, since)

    def snapshot_writer(self) -> Callable[[], None] | None:
        """A function that writes a snapshot of the present state, in any thread; None where there is nothing to write.

        The function raises OSError.
        """
        path, found = self._snapshot_path, self._snapshot()
        return None if path is None or found is None else lambda: save_snapshot(path, found)

    def close(self) -> None:
        """Close the files."""
        self._cursor.close()

    def _snapshot(self) -> ArchiveSnapshot | None:
        """The present state; None during a change of edition, and before the first release."""
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
        """The extents of the sessions of an edition; None where one of them was dropped."""
        found = [self._recent.extent(edition.session(stripe.number)) for stripe in edition.stripes]
        known = tuple(extent for extent in found if extent is not None)
        return known if len(known) == len(found) else None

    def _proves(self, checkpoint: EdgeCheckpoint) -> bool:
        try:
            return is_proved(checkpoint, self._journal)
        except UserError:
            return False

    def _begin(self, snapshot: ArchiveSnapshot | None = None) -> None:
        self._index = MessageIndex(spacing=SPACING)
        if snapshot is not None:
            editions = [each.edition for each in snapshot.sessions]
            self._index = MessageIndex.restored(editions, snapshot.positions, snapshot.spacing)
        self._entry: tuple[int, int] | None = None  # formation and token of the last entry that was numbered
        self._recent = RecentMessages(
            bytes_max=self._recent_bytes_max, older=_JournalArchive(self._journal, self._index, self._plan_store)
        )
        position = None if snapshot is None else snapshot.checkpoint.position
        if snapshot is not None:
            self._entry = snapshot.checkpoint.formation, snapshot.checkpoint.token
            self._reopen(snapshot.sessions)
        self._numbering = StripeNumbering(self._settings, self._plan_store, position)
        self._cursor: Cursor = self._journal.entries(from_sequence=1 if position is None else position.sequence)
        self._found: deque[JournalEntry | FormationChanged] = deque()  # read from the journal, and not numbered yet
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
        """Number what was read, up to a plan that is missing; returns whether there was any."""
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
            self._numbering.on_formation(each.change)
            self._store(self._numbering.begun())
            return
        self._store(self._numbering.deliver(each.ordered))
        self._entry = each.ordered.formation, each.ordered.token
        position = self._numbering.position
        if position is not None:
            self._index.note(position)

    def _store(self, steps: list[StripeStep]) -> None:
        for step in steps:
            if isinstance(step, SessionOpened):
                self.plans[step.edition.plan.version] = step.edition.plan
                self._index.note(StripePosition.fresh(step.edition))
            self._recent.take(step, self._numbering.at)


class _JournalArchive:
    """Messages that are no longer in memory, read from the journal again."""

    def __init__(self, journal: JournalReader, index: MessageIndex, plan_store: StripePlanStore) -> None:
        self._journal = journal
        self._index = index
        self._plan_store = plan_store

    def current(self, _stripe: int) -> str | None:
        return None

    def extent(self, _session: str) -> SessionExtent | None:
        return None

    def messages(self, session: str, first: int, count: int) -> Sequence[bytes]:
        position = self._index.before(session, first)
        if position is None:
            return ()
        successor = self._index.successor(position.edition)
        try:
            with self._journal.entries(from_sequence=position.sequence) as cursor:
                return reread(position, _contents(cursor), session, first, count, successor, self._plan_store.encoders)
        except UserError:
            return ()  # it is being truncated, or cannot be opened now; a repeated request is answered

    def number_since(self, session: str, since: Duration) -> int | None:
        name = SessionName.parse(session)
        encoder = self._plan_store.encoders.get(name.version) if name else None
        position = self._index.before_time(session, encoder.plan.midnight_at + since) if encoder else None
        return None if position is None else _number(position, session)


def _contents(cursor: Cursor) -> Iterator[Ordered | FormationChange]:
    return (each.change if isinstance(each, FormationChanged) else each.ordered for each in cursor.everything())


def _number(position: StripePosition, session: str) -> int | None:
    """The next number of a session at a position."""
    edition = position.edition
    for stripe, number in zip(edition.stripes, position.following, strict=True):
        if edition.session(stripe.number) == session:
            return number
    return None


SNAPSHOT_BYTES_MAX: Final = 64 << 20
_VERSION: Final = 1
_NUMBERS: Final = np.dtype("<i8")
_FIXED: Final = 4  # numbers of a position before those of its stripes: edition, sequence, at, formation


def snapshot_path(folder: Path, site: str) -> Path:
    """The snapshot file of the replay archive beside a site."""
    return folder / EDGE_FOLDER / f"{site}.memory"


def save_snapshot(path: Path, snapshot: ArchiveSnapshot) -> None:
    """Write the file atomically. Raises OSError."""
    position = snapshot.checkpoint.position
    editions = {id(each.edition): number for number, each in enumerate(snapshot.sessions)}
    kept = [each for each in snapshot.positions if id(each.edition) in editions]
    rows = [number for each in (*kept, position) for number in _numbers(each, editions)]
    numbers = np.array(rows, _NUMBERS).tobytes()
    head = {
        "version": _VERSION,
        "tag": position.edition.deployment,
        "core": position.edition.core,
        "entry": [snapshot.checkpoint.formation, snapshot.checkpoint.token],
        "spacing": snapshot.spacing,
        "chapters": [{"edition": edition_fields(each.edition), "extents": each.extents} for each in snapshot.sessions],
        "check": crc32(numbers),
    }
    write_edge_file(path, json.dumps(head).encode(), b"\n", numbers)


def load_snapshot(path: Path, settings: EdgeSettings, plan_store: StripePlanStore) -> ArchiveSnapshot | None:
    """The saved snapshot; None where there is none, or where it is not of this edge."""
    try:
        with path.open("rb") as file:
            content = file.read(SNAPSHOT_BYTES_MAX + 1)
        head, _, numbers = content.partition(b"\n")
        return _decode(json.loads(head), numbers, settings, plan_store)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, BadSession, PlanUnknown):
        return None


def _decode(
    head: dict[str, Any], numbers: bytes, settings: EdgeSettings, plan_store: StripePlanStore
) -> ArchiveSnapshot | None:
    expected = _VERSION, settings.tag, settings.core, crc32(numbers)
    if (head["version"], head["tag"], head["core"], head["check"]) != expected:
        return None
    sessions = [_session_extents(fields, settings, plan_store) for fields in head["chapters"]]
    *positions, last = _positions(np.frombuffer(numbers, _NUMBERS).tolist(), sessions)
    formation, token = map(int, head["entry"])
    if last.edition is not sessions[-1].edition:
        return None
    return ArchiveSnapshot(EdgeCheckpoint(last, formation, token), sessions, positions, int(head["spacing"]))


def _session_extents(fields: dict[str, Any], settings: EdgeSettings, plan_store: StripePlanStore) -> SessionExtents:
    edition = edition_of(fields["edition"], settings, plan_store)
    extents = tuple(SessionExtent(int(following), bool(ended)) for following, ended in fields["extents"])
    if len(extents) != len(edition.stripes):
        raise ValueError("not of this plan")
    return SessionExtents(edition, extents)


def _numbers(position: StripePosition, editions: dict[int, int]) -> tuple[int, ...]:
    return editions[id(position.edition)], position.sequence, position.at, position.formation, *position.following


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
