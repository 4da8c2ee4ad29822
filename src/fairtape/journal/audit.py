"""Auditing journals: one by itself, and several against each other.

`verify` recomputes every digest and checks every number. After damage it goes on with the next segment, whose header
says what it continues, so that one report names all damaged places. `compare` checks whether sites hold the same order,
and where each of them begins and ends.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.effects import FormationChange, Ordered, Release, Span
from fairtape.core.entries import Entry as Content
from fairtape.core.entries import Head, Position, decode_entry, position_of
from fairtape.core.instants import Duration
from fairtape.journal.format import (
    GENESIS,
    HEADER_SIZE,
    Damaged,
    SegmentCheckpoint,
    SegmentHeader,
    Tip,
    segment_name,
)
from fairtape.journal.reader import FormationChanged, JournalEntry, JournalReader
from fairtape.journal.segment_list import BEHIND_MAX, LIST_NAME, SegmentList, file_size, first_sequences
from fairtape.journal.segments import Place, RecordScanner, Segment, SegmentReplay, summarize
from fairtape.ring.membership.layout import decode_formation
from fairtape.ring.receiver.release import LATE_AFTER
from fairtape.wire.frames import Malformed

ReportProgress: TypeAlias = Callable[[int], None]  # bytes done since the last call

PROGRESS_STEP: Final = 1 << 20
BREAKS_MAX: Final = 1_000  # listed in a report


@dataclass(frozen=True, slots=True)
class Problem:
    """One place at which a journal fails a check."""

    path: Path
    offset: int
    sequence: int
    reason: str


class ChainBreak(NamedTuple):
    """A Break: more members were silent than the formation can lose, so numbers from here on may be used twice."""

    formation: int
    token: int
    sequence: int


@dataclass(slots=True)
class AuditReport:
    """The result of verifying one journal."""

    directory: Path
    stripe: int | None = None
    site: int | None = None
    segments: int = 0
    size: int = 0  # bytes
    entries: int = 0
    messages: int = 0
    formations: int = 0  # changes of formation
    breaks: list[ChainBreak] = field(default_factory=list)
    first_sequence: int | None = None
    last_sequence: int | None = None
    last_token: int | None = None
    released_sequence: int | None = None  # the last one that this site released
    late: int = 0  # messages whose release is marked late
    digest: bytes = GENESIS  # of the last entry: equal digests mean equal histories
    unfinished: int = 0  # bytes of an entry that is being written, or was when its writer was killed
    problems: list[Problem] = field(default_factory=list)  # the first of each kind in every segment
    remarks: list[Problem] = field(default_factory=list)  # irregular, but no damage; the first of each kind as well

    @property
    def sound(self) -> bool:
        """Whether every check passed."""
        return not self.problems


def _no_progress(_: int) -> None:
    pass


def verify(directory: Path | str, *, progress: ReportProgress | None = None) -> AuditReport:
    """Check the hash chain, that sequence numbers and release marks leave no gap, and the contents of the marks."""
    directory = JournalReader.open(directory).directory
    return _Audit(directory, progress or _no_progress).run()


class _Audit:
    """One pass over all segments. `_tip` is None where the end of the segment before is not known."""

    def __init__(self, directory: Path, progress: ReportProgress) -> None:
        self._report = AuditReport(directory)
        self._progress = progress
        self._paths = [directory / segment_name(first) for first in first_sequences(directory)]
        self._tip: Tip | None = None
        self._number = -1
        self._checkpoint: SegmentCheckpoint | None = None  # after the last segment, where it is known
        self._marked: _MarkedEntries | None = None
        self._reported: set[str] = set()  # kinds of findings in the current segment

    def run(self) -> AuditReport:
        for path in self._paths:
            self._report.segments += 1
            self._report.size += file_size(path)
            self._reported.clear()
            try:
                self._segment(path)
            except Damaged as damage:
                self._report.problems.append(Problem(damage.path, damage.offset, damage.sequence, damage.reason))
                self._tip = self._checkpoint = None
        if self._marked is not None:
            self._marked.close()
        self._check_list()
        return self._report

    def _check_list(self) -> None:
        """Remark a list file that does not name these segments: readers list the directory, which takes longer."""
        firsts = [int(path.stem) for path in self._paths]
        with SegmentList(self._report.directory) as listed:
            named = listed[: len(firsts)]
            if listed and (len(named) < len(firsts) - BEHIND_MAX or named != firsts[: len(named)]):
                reason = "it does not name the segments that are here; remove it, and the site writes it when it starts"
                self._report.remarks.append(Problem(self._report.directory / LIST_NAME, 0, 0, reason))

    def _segment(self, path: Path) -> None:
        last = path == self._paths[-1]
        if last and file_size(path) < HEADER_SIZE:
            self._report.unfinished = file_size(path)
            return
        with Segment(path) as segment:
            self._check_header(segment)
            replay = SegmentReplay(segment)
            self._check_records(replay)
            rest = segment.size - replay.end
            if rest and not last:
                raise Damaged(path, replay.end, replay.tip.sequence, "an entry is cut short, and a segment follows")
            self._report.unfinished = rest
            self._check_checkpoint(replay)

    def _check_header(self, segment: Segment) -> None:
        """Check that a segment continues the one before it. If it does not, it is still checked by itself."""
        header = segment.header
        tip, sequence = header.tip, header.tip.sequence
        if not header.has_valid_start:
            self._problem(segment, 0, sequence, "the first segment continues another one")
        owner = self._report.stripe, self._report.site
        if owner not in ((None, None), (header.stripe, header.site)):
            self._problem(segment, 0, sequence, "it belongs to another site or stripe than the segment before it")
        if self._tip is not None and (header.number, tip) != (self._number + 1, self._tip):
            self._problem(segment, 0, self._tip.sequence, what_breaks(header, self._tip, self._number))
            self._tip = self._checkpoint = None
        if self._tip is None:
            self._restart_chain(segment)
        self._tip, self._number = tip, header.number
        self._report.stripe, self._report.site = header.stripe, header.site

    def _restart_chain(self, segment: Segment) -> None:
        if self._marked is not None:
            self._marked.close()
        self._marked = _MarkedEntries(segment)
        if self._report.first_sequence is None:
            self._report.first_sequence = segment.header.tip.sequence

    def _check_records(self, replay: SegmentReplay) -> None:
        counted = HEADER_SIZE
        for offset, record in replay:
            match record:
                case Head():
                    self._count(record)
                case Release():
                    self._check_mark(record, replay.segment, offset)
            self._advance(replay.tip)
            if replay.end - counted >= PROGRESS_STEP:
                self._progress(replay.end - counted)
                counted = replay.end
        self._progress(replay.end - counted)

    def _count(self, head: Head) -> None:
        report = self._report
        if not head.changes_formation:
            report.entries += 1
            report.messages += head.messages
            return
        report.formations += 1
        if head.broken and len(report.breaks) < BREAKS_MAX:
            report.breaks.append(ChainBreak(head.formation, head.token, head.sequence))

    def _advance(self, tip: Tip) -> None:
        self._tip = tip
        self._report.last_sequence = tip.sequence - 1
        self._report.last_token = tip.token
        self._report.released_sequence = tip.released - 1
        self._report.digest = tip.digest

    def _check_checkpoint(self, replay: SegmentReplay) -> None:
        """Check the checkpoint against the order before it: a writer that resumes relies on it."""
        if replay.checkpoint is not None and self._checkpoint not in (None, replay.checkpoint):
            self._problem(replay.segment, HEADER_SIZE, replay.segment.header.tip.sequence, "its checkpoint is wrong")
        self._checkpoint = replay.checkpoint_after(self._checkpoint)

    def _check_mark(self, mark: Release, segment: Segment, offset: int) -> None:
        """Check that a release mark names exactly one entry, and that its instants are consistent."""
        assert self._marked is not None
        self._report.late += mark.count if mark.late else 0
        delay = mark.released_at - mark.commit_at
        if delay < 0:
            self._problem(segment, offset, mark.sequence, f"it was released {-delay} ns before its commit instant")
        if delay > LATE_AFTER and not mark.late:
            self._problem(segment, offset, mark.sequence, f"it was released {delay} ns late and is not marked late")
        if mark.sequence < self._marked.sequence:
            return  # of an entry before the start of this chain
        head = self._marked.next()
        if head is None or (head.token, head.sequence, head.messages) != (mark.token, mark.sequence, mark.count):
            raise Damaged(segment.path, offset, mark.sequence, "a release mark names no entry")
        agreed, found = self._marked.commit_delay, mark.commit_at - head.instant
        if agreed not in (None, found):
            self._remark(
                segment, offset, mark.sequence, f"its commit delay is {found} ns; its formation has {agreed} ns"
            )

    def _problem(self, segment: Segment, offset: int, sequence: int, reason: str) -> None:
        self._add_once(self._report.problems, segment, offset, sequence, reason)

    def _remark(self, segment: Segment, offset: int, sequence: int, reason: str) -> None:
        self._add_once(self._report.remarks, segment, offset, sequence, reason)

    def _add_once(self, findings: list[Problem], segment: Segment, offset: int, sequence: int, reason: str) -> None:
        """Add only the first of each kind per segment: a clock that was wrong for a second is one finding."""
        kind = "".join(character for character in reason if not character.isdigit())
        if kind not in self._reported:
            self._reported.add(kind)
            findings.append(Problem(segment.path, offset, sequence, reason))


class _MarkedEntries:
    """The entries that release marks name. It trails the audit, because marks come after their entries."""

    def __init__(self, segment: Segment) -> None:
        tip = segment.header.tip
        self._trail = RecordScanner(Place(segment.path, HEADER_SIZE, tip.sequence, tip.digest))
        self.commit_delay: Duration | None = None  # of the last entry's formation, where that is timed

    @property
    def sequence(self) -> int:
        return self._trail.sequence

    def next(self) -> Head | None:
        """The next entry with messages."""
        while (step := self._trail.next_head()) is not None:
            offset, head = step
            if not head.changes_formation:
                return head
            self.commit_delay = self._commit_delay(offset, head)
        return None

    def close(self) -> None:
        self._trail.close()

    def _commit_delay(self, offset: int, head: Head) -> Duration | None:
        """The tokens of a timed formation share one commit delay. A malformed layout is reported elsewhere."""
        with suppress(Malformed):
            stored = self._trail.segment.stored(offset, head, head.sequence)
            change = decode_entry(stored[: head.encoded_size])
            assert isinstance(change, FormationChange)
            formation = decode_formation(change.layout)
            return formation.timing.commit_delay if formation.timed else None
        return None


def what_breaks(header: SegmentHeader, tip: Tip, number: int) -> str:
    """Why a segment with this header does not follow the one with this number, which ends at this tip."""
    if header.number != number + 1 or header.tip.sequence != tip.sequence:
        return (
            f"sequence {header.tip.sequence} in segment {header.number} follows {tip.sequence - 1} in segment {number}"
        )
    return "the header does not continue the chain of the segment before it"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two journals do not hold the same order."""

    sequence: int
    token: int
    reason: str
    places: tuple[tuple[Path, int], ...]  # file and byte of the differing entries


@dataclass(frozen=True, slots=True)
class Extent:
    """The range of the order that one journal holds, and how much of the others' it lacks."""

    directory: Path
    first_sequence: int
    last_sequence: int
    lacks_before: int  # messages before its beginning that another journal holds
    lacks_behind: int  # messages after its end that another journal holds

    @property
    def complete(self) -> bool:
        """Whether it holds everything that any of the journals holds."""
        return not self.lacks_before and not self.lacks_behind


@dataclass(frozen=True, slots=True)
class Comparison:
    """What several journals have in common. A journal that ends earlier than another is not a difference."""

    entries: int
    messages: int
    first_sequence: int | None
    last_sequence: int | None
    difference: Difference | None
    extents: tuple[Extent, ...] = ()

    @property
    def same(self) -> bool:
        """Whether everything that all of them hold is equal, byte for byte."""
        return self.difference is None

    @property
    def level(self) -> bool:
        """Whether they also begin and end at the same place."""
        return all(extent.complete for extent in self.extents)


def compare(directories: Sequence[Path | str], *, progress: ReportProgress | None = None) -> Comparison:
    """Compare the ordered content of these journals, from the latest beginning to the earliest end."""
    journals = [JournalReader.open(directory) for directory in directories]
    beginnings = [_beginning(journal) for journal in journals]
    begun = [beginning for beginning in beginnings if beginning is not None]
    if len(begun) < len(journals):
        return Comparison(0, 0, None, None, None)
    start = max(begun, key=position_of)
    with ExitStack() as opened:
        readers = []
        for journal in journals:
            cursor = opened.enter_context(journal.entries(from_sequence=start.sequence, ordered=True))
            readers.append(_EntryReader(cursor.everything(), position_of(start)))
        comparison = _compare(readers, start.sequence, progress or _no_progress)
    return replace(comparison, extents=_extents(journals, [beginning.sequence for beginning in begun]))


def _beginning(journal: JournalReader) -> Content | None:
    with journal.entries(ordered=True) as cursor:
        return next(map(_content, cursor.everything()), None)


def _content(entry: JournalEntry | FormationChanged) -> Content:
    return entry.ordered if isinstance(entry, JournalEntry) else entry.change


class _EntryReader:
    """One journal of a comparison, entry by entry from a position on."""

    def __init__(self, entries: Iterator[JournalEntry | FormationChanged], start: Position) -> None:
        self._entries = entries
        self.entry = next(entries, None)
        while self.entry is not None and position_of(self.content) < start:
            self.advance()

    @property
    def content(self) -> Content:
        assert self.entry is not None
        return _content(self.entry)

    def advance(self) -> None:
        self.entry = next(self._entries, None)


def _compare(readers: Sequence[_EntryReader], start: int, progress: ReportProgress) -> Comparison:
    entries, messages, last = 0, 0, start - 1
    while (row := [reader.entry for reader in readers if reader.entry is not None]) and len(row) == len(readers):
        content = readers[0].content
        for other in row[1:]:
            if other.encoded != row[0].encoded:
                return Comparison(entries, messages, start, last, _difference(row[0], other))
        if isinstance(content, Ordered):
            entries += 1
            messages += content.count
            last = content.sequence + content.count - 1
        progress(len(row) * len(row[0].encoded))
        for reader in readers:
            reader.advance()
    return Comparison(entries, messages, start, last, None)


def _extents(journals: Sequence[JournalReader], begins: Sequence[int]) -> tuple[Extent, ...]:
    ends = [summarize(journal.paths()[-1]).last_sequence for journal in journals]
    earliest, latest = min(begins), max(ends)
    return tuple(
        Extent(journal.directory, begin, end, begin - earliest, latest - end)
        for journal, begin, end in zip(journals, begins, ends, strict=True)
    )


def _difference(one: JournalEntry | FormationChanged, other: JournalEntry | FormationChanged) -> Difference:
    content = _content(one)
    sequence, reason = _first_unlike(content, _content(other))
    places = ((one.path, one.offset), (other.path, other.offset))
    return Difference(sequence, content.token, reason, places)


def _first_unlike(one: Content, other: Content) -> tuple[int, str]:
    for name in ("stripe", "formation", "token", "sequence", "acknowledged_at", "broken", "installed_at"):
        mine, theirs = getattr(one, name, None), getattr(other, name, None)
        if mine != theirs and None not in (mine, theirs):
            return one.sequence, f"{name} is {mine} in one and {theirs} in the other"
    if isinstance(one, FormationChange) and isinstance(other, FormationChange):
        return one.sequence, f"formation {one.formation} has different layouts"
    if isinstance(one, FormationChange) or isinstance(other, FormationChange):
        return one.sequence, "the formation changes here in one and not in the other"
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
            return sequence, f"source {one.source} has different messages with the same number"
        sequence += one.counts[position]
    return sequence, f"source {one.source} has more messages in one than in the other"
