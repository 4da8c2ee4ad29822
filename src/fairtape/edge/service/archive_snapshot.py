"""What a library knows, in a file: a retransmit server that starts again goes on where it was.

Like the checkpoint of an outlet it saves time and proves nothing: it names the last entry that it counts in, and a
journal that does not have that entry is read from the beginning.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np

from fairtape.edge.protocol.archive import SessionExtent
from fairtape.edge.protocol.sessions import BadSession, Edition, StripePosition
from fairtape.edge.service.checkpoints import EdgeCheckpoint, edition_fields, edition_of, write_whole
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore

SIZE_MAX: Final = 64 << 20  # bytes of a file
_VERSION: Final = 1
_NUMBERS: Final = np.dtype("<i8")
_FIXED: Final = 4  # numbers of a place before those of its stripes: edition, sequence, at, formation


@dataclass(frozen=True, slots=True)
class SessionExtents:
    """An edition, and how far each of its sessions came."""

    edition: Edition
    extents: tuple[SessionExtent, ...]


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """Everything: the last chapter is the one that goes on."""

    checkpoint: EdgeCheckpoint
    chapters: Sequence[SessionExtents]
    standings: Sequence[StripePosition]  # the places of the index, and the spacing between them
    spacing: int


def save(path: Path, memory: ArchiveSnapshot) -> None:
    """Write it whole or not at all. Raises OSError."""
    editions = {id(chapter.edition): number for number, chapter in enumerate(memory.chapters)}
    kept = [each for each in memory.standings if id(each.edition) in editions]
    places = [number for each in (*kept, memory.checkpoint.standing) for number in _numbers(each, editions)]
    numbers = np.array(places, _NUMBERS).tobytes()
    head = {
        "version": _VERSION,
        "tag": memory.checkpoint.standing.edition.deployment,
        "core": memory.checkpoint.standing.edition.core,
        "entry": [memory.checkpoint.formation, memory.checkpoint.token],
        "spacing": memory.spacing,
        "chapters": [
            {"edition": edition_fields(chapter.edition), "extents": chapter.extents} for chapter in memory.chapters
        ],
        "check": crc32(numbers),
    }
    write_whole(path, json.dumps(head).encode(), b"\n", numbers)


def load(path: Path, settings: EdgeSettings, catalogue: StripePlanStore) -> ArchiveSnapshot | None:
    """What was saved; None where it is not there, or not of this edge."""
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_MAX + 1)
        head, _, numbers = content.partition(b"\n")
        return _memory(json.loads(head), numbers, settings, catalogue)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, BadSession, PlanUnknown):
        return None


def _memory(
    head: dict[str, Any], numbers: bytes, settings: EdgeSettings, catalogue: StripePlanStore
) -> ArchiveSnapshot | None:
    if (head["version"], head["tag"], head["core"], head["check"]) != (
        _VERSION,
        settings.tag,
        settings.core,
        crc32(numbers),
    ):
        return None
    chapters = [_chapter(fields, settings, catalogue) for fields in head["chapters"]]
    *standings, last = _standings(np.frombuffer(numbers, _NUMBERS).tolist(), chapters)
    formation, token = map(int, head["entry"])
    editions = [chapter.edition for chapter in chapters]
    if last.edition is not editions[-1]:
        return None
    return ArchiveSnapshot(EdgeCheckpoint(last, formation, token), chapters, standings, int(head["spacing"]))


def _chapter(fields: dict[str, Any], settings: EdgeSettings, catalogue: StripePlanStore) -> SessionExtents:
    edition = edition_of(fields["edition"], settings, catalogue)
    extents = tuple(SessionExtent(int(following), bool(ended)) for following, ended in fields["extents"])
    if len(extents) != len(edition.stripes):
        raise ValueError("not of this plan")
    return SessionExtents(edition, extents)


def _numbers(place: StripePosition, editions: dict[int, int]) -> tuple[int, ...]:
    return editions[id(place.edition)], place.sequence, place.at, place.formation, *place.following


def _standings(numbers: list[int], chapters: Sequence[SessionExtents]) -> Iterator[StripePosition]:
    start = 0
    while start < len(numbers):
        edition = chapters[numbers[start]].edition
        end = start + _FIXED + len(edition.stripes)
        _, sequence, at, formation, *following = numbers[start:end]
        if len(following) != len(edition.stripes):
            raise ValueError("cut off")
        yield StripePosition(edition, sequence, tuple(following), at, formation)
        start = end
