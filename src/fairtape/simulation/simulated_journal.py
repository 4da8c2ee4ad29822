"""The journal of a simulated site: it survives crashes, as a disk does, in the bytes that a real journal chains.

Or it survives them but for its end: what was never synced may be gone when a machine loses its power.
"""

from bisect import bisect_right
from random import Random
from typing import Final

from fairtape.core.effects import FormationChange, Ordered, Recovered, Release
from fairtape.core.entries import Entry, Position, decode_entry, encode_entry, position_of
from fairtape.wire.frames import NodeId

UNSYNCED_MAX: Final = 20  # entries that a crash takes from a journal that is synced only now and then


class SimulatedJournal:
    """Entries in their order, and how far they were released."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.released_through = 0  # token
        self._encoded: list[bytes] = []
        self._positions: list[Position] = []

    @property
    def encoded(self) -> list[bytes]:
        """The canonical bytes of all entries."""
        return list(self._encoded)

    def append(self, entry: Entry) -> None:
        """Write one entry; it must follow on."""
        position = position_of(entry)
        assert not self._positions or position > self._positions[-1], f"{position} after {self._positions[-1]}"
        encoded = encode_entry(entry)
        assert decode_entry(encoded) == entry
        self.entries.append(entry)
        self._encoded.append(encoded)
        self._positions.append(position)

    def release(self, release: Release) -> None:
        """Note how far this site has released."""
        assert release.token > self.released_through
        self.released_through = release.token

    def after(self, token: int, formation: int | None, size_max: int) -> list[bytes]:
        """What follows a position, at most about this much."""
        known = formation is not None
        start = bisect_right(self._positions, (formation, token)) if known else self._first_above(token)
        found: list[bytes] = []
        for encoded in self._encoded[start:]:
            if found and size_max < len(encoded):
                break
            size_max -= len(encoded)
            found.append(encoded)
        return found

    def _first_above(self, token: int) -> int:
        for index, entry in enumerate(self.entries):
            if entry.token > token:
                return index
        return len(self.entries)

    def truncate_after(self, token: int) -> Recovered:
        """Take out everything above `token`, and a formation that has lost all of its messages by that."""
        while self.entries and (isinstance(self.entries[-1], FormationChange) or self.entries[-1].token > token):
            for table in (self.entries, self._encoded, self._positions):
                table.pop()
        recovered = self.recovered()
        self.released_through = recovered.released_through  # an entry that was released and cut counts no more
        return recovered

    def released_sequence(self) -> int:
        """The number of the first message that was not released."""
        return next(
            (e.sequence for e in self.entries if isinstance(e, Ordered) and e.token > self.released_through),
            self.recovered().sequence,
        )

    def lose_power(self, chance: Random) -> None:
        """The machine stops: some of the last entries were never synced."""
        lost = chance.randrange(min(UNSYNCED_MAX, len(self.entries)) + 1)
        if lost:
            kept = self.entries[:-lost]
            self.truncate_after(max((entry.token for entry in kept if isinstance(entry, Ordered)), default=0))

    def recovered(self) -> Recovered:
        """Where it stands."""
        streams: dict[NodeId, tuple[int, int]] = {}
        number, layout, token, sequence = 0, None, 0, 1
        for entry in self.entries:
            if isinstance(entry, Ordered):
                token, sequence = entry.token, entry.sequence + entry.count
                for span in entry.spans:
                    streams[span.source] = span.incarnation, span.first + span.count
            else:
                number, layout = entry.formation, entry.layout
        return Recovered(token, sequence, streams, number, layout, min(self.released_through, token))
