"""Reading a stretch of a journal: entries proved against the chain, joined with their release marks, many at a time.

Heads are hopped over one by one; what stands in the bodies is opened for many entries at once, because the tables of
all their spans and bodies are joined and looked at as arrays. No step of it is taken per message.

A number belongs to one row, whatever it numbers: the fragments of a long message have numbers of their own, and the
message stands with its last one. So a reader who counts finds every number once.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.core.effects import FormationChange, Release
from fairtape.core.entries import HEAD_SIZE, Head, decode_body
from fairtape.journal import Damaged, JournalReader
from fairtape.journal.format import HEADER_SIZE
from fairtape.journal.segments import Place, RecordScanner
from fairtape.pipeline.source.partitions import OffsetRange
from fairtape.wire.blocks import Assembler
from fairtape.wire.frames import Malformed

BUNCH_ROWS_MAX: Final = 1 << 16  # messages that are opened together, but for the last token
STREAMS_MAX: Final = 1_024  # streams with an unfinished long message; beyond it the oldest is forgotten

Values: TypeAlias = npt.NDArray[Any]

_SPAN_DTYPE: Final = np.dtype(
    [
        ("source", ">u4"),
        ("incarnation", ">u8"),
        ("first", ">u8"),
        ("count", ">u4"),
        ("sequence", ">u8"),
        ("bodies", ">u4"),
    ]
)
"""The row of a span as `fairtape.core.entries` writes it."""

_SIZE: Final = 2  # bytes of a size in a body, as `fairtape.wire.blocks` writes it
_FRAGMENT_HEAD: Final = 8


class ScannedEntry(NamedTuple):
    """An entry whose digest was checked, and when the site released it."""

    head: Head
    encoded: bytes
    place: Place
    release: Release | None = None


class EntryBatch(NamedTuple):
    """The messages of consecutive entries as columns; those of the entries have `rows` rows for each."""

    entries: Sequence[ScannedEntry]
    rows: Values  # of each entry
    sequence: Values
    source: Values
    incarnation: Values
    source_number: Values
    sizes: Values  # of each payload
    payloads: Values  # all bytes of them, back to back
    parts: Values  # the rows of fragments that are not the last of their message; they have no payload


def scan(stretch: OffsetRange, *, ordered: bool = False) -> Iterator[EntryBatch | FormationChange]:
    """All that stands in a stretch, from the entry that holds its first number on to the one that holds its last."""
    assembly = _Assembly(stretch)
    waiting: list[ScannedEntry] = []
    rows = 0
    for found in entries_of(stretch, ordered=ordered):
        changes_formation = found.head.changes_formation
        if waiting and (changes_formation or rows >= BUNCH_ROWS_MAX):
            yield _opened(waiting, assembly)
            waiting, rows = [], 0
        if changes_formation:
            change = decode_body(found.head, found.encoded)
            assert isinstance(change, FormationChange)
            yield change
        else:
            waiting.append(found)
            rows += found.head.messages
    if waiting:
        yield _opened(waiting, assembly)


def entries_of(stretch: OffsetRange, *, ordered: bool = False) -> Iterator[ScannedEntry]:
    """Entries with their release marks, which stand some way behind them, perhaps in the next segment."""
    entries: deque[ScannedEntry] = deque()
    reached = stretch.sequence
    for found in _records(stretch):
        if isinstance(found, ScannedEntry):
            entries.append(found)
            reached = found.head.end
            continue
        while entries and entries[0].head.changes_formation and entries[0].head.sequence <= found.sequence:
            yield entries.popleft()
        if entries and found.sequence >= entries[0].head.sequence:
            yield _joined(entries.popleft(), found)
    if reached < stretch.end:
        raise _missing(stretch, reached, "the journal ends before the numbers that it had")
    if entries and not ordered:
        raise _missing(stretch, entries[0].head.sequence, "it has no release mark, though there was one")
    yield from entries


def _records(stretch: OffsetRange) -> Iterator[ScannedEntry | Release]:
    """Every entry of a stretch, and all release marks up to its last one, as far as there are any.

    Each continues the one before it; only where reading begins within a segment, nobody tells what its first mark does.
    """
    previous = stretch.previous
    scanner = RecordScanner(stretch.place, stretch.name.owner)
    marks = scanner.segment.header.tip.marks if stretch.offset == HEADER_SIZE else b""
    try:
        while (step := scanner.next_record()) is not None:
            offset, record = step
            if isinstance(record, Release):
                marks = scanner.segment.mark_digest(offset, record, marks)
                yield record
                if record.sequence + record.count >= stretch.end:
                    return
            elif isinstance(record, Head) and record.sequence < stretch.end:
                place = Place(scanner.segment.path, offset, record.sequence, previous)
                encoded, previous = scanner.segment.encoded(offset, record, previous, record.sequence)
                if stretch.digest and record.end == stretch.end and previous.hex() != stretch.digest:
                    raise scanner.damaged(offset, "another entry stands here than when this was planned")
                yield ScannedEntry(record, encoded, place)
    finally:
        scanner.close()


def _joined(found: ScannedEntry, mark: Release) -> ScannedEntry:
    head = found.head
    if (mark.token, mark.sequence, mark.count) != (head.token, head.sequence, head.messages):
        path, offset, sequence, _ = found.place
        raise Damaged(path, offset, sequence, "its release mark names another token or count")
    return found._replace(release=mark)


def _missing(stretch: OffsetRange, sequence: int, reason: str) -> Damaged:
    return Damaged(stretch.place.path, stretch.offset, sequence, reason)


class _Bodies(NamedTuple):
    """The bodies of several entries, back to back."""

    octets: Values
    starts: Values
    ends: Values
    counts: Values  # messages of each; 0 for a fragment

    def header_sizes(self) -> tuple[Values, Values]:
        """Of each body: the size of its messages (0 where they differ), and the bytes before the first of them."""
        fragments = self.counts == 0
        first = np.minimum(self.starts + 1, len(self.octets) - 1)
        uniform = (self.octets[self.starts].astype(np.int64) << 8) | self.octets[first]
        uniform[fragments] = 0
        heads = np.where(uniform > 0, _SIZE, _SIZE * (1 + self.counts))
        return uniform, np.where(fragments, self.ends - self.starts, heads)


def _opened(entries: Sequence[ScannedEntry], assembly: "_Assembly") -> EntryBatch:
    """Everything in these entries as columns."""
    spans, bodies = _tables(entries)
    uniform, headers = bodies.header_sizes()
    rows = np.maximum(bodies.counts, 1)
    sizes = np.repeat(uniform, rows)
    if (uniform == 0).any():
        _fill_sizes(sizes, bodies, uniform, np.cumsum(rows) - rows)
    if not np.array_equal(np.add.reduceat(sizes, np.cumsum(rows) - rows) + headers, bodies.ends - bodies.starts):
        raise _contradiction(entries)
    counts = spans["count"].astype(np.int64)
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    source, incarnation = (np.repeat(spans[name].astype(np.int64), counts) for name in ("source", "incarnation"))
    keep = np.ones(len(bodies.octets), np.bool_)
    keep[_ranges(bodies.starts, headers)] = False
    long = assembly.messages(entries[0].head.sequence, bodies, source, incarnation)
    sizes, payloads = _with_long(sizes, bodies.octets[keep], long)
    return EntryBatch(
        entries,
        np.fromiter((found.head.messages for found in entries), np.int64, len(entries)),
        np.repeat(spans["sequence"].astype(np.int64), counts) + within,
        source,
        incarnation,
        np.repeat(spans["first"].astype(np.int64), counts) + within,
        sizes,
        payloads,
        np.array([row for row, message in long.items() if message is None], np.int64),
    )


def _tables(entries: Sequence[ScannedEntry]) -> tuple[Values, _Bodies]:
    """The rows of all spans, and all bodies. What they say is checked against the heads, for all entries at once."""
    rows, sizes, counts, octets = [], [], [], []
    for head, encoded, _, _ in entries:
        sizes_at = HEAD_SIZE + head.span_count * _SPAN_DTYPE.itemsize
        counts_at = sizes_at + _SIZE * head.body_count
        bodies_at = counts_at + _SIZE * head.body_count
        rows.append(encoded[HEAD_SIZE:sizes_at])
        sizes.append(encoded[sizes_at:counts_at])
        counts.append(encoded[counts_at:bodies_at])
        octets.append(encoded[bodies_at:])
    spans = np.frombuffer(b"".join(rows), _SPAN_DTYPE)
    lengths = np.frombuffer(b"".join(sizes), ">u2").astype(np.int64)
    ends = np.cumsum(lengths)
    bodies = _Bodies(
        np.frombuffer(b"".join(octets), np.uint8),
        ends - lengths,
        ends,
        np.frombuffer(b"".join(counts), ">u2").astype(np.int64),
    )
    if not _agree(entries, spans, bodies):
        raise _contradiction(entries)
    return spans, bodies


def _agree(entries: Sequence[ScannedEntry], spans: Values, bodies: _Bodies) -> bool:
    """Whether spans and bodies fill their entries."""
    held = spans["bodies"].astype(np.int64)
    counts = spans["count"].astype(np.int64)
    if not (held > 0).all() or int(held.sum()) != len(bodies.starts) or int(bodies.ends[-1]) != len(bodies.octets):
        return False
    per_span = np.add.reduceat(np.maximum(bodies.counts, 1), np.cumsum(held) - held)
    first, end = entries[0].head.sequence, entries[-1].head.end
    sequence = first + np.cumsum(counts) - counts
    return (
        np.array_equal(per_span, counts)
        and np.array_equal(sequence, spans["sequence"].astype(np.int64))
        and first + int(counts.sum()) == end
    )


def _contradiction(entries: Sequence[ScannedEntry]) -> Damaged:
    """Which of these entries says something else than its head: found one by one, as this never happens."""
    for head, encoded, (path, offset, sequence, _), _ in entries:
        try:
            decode_body(head, encoded)
        except Malformed as error:
            return Damaged(path, offset, sequence, str(error))
    path, offset, sequence, _ = entries[0].place
    return Damaged(path, offset, sequence, "a body does not hold the messages that its entry counts")


def _fill_sizes(sizes: Values, bodies: _Bodies, uniform: Values, row_at: Values) -> None:
    """Messages of different sizes have a table of them before the first one."""
    for body in np.flatnonzero((uniform == 0) & (bodies.counts > 0)):
        count, start = int(bodies.counts[body]), int(bodies.starts[body]) + _SIZE
        table = bodies.octets[start : start + _SIZE * count]
        if len(table) == _SIZE * count:
            sizes[row_at[body] : row_at[body] + count] = table.view(">u2")


def _with_long(sizes: Values, payloads: Values, long: dict[int, bytes | None]) -> tuple[Values, Values]:
    """Payloads and their sizes, with the long messages put where their last fragments stand."""
    whole = {row: message for row, message in long.items() if message is not None}
    if not whole:
        return sizes, payloads
    rows = np.array(list(whole), np.int64)
    between = np.split(payloads, (np.cumsum(sizes) - sizes)[rows])
    pieces = [between[0]]
    for message, after in zip(whole.values(), between[1:], strict=True):
        pieces += [np.frombuffer(message, np.uint8), after]
    sizes[rows] = [len(message) for message in whole.values()]
    return sizes, np.concatenate(pieces)


def _ranges(starts: Values, lengths: Values) -> Values:
    """All places from each start on, as many as its length says."""
    total = int(lengths.sum())
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(total)


class _Assembly:
    """Puts long messages together again, also those whose first fragments stand before the stretch."""

    def __init__(self, stretch: OffsetRange) -> None:
        self._journal = JournalReader(stretch.place.path.parent)
        self._assemblers: dict[tuple[int, int], Assembler] = {}

    def messages(self, first: int, bodies: _Bodies, source: Values, incarnation: Values) -> dict[int, bytes | None]:
        """By row: the message that ends there, or None where a fragment is not the last."""
        found: dict[int, bytes | None] = {}
        fragments = np.flatnonzero(bodies.counts == 0)
        row_at = np.cumsum(np.maximum(bodies.counts, 1)) - 1
        for body in fragments:
            row = int(row_at[body])
            octets = bodies.octets[bodies.starts[body] : bodies.ends[body]].tobytes()
            found[row] = self._add((int(source[row]), int(incarnation[row])), octets, first + row)
        return found

    def _add(self, stream: tuple[int, int], body: bytes, sequence: int) -> bytes | None:
        if stream not in self._assemblers:
            if not _begins_message(body):
                return self._whole(body, sequence)
            if len(self._assemblers) == STREAMS_MAX:
                del self._assemblers[next(iter(self._assemblers))]
            self._assemblers[stream] = Assembler()
        return self._assemblers[stream].add(body)

    def _whole(self, body: bytes, sequence: int) -> bytes | None:
        """Reading began in the middle of this message: the journal looks back for it, once, when it is whole."""
        length, offset = int.from_bytes(body[:4]), int.from_bytes(body[4:_FRAGMENT_HEAD])
        if offset + len(body) - _FRAGMENT_HEAD != length:
            return None
        found = islice(self._journal.messages(from_sequence=sequence, to_sequence=sequence, ordered=True), 1)
        return next((message.payload for message in found), None)


def _begins_message(fragment: bytes) -> bool:
    """A fragment opens with the length of the whole and its own place in it; `fairtape.wire.blocks` writes both."""
    return fragment[4:_FRAGMENT_HEAD] == bytes(4)
