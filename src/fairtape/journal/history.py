"""The history of the order, for sites that catch up: the entries after a position, as the journal stores them.

The entries are canonical bytes whose digests have been checked, so a site that appends them has the same chain. A
reader names its position and gets the next chunk. The end of each chunk is remembered, so that the next one needs no
search, also while the journal grows. If the journal was truncated since, the place is searched again.
"""

from pathlib import Path
from typing import Final

from fairtape.core.entries import Position
from fairtape.journal.format import DIGEST_SIZE, Damaged
from fairtape.journal.reader import JournalReader
from fairtape.journal.segments import Place, RecordScanner

PLACES_MAX: Final = 64  # readers whose place is remembered; the least recently used one is dropped first


class History:
    """Reads one journal for many sites, beside its writer."""

    def __init__(self, directory: Path | str) -> None:
        self._journal = JournalReader(Path(directory))
        self._places: dict[Position, Place] = {}

    def after(self, token: int, size_max: int, *, formation: int = 0) -> list[bytes]:
        """The entries that follow a position, in order, as many as fit into `size_max` bytes, but at least one.

        The position is that of the reader's last entry (`fairtape.core.entries.position_of`). A reader that asks again
        from the end of each chunk gets the whole order and nothing twice. Where it knows no formation (0), it gets
        everything with a token above this one: messages, and formations by their first token.
        """
        position = Position(formation, token)
        known = self._places.pop(position, None)
        if known is not None:
            try:
                return self._read(known, position, size_max, known=True)
            except Damaged:
                pass  # the journal was truncated since; real damage is found by the search
        place = self._journal.place_after(position)
        return [] if place is None else self._read(place, position, size_max, known=False)

    def update_index(self) -> None:
        """Index what was appended since the last call.

        Otherwise the first request for a segment scans all of its heads, which takes some tens of milliseconds.
        """
        self._journal.update_index()

    def _read(self, place: Place, position: Position, size_max: int, *, known: bool) -> list[bytes]:
        found: list[bytes] = []
        scanner = RecordScanner(place, self._journal.owner())
        try:
            if known:
                _check_unchanged(scanner, place)
            while (step := scanner.next_head()) is not None:
                offset, head = step
                size_max -= head.encoded_size
                if found and size_max < 0:
                    break
                encoded, digest = scanner.segment.encoded(offset, head, place.previous, head.sequence)
                found.append(encoded)
                position, place = head.position, Place(scanner.segment.path, scanner.offset, scanner.sequence, digest)
        finally:
            scanner.close()
        if found or known:
            self._remember(position, place)
        return found

    def _remember(self, position: Position, place: Place) -> None:
        self._places[position] = place
        if len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]


def _check_unchanged(scanner: RecordScanner, place: Place) -> None:
    """A remembered place directly follows an entry, which ends with its digest."""
    if scanner.segment.digest(place.offset - DIGEST_SIZE, place.sequence) != place.previous:
        raise scanner.damaged(place.offset, "another entry is there now")
