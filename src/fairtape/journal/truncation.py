"""Removing the end of the order from a journal, when the survivors of a failure continued without it. Atomic.

A plan names the segment and the byte at which it is truncated, and the records outside the order that are written again
after that byte (release marks of entries that stay, and the segment's checkpoint). The plan is written to a draft and
renamed. From then on the truncation has happened: opening the journal for writing completes it. Every step after the
rename is idempotent.

The removed bytes are kept beside the segments, as evidence of what this site had held.

A segment that stayed behind would contradict the order, so the segments are listed in the directory itself. The list
file is removed before the first of them, and written anew when the journal is opened.
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
from fairtape.journal.segment_list import file_size, first_sequences, remove_list
from fairtape.journal.segments import Place, RecordScanner

COPY_SIZE: Final = 1 << 20
PLAN_NAME: Final = "cut.plan"
_DRAFT_NAME: Final = "cut.draft"
_TAIL_NAME: Final = "cut.tail"

_PLAN: Final = struct.Struct(">8sQQ")
_PLAN_MAGIC: Final = b"FAIRTCUT"
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class TruncationPlan:
    """Where a journal is truncated."""

    sequence: int  # in the name of the segment that becomes the last one; 0 where none is left
    offset: int  # of the first byte that is removed; every later segment is removed as well
    records: bytes  # written again after that


def plan_truncation(directory: Path, token: int) -> TruncationPlan:
    """The truncation after the last message with this token or a lower one."""
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
    """Scan from the first message that stays. What follows the last one is removed, unless a later one stays."""
    path, sequence = scanner.segment.path, scanner.sequence
    offset: int | None = None
    records: list[bytes] = []
    while (step := scanner.next_record()) is not None:
        at, record = step
        in_first = scanner.segment.path == path
        if isinstance(record, Head):
            if not record.changes_formation and record.token <= token:
                sequence, offset = record.end, None
                records.clear()
            elif offset is None:
                offset = at if in_first else file_size(path)
        elif offset is not None and _stays(record, sequence, in_first=in_first):
            records.append(scanner.segment.stored(at, record, sequence))
    return TruncationPlan(first, file_size(path) if offset is None else offset, b"".join(records))


def _stays(record: Record, sequence: int, *, in_first: bool) -> bool:
    """Whether a record outside the order stays valid when the order ends before `sequence`."""
    match record:
        case Release():
            return record.sequence + record.count <= sequence
        case CheckpointHead():
            return in_first
    return False


def truncate(directory: Path, plan: TruncationPlan) -> Iterator[None]:
    """Carry out a plan. Yields after each step, so that tests can stop it anywhere."""
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
    """Complete a truncation whose plan is in place, and delete the files of one that is not."""
    path = directory / PLAN_NAME
    if path.exists():
        for _ in _complete(directory, _decode(path)):
            pass
    for name in (_DRAFT_NAME, _TAIL_NAME):
        (directory / name).unlink(missing_ok=True)


def _complete(directory: Path, plan: TruncationPlan) -> Iterator[None]:
    remove_list(directory)
    yield
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
    """A free file name for what a segment held from this byte on."""
    base = f"{path.name}.cut-{offset}"
    names = (base if repeated == 0 else f"{base}.{repeated}" for repeated in count())
    return next(free for name in names if not (free := path.with_name(name)).exists())


def move_tail(path: Path, offset: int) -> Path:
    """Move what a segment holds from this byte on to another file; the path of that file."""
    aside = aside_name(path, offset)
    _copy_tail(path, offset, aside)
    with path.open("r+b") as segment:
        segment.truncate(offset)
        os.fsync(segment.fileno())
    return aside


def sync_directory(directory: Path) -> None:
    """Sync a directory: creations, renames and deletions in it are durable afterwards."""
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
        raise Damaged(path, 0, 0, "it is not a truncation plan with a valid checksum")
    _, sequence, offset = _PLAN.unpack_from(content)
    return TruncationPlan(sequence, offset, content[_PLAN.size :])
