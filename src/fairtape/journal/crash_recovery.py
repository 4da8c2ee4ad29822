"""What opening for writing does to a journal whose writer died: cut the torn tail off, and find where it stands.

A crash tears only the end: the last segment, and the one before it while the last one has no checkpoint, since a
checkpoint says that the disk has confirmed everything before its segment. What cannot be proved there is cut off, but
not destroyed: it is set aside in files beside the segments. Damage anywhere else is no crash's doing; it is refused,
and nothing is touched.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.journal.format import HEADER_SIZE, Damaged, SegmentCheckpoint, Tip, segment_name
from fairtape.journal.segments import Segment, SegmentReplay, file_size, first_sequences
from fairtape.journal.truncation import aside_name, complete_truncation, move_tail, sync_directory
from fairtape.wire.frames import NodeId

TORN_MAX: Final = 2  # segments that a crash can tear: the last ones


@dataclass(frozen=True, slots=True)
class TornTail:
    """What was taken off the end of a journal."""

    path: Path
    offset: int
    size: int  # bytes
    sequence: int  # the first one that is not kept
    reason: str
    kept_in: Path


@dataclass(frozen=True, slots=True)
class Owed:
    """The checkpoint that a segment does not have yet, since its writer died before the disk had confirmed the rest."""

    checkpoint: SegmentCheckpoint
    previous: bytes  # the digest that it continues
    preceding: Path  # the segment that has to be confirmed before it is written


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where writing goes on: the last segment, proved record by record, and what the order says up to its end."""

    path: Path
    number: int
    tip: Tip
    size: int  # bytes
    entries: int  # at least one
    turned: bool  # the last of them changes the formation
    ordered_through: int  # the token of the last messages
    standing: SegmentCheckpoint
    owed: Owed | None


def recover(directory: Path, *, stripe: int, site: NodeId) -> tuple[Resumption | None, TornTail | None]:
    """Where writing goes on (None: at the beginning), and what was cut off before."""
    try:
        complete_truncation(directory)
    except OSError as error:
        raise UserError(f"journal directory {str(directory)!r} cannot be written ({error.strerror})") from None
    paths = [directory / segment_name(first) for first in first_sequences(directory)]
    replay, damage = _last_whole(paths)
    if replay is not None:
        _check_owner(replay, directory, stripe=stripe, site=site)
    resumption = None if replay is None else _resumption(paths, replay)
    return resumption, _cut_behind(paths, replay, damage)


def _last_whole(paths: list[Path]) -> tuple[SegmentReplay | None, Damaged | None]:
    """The segment with which the proved part of the journal ends, and what was met behind its end."""
    damage = None
    for back, path in enumerate(reversed(paths), 1):
        if back > TORN_MAX:
            return _finished(path, paths[-TORN_MAX]), damage
        replay, found = _scan(path)
        damage = found or damage
        if replay is not None and (back > 1 or _is_founded(paths, replay)):
            return replay, damage
    return None, damage


def _finished(path: Path, following: Path) -> SegmentReplay:
    """A segment that no crash can tear: the disk has confirmed it."""
    replay, damage = _scan(path)
    if damage is not None:
        raise damage
    if replay is None or replay.end != file_size(path) or segment_name(replay.tip.sequence) != following.name:
        end, sequence = (HEADER_SIZE, int(path.stem)) if replay is None else (replay.end, replay.tip.sequence)
        raise Damaged(path, end, sequence, f"it does not reach up to {following.name}")
    return replay


def _scan(path: Path) -> tuple[SegmentReplay | None, Damaged | None]:
    """The proved part of a segment (None: not even one entry), and what ended it, if that is more than its end."""
    replay = None
    try:
        with Segment(path) as segment:
            replay = SegmentReplay(segment)
            for _ in replay:
                pass
    except Damaged as damage:
        return replay if replay is not None and replay.entries else None, damage
    return replay if replay.entries else None, None


def _is_founded(paths: list[Path], last: SegmentReplay) -> bool:
    """Whether what comes before the last segment is known to be there."""
    if last.checkpoint is not None or last.segment.header.number == 0:
        return True
    if len(paths) < 2:
        raise _baseless(paths[-1])
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
    owed, standing = None, replay.standing(None)
    if standing is None:
        index = paths.index(path)
        owed = Owed(_standing_before(paths, index), header.tip.digest, paths[index - 1])
        standing = _merged(replay, owed.checkpoint)
    return Resumption(
        path,
        header.number,
        replay.tip,
        replay.end,
        replay.entries,
        replay.turned,
        replay.ordered_through,
        standing,
        owed,
    )


def _standing_before(paths: list[Path], index: int) -> SegmentCheckpoint:
    """Where the order had left every source before a segment without a checkpoint: from the one before it."""
    if index == 0:
        raise _baseless(paths[0])
    earlier = _finished(paths[index - 1], paths[index])
    return earlier.standing(None) or _merged(earlier, _standing_before(paths, index - 1))


def _merged(replay: SegmentReplay, before: SegmentCheckpoint) -> SegmentCheckpoint:
    standing = replay.standing(before)
    assert standing is not None
    return standing


def _baseless(path: Path) -> Damaged:
    return Damaged(path, HEADER_SIZE, int(path.stem), "it has no checkpoint, and no segment precedes it")


def _cut_behind(paths: list[Path], replay: SegmentReplay | None, damage: Damaged | None) -> TornTail | None:
    """Set aside what follows the proved part, the last first; a segment without one whole entry goes as a whole."""
    kept = 0 if replay is None else paths.index(replay.segment.path) + 1
    reason = damage.reason if damage is not None else "an entry is cut short"
    cut = None
    try:
        for path in reversed(paths[kept:]):
            aside, size = aside_name(path, 0), file_size(path)
            path.rename(aside)
            cut = TornTail(path, 0, size, int(path.stem), reason, aside)
        if replay is not None and replay.end < (size := file_size(replay.segment.path)):
            path = replay.segment.path
            cut = TornTail(
                path, replay.end, size - replay.end, replay.tip.sequence, reason, move_tail(path, replay.end)
            )
        if cut is not None:
            sync_directory(cut.path.parent)
    except OSError as error:
        raise UserError(f"journal file {str(paths[-1])!r} is torn and cannot be repaired ({error.strerror})") from None
    return cut
