"""What opening for writing does to a journal whose writer died: cut the torn tail off, and say so.

A crash tears only the end of the last segment, because every segment is confirmed before the next one begins. What
cannot be proved there is cut off, but not destroyed: it is set aside in a file beside the segment. Damage anywhere
else is no crash's doing; it is refused, and nothing is touched.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.runtime.complaints import Complaint
from fairtape.runtime.journal.format import HEADER_SIZE, Damaged, Head, Tip, segment_name
from fairtape.runtime.journal.segments import Segment, file_size, first_sequences, stored_size, verified

COPY_SIZE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """What was taken off the end of a journal."""

    path: Path
    offset: int
    size: int  # bytes
    sequence: int  # the first one that is not kept
    reason: str
    kept_in: Path


@dataclass(frozen=True, slots=True)
class Whole:
    """The part of a segment that is proved, entry by entry; at least one."""

    path: Path
    stripe: int
    number: int
    tip: Tip
    end: int  # bytes
    entries: int


def recover(directory: Path, *, stripe: int) -> tuple[Whole | None, Cut | None]:
    """Where writing goes on (None: at the beginning), and what was cut off before."""
    paths = [directory / segment_name(first) for first in first_sequences(directory)]
    if not paths:
        return None, None
    last = paths[-1]
    whole, damage = _scan(last)
    offset = whole.end if whole else 0
    if whole is None and len(paths) > 1:
        whole = _finished(paths[-2], last)
    if whole is not None and whole.stripe != stripe:
        raise Complaint(
            f"journal directory {str(directory)!r} belongs to stripe {whole.stripe}, not {stripe}; "
            "give every stripe a directory of its own"
        )
    if 0 < offset == file_size(last):
        return whole, None
    sequence = whole.tip.sequence if whole else int(last.stem)
    return whole, _cut(last, offset, sequence, damage.reason if damage else "an entry is cut short")


def sync_directory(directory: Path) -> None:
    """Have the disk confirm which files there are."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _scan(path: Path) -> tuple[Whole | None, Damaged | None]:
    """The proved part of a segment (None: not even one entry), and what ended it, if that is more than its end."""
    whole, entries = None, 0
    try:
        with Segment(path) as segment:
            for offset, record, tip in verified(segment):
                entries += isinstance(record, Head)
                end = offset + stored_size(record)
                whole = Whole(path, segment.header.stripe, segment.header.number, tip, end, entries)
    except Damaged as damage:
        return whole, damage
    return whole, None


def _finished(path: Path, following: Path) -> Whole:
    """A segment that another one followed has no torn end."""
    whole, damage = _scan(path)
    if damage is not None:
        raise damage
    if whole is None or whole.end != file_size(path) or segment_name(whole.tip.sequence) != following.name:
        end, sequence = (whole.end, whole.tip.sequence) if whole else (HEADER_SIZE, int(path.stem))
        raise Damaged(path, end, sequence, f"it does not reach up to {following.name}")
    return whole


def _cut(path: Path, offset: int, sequence: int, reason: str) -> Cut:
    """Set the torn tail aside, then take it off; a segment without one whole entry goes as a whole."""
    kept_in = path.with_name(f"{path.name}.cut-{offset}")
    size = file_size(path) - offset
    try:
        if offset == 0:
            path.rename(kept_in)
        else:
            _move_tail(path, offset, kept_in)
        sync_directory(path.parent)
    except OSError as error:
        raise Complaint(f"journal file {str(path)!r} is torn and cannot be repaired ({error.strerror})") from None
    return Cut(path, offset, size, sequence, reason, kept_in)


def _move_tail(path: Path, offset: int, kept_in: Path) -> None:
    with path.open("r+b") as torn, kept_in.open("wb") as aside:
        torn.seek(offset)
        while chunk := torn.read(COPY_SIZE):
            aside.write(chunk)
        aside.flush()
        os.fsync(aside.fileno())
        torn.truncate(offset)
        os.fsync(torn.fileno())
