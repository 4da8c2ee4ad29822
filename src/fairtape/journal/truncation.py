"""Taking the end of the order out of a journal, when the survivors of a failure went on without it.

It happens at once or not at all. The plan says everything: which segment is cut at which byte, and what outside the
order has to be written again behind it (release marks of entries that stay, and the segment's checkpoint). It is
written aside and renamed into its place; from that moment the cut has happened, and whoever opens the journal for
writing completes it. Every step after that can be taken again from the beginning.

What is taken out is set aside beside the segments, for those who ask one day what this site had held.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final
from zlib import crc32

from fairtape.core.effects import Release
from fairtape.core.entries import Head
from fairtape.journal.format import GENESIS, HEADER_SIZE, CheckpointHead, Damaged, Record, segment_name
from fairtape.journal.segments import Place, RecordScanner, file_size, first_sequences

COPY_SIZE: Final = 1 << 20
PLAN_NAME: Final = "cut.plan"
_DRAFT_NAME: Final = "cut.draft"
_TAIL_NAME: Final = "cut.tail"

_PLAN: Final = struct.Struct(">8sQQ")
_PLAN_MAGIC: Final = b"FAIRTCUT"
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class TruncationPlan:
    """Where a journal is cut."""

    sequence: int  # the name of the segment that becomes the last one; 0 where none is left
    offset: int  # what stands in it from this byte on goes, and every later segment
    records: bytes  # what is then written again


def plan_truncation(directory: Path, token: int) -> TruncationPlan:
    """The cut behind the last message that has this token or a lower one."""
    for first in reversed(first_sequences(directory)):
        scanner = RecordScanner(Place(directory / segment_name(first), HEADER_SIZE, first, GENESIS))
        try:
            head = _next_ordered(scanner)
            if head is not None and head.token <= token:
                return _plan(scanner, first, token)
        finally:
            scanner.close()
    return TruncationPlan(0, 0, b"")


def _next_ordered(scanner: RecordScanner) -> Head | None:
    while (step := scanner.next_head()) is not None:
        _, head = step
        if not head.changes_formation:
            return head
    return None


def _plan(scanner: RecordScanner, first: int, token: int) -> TruncationPlan:
    """From the first message that stays on. What follows the last one goes, until a further one is found to stay."""
    path, sequence = scanner.segment.path, scanner.sequence
    offset: int | None = None
    records: list[bytes] = []
    while (step := scanner.next_record()) is not None:
        at, record = step
        here = scanner.segment.path == path
        if isinstance(record, Head):
            if not record.changes_formation and record.token <= token:
                sequence, offset = record.end, None
                records.clear()
            elif offset is None:
                offset = at if here else file_size(path)
        elif offset is not None and _stays(record, sequence, here=here):
            records.append(scanner.segment.stored(at, record, sequence))
    return TruncationPlan(first, file_size(path) if offset is None else offset, b"".join(records))


def _stays(record: Record, sequence: int, *, here: bool) -> bool:
    """Whether a record outside the order stays true when the order ends before `sequence`."""
    match record:
        case Release():
            return record.sequence + record.count <= sequence
        case CheckpointHead():
            return here
    return False


def truncate(directory: Path, plan: TruncationPlan) -> Iterator[None]:
    """Carry out a plan, step by step."""
    if plan.sequence:
        _copy_tail(directory / segment_name(plan.sequence), plan.offset, directory / _TAIL_NAME)
        yield
    _write_synced(directory / _DRAFT_NAME, _encode(plan))
    yield
    (directory / _DRAFT_NAME).rename(directory / PLAN_NAME)
    sync_directory(directory)
    yield
    yield from _complete(directory, plan)


def complete_truncation(directory: Path) -> None:
    """Complete a cut that has begun, and clear away one that has not."""
    path = directory / PLAN_NAME
    if path.exists():
        for _ in _complete(directory, _decode(path)):
            pass
    for name in (_DRAFT_NAME, _TAIL_NAME):
        (directory / name).unlink(missing_ok=True)


def _complete(directory: Path, plan: TruncationPlan) -> Iterator[None]:
    for first in reversed(first_sequences(directory)):
        if first > plan.sequence:
            path = directory / segment_name(first)
            path.rename(aside_name(path, 0))
            yield
    if plan.sequence:
        path, tail = directory / segment_name(plan.sequence), directory / _TAIL_NAME
        if file_size(tail):
            tail.rename(aside_name(path, plan.offset))
            yield
        with path.open("r+b") as segment:
            segment.truncate(plan.offset)
            yield
            segment.seek(plan.offset)
            segment.write(plan.records)
            segment.flush()
            os.fsync(segment.fileno())
        yield
    sync_directory(directory)
    (directory / PLAN_NAME).unlink()
    sync_directory(directory)


def aside_name(path: Path, offset: int) -> Path:
    """Where to keep what a segment held from this byte on; a name that is still free."""
    base = f"{path.name}.cut-{offset}"
    names = (base if repeated == 0 else f"{base}.{repeated}" for repeated in count())
    return next(free for name in names if not (free := path.with_name(name)).exists())


def move_tail(path: Path, offset: int) -> Path:
    """Take off what a segment holds from this byte on; where it is kept."""
    aside = aside_name(path, offset)
    _copy_tail(path, offset, aside)
    with path.open("r+b") as segment:
        segment.truncate(offset)
        os.fsync(segment.fileno())
    return aside


def sync_directory(directory: Path) -> None:
    """Have the disk confirm which files there are."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _copy_tail(path: Path, offset: int, to: Path) -> None:
    with path.open("rb") as segment, to.open("wb") as aside:
        segment.seek(offset)
        while chunk := segment.read(COPY_SIZE):
            aside.write(chunk)
        aside.flush()
        os.fsync(aside.fileno())


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _encode(plan: TruncationPlan) -> bytes:
    content = _PLAN.pack(_PLAN_MAGIC, plan.sequence, plan.offset) + plan.records
    return content + _CRC.pack(crc32(content))


def _decode(path: Path) -> TruncationPlan:
    data = path.read_bytes()
    content = data[: -_CRC.size]
    if (
        data[: len(_PLAN_MAGIC)] != _PLAN_MAGIC
        or len(content) < _PLAN.size
        or data != content + _CRC.pack(crc32(content))
    ):
        raise Damaged(path, 0, 0, "it does not say where the journal is to be cut")
    _, sequence, offset = _PLAN.unpack_from(content)
    return TruncationPlan(sequence, offset, content[_PLAN.size :])
