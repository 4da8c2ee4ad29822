"""Proving journals: one by itself, and several against each other.

`verify` recomputes every digest and checks every number; it goes on behind a damage with the next segment, whose header
says what it continues, so that one report names all damaged places. `compare` says whether sites hold the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from fairtape.core.effects import Ordered, Release, Span
from fairtape.runtime.journal.format import GENESIS, HEADER_SIZE, Damaged, Head, Header, Tip, segment_name
from fairtape.runtime.journal.reader import Cursor, Entry, Journal
from fairtape.runtime.journal.segments import Place, Segment, Trail, file_size, first_sequences, stored_size, verified

Progress: TypeAlias = Callable[[int], None]  # bytes done since the last call

PROGRESS_STEP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One place at which a journal does not prove what it says."""

    path: Path
    offset: int
    sequence: int
    reason: str


@dataclass(slots=True)
class Report:
    """What verifying one journal found."""

    directory: Path
    segments: int = 0
    size: int = 0  # bytes
    entries: int = 0
    messages: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    released_sequence: int | None = None  # the last one that this site released
    digest: bytes = GENESIS  # the head of the chain: equal digests mean equal histories
    unfinished: int = 0  # bytes of an entry that is being written, or was when its writer was killed
    problems: list[Problem] = field(default_factory=list)  # at most two per segment

    @property
    def sound(self) -> bool:
        """Whether everything was proved."""
        return not self.problems


def _untold(_: int) -> None:
    """Nobody watches."""


def verify(directory: Path | str, *, progress: Progress | None = None) -> Report:
    """Check the whole chain, and that sequence numbers and release marks leave no gap."""
    directory = Journal.open(directory).directory
    return _Audit(directory, progress or _untold).run()


class _Audit:
    """One pass over all segments. `_tip` is None where the segment before gave no end to compare with."""

    def __init__(self, directory: Path, progress: Progress) -> None:
        self._report = Report(directory)
        self._progress = progress
        self._paths = [directory / segment_name(first) for first in first_sequences(directory)]
        self._tip: Tip | None = None
        self._number = -1
        self._heads: Trail | None = None  # follows far behind, from one entry to the next that a release mark names

    def run(self) -> Report:
        for path in self._paths:
            self._report.segments += 1
            self._report.size += file_size(path)
            try:
                self._segment(path)
            except Damaged as damage:
                self._tell(damage.path, damage.offset, damage.sequence, damage.reason)
                self._tip = None
        if self._heads is not None:
            self._heads.close()
        return self._report

    def _tell(self, path: Path, offset: int, sequence: int, reason: str) -> None:
        self._report.problems.append(Problem(path, offset, sequence, reason))

    def _segment(self, path: Path) -> None:
        last = path == self._paths[-1]
        if last and file_size(path) < HEADER_SIZE:
            self._report.unfinished = file_size(path)
            return
        with Segment(path) as segment:
            self._check_header(segment)
            end = self._check_records(segment)
            rest = segment.size - end
            if rest and not last:
                raise Damaged(path, end, self._next_sequence(segment), "an entry is cut short, and a segment follows")
            self._report.unfinished = rest

    def _next_sequence(self, segment: Segment) -> int:
        return self._tip.sequence if self._tip else segment.header.sequence

    def _check_header(self, segment: Segment) -> None:
        """That a segment continues the one before it; where it does not, it is still checked by itself."""
        header, start = segment.header, Tip.at_start(segment.header)
        if header.number == 0 and start.digest != GENESIS:
            self._tell(segment.path, 0, header.sequence, "the first segment continues another one")
        if self._tip is not None and _continued(start, header.number) != _continued(self._tip, self._number + 1):
            self._tell(segment.path, 0, self._tip.sequence, _what_breaks(header, self._tip, self._number))
            self._tip = None
        if self._tip is None:
            self._restart(segment)
        self._tip, self._number = start, header.number

    def _restart(self, segment: Segment) -> None:
        if self._heads is not None:
            self._heads.close()
        self._heads = Trail(Place(segment.path, HEADER_SIZE, segment.header.sequence, segment.header.previous))
        if self._report.first_sequence is None:
            self._report.first_sequence = segment.header.sequence

    def _check_records(self, segment: Segment) -> int:
        """Every record of a segment, and the byte after the last whole one."""
        end = told = HEADER_SIZE
        for offset, record, tip in verified(segment):
            if isinstance(record, Head):
                self._report.entries += 1
                self._report.messages += record.messages
            else:
                self._check_mark(record, segment, offset)
            self._advance(tip)
            end = offset + stored_size(record)
            if end - told >= PROGRESS_STEP:
                self._progress(end - told)
                told = end
        self._progress(end - told)
        return end

    def _advance(self, tip: Tip) -> None:
        self._tip = tip
        self._report.last_sequence = tip.sequence - 1
        self._report.released_sequence = tip.released - 1
        self._report.digest = tip.digest

    def _check_mark(self, mark: Release, segment: Segment, offset: int) -> None:
        """That a release mark names exactly one entry; its entry may lie before the place where this pass began."""
        assert self._heads is not None
        if mark.sequence < self._heads.sequence:
            return
        step = self._heads.next_head()
        head = step[1] if step else None
        if head is None or (head.token, head.sequence, head.messages) != (mark.token, mark.sequence, mark.count):
            raise Damaged(segment.path, offset, mark.sequence, "a release mark names no entry")


def _continued(tip: Tip, number: int) -> tuple[int, int, int, int, bytes]:
    """What a header repeats from the end of the segment before it."""
    return number, tip.sequence, tip.released, tip.latest_at, tip.digest


def _what_breaks(header: Header, tip: Tip, number: int) -> str:
    if header.number != number + 1 or header.sequence != tip.sequence:
        return f"sequence {header.sequence} in segment {header.number} follows {tip.sequence - 1} in segment {number}"
    return "the header does not continue the chain of the segment before it"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two journals do not hold the same order."""

    sequence: int
    token: int
    reason: str
    places: tuple[tuple[Path, int], ...]  # file and byte of the differing entries


@dataclass(frozen=True, slots=True)
class Comparison:
    """What several journals have in common. One that has not come as far as another is not a difference."""

    entries: int
    messages: int
    first_sequence: int | None
    last_sequence: int | None
    difference: Difference | None

    @property
    def same(self) -> bool:
        """Whether everything that all of them hold is equal, byte for byte."""
        return self.difference is None


def compare(directories: Sequence[Path | str], *, progress: Progress | None = None) -> Comparison:
    """Whether these journals hold the same ordered content, from the latest beginning to the earliest end."""
    journals = [Journal.open(directory) for directory in directories]
    starts = [first_sequences(journal.directory) for journal in journals]
    if not all(starts):
        return Comparison(0, 0, None, None, None)
    start = max(firsts[0] for firsts in starts)
    cursors = [journal.seek(start, ordered=True) for journal in journals]
    try:
        return _compare(cursors, start, progress or _untold)
    finally:
        for cursor in cursors:
            cursor.close()


def _compare(cursors: Sequence[Cursor], start: int, progress: Progress) -> Comparison:
    entries = messages = 0
    last = start - 1
    for row in zip(*cursors, strict=False):
        reference = row[0]
        for other in row[1:]:
            if other.encoded != reference.encoded:
                return Comparison(entries, messages, start, last, _difference(reference, other))
        entries += 1
        messages += reference.ordered.count
        last = reference.end - 1
        progress(len(row) * len(reference.encoded))
    return Comparison(entries, messages, start, last, None)


def _difference(one: Entry, other: Entry) -> Difference:
    sequence, reason = _first_unlike(one.ordered, other.ordered)
    places = ((one.path, one.offset), (other.path, other.offset))
    return Difference(sequence, one.ordered.token, reason, places)


def _first_unlike(one: Ordered, other: Ordered) -> tuple[int, str]:
    for name in ("stripe", "formation", "token", "sequence", "acknowledged_at"):
        if getattr(one, name) != getattr(other, name):
            return one.sequence, f"{name} is {getattr(one, name)} in one and {getattr(other, name)} in the other"
    for span, twin in zip(one.spans, other.spans, strict=False):
        if span != twin:
            return _first_unlike_body(span, twin)
    shorter = min(one, other, key=lambda ordered: ordered.count)
    return shorter.sequence + shorter.count, f"one ends after {shorter.count} messages and the other does not"


def _first_unlike_body(one: Span, other: Span) -> tuple[int, str]:
    if (one.source, one.incarnation, one.first) != (other.source, other.incarnation, other.first):
        return one.sequence, f"a message of source {one.source} in one and of source {other.source} in the other"
    sequence = one.sequence
    for position, (body, twin) in enumerate(zip(one.bodies, other.bodies, strict=False)):
        if body != twin or one.counts[position] != other.counts[position]:
            return sequence, f"source {one.source} says different things under the same number"
        sequence += one.counts[position]
    return sequence, f"source {one.source} has more messages in one than in the other"
