"""Opening a journal whose writer died: set the torn tail aside, and find where writing resumes.

A crash can tear only the end: the last segment, and the one before it while the last one has no checkpoint, because a
checkpoint means that the disk has confirmed everything before its segment. What fails the checks there is moved to
files beside the segments, not destroyed. Damage anywhere else is not caused by a crash: opening fails, and nothing is
changed.

Where the list file is current and the last segment that it names is whole, nothing else is read, however many segments
there are. In every other case the directory is listed, and the list file is written anew.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.journal.format import HEADER_SIZE, Damaged, SegmentCheckpoint, Tip, segment_name
from fairtape.journal.segment_list import SegmentList, file_size, first_sequences, write_list
from fairtape.journal.segments import Segment, SegmentReplay, next_segment
from fairtape.journal.truncation import aside_name, complete_truncation, move_tail, sync_directory
from fairtape.wire.frames import NodeId

TORN_MAX: Final = 2  # segments that a crash can tear: the last ones


@dataclass(frozen=True, slots=True)
class TornTail:
    """The bytes that recovery removed from the end of a journal."""

    path: Path
    offset: int
    size: int  # bytes
    sequence: int  # the first one that is not kept
    reason: str
    kept_in: Path


@dataclass(frozen=True, slots=True)
class MissingCheckpoint:
    """A checkpoint that has still to be written: the writer died before the disk had confirmed the segment before."""

    checkpoint: SegmentCheckpoint
    previous: bytes  # the digest that it continues
    preceding: Path  # the segment that has to be synced before it is written


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where writing resumes: the last segment, checked record by record, and the state of the order at its end."""

    path: Path
    number: int
    tip: Tip
    size: int  # bytes
    entries: int  # at least one
    ends_with_formation: bool  # whether the last of them changes the formation
    ordered_through: int  # the token of the last messages
    state: SegmentCheckpoint  # of the sources and the formation, at the end
    missing_checkpoint: MissingCheckpoint | None


def recover(directory: Path, *, stripe: int, site: NodeId) -> tuple[Resumption | None, TornTail | None]:
    """Where writing resumes (None: the journal is empty), and what was removed."""
    try:
        complete_truncation(directory)
    except OSError as error:
        raise UserError(f"journal directory {str(directory)!r} cannot be written ({error.strerror})") from None
    resumption = _resumption_by_list(directory, stripe=stripe, site=site)
    if resumption is not None:
        return resumption, None
    paths = [directory / segment_name(first) for first in first_sequences(directory)]
    replay, damage = _last_valid_segment(paths)
    if replay is not None:
        _check_owner(replay, directory, stripe=stripe, site=site)
    resumption = None if replay is None else _resumption(paths, replay)
    torn = _set_tail_aside(paths, replay, damage)
    kept = 0 if replay is None else paths.index(replay.segment.path) + 1
    write_list(directory, [int(path.stem) for path in paths[:kept]])
    return resumption, torn


def _resumption_by_list(directory: Path, *, stripe: int, site: NodeId) -> Resumption | None:
    """Where writing resumes, by the list file; None unless it is certain that the last segment in it is the last.

    A current file lacks a segment only if a writer was killed, or did not know the file. Both had completed the segment
    before, so that its end has the name of the next one. A segment that is not whole has lost its end, and proves
    nothing. That the file has as many numbers as there are segments is checked for the sake of readers.
    """
    with SegmentList(directory) as firsts:
        if not firsts or not firsts.is_current:
            return None
        paths = [directory / segment_name(first) for first in (firsts[0], *firsts[-TORN_MAX - 1 :])]
        following = len(firsts) - 1
    try:
        replay, damage = _scan(paths[-1])
        if replay is None or damage is not None or replay.end != file_size(paths[-1]):
            return None
        if next_segment(paths[-1], replay.tip.sequence) is not None:
            return None
        with Segment(paths.pop(0)) as first:
            if first.header.number + following != replay.segment.header.number:
                return None
        if not _continues_predecessor(paths, replay):
            return None
        _check_owner(replay, directory, stripe=stripe, site=site)
        return _resumption(paths, replay)
    except Damaged:
        return None


def _last_valid_segment(paths: list[Path]) -> tuple[SegmentReplay | None, Damaged | None]:
    """The segment with which the valid part of the journal ends, and the damage after it, if any."""
    damage = None
    for back, path in enumerate(reversed(paths), 1):
        if back > TORN_MAX:
            return _confirmed_segment(path, paths[-TORN_MAX]), damage
        replay, found = _scan(path)
        damage = found or damage
        if replay is not None and (back > 1 or _continues_predecessor(paths, replay)):
            return replay, damage
    return None, damage


def _confirmed_segment(path: Path, following: Path) -> SegmentReplay:
    """A segment that the disk has confirmed, so that no crash can have torn it."""
    replay, damage = _scan(path)
    if damage is not None:
        raise damage
    if replay is None or replay.end != file_size(path) or segment_name(replay.tip.sequence) != following.name:
        end, sequence = (HEADER_SIZE, int(path.stem)) if replay is None else (replay.end, replay.tip.sequence)
        raise Damaged(path, end, sequence, f"it does not reach up to {following.name}")
    return replay


def _scan(path: Path) -> tuple[SegmentReplay | None, Damaged | None]:
    """The valid part of a segment (None: not one entry), and the damage that ended it, if any."""
    replay = None
    try:
        with Segment(path) as segment:
            replay = SegmentReplay(segment)
            for _ in replay:
                pass
    except Damaged as damage:
        return replay if replay is not None and replay.entries else None, damage
    return replay if replay.entries else None, None


def _continues_predecessor(paths: list[Path], last: SegmentReplay) -> bool:
    """Whether the last segment continues a complete segment, or has a checkpoint that says so."""
    if last.checkpoint is not None or last.segment.header.number == 0:
        return True
    if len(paths) < 2:
        raise _no_predecessor(paths[-1])
    earlier, damage = _scan(paths[-2])
    whole = earlier is not None and damage is None and earlier.end == file_size(paths[-2])
    return whole and earlier is not None and earlier.tip == last.segment.header.tip


def _check_owner(replay: SegmentReplay, directory: Path, *, stripe: int, site: NodeId) -> None:
    header = replay.segment.header
    for name, found, wanted in (("stripe", header.stripe, stripe), ("site", header.site, site)):
        if found != wanted:
            raise UserError(
                f"journal directory {str(directory)!r} belongs to {name} {found}, not {wanted}; "
                f"give every {name} a directory of its own"
            )


def _resumption(paths: list[Path], replay: SegmentReplay) -> Resumption:
    path, header = replay.segment.path, replay.segment.header
    missing, state = None, replay.checkpoint_after(None)
    if state is None:
        index = paths.index(path)
        missing = MissingCheckpoint(_checkpoint_before(paths, index), header.tip.digest, paths[index - 1])
        state = _state_after(replay, missing.checkpoint)
    return Resumption(
        path,
        header.number,
        replay.tip,
        replay.end,
        replay.entries,
        replay.ends_with_formation,
        replay.ordered_through,
        state,
        missing,
    )


def _checkpoint_before(paths: list[Path], index: int) -> SegmentCheckpoint:
    """The checkpoint of a segment that has none yet, from the segment before it."""
    if index == 0:
        raise _no_predecessor(paths[0])
    earlier = _confirmed_segment(paths[index - 1], paths[index])
    return earlier.checkpoint_after(None) or _state_after(earlier, _checkpoint_before(paths, index - 1))


def _state_after(replay: SegmentReplay, before: SegmentCheckpoint) -> SegmentCheckpoint:
    state = replay.checkpoint_after(before)
    assert state is not None
    return state


def _no_predecessor(path: Path) -> Damaged:
    return Damaged(path, HEADER_SIZE, int(path.stem), "it has no checkpoint, and no segment precedes it")


def _set_tail_aside(paths: list[Path], replay: SegmentReplay | None, damage: Damaged | None) -> TornTail | None:
    """Move what follows the valid part aside, the last segment first; a segment without one whole entry moves whole."""
    kept = 0 if replay is None else paths.index(replay.segment.path) + 1
    reason = damage.reason if damage is not None else "an entry is cut short"
    removed = None
    try:
        for path in reversed(paths[kept:]):
            aside, size = aside_name(path, 0), file_size(path)
            path.rename(aside)
            removed = TornTail(path, 0, size, int(path.stem), reason, aside)
        if replay is not None and replay.end < (size := file_size(replay.segment.path)):
            path = replay.segment.path
            removed = TornTail(
                path, replay.end, size - replay.end, replay.tip.sequence, reason, move_tail(path, replay.end)
            )
        if removed is not None:
            sync_directory(removed.path.parent)
    except OSError as error:
        raise UserError(f"journal file {str(paths[-1])!r} is torn and cannot be repaired ({error.strerror})") from None
    return removed
