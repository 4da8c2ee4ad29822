"""Reading the segments of a journal: one file record by record, all files by their heads, and an index of each file.

A segment may grow while it is read. An incomplete record at the end is not there yet; anywhere else it is damage. There
is no index file that could be stale: heads are small and have their own CRC, so an index is built by scanning the heads
of one segment once. The number after the last one of a segment is the name of the next, so nothing is listed.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from fairtape.core.effects import FormationChange, Ordered, Release
from fairtape.core.entries import HEAD_SIZE, Head, Position, decode_body
from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.journal.format import (
    DIGEST_SIZE,
    HEADER_SIZE,
    MARK_SIZE,
    CheckpointHead,
    Damaged,
    OtherVersion,
    Owner,
    Record,
    SegmentCheckpoint,
    SegmentHeader,
    decode_checkpoint,
    decode_header,
    decode_record,
    is_mark,
    link,
    segment_name,
    sequence_of,
    stored_size,
)
from fairtape.journal.segment_list import first_after, is_begun
from fairtape.wire.frames import Malformed, NodeId

WINDOW: Final = 8_192  # bytes read for one head: covers many small entries, and costs no more for a large one
INDEX_STEP: Final = 1 << 16  # bytes of a segment between two points of its index


class Segment:
    """One segment file, open for reading.

    The names of segments are the same in all journals; with an `owner`, a segment of another journal is `Damaged`.
    """

    def __init__(self, path: Path, owner: Owner | None = None) -> None:
        sequence = sequence_of(path.name)
        assert sequence is not None
        self.path = path
        self._window = b""
        self._window_at = 0
        self._size = 0
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Damaged(path, 0, sequence, f"it cannot be opened ({error.strerror})") from None
        try:
            self.header = self._header(sequence)
            if owner not in (None, self.header.owner):
                raise Damaged(path, 0, sequence, f"it belongs to {self.header.owner}, and the journal to {owner}")
        except UserError:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """The current size in bytes."""
        self._size = os.fstat(self._file).st_size
        return self._size

    @property
    def is_there(self) -> bool:
        """Whether the segment's name still refers to this file."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._file))
        except OSError:
            return False

    def record(self, offset: int, sequence: int) -> Record | None:
        """The record at this byte, or None while it is incomplete. `sequence` is the next one, for the error."""
        data = self._head(offset, sequence)
        if len(data) == HEAD_SIZE:
            record = self._decode(data, offset, sequence)
            if self._reaches(offset + stored_size(record)):
                return record
        self._window = b""  # an incomplete record may be truncated and written again
        return None

    def skip_marks(self, offset: int, sequence: int) -> int:
        """The byte after the release marks at this byte; their fields are not decoded."""
        while is_mark(self._head(offset, sequence)) and self._reaches(offset + MARK_SIZE):
            offset += MARK_SIZE
        return offset

    def _head(self, offset: int, sequence: int) -> bytes:
        start = offset - self._window_at
        if not 0 <= start <= len(self._window) - HEAD_SIZE:
            self._window, self._window_at, start = self._read(offset, WINDOW, sequence), offset, 0
        return self._window[start : start + HEAD_SIZE]

    def _reaches(self, end: int) -> bool:
        return end <= self._size or end <= self.size

    def _decode(self, data: bytes, offset: int, sequence: int) -> Record:
        try:
            record = decode_record(data)
        except Malformed as error:
            raise Damaged(self.path, offset, sequence, str(error)) from None
        if isinstance(record, Head) and record.stripe != self.header.stripe:
            raise Damaged(self.path, offset, sequence, f"an entry of stripe {record.stripe}")
        return record

    def encoded(self, offset: int, record: Record, previous: bytes, sequence: int) -> tuple[bytes, bytes]:
        """The record at this byte without its digest, and the digest, which is checked."""
        stored = self.stored(offset, record, sequence)
        encoded, digest = stored[:-DIGEST_SIZE], stored[-DIGEST_SIZE:]
        if len(stored) != stored_size(record) or link(previous, encoded) != digest:
            raise Damaged(self.path, offset, sequence, f"the digest of {_kind_name(record)} does not match its content")
        return encoded, digest

    def mark_digest(self, offset: int, mark: Release, previous: bytes) -> bytes:
        """The digest of a release mark; it is checked unless `previous` is unknown (b"").

        Many small tokens have many marks, so the bytes are taken from the window that was read for the head.
        """
        start = offset - self._window_at
        stored = self._window[start : start + MARK_SIZE] if start >= 0 else b""
        if len(stored) != MARK_SIZE:
            stored = self.stored(offset, mark, mark.sequence)
        digest = stored[HEAD_SIZE:]
        if previous and link(previous, stored[:HEAD_SIZE]) != digest:
            raise Damaged(
                self.path, offset, mark.sequence, f"the digest of {_kind_name(mark)} does not match its content"
            )
        return digest

    def stored(self, offset: int, record: Record, sequence: int) -> bytes:
        """A whole record as stored, with its digest."""
        return self._read(offset, stored_size(record), sequence)

    def part(self, offset: int, record: Record, begin: int, end: int, sequence: int) -> bytes:
        """Some bytes of the record at this byte, which are not checked."""
        data = self._read(offset + begin, end - begin, sequence)
        if len(data) != end - begin:
            raise Damaged(self.path, offset, sequence, f"{_kind_name(record)} is cut short")
        return data

    def stored_digest(self, offset: int, record: Record, sequence: int) -> bytes:
        """The digest that is stored with the record at this byte; it is not checked."""
        return self._read(offset + stored_size(record) - DIGEST_SIZE, DIGEST_SIZE, sequence)

    def digest(self, digest_at: int, sequence: int) -> bytes:
        """A stored digest; for byte 0, the digest that the header continues."""
        return self._read(digest_at, DIGEST_SIZE, sequence) if digest_at else self.header.tip.digest

    def _header(self, sequence: int) -> SegmentHeader:
        try:
            header = decode_header(self._read(0, HEADER_SIZE, sequence))
        except OtherVersion as error:
            raise UserError(f"{self.path} is of {error}; read it with the release of fairtape that wrote it") from None
        except Malformed as error:
            raise Damaged(self.path, 0, sequence, str(error)) from None
        if header.tip.sequence != sequence:
            raise Damaged(self.path, 0, sequence, f"its header says that it begins with sequence {header.tip.sequence}")
        return header

    def _read(self, offset: int, size: int, sequence: int) -> bytes:
        try:
            return os.pread(self._file, size, offset)
        except OSError as error:
            raise Damaged(self.path, offset, sequence, f"it cannot be read ({error.strerror})") from None


def _kind_name(record: Record) -> str:
    match record:
        case Head():
            return "an entry"
        case Release():
            return "a release mark"
    return "a checkpoint"


class StoredRecord(NamedTuple):
    """A record of a segment, and its offset."""

    offset: int
    record: Record


class SegmentReplay:
    """Reads one segment record by record, and checks everything that can be checked within one segment.

    The attributes hold the state after the last valid record, also when damage ends the iteration.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.tip = segment.header.tip
        self.end = HEADER_SIZE  # the byte after the last record
        self.entries = 0
        self.ends_with_formation = False  # whether the last entry changes the formation
        self.ordered_through = self.tip.token  # of the last messages; no segment begins right after a formation
        self.change: FormationChange | None = None  # the last one in this segment
        self.streams: dict[NodeId, tuple[int, int]] = {}  # of the sources in this segment
        self.checkpoint: SegmentCheckpoint | None = None

    def __iter__(self) -> Iterator[StoredRecord]:
        while (record := self.segment.record(self.end, self.tip.sequence)) is not None:
            offset = self.end
            try:
                self._check(offset, record)
            except Malformed as error:
                raise Damaged(self.segment.path, offset, self.tip.sequence, str(error)) from None
            self.end += stored_size(record)
            yield StoredRecord(offset, record)

    def checkpoint_after(self, before: SegmentCheckpoint | None) -> SegmentCheckpoint | None:
        """The checkpoint for the segment after this one; None where the one before this segment is unknown."""
        start = self.checkpoint or before
        if start is None:
            if self.segment.header.number:
                return None
            start = SegmentCheckpoint({}, None)
        return SegmentCheckpoint({**start.streams, **self.streams}, self.change or start.change)

    def _check(self, offset: int, record: Record) -> None:
        tip = self.tip
        match record:
            case Head():
                encoded, digest = self.segment.encoded(offset, record, tip.digest, tip.sequence)
                self.tip = tip.after_entry(record, digest)
                self._apply(decode_body(record, encoded))
            case Release():
                _, digest = self.segment.encoded(offset, record, tip.marks, tip.sequence)
                self.tip = tip.after_release(record, digest)
            case CheckpointHead():
                encoded, _ = self.segment.encoded(offset, record, self.segment.header.tip.digest, tip.sequence)
                if self.checkpoint is not None:
                    raise Malformed("a second checkpoint")
                self.checkpoint = decode_checkpoint(record, encoded)

    def _apply(self, entry: Ordered | FormationChange) -> None:
        self.entries += 1
        self.ends_with_formation = isinstance(entry, FormationChange)
        if isinstance(entry, FormationChange):
            self.change = entry
        else:
            self.ordered_through = entry.token
            update_streams(self.streams, entry)


def update_streams(streams: dict[NodeId, tuple[int, int]], ordered: Ordered) -> None:
    """Update the position of every source with Msg(e)."""
    for span in ordered.spans:
        streams[span.source] = span.incarnation, span.first + span.count


class Place(NamedTuple):
    """The start of an entry, or of the next one that will be written."""

    path: Path
    offset: int
    sequence: int
    previous: bytes  # the digest of the entry before


class RecordScanner:
    """Scans the heads of records, across segments, to the end of the journal; and on from there when it has grown.

    With an `owner`, the first segment must belong to it; later ones must belong to the owner of the first.
    """

    def __init__(self, place: Place, owner: Owner | None = None) -> None:
        self.segment = Segment(place.path, owner)  # of the last record
        self.offset = place.offset
        self.sequence = place.sequence  # the next one
        start = HEADER_SIZE if place.offset == HEADER_SIZE else 0  # 0: what precedes is unknown
        self._entry_end = self._mark_end = start  # of the last one; HEADER_SIZE stands for those in the header
        self._checked_at: int | None = 0  # when the directory had changed last, when no segment was missing

    def close(self) -> None:
        self.segment.close()

    @property
    def is_truncated(self) -> bool:
        """Whether the journal was truncated before the current offset."""
        return self.offset > self.segment.size or not self.segment.is_there

    def next_record(self) -> tuple[int, Record] | None:
        """The next record and its offset, or None at the current end of the journal."""
        while (record := self.segment.record(self.offset, self.sequence)) is None:
            if not self._open_next_segment():
                return None
        offset = self.offset
        if isinstance(record, Head):
            if record.sequence != self.sequence:
                raise self.damaged(offset, f"an entry begins with sequence {record.sequence}")
            self.sequence = record.end
            self._entry_end = self.offset = offset + stored_size(record)
        elif isinstance(record, Release):
            self._mark_end = self.offset = offset + MARK_SIZE
        else:
            self.offset = offset + stored_size(record)
        return offset, record

    def next_head(self) -> tuple[int, Head] | None:
        """The next entry; other records are skipped."""
        while (step := self.next_record()) is not None:
            offset, record = step
            if isinstance(record, Head):
                return offset, record
        return None

    def damaged(self, offset: int, reason: str) -> Damaged:
        """The error about a byte of the current segment."""
        return Damaged(self.segment.path, offset, self.sequence, reason)

    def _open_next_segment(self) -> bool:
        """Go to the next segment, once this one is read to its end: the writer completes it before it begins the next.

        Whether there is more to read.
        """
        following = next_segment(self.segment.path, self.sequence)
        if following is None:
            self._check_not_missing()
            return False
        if self.segment.record(self.offset, self.sequence) is not None:
            return True
        if self.offset != self.segment.size:
            raise self.damaged(self.offset, "an entry is cut short, and another segment follows")
        segment = Segment(following, self.segment.header.owner)
        if not self._is_continued_by(segment.header):
            segment.close()
            reason = "the header does not continue the chain of the segment before it"
            raise Damaged(following, 0, self.sequence, reason)
        self.segment.close()
        self.segment = segment
        self.offset = self._entry_end = self._mark_end = HEADER_SIZE
        return True

    def _check_not_missing(self) -> None:
        """Raise `Damaged` where a later segment is there without the next one. Checked when the directory changes."""
        path, sequence = self.segment.path, self.sequence
        changed_at = _changed_at(path.parent)
        if changed_at == self._checked_at:
            return
        ahead = first_after(path.parent, sequence)
        # The writer may have completed this segment and begun others since both were read.
        ends_here = next_segment(path, sequence) is None and self.segment.record(self.offset, sequence) is None
        if ahead is not None and ends_here:
            raise self.damaged(self.segment.size, f"what follows is missing up to sequence {ahead - 1}")
        self._checked_at = changed_at

    def _is_continued_by(self, header: SegmentHeader) -> bool:
        """Whether both chains continue in the segment with this header, as far as their last digests are known."""
        here = self.segment.header
        entry, mark = self._last(self._entry_end, here.tip.digest), self._last(self._mark_end, here.tip.marks)
        return (
            header.number == here.number + 1 and entry in (None, header.tip.digest) and mark in (None, header.tip.marks)
        )

    def _last(self, end: int, before: bytes) -> bytes | None:
        """The digest of the record that ends there, or the one `before` this segment; None where it is unknown."""
        if end > HEADER_SIZE:
            return self.segment.digest(end - DIGEST_SIZE, self.sequence)
        return before if end else None


def next_segment(path: Path, sequence: int) -> Path | None:
    """The segment after `path`, which must begin with `sequence`; None while there is none."""
    following = path.with_name(segment_name(sequence))
    return following if following != path and is_begun(following) else None


def _changed_at(directory: Path) -> int | None:
    """When a file was last added to this directory or removed from it; None where it cannot be read."""
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return None


class Point(NamedTuple):
    """One entry of a segment in its index."""

    sequence: int
    position: Position  # of the entry before it
    latest_at: Instant  # of all entries before it
    offset: int
    digest_at: int  # of the entry before it; 0 where the header holds it

    @classmethod
    def at_start(cls, segment: Segment) -> "Point":
        """Before the first entry of a segment."""
        tip = segment.header.tip
        return cls(tip.sequence, tip.position, tip.latest_at, HEADER_SIZE, 0)

    def after(self, head: Head) -> "Point":
        """The point after this entry, which is at this point."""
        offset = self.offset + stored_size(head)
        latest_at = self.latest_at if head.changes_formation else max(self.latest_at, head.instant)
        return Point(head.end, head.position, latest_at, offset, offset - DIGEST_SIZE)


class Index:
    """Finds entries in one segment by sequence number, by time and by position. Grows with its segment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clear()

    def _clear(self) -> None:
        self._points: list[Point] = []
        self._end: Point | None = None  # where the next entry will begin
        self._last = b""  # the digest of the last entry before it

    @property
    def end(self) -> Place:
        """Where the next entry will begin, as of the last search or update."""
        assert self._end is not None
        return Place(self._path, self._end.offset, self._end.sequence, self._last)

    def update_index(self) -> None:
        """Index what was appended since the last call, so that a later search need not scan it."""
        with Segment(self._path) as segment:
            self._extend(segment)

    def by_sequence(self, sequence: int) -> Place | None:
        """The entry with this number, or the change of formation before it; None beyond the end of the segment."""
        return self._find(
            lambda point: point.sequence >= sequence,
            lambda _, head: head.sequence >= sequence or head.end > sequence,
        )

    def by_time(self, instant: Instant) -> Place | None:
        """The first token acknowledged at or after this instant; None where this segment has none."""
        return self._find(
            lambda point: point.latest_at >= instant,
            lambda point, head: point.after(head).latest_at >= instant,
        )

    def after(self, position: Position) -> Place | None:
        """The entry that follows this position; None where this segment has none."""
        return self._find(
            lambda point: is_beyond(point.position, position),
            lambda _, head: follows(head, position),
        )

    def _find(self, beyond: Callable[[Point], bool], reached: Callable[[Point, Head], bool]) -> Place | None:
        """The first entry that is `reached`, scanning from the last index point that is not `beyond` it."""
        with Segment(self._path) as segment:
            self._extend(segment)
            not_beyond = bisect_right(self._points, 0, key=beyond)
            start = self._points[max(not_beyond - 1, 0)] if self._points else Point.at_start(segment)
            for point, head in heads_from(segment, start):
                if reached(point, head):
                    previous = segment.digest(point.digest_at, point.sequence)
                    return Place(self._path, point.offset, point.sequence, previous)
            return None

    def _extend(self, segment: Segment) -> None:
        end = self._end
        if end is not None and segment.digest(end.digest_at, end.sequence) != self._last:
            self._clear()  # the segment was truncated
            end = None
        end = end or Point.at_start(segment)
        indexed_at = self._points[-1].offset if self._points else -INDEX_STEP
        last: tuple[Point, Head] | None = None
        with suppress(Damaged):  # raised when the damaged part itself is read
            for last in heads_from(segment, end):
                point, _ = last
                if point.offset - indexed_at >= INDEX_STEP:
                    self._points.append(point)
                    indexed_at = point.offset
        if last is not None:
            point, head = last
            end = point.after(head)
        self._end, self._last = end, segment.digest(end.digest_at, end.sequence)


def follows(head: Head, position: Position) -> bool:
    """Whether an entry comes after this position. Where its formation is unknown (0), the token alone decides."""
    return head.position > position if position.formation else head.token > position.token


def is_beyond(place: Position, position: Position) -> bool:
    """Whether entries that follow `position` may be before `place` in the order."""
    return place > position if position.formation else place.token >= position.token


def heads_from(segment: Segment, point: Point) -> Iterator[tuple[Point, Head]]:
    """Every entry from this point on; bodies and other records are skipped."""
    sequence, position, latest_at, offset, digest_at = point
    while True:
        offset = segment.skip_marks(offset, sequence)
        record = segment.record(offset, sequence)
        if isinstance(record, Head):
            if record.sequence != sequence:
                raise Damaged(segment.path, offset, sequence, f"an entry begins with {record.sequence}")
            point = Point(sequence, position, latest_at, offset, digest_at)
            yield point, record
            sequence, position, latest_at, offset, digest_at = point.after(record)
        elif record is None:
            return
        else:
            offset += stored_size(record)


@dataclass(frozen=True, slots=True)
class Summary:
    """One segment as `fairtape journal ls` shows it. The `last_` values are those of the last whole token."""

    path: Path
    number: int
    stripe: int
    site: NodeId
    size: int  # bytes
    entries: int
    first_sequence: int
    last_sequence: int
    first_token: int
    last_token: int
    first_at: Instant
    last_at: Instant
    changes: int  # of formation
    breaks: int  # changes of formation with a Break


def summarize(path: Path) -> Summary:
    """Scan the heads of one segment."""
    with Segment(path) as segment:
        header = segment.header
        heads = [head for _, head in heads_from(segment, Point.at_start(segment))]
        tokens = [head for head in heads if not head.changes_formation]
        return Summary(
            path,
            header.number,
            header.stripe,
            header.site,
            segment.size,
            len(tokens),
            header.tip.sequence,
            tokens[-1].end - 1 if tokens else header.tip.sequence - 1,
            tokens[0].token if tokens else 0,
            tokens[-1].token if tokens else 0,
            tokens[0].instant if tokens else 0,
            tokens[-1].instant if tokens else 0,
            len(heads) - len(tokens),
            sum(head.broken for head in heads),
        )
