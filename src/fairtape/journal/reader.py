"""Reading a journal: what one site released, or everything that it holds in order; by sequence number or by time.

A reader needs nothing from the writer and may follow it: an iteration ends with the last whole entry, and iterating
over the same cursor again continues from there. Every entry is checked against the hash chain before it is returned;
if it fails, `Damaged` says where. At most one entry is in memory.

`History` reads for sites that catch up: the entries after a position, as the journal stores them. A site that appends
these canonical bytes has the same chain. The end of each read is remembered, so that the next one needs no search, also
while the journal grows. If the journal was truncated since, the place is searched again. Of a large entry only the
wanted bytes are read. Its digest is computed once, along with them, and the last chunk is returned only if it is right:
no site can complete a damaged entry.

No search lists the directory, unless its list file fails the proof (`fairtape.journal.segment_list`).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from fairtape.core.effects import FetchChunks, FormationChange, Ordered, Release, Span
from fairtape.core.entries import (
    HEAD_SIZE,
    EntryChunk,
    Extract,
    Head,
    Position,
    chunks_of,
    decode_body,
    decode_head,
)
from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.core.spans import MessageAssembler, StreamId, blocks
from fairtape.journal.format import DIGEST_SIZE, Damaged, Owner, SegmentHeader, segment_name
from fairtape.journal.segment_list import BEHIND_MAX, Probe, SegmentList, count_before, first_sequences, is_begun
from fairtape.journal.segments import (
    Index,
    Place,
    Point,
    RecordScanner,
    Segment,
    Summary,
    heads_from,
    is_beyond,
    next_segment,
    summarize,
)
from fairtape.wire.blocks import MESSAGE_MAX, unpack_messages
from fairtape.wire.frames import DATAGRAM_MIN, NUMBER_MAX, Malformed, NodeId

PLACES_MAX: Final = 1_024  # remembered ends of what was read; the least recently used one is dropped first
INDEXES_MAX: Final = 64  # segments whose index is kept
SKIPPED_MAX: Final = 256  # entries of one read whose chunks are only counted
WHOLE_MAX: Final = 128 << 10  # bytes of an entry that is read and verified as a whole for any chunk of it
VERIFIED_MAX: Final = 1 << 20  # bytes of a larger entry that one read verifies beside those that it returns
VERIFICATIONS_MAX: Final = 64  # larger entries whose verification is remembered
LOOK_BACK_MAX: Final = MESSAGE_MAX // (DATAGRAM_MIN // 2)  # entries to search backward for the start of a long message


@dataclass(frozen=True, slots=True)
class FormationChanged:
    """A change of formation, at its place in the order."""

    change: FormationChange
    encoded: bytes  # the canonical encoding: equal at every site
    path: Path  # of the segment
    offset: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Msg(e), and its release mark once this site has released it."""

    ordered: Ordered
    release: Release | None
    encoded: bytes  # the canonical encoding: equal at every site
    path: Path  # of the segment
    offset: int

    @property
    def end(self) -> int:
        """The sequence number after the last one."""
        return self.ordered.sequence + self.ordered.count


class JournalMessage(NamedTuple):
    """One message as an application gets it. Fields of the release are None or false before the release."""

    sequence: int
    source: NodeId
    incarnation: int
    number: int  # the source's own
    token: int
    acknowledged_at: Instant
    commit_at: Instant | None
    released_at: Instant | None
    late: bool
    payload: bytes


class Cursor:
    """A place in a journal. Each iteration continues from there to the last whole entry."""

    def __init__(self, journal: "JournalReader", *, from_sequence: int, since: Instant | None, ordered: bool) -> None:
        self._journal = journal
        self._from_sequence = from_sequence
        self._since = since
        self._ordered = ordered
        self._entries: RecordScanner | None = None
        self._marks: RecordScanner | None = None  # scans heads ahead, so that no entry waits in memory for its mark
        self._mark: Release | None = None  # found, but of a later entry
        self._previous = b""

    def __iter__(self) -> Iterator[JournalEntry]:
        return (each for each in self.everything() if isinstance(each, JournalEntry))

    def everything(self, *, through: int = NUMBER_MAX) -> Iterator[JournalEntry | FormationChanged]:
        """Entries, and the changes of formation between them.

        Ends after the entry with the number `through`. A reader that knows how far the journal has come saves the
        search for its end.
        """
        while (found := self._next()) is not None:
            if isinstance(found, FormationChanged):
                yield found
                continue
            if found.end > self._from_sequence:
                yield found
            if found.end > through:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for scanner in (self._entries, self._marks):
            if scanner is not None:
                scanner.close()
        self._entries = self._marks = None

    def _next(self) -> JournalEntry | FormationChanged | None:
        if self._entries is None and not self._open_scanners():
            return None
        assert self._entries is not None
        due = self._entries.sequence
        mark = self._next_mark(due)
        if not self._ordered and mark is None:
            return None
        found = self._read(self._entries, mark)
        if not self._ordered and isinstance(found, JournalEntry) and found.release is None:
            raise Damaged(found.path, found.offset, due, "the release marks skip it")
        return found

    def _open_scanners(self) -> bool:
        """Whether the place exists; a journal without entries has none yet."""
        place = self._journal.place(self._from_sequence, self._since)
        if place is None:
            return False
        self._start_at(place)
        self._previous = place.previous
        return True

    def _start_at(self, place: Place) -> None:
        owner = self._journal.owner()
        self._entries, self._marks = RecordScanner(place, owner), RecordScanner(place, owner)

    def _next_mark(self, due: int) -> Release | None:
        """The first release mark of the entry at `due` or of a later one, if there is one yet."""
        assert self._marks is not None
        try:
            mark = self._seek_mark(self._marks, due)
            truncated = mark is None and self._marks.is_truncated
        except Damaged:
            truncated = True  # and grown again since; real damage is found again below
        return self._seek_mark(self._rescan_marks(), due) if truncated else mark

    def _seek_mark(self, marks: RecordScanner, due: int) -> Release | None:
        while self._mark is None or self._mark.sequence < due:
            step = marks.next_record()
            if step is None:
                return None
            _, record = step
            if isinstance(record, Release):
                self._mark = record
        return self._mark

    def _rescan_marks(self) -> RecordScanner:
        """The journal was truncated before the end of the scan for marks: scan again from the current entry."""
        assert self._entries is not None
        entries = self._entries
        place = Place(entries.segment.path, entries.offset, entries.sequence, self._previous)
        if entries.is_truncated:
            raise entries.damaged(entries.offset, "it was truncated while it was being read")
        self.close()
        self._start_at(place)
        assert self._marks is not None
        self._mark = None
        return self._marks

    def _read(self, scanner: RecordScanner, mark: Release | None) -> JournalEntry | FormationChanged | None:
        step = scanner.next_head()
        if step is None:
            return None
        offset, head = step
        path = scanner.segment.path
        encoded, self._previous = scanner.segment.encoded(offset, head, self._previous, head.sequence)
        try:
            content = decode_body(head, encoded)
        except Malformed as error:
            raise Damaged(path, offset, head.sequence, str(error)) from None
        if isinstance(content, FormationChange):
            return FormationChanged(content, encoded, path, offset)
        if mark is not None and mark.sequence != head.sequence:
            mark = None  # of a later entry
        if mark is not None and (mark.token, mark.count) != (head.token, head.messages):
            raise Damaged(path, offset, head.sequence, "its release mark names another token or count")
        return JournalEntry(content, mark, encoded, path, offset)


class JournalReader:
    """One site's journal, for reading."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._indexes: dict[int, Index] = {}
        self._owner: Owner | None = None
        self._listed: list[int] = []  # from the last listing, where the list file was of no use
        self._indexed: int | None = None  # the last segment that `update_index` has reached

    @classmethod
    def open(cls, directory: Path | str) -> "JournalReader":
        """The journal in this directory, which may still be empty."""
        directory = Path(directory)
        if not directory.is_dir():
            found = "is not a directory" if directory.exists() else "does not exist"
            raise UserError(f"journal directory {str(directory)!r} {found}; name the directory that a site writes")
        return cls(directory)

    def paths(self) -> list[Path]:
        """The segments, in order. Lists the directory: for work on the whole journal."""
        return list(map(self._path, self._list()))

    def last_path(self, *, listed: bool = False) -> Path | None:
        """The last segment; None while there is none. One that was just begun may follow.

        With `listed`, the directory is listed: for a caller that finds more than `BEHIND_MAX` segments after it.
        """
        if not listed:
            with SegmentList(self.directory) as firsts:
                if firsts and is_begun(self._path(firsts[-1])):
                    return self._path(firsts[-1])
        return next(map(self._path, reversed(self._list())), None)

    def owner(self) -> Owner | None:
        """The owner, by the first readable segment; None while there is none. It does not change."""
        if self._owner is None:
            self._owner = self._first_owner() or self._first_readable_owner()
        return self._owner

    def summaries(self) -> Iterator[Summary]:
        """A summary of each segment."""
        return map(summarize, self.paths())

    def entries(self, *, from_sequence: int = 1, since: Instant | None = None, ordered: bool = False) -> Cursor:
        """Entries from the one with `from_sequence` on, or from the first acknowledged at `since` or later.

        Only released entries, unless `ordered` asks for everything that this site holds.
        """
        return Cursor(self, from_sequence=from_sequence, since=since, ordered=ordered)

    def messages(
        self,
        *,
        from_sequence: int = 1,
        to_sequence: int = NUMBER_MAX,
        since: Instant | None = None,
        ordered: bool = False,
    ) -> Iterator[JournalMessage]:
        """Single messages, with fragments of long ones reassembled."""
        both = self.messages_and_formations(
            from_sequence=from_sequence, to_sequence=to_sequence, since=since, ordered=ordered
        )
        return (each for each in both if isinstance(each, JournalMessage))

    def messages_and_formations(
        self,
        *,
        from_sequence: int = 1,
        to_sequence: int = NUMBER_MAX,
        since: Instant | None = None,
        ordered: bool = False,
    ) -> Iterator[JournalMessage | FormationChange]:
        """Single messages, and the changes of formation between them."""
        unpacker = _MessageUnpacker(self)
        with self.entries(from_sequence=from_sequence, since=since, ordered=ordered) as cursor:
            for entry in cursor.everything():
                if isinstance(entry, FormationChanged):
                    if entry.change.sequence > to_sequence:
                        return
                    yield entry.change
                    continue
                for message in unpacker.messages(entry):
                    if message.sequence > to_sequence:
                        return
                    if message.sequence >= from_sequence:
                        yield message
                if entry.end > to_sequence:
                    return

    def place(self, sequence: int, since: Instant | None) -> Place | None:
        """Where to start reading; None while there is no entry. The later of the two conditions applies."""
        if since is None:
            return self._search(
                sequence, lambda first: (first, first > sequence), lambda index: index.by_sequence(sequence)
            )
        place = self._search(since, lambda first: self._time_probe(first, since), lambda index: index.by_time(since))
        return place if place is None or place.sequence >= sequence else self.place(sequence, None)

    def place_after(self, position: Position) -> Place | None:
        """The place of the entry after this position, or of the next one to be written; None in an empty journal."""
        return self._search(
            position.token,
            lambda first: self._position_probe(first, position),
            lambda index: index.after(position),
        )

    def update_index(self) -> None:
        """Index what was appended since the last call, up to the last segment."""
        first, self._indexed = self._indexed, None
        if first is None or not is_begun(self._path(first)):
            last = self.last_path()
            if last is None:
                return
            first = int(last.stem)
        for _ in range(BEHIND_MAX + 1):
            index = self._index(first)
            index.update_index()
            following = next_segment(self._path(first), index.end.sequence)
            if following is None:
                self._indexed = first
                return
            first = int(following.stem)
        last = self.last_path(listed=True)
        self._indexed = None if last is None else int(last.stem)

    # Searches.

    def _search(self, target: int, probe: Probe, find: Callable[[Index], Place | None]) -> Place | None:
        """The place that `find` finds, or where the next entry will begin; the directory is listed as the last resort.

        Both the list file and an earlier listing may lack segments, or have some that are gone.
        """
        with SegmentList(self.directory) as named:
            for firsts in (named, self._listed):
                with suppress(Damaged):
                    place = self._search_in(firsts, target, probe, find, further_max=BEHIND_MAX)
                    if place is not None:
                        return place
        self._listed = self._list()
        return self._search_in(self._listed, target, probe, find, further_max=NUMBER_MAX)

    def _search_in(
        self,
        firsts: Sequence[int],
        target: int,
        probe: Probe,
        find: Callable[[Index], Place | None],
        *,
        further_max: int,
    ) -> Place | None:
        """The place, by the segments themselves; None where they do not prove that these numbers led to it.

        No segment precedes the first one of a listing. Of the list file, that is true of the one with number 0.
        """
        if not firsts:
            return None
        counted = count_before(firsts, target, probe)
        first = firsts[max(counted - 1, 0)]
        if not counted and firsts is not self._listed and self._header(first).number:
            return None
        for _ in range(further_max + 1):
            index = self._index(first)
            place = find(index)
            if place is not None:
                return place
            following = next_segment(self._path(first), index.end.sequence)
            if following is None:
                return index.end
            first = int(following.stem)
        return None

    def _list(self) -> list[int]:
        """The first sequence numbers of the segments. A last segment without a whole header does not count yet."""
        firsts = first_sequences(self.directory)
        if firsts and not is_begun(self._path(firsts[-1])):
            firsts.pop()
        return firsts

    def _first_owner(self) -> Owner | None:
        """The owner by the first segment of the list file; None where it cannot be read."""
        with SegmentList(self.directory) as named, suppress(Damaged):
            return self._header(named[0]).owner if named else None
        return None

    def _first_readable_owner(self) -> Owner | None:
        damage: Damaged | None = None
        for first in self._list():
            try:
                return self._header(first).owner
            except Damaged as error:
                damage = damage or error
        if damage is not None:
            raise damage
        return None

    def _time_probe(self, first: int, instant: Instant) -> tuple[int, bool]:
        """By the time of what precedes a segment. Nothing precedes the first one, but its first entry has a time."""
        with Segment(self._path(first)) as segment:
            latest_at = key = segment.header.tip.latest_at
            if not latest_at:
                with suppress(Damaged):
                    key = next((head.instant for _, head in heads_from(segment, Point.at_start(segment))), 0)
        return key, latest_at >= instant

    def _position_probe(self, first: int, position: Position) -> tuple[int, bool]:
        before = self._header(first).tip.position
        return before.token, is_beyond(before, position)

    def _header(self, first: int) -> SegmentHeader:
        with Segment(self._path(first)) as segment:
            return segment.header

    def _path(self, first: int) -> Path:
        return self.directory / segment_name(first)

    def _index(self, first: int) -> Index:
        index = self._indexes.pop(first, None) or Index(self._path(first))
        self._indexes[first] = index
        if len(self._indexes) > INDEXES_MAX:
            del self._indexes[next(iter(self._indexes))]  # the least recently used
        return index


class _MessageUnpacker:
    """Unpacks entries into messages. Keeps, per stream, the fragments of an incomplete message."""

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal
        self._assembler = MessageAssembler()

    def messages(self, entry: JournalEntry) -> Iterator[JournalMessage]:
        """The messages that end in this entry."""
        ordered, release = entry.ordered, entry.release
        commit_at = release.commit_at if release else None
        released_at = release.released_at if release else None
        late = release.late if release else False
        for span in ordered.spans:
            shift = span.first - span.sequence
            for sequence, payload in self._payloads(entry, span):
                yield JournalMessage(
                    sequence,
                    span.source,
                    span.incarnation,
                    sequence + shift,
                    ordered.token,
                    ordered.acknowledged_at,
                    commit_at,
                    released_at,
                    late,
                    payload,
                )

    def _payloads(self, entry: JournalEntry, span: Span) -> Iterator[tuple[int, bytes]]:
        stream = span.source, span.incarnation
        for sequence, body, count, is_fragment in blocks(span):
            if is_fragment:
                if stream not in self._assembler and not _begins_message(body):
                    self._load_earlier_fragments(entry, stream)
                payload = self._assembler.add(stream, body)
                if payload is not None:
                    yield sequence, payload
            else:
                try:
                    yield from enumerate(unpack_messages(body, count), sequence)
                except Malformed as error:
                    raise Damaged(entry.path, entry.offset, sequence, str(error)) from None

    def _load_earlier_fragments(self, entry: JournalEntry, stream: StreamId) -> None:
        """Reading may start in the middle of a long message: load the fragments before this entry."""
        bodies: list[bytes] = []
        sequence = entry.ordered.sequence
        for _ in range(LOOK_BACK_MAX):
            earlier = self._entry_before(sequence)
            if earlier is None:
                break
            sequence = earlier.ordered.sequence
            found, complete = _trailing_fragments(earlier.ordered, stream)
            bodies[:0] = found
            if complete:
                break
        for body in bodies:
            self._assembler.add(stream, body)

    def _entry_before(self, sequence: int) -> JournalEntry | None:
        with self._journal.entries(from_sequence=sequence - 1, ordered=True) as cursor:
            entry = next(iter(cursor), None)
        return entry if entry is not None and entry.ordered.sequence < sequence else None


def _trailing_fragments(ordered: Ordered, stream: StreamId) -> tuple[list[bytes], bool]:
    """The fragments at the end of this stream in the entry, and whether they include the start of their message."""
    bodies: list[bytes] = []
    for span in reversed(ordered.spans):
        if (span.source, span.incarnation) != stream:
            continue
        for _, body, _, is_fragment in reversed(list(blocks(span))):
            if not is_fragment:
                return bodies, True
            bodies.insert(0, body)
            if _begins_message(body):
                return bodies, True
    return bodies, False


def _begins_message(fragment: bytes) -> bool:
    """A fragment begins with the length of its message and its own offset in it, see `fairtape.wire.blocks`."""
    return fragment[4:8] == bytes(4)


class _Verification:
    """The digest of an entry that is served in parts, as far as it was read in order."""

    __slots__ = ("checked", "state")

    def __init__(self, previous: bytes) -> None:
        self.state = hashlib.sha256(previous)
        self.checked = 0  # bytes

    def update(self, data: bytes) -> None:
        self.state.update(data)
        self.checked += len(data)


class History:
    """Reads one journal for many sites that catch up, beside its writer."""

    def __init__(self, directory: Path | str) -> None:
        self._journal = JournalReader(Path(directory))
        self._places: dict[Position, Place] = {}
        self._verifications: dict[bytes, _Verification] = {}  # by the stored digest

    def after(self, token: int, size_max: int, *, formation: int = 0) -> list[bytes]:
        """The entries that follow a position, in order: at most `size_max` bytes, but at least one.

        The position is that of the reader's last entry (`fairtape.core.entries.position_of`). A reader that asks again
        from the end of each chunk gets the whole order and nothing twice. Where it knows no formation (0), it gets
        everything with a token above this one: messages, and formations by their first token. The change to the
        formation of the first entry precedes them: a site that was restarted needs it to know when they commit.
        """
        position = Position(formation, token)
        known = self._places.pop(position, None)
        if known is not None:
            try:
                return self._read(known, position, size_max, known=True)
            except Damaged:
                pass  # the journal was truncated since; real damage is found by the search
        place = self._journal.place_after(position)
        found = [] if place is None else self._read(place, position, size_max, known=False)
        return found if formation or not found else [*self._change_before(found[0], token), *found]

    def chunks(self, fetch: FetchChunks) -> Extract | None:
        """The chunks that a site which catches up asks for.

        None: a large entry was verified a little further, and the call has to be repeated. If the chunks that were
        asked for are too many entries ahead, none is returned.
        """
        after = Position(fetch.formation, fetch.token)
        known = self._places.pop(after, None)
        if known is not None:
            try:
                return self._read_chunks(known, fetch, known=True)
            except Damaged:
                pass  # as above
        place = self._journal.place_after(after if fetch.formation else Position(0, 0))
        return Extract([], after, 0, exhausted=True) if place is None else self._read_chunks(place, fetch, known=False)

    def update_index(self) -> None:
        """Index what was appended since the last call.

        Otherwise the first request for a segment scans all of its heads, which takes some tens of milliseconds.
        """
        self._journal.update_index()

    def _read(self, place: Place, position: Position, size_max: int, *, known: bool) -> list[bytes]:
        found: list[bytes] = []
        scanner = RecordScanner(place, self._journal.owner())
        try:
            if known:
                _check_unchanged(scanner, place)
            while (step := scanner.next_head()) is not None:
                offset, head = step
                size_max -= head.encoded_size
                if found and size_max < 0:
                    break
                encoded, digest = scanner.segment.encoded(offset, head, place.previous, head.sequence)
                found.append(encoded)
                position, place = head.position, Place(scanner.segment.path, scanner.offset, scanner.sequence, digest)
        finally:
            scanner.close()
        if found or known:
            self._remember(position, place)
        return found

    def _change_before(self, encoded: bytes, token: int) -> list[bytes]:
        """The change to the formation of this entry, the first one with a token above this one; none if it is one."""
        head = decode_head(encoded[:HEAD_SIZE])
        if head.changes_formation:
            return []
        before = Position(head.formation - 1, token) if head.formation > 1 else Position(0, 0)
        place = self._journal.place_after(before)
        found = [] if place is None else self._read(place, before, 1, known=False)
        return [each for each in found if decode_head(each[:HEAD_SIZE]).changes_formation]

    def _read_chunks(self, place: Place, fetch: FetchChunks, *, known: bool) -> Extract | None:
        found: list[EntryChunk] = []
        end, counted = Position(fetch.formation, fetch.token), 0
        scanner = RecordScanner(place, self._journal.owner())
        try:
            if known:
                _check_unchanged(scanner, place)
                self._remember(end, place)
            for _ in range(fetch.count_max + SKIPPED_MAX):
                step = scanner.next_head()
                if step is None:
                    return Extract(found, end, counted, exhausted=True)
                offset, head = step
                chunks, left = chunks_of(head.encoded_size, fetch.chunk_size), fetch.count_max - len(found)
                first = min(max(fetch.skip - counted, 0), chunks)
                last = min(first + left, chunks)
                digest = scanner.segment.stored_digest(offset, head, head.sequence)
                if first < last:
                    begin, size = first * fetch.chunk_size, fetch.chunk_size
                    part = begin, min(last * size, head.encoded_size)
                    data = self._part(scanner.segment, offset, head, place.previous, digest, part)
                    if data is None:
                        return None
                    check = int.from_bytes(digest[:4])
                    found += [
                        EntryChunk(end, chunk, chunks, check, data[chunk * size - begin : (chunk + 1) * size - begin])
                        for chunk in range(first, last)
                    ]
                if last < chunks:
                    return Extract(found, end, counted, exhausted=False)
                end, counted = head.position, counted + chunks
                place = Place(scanner.segment.path, scanner.offset, scanner.sequence, digest)
                self._remember(end, place)
            return Extract(found, end, counted, exhausted=False)
        finally:
            scanner.close()

    def _part(
        self, segment: Segment, offset: int, head: Head, previous: bytes, digest: bytes, part: tuple[int, int]
    ) -> bytes | None:
        """Some bytes of an entry. Those that complete it only once it is verified: None while that takes further."""
        begin, end = part
        size = head.encoded_size
        if size <= WHOLE_MAX:
            return segment.encoded(offset, head, previous, head.sequence)[0][begin:end]
        verification = self._verifications.pop(digest, None) or _Verification(previous)
        self._verifications[digest] = verification
        if len(self._verifications) > VERIFICATIONS_MAX:
            del self._verifications[next(iter(self._verifications))]  # the least recently used
        data = segment.part(offset, head, begin, end, head.sequence)
        if end == size and verification.checked < begin:
            checked = verification.checked
            through = min(checked + VERIFIED_MAX, begin)
            verification.update(segment.part(offset, head, checked, through, head.sequence))
            if through < begin:
                return None
        if begin <= verification.checked < end:
            verification.update(data[verification.checked - begin :])
        if end == size and verification.state.digest() != digest:
            del self._verifications[digest]
            raise Damaged(segment.path, offset, head.sequence, "the digest of an entry does not match its content")
        return data

    def _remember(self, position: Position, place: Place) -> None:
        self._places[position] = place
        if len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]


def _check_unchanged(scanner: RecordScanner, place: Place) -> None:
    """A remembered place directly follows an entry, which ends with its digest."""
    if scanner.segment.digest(place.offset - DIGEST_SIZE, place.sequence) != place.previous:
        raise scanner.damaged(place.offset, "another entry is there now")
