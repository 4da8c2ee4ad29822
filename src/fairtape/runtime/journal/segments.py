"""Reading the segments of a journal: one file by its records, all of them by hops, and the index that finds a place.

A segment may still grow while it is read. Whatever is not whole at its end is not there yet; whatever is not whole
anywhere else is damage. There is no index file that could be stale or lie: heads are small and bear their own CRC, so
an index is found by hopping over one segment once, and the name of a segment says which one to hop over.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from fairtape.core.instants import Instant
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.journal.format import (
    DIGEST_SIZE,
    HEAD_SIZE,
    HEADER_SIZE,
    Damaged,
    Head,
    Header,
    Record,
    Tip,
    decode_header,
    decode_ordered,
    decode_record,
    link,
    segment_name,
    sequence_of,
)
from fairtape.wire.frames import Malformed

WINDOW: Final = 8_192  # bytes read for one head: small entries come many at a time, large ones cost no more
INDEX_STEP: Final = 1 << 16  # bytes of a segment between two points of its index


def first_sequences(directory: Path) -> list[int]:
    """The first sequence number of every segment, in order."""
    try:
        return sorted(sequence for path in directory.iterdir() if (sequence := sequence_of(path.name)) is not None)
    except OSError as error:
        raise Complaint(f"journal directory {str(directory)!r} cannot be read ({error.strerror})") from None


def file_size(path: Path) -> int:
    """Bytes, now; 0 where there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def stored_size(record: Record) -> int:
    """Bytes that a record takes in its segment."""
    return record.stored if isinstance(record, Head) else HEAD_SIZE


class Segment:
    """One segment file, open for reading."""

    def __init__(self, path: Path) -> None:
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
        except Damaged:
            self.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Bytes, now."""
        self._size = os.fstat(self._file).st_size
        return self._size

    def record(self, offset: int, sequence: int) -> Record | None:
        """The record at this byte, or None while it is not whole. `sequence` is the next one, should it be damaged."""
        start = offset - self._window_at
        if not 0 <= start <= len(self._window) - HEAD_SIZE:
            self._window, self._window_at, start = self._read(offset, WINDOW, sequence), offset, 0
        data = self._window[start : start + HEAD_SIZE]
        if len(data) == HEAD_SIZE:
            record = self._decode(data, offset, sequence)
            end = offset + stored_size(record)
            if end <= self._size or end <= self.size:
                return record
        self._window = b""  # what is not whole may be cut off and written anew
        return None

    def _decode(self, data: bytes, offset: int, sequence: int) -> Record:
        try:
            record = decode_record(data)
        except Malformed as error:
            raise Damaged(self.path, offset, sequence, str(error)) from None
        if isinstance(record, Head) and record.stripe != self.header.stripe:
            raise Damaged(self.path, offset, sequence, f"an entry of stripe {record.stripe}")
        return record

    def encoded(self, offset: int, head: Head, previous: bytes) -> tuple[bytes, bytes]:
        """The canonical encoding of the entry at this byte, once its digest has been checked, and that digest."""
        stored = self._read(offset, head.stored, head.sequence)
        encoded, digest = stored[:-DIGEST_SIZE], stored[-DIGEST_SIZE:]
        if len(stored) != head.stored or link(previous, encoded) != digest:
            raise Damaged(self.path, offset, head.sequence, "the digest of an entry does not match its content")
        return encoded, digest

    def digest(self, digest_at: int, sequence: int) -> bytes:
        """A stored digest; at byte 0, the one that the header continues."""
        return self._read(digest_at, DIGEST_SIZE, sequence) if digest_at else self.header.previous

    def _header(self, sequence: int) -> Header:
        try:
            header = decode_header(self._read(0, HEADER_SIZE, sequence))
        except Malformed as error:
            raise Damaged(self.path, 0, sequence, str(error)) from None
        if header.sequence != sequence:
            raise Damaged(self.path, 0, sequence, f"its header says that it begins with sequence {header.sequence}")
        return header

    def _read(self, offset: int, size: int, sequence: int) -> bytes:
        try:
            return os.pread(self._file, size, offset)
        except OSError as error:
            raise Damaged(self.path, offset, sequence, f"it cannot be read ({error.strerror})") from None


class Step(NamedTuple):
    """One record of a segment, and where the journal stands after it."""

    offset: int
    record: Record
    tip: Tip


def verified(segment: Segment) -> Iterator[Step]:
    """Every whole record of one segment in order, with everything about it checked that the segment alone can prove."""
    tip, offset = Tip.at_start(segment.header), HEADER_SIZE
    while (record := segment.record(offset, tip.sequence)) is not None:
        try:
            if isinstance(record, Head):
                encoded, digest = segment.encoded(offset, record, tip.digest)
                decode_ordered(record, encoded)
                tip = tip.ordered(
                    token=record.token,
                    sequence=record.sequence,
                    end=record.end,
                    acknowledged_at=record.acknowledged_at,
                    digest=digest,
                )
            else:
                tip = tip.release(record)
        except Malformed as error:
            raise Damaged(segment.path, offset, tip.sequence, str(error)) from None
        if offset == HEADER_SIZE and tip.token != segment.header.token:
            raise Damaged(segment.path, offset, segment.header.sequence, "the header names another first token")
        yield Step(offset, record, tip)
        offset += stored_size(record)


class Place(NamedTuple):
    """Where an entry begins, or will begin."""

    path: Path
    offset: int
    sequence: int
    previous: bytes  # the digest of the entry before


class Trail:
    """Hops from record to record, across segments, as far as the journal is whole; then again when it has grown."""

    def __init__(self, place: Place) -> None:
        self.segment = Segment(place.path)  # the one that the last record came from
        self.offset = place.offset
        self.sequence = place.sequence  # the next one

    def close(self) -> None:
        """Give the file back."""
        self.segment.close()

    def step(self) -> tuple[int, Record] | None:
        """The next record and its byte, or None where the journal ends for now."""
        while (record := self.segment.record(self.offset, self.sequence)) is None:
            if not self._cross():
                return None
        offset = self.offset
        if isinstance(record, Head):
            if record.sequence != self.sequence:
                raise self.damaged(offset, f"an entry begins with sequence {record.sequence}")
            self.sequence = record.end
        self.offset += stored_size(record)
        return offset, record

    def next_head(self) -> tuple[int, Head] | None:
        """The next ordered entry, past whatever lies before it."""
        while (step := self.step()) is not None:
            offset, record = step
            if isinstance(record, Head):
                return offset, record
        return None

    def damaged(self, offset: int, reason: str) -> Damaged:
        """What to raise about a byte of the present segment."""
        return Damaged(self.segment.path, offset, self.sequence, reason)

    def _cross(self) -> bool:
        """Go to the next segment. The writer begins it only after its last word in this one, which is read first."""
        following = next_segment(self.segment.path, self.sequence)
        if following is None:
            return False
        if self.segment.record(self.offset, self.sequence) is not None:
            return True
        if self.offset != self.segment.size:
            raise self.damaged(self.offset, "an entry is cut short, and another segment follows")
        segment = Segment(following)
        self.segment.close()
        self.segment = segment
        self.offset = HEADER_SIZE
        return True


def next_segment(path: Path, sequence: int) -> Path | None:
    """The segment after `path`, which must begin with `sequence`; None while its header is not written."""
    following = path.with_name(segment_name(sequence))
    if following != path and file_size(following) >= HEADER_SIZE:
        return following
    ahead = [first for first in first_sequences(path.parent) if first > sequence]
    if ahead:
        raise Damaged(path, file_size(path), sequence, f"what follows is missing up to sequence {ahead[0] - 1}")
    return None


class Point(NamedTuple):
    """One entry of a segment, as its index keeps it."""

    sequence: int
    latest_at: Instant  # of all entries before it
    offset: int
    digest_at: int  # of the entry before it; 0 where that stands in the header


class Index:
    """Finds entries in one segment by sequence number and by time. Grows with its segment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._points: list[Point] = []
        self._end: Point | None = None  # where the next entry will begin

    def by_sequence(self, sequence: int) -> Place:
        """The entry that holds this number; the end of the segment where none does."""
        return self._find(sequence, by_time=False)

    def by_time(self, instant: Instant) -> Place:
        """The first entry acknowledged at or after this instant; the end of the segment where none is."""
        return self._find(instant, by_time=True)

    def _find(self, wanted: int, *, by_time: bool) -> Place:
        with Segment(self._path) as segment:
            self._extend(segment)
            if by_time:
                after = bisect_left(self._points, wanted, key=lambda point: point.latest_at)
            else:
                after = bisect_right(self._points, wanted, key=lambda point: point.sequence)
            start = self._points[max(after - 1, 0)] if self._points else self._start(segment)
            for point, head in _heads(segment, start):
                reached = max(point.latest_at, head.acknowledged_at) >= wanted if by_time else head.end > wanted
                if reached:
                    break
            else:
                assert self._end is not None
                point = self._end
            return Place(self._path, point.offset, point.sequence, segment.digest(point.digest_at, point.sequence))

    def _start(self, segment: Segment) -> Point:
        return Point(segment.header.sequence, segment.header.latest_at, HEADER_SIZE, 0)

    def _extend(self, segment: Segment) -> None:
        """Hop over what has been added since the last time."""
        end = self._end or self._start(segment)
        for point, head in _heads(segment, end):
            if not self._points or point.offset - self._points[-1].offset >= INDEX_STEP:
                self._points.append(point)
            end = _after(point, head)
        self._end = end


def _after(point: Point, head: Head) -> Point:
    offset = point.offset + head.stored
    return Point(head.end, max(point.latest_at, head.acknowledged_at), offset, offset - DIGEST_SIZE)


def _heads(segment: Segment, point: Point) -> Iterator[tuple[Point, Head]]:
    """Every ordered entry from this one on, by hops over whatever lies between."""
    while (record := segment.record(point.offset, point.sequence)) is not None:
        if not isinstance(record, Head):
            point = point._replace(offset=point.offset + HEAD_SIZE)
            continue
        if record.sequence != point.sequence:
            raise Damaged(segment.path, point.offset, point.sequence, f"an entry begins with {record.sequence}")
        yield point, record
        point = _after(point, record)


@dataclass(frozen=True, slots=True)
class Summary:
    """One segment at a glance. The last of each pair is that of the last whole entry."""

    path: Path
    number: int
    stripe: int
    size: int  # bytes
    entries: int
    first_sequence: int
    last_sequence: int
    first_token: int
    last_token: int
    first_at: Instant
    last_at: Instant


def summarize(path: Path) -> Summary:
    """Hop over one segment."""
    with Segment(path) as segment:
        header = segment.header
        start = Point(header.sequence, header.latest_at, HEADER_SIZE, 0)
        entries, end, last_token, first_at, last_at = 0, header.sequence, header.token, 0, 0
        for _, head in _heads(segment, start):
            entries += 1
            end, last_token, last_at = head.end, head.token, head.acknowledged_at
            first_at = first_at or head.acknowledged_at
        return Summary(
            path,
            header.number,
            header.stripe,
            segment.size,
            entries,
            header.sequence,
            end - 1,
            header.token,
            last_token,
            first_at,
            last_at,
        )
