"""The journal of a simulated site, in memory, with the same encoded entries as a real one.

It survives a crash of its site. A loss of power may take the last entries, which were never synced.
"""

from bisect import bisect_right
from dataclasses import dataclass
from random import Random
from typing import Final
from zlib import crc32

from fairtape.core.effects import FetchChunks, FormationChange, Ordered, Recovered, Release
from fairtape.core.entries import (
    Entry,
    EntryChunk,
    Extract,
    Position,
    chunks_of,
    decode_entry,
    encode_entry,
    position_of,
)
from fairtape.wire.frames import NodeId

UNSYNCED_MAX: Final = 20  # entries that a loss of power takes at most
REPLACED: Final = 1 << 20  # added to the identity of a journal when its disk is replaced


@dataclass(frozen=True, slots=True)
class JournalCopy:
    """A backup of a journal."""

    entries: tuple[Entry, ...]
    released_through: int


class SimulatedJournal:
    """Entries in order, and the token through which they were released."""

    def __init__(self, written: dict[bytes, tuple[bytes, Entry]] | None = None, *, identity: int = 0) -> None:
        """`written`: the entries of all journals of a world, so that equal ones are kept once."""
        self.identity = identity
        self._written = {} if written is None else written
        self.entries: list[Entry] = []
        self.released_through = 0  # token
        self._encoded: list[bytes] = []
        self._positions: list[Position] = []
        self._checks: list[int] = []

    @property
    def encoded(self) -> list[bytes]:
        """The encoded bytes of all entries."""
        return list(self._encoded)

    def append(self, entry: Entry) -> None:
        """Write one entry; its position must be after the last one."""
        position = position_of(entry)
        assert not self._positions or position > self._positions[-1], f"{position} after {self._positions[-1]}"
        encoded = encode_entry(entry)
        if encoded not in self._written:
            assert decode_entry(encoded) == entry
            self._written[encoded] = encoded, entry
        encoded, entry = self._written[encoded]
        self.entries.append(entry)
        self._encoded.append(encoded)
        self._positions.append(position)
        self._checks.append(crc32(encoded))

    def release(self, release: Release) -> None:
        """Record that this site has released through a token."""
        assert release.token > self.released_through
        self.released_through = release.token

    def after(self, token: int, formation: int | None, size_max: int) -> list[bytes]:
        """The entries after a position: at least one if there is any, then as many as the limit allows.

        Where the formation is unknown (None), the change to that of the first entry precedes them.
        """
        known = formation is not None
        start = bisect_right(self._positions, (formation, token)) if known else self._first_above(token)
        found = [] if known else self._change_before(start)
        for index, encoded in enumerate(self._encoded[start:]):
            if index and size_max < len(encoded):
                break
            size_max -= len(encoded)
            found.append(encoded)
        return found

    def chunks(self, fetch: FetchChunks) -> Extract:
        """The chunks that a site which catches up asks for."""
        found: list[EntryChunk] = []
        end, counted = Position(fetch.formation, fetch.token), 0
        for index in range(bisect_right(self._positions, end), len(self._encoded)):
            encoded, size = self._encoded[index], fetch.chunk_size
            chunks = chunks_of(len(encoded), size)
            first, left = max(fetch.skip - counted, 0), fetch.count_max - len(found)
            found += [
                EntryChunk(end, chunk, chunks, self._checks[index], encoded[chunk * size : (chunk + 1) * size])
                for chunk in range(first, min(first + left, chunks))
            ]
            if left < chunks - first:
                return Extract(found, end, counted, exhausted=False)
            end, counted = self._positions[index], counted + chunks
        return Extract(found, end, counted, exhausted=True)

    def _change_before(self, start: int) -> list[bytes]:
        """The change of formation that is in force at this entry, if there is such an entry, and it is no change."""
        if start == len(self.entries) or isinstance(self.entries[start], FormationChange):
            return []
        earlier = range(start - 1, -1, -1)
        return next(([self._encoded[at]] for at in earlier if isinstance(self.entries[at], FormationChange)), [])

    def _first_above(self, token: int) -> int:
        for index, entry in enumerate(self.entries):
            if entry.token > token:
                return index
        return len(self.entries)

    def truncate_after(self, token: int) -> Recovered:
        """Remove everything above `token`, and formation changes without messages after them."""
        while self.entries and (isinstance(self.entries[-1], FormationChange) or self.entries[-1].token > token):
            for table in (self.entries, self._encoded, self._positions, self._checks):
                table.pop()
        recovered = self.recovered()
        self.released_through = recovered.released_through  # a removed entry no longer counts as released
        return recovered

    def released_sequence(self) -> int:
        """The sequence number of the first message that was not released."""
        return next(
            (e.sequence for e in self.entries if isinstance(e, Ordered) and e.token > self.released_through),
            self.recovered().sequence,
        )

    def lose_power(self, chance: Random) -> None:
        """Remove a random number of the last entries, which were never synced."""
        lost = chance.randrange(min(UNSYNCED_MAX, len(self.entries)) + 1)
        if lost:
            kept = self.entries[:-lost]
            self.truncate_after(max((entry.token for entry in kept if isinstance(entry, Ordered)), default=0))

    def lose_everything(self) -> None:
        """The disk was replaced: the journal is empty, and has another identity."""
        self.identity += REPLACED
        self.restore(JournalCopy((), 0))

    def copy(self) -> "JournalCopy":
        """What a backup of the journal has now."""
        return JournalCopy(tuple(self.entries), self.released_through)

    def restore(self, copy: "JournalCopy") -> None:
        """Replace the content by a copy; the identity stays."""
        for table in (self.entries, self._encoded, self._positions, self._checks):
            table.clear()
        for entry in copy.entries:
            self.append(entry)
        self.released_through = copy.released_through

    def recovered(self) -> Recovered:
        """The state that a site takes from its journal when it starts."""
        streams: dict[NodeId, tuple[int, int]] = {}
        number, layout, token, sequence = 0, None, 0, 1
        for entry in self.entries:
            if isinstance(entry, Ordered):
                token, sequence = entry.token, entry.sequence + entry.count
                for span in entry.spans:
                    streams[span.source] = span.incarnation, span.first + span.count
            else:
                number, layout = entry.formation, entry.layout
        released_through = min(self.released_through, token)
        return Recovered(token, sequence, streams, number, layout, released_through, self.identity)
