"""The proof of one segment of a journal, as an executor makes it: what reconciliation (`reconcile`) is made of.

A header says what its segment continues, so every segment can be proved alone and all of them at once: each entry and
each release mark against its chain, and at the end that the next segment goes on from there. So whatever is wrong is
found where it is, and not once more by those who come behind it.

Marks stand behind their entries. Those of entries in an earlier segment are handed over, to be held against them.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from fairtape.core.effects import Release
from fairtape.core.entries import Head
from fairtape.journal import Damaged
from fairtape.journal.audit import what_breaks
from fairtape.journal.format import HEADER_SIZE, Owner
from fairtape.journal.segments import Segment, SegmentReplay

ENTRY: Final = "entry"
MARK: Final = "mark"  # of an entry in an earlier segment
PROBLEM: Final = "problem"  # at most one of each segment: its first
NAMES_NO_ENTRY: Final = "a release mark names no entry"

FINDINGS: Final = pa.schema(
    [
        pa.field("directory", pa.string()),
        pa.field("stripe", pa.int32()),
        pa.field("site", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("formation", pa.int64()),
        pa.field("token", pa.int64()),
        pa.field("turns", pa.int32()),  # 0: a change of formation, which comes before the token it begins with
        pa.field("sequence", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("content", pa.binary()),  # the digest of the entry alone
        pa.field("segment", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),  # of a problem
    ]
)
"""What is found in a segment."""

Finding: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SegmentProof:
    """A segment to be proved, and what must be known of its journal for that."""

    directory: str
    stripe: int | None  # None where no header of the journal can be read
    site: int | None
    segment: str
    following: str | None  # the next segment
    first: int  # sequence of the whole journal

    @property
    def owner(self) -> Owner | None:
        """Whose the journal is, where anybody can say."""
        return None if self.stripe is None or self.site is None else Owner(self.stripe, self.site)


def prove(piece: SegmentProof) -> Iterator[Finding]:
    """Everything that a segment proves, and the first thing that it does not."""
    proof = _Proof(piece)
    for found in proof.run():
        yield proof.common | found
    if proof.problem is not None:
        yield proof.common | {"kind": PROBLEM} | proof.problem


class _Proof:
    """One pass over a segment."""

    def __init__(self, piece: SegmentProof) -> None:
        self._piece = piece
        self._path = Path(piece.segment)
        self._unreleased: deque[Head] = deque()  # entries with messages that wait for their mark
        self.common = {"directory": piece.directory, "stripe": piece.stripe, "site": piece.site}
        self.problem: Finding | None = None

    def run(self) -> Iterator[Finding]:
        try:
            with Segment(self._path, self._piece.owner) as segment:
                if not segment.header.is_founded:
                    self._tell(0, segment.header.tip.sequence, "the first segment continues another one")
                yield from self._records(SegmentReplay(segment))
        except Damaged as damage:
            self._tell(damage.offset, damage.sequence, damage.reason, path=damage.path)

    def _records(self, replay: SegmentReplay) -> Iterator[Finding]:
        segment = replay.segment
        try:
            for offset, record in replay:
                if isinstance(record, Head):
                    yield self._entry(segment, offset, record)
                elif isinstance(record, Release):
                    yield from self._mark(segment, offset, record)
        except Damaged as damage:
            self._tell(damage.offset, damage.sequence, damage.reason, record=_record(segment, damage))
        else:
            if self._piece.following is not None:
                _check_end(replay, Path(self._piece.following), self._piece.owner)

    def _entry(self, segment: Segment, offset: int, head: Head) -> Finding:
        if not head.turns:
            self._unreleased.append(head)
        encoded = segment.stored(offset, head, head.sequence)[: head.encoded_size]
        return {
            "kind": ENTRY,
            "formation": head.formation,
            "token": head.token,
            "turns": int(not head.turns),
            "sequence": head.sequence,
            "end": head.end,
            "content": hashlib.sha256(encoded).digest(),
            "segment": str(segment.path),
            "offset": offset,
        }

    def _mark(self, segment: Segment, offset: int, mark: Release) -> Iterator[Finding]:
        if mark.released_at < mark.commit_at:
            self._tell(offset, mark.sequence, "it was released before its commit instant", record=mark)
        if mark.sequence >= segment.header.tip.sequence:
            head = self._unreleased.popleft() if self._unreleased else None
            if head is None or (head.token, head.sequence, head.messages) != (mark.token, mark.sequence, mark.count):
                raise Damaged(segment.path, offset, mark.sequence, NAMES_NO_ENTRY)
        elif mark.sequence >= self._piece.first:
            place = {"segment": str(segment.path), "offset": offset}
            end = mark.sequence + mark.count
            yield {"kind": MARK, "token": mark.token, "sequence": mark.sequence, "end": end} | place

    def _tell(
        self,
        offset: int,
        sequence: int,
        reason: str,
        *,
        path: Path | None = None,
        record: Head | Release | None = None,
    ) -> None:
        """Keep the first problem; what a mark is about stands in the mark, and not behind it."""
        if self.problem is None:
            self.problem = {
                "token": None if record is None else record.token,
                "sequence": record.sequence if isinstance(record, Release) else sequence,
                "segment": str(path or self._path),
                "offset": offset,
                "reason": reason,
            }


def _record(segment: Segment, damage: Damaged) -> Head | Release | None:
    """What stands at the damaged place, where its head can still be read."""
    with suppress(Damaged):
        if damage.offset >= HEADER_SIZE:
            record = segment.record(damage.offset, damage.sequence)
            return record if isinstance(record, Head | Release) else None
    return None


def _check_end(replay: SegmentReplay, following: Path, owner: Owner | None) -> None:
    """That nothing is left over, and that the next segment goes on exactly where this one ends."""
    segment, tip, number = replay.segment, replay.tip, replay.segment.header.number
    if segment.size != replay.end:
        raise Damaged(segment.path, replay.end, tip.sequence, "an entry is cut short, and a segment follows")
    if int(following.stem) > tip.sequence:
        reason = f"what follows is missing up to sequence {int(following.stem) - 1}"
        raise Damaged(segment.path, replay.end, tip.sequence, reason)
    with Segment(following, owner) as after:
        if (after.header.number, after.header.tip) != (number + 1, tip):
            raise Damaged(following, 0, tip.sequence, what_breaks(after.header, tip, number))
