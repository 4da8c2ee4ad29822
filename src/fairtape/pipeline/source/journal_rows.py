"""Rows of the data source: entries of an offset range as Arrow batches of the schemas in `fairtape.pipeline.schemas`.

Entries are checked against the hash chain and joined with their release marks. Heads are read one by one. Bodies are
decoded for many entries at once: the tables of all their spans and bodies are joined and processed as arrays, so no
step is taken per message.

Every number has one row. The fragments of a long message have numbers of their own, and the message is in the row of
the last one.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairtape.core.effects import FormationChange, Release
from fairtape.core.entries import HEAD_SIZE, Head, decode_body
from fairtape.core.instants import NEVER
from fairtape.core.spans import MessageAssembler
from fairtape.formats.byte_columns import Values
from fairtape.journal import Damaged, JournalReader
from fairtape.journal.format import HEADER_SIZE
from fairtape.journal.segments import Place, RecordScanner
from fairtape.market.trades import TRADE_DTYPE, TRADE_KIND, TRADE_SIZE, TRADE_VERSION, BadTrade, Trades, records
from fairtape.pipeline.schemas import BREAK, FORMATION, FRAGMENT, MESSAGE, MESSAGES, OFFSET_RANGES, TRADES, Arrow
from fairtape.pipeline.source.options import JournalSourceOptions
from fairtape.pipeline.source.partitions import OffsetRange
from fairtape.tape.batches import fixed_names, symbol_set
from fairtape.wire.frames import Malformed

_NO_RELEASE: Final = Release(0, 0, 0, 0, 0, late=False, clock_bound=0)

ENTRY_BATCH_ROWS_MAX: Final = 1 << 16  # messages that are decoded together, without the rest of the last token

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
    """An entry whose digest was checked, with the site's release mark."""

    head: Head
    encoded: bytes
    place: Place
    release: Release | None = None


class EntryBatch(NamedTuple):
    """The messages of consecutive entries as columns; an entry has `rows` of them."""

    entries: Sequence[ScannedEntry]
    rows: Values  # of each entry
    sequence: Values
    source: Values
    incarnation: Values
    source_number: Values
    sizes: Values  # of each payload
    payloads: Values  # their bytes, concatenated
    parts: Values  # the rows of fragments that are not the last of their message; they have no payload


def batches(offset_range: OffsetRange, options: JournalSourceOptions) -> Iterator[Arrow]:
    """The chosen rows of an offset range, as record batches of the schema that `options.rows` names."""
    for found in _scan(offset_range, ordered=options.ordered):
        if not isinstance(found, FormationChange):
            batch = _rows_of(found, offset_range, options)
            if batch.num_rows:
                yield batch
        elif options.rows == "messages" and options.symbols is None and _is_chosen(found, offset_range, options):
            yield _change(found, offset_range)


def offset_ranges_batch(task: int, offset_ranges: Sequence[OffsetRange]) -> Arrow:
    """The offset ranges of a task as one batch of OFFSET_RANGES."""
    rows = [{"task": task, **{name: getattr(each, name) for name in OFFSET_RANGES.names[1:]}} for each in offset_ranges]
    return pa.RecordBatch.from_pylist(rows, schema=OFFSET_RANGES)


def offset_range_of(row: dict[str, Any]) -> OffsetRange:
    """The offset range of a row of OFFSET_RANGES."""
    return OffsetRange(**{name: row[name] for name in OFFSET_RANGES.names[1:]})


def _rows_of(entry_batch: EntryBatch, offset_range: OffsetRange, options: JournalSourceOptions) -> Arrow:
    chosen = _chosen(entry_batch, offset_range, options)
    if options.rows == "messages":
        columns = _places(entry_batch, offset_range) | _contents(entry_batch)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in MESSAGES.names], schema=MESSAGES)
        if options.symbols is not None:
            chosen, _ = _trades(entry_batch, chosen, options.symbols)
        return batch if chosen.all() else batch.filter(pa.array(chosen))
    chosen, trades = _trades(entry_batch, chosen, options.symbols)
    places = pa.RecordBatch.from_pydict(_places(entry_batch, offset_range))
    places = places if chosen.all() else places.filter(pa.array(chosen))
    columns = dict(zip(places.schema.names, places.columns, strict=True)) | trade_columns(trades)
    return pa.RecordBatch.from_arrays([columns[name] for name in TRADES.names], schema=TRADES)


def _chosen(entry_batch: EntryBatch, offset_range: OffsetRange, options: JournalSourceOptions) -> Values:
    """Which rows are within the ranges. A token may begin before an offset range and end after it."""
    chosen = (entry_batch.sequence >= offset_range.first) & (entry_batch.sequence < offset_range.end)
    if options.since is not None or options.until is not None:
        at = np.repeat([found.head.instant for found in entry_batch.entries], entry_batch.rows)
        chosen &= (at >= (options.since or 0)) & (at < (NEVER if options.until is None else options.until))
    return chosen


def _is_chosen(change: FormationChange, offset_range: OffsetRange, options: JournalSourceOptions) -> bool:
    """A change belongs to the number that follows it, and is read together with it."""
    until = NEVER if options.until is None else options.until
    return (
        offset_range.first <= change.sequence < offset_range.end and (options.since or 0) <= change.installed_at < until
    )


def _places(entry_batch: EntryBatch, offset_range: OffsetRange) -> dict[str, Arrow]:
    """The columns with the place of messages in the order and with their times."""
    heads = [found.head for found in entry_batch.entries]
    total = len(entry_batch.sequence)
    columns = {
        "stripe": pa.array(np.full(total, offset_range.stripe, np.int32)),
        "site": pa.array(np.full(total, offset_range.site)),
        "formation": _spread([head.formation for head in heads], entry_batch),
        "token": _spread([head.token for head in heads], entry_batch),
        "sequence": pa.array(entry_batch.sequence),
        "source": pa.array(entry_batch.source),
        "incarnation": pa.array(entry_batch.incarnation),
        "source_number": pa.array(entry_batch.source_number),
        "acknowledged_at_ns": _spread([head.instant for head in heads], entry_batch),
    }
    marks = [found.release or _NO_RELEASE for found in entry_batch.entries]
    unreleased = _spread_values([found.release is None for found in entry_batch.entries], entry_batch)
    mask = unreleased if unreleased.any() else None
    columns["commit_at_ns"] = _spread([mark.commit_at for mark in marks], entry_batch, mask)
    columns["released_at_ns"] = _spread([mark.released_at for mark in marks], entry_batch, mask)
    columns["late"] = _spread([mark.late for mark in marks], entry_batch, mask)
    columns["clock_bound_ns"] = _spread([mark.clock_bound for mark in marks], entry_batch, mask)
    return columns


def _spread_values(values: Sequence[int | bool], entry_batch: EntryBatch) -> Values:
    return np.repeat(np.array(values), entry_batch.rows)


def _spread(values: Sequence[int | bool], entry_batch: EntryBatch, mask: Values | None = None) -> Arrow:
    """A value of each entry, repeated for each of its messages."""
    return pa.array(_spread_values(values, entry_batch), mask=mask)


def _contents(entry_batch: EntryBatch) -> dict[str, Arrow]:
    """The kind of each message and its bytes, which are not copied."""
    offsets = np.zeros(len(entry_batch.sizes) + 1, np.int32)
    np.cumsum(entry_batch.sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(entry_batch.payloads)]
    payload = pa.Array.from_buffers(pa.binary(), len(entry_batch.sizes), buffers)
    kinds = np.zeros(len(entry_batch.sizes), np.int8)
    if len(entry_batch.parts):
        kinds[entry_batch.parts] = 1
        payload = pc.if_else(pa.array(kinds == 0), payload, pa.scalar(None, pa.binary()))
    return {"kind": pa.array([MESSAGE, FRAGMENT]).take(pa.array(kinds)), "payload": payload}


def _trades(entry_batch: EntryBatch, chosen: Values, symbols: Sequence[str] | None) -> tuple[Values, Trades]:
    """Which of the chosen rows are trades of these symbols, and those trades."""
    sized = entry_batch.sizes == TRADE_SIZE
    octets = entry_batch.payloads if sized.all() else entry_batch.payloads[np.repeat(sized, entry_batch.sizes)]
    found, trades = valid_trades(octets)
    rows = sized
    if not found.all():
        rows = sized.copy()
        rows[sized] = found
    wanted = chosen[rows]
    if symbols is not None:
        wanted &= pc.is_in(fixed_names(trades["symbol"]), value_set=symbol_set(symbols)).to_numpy(zero_copy_only=False)
    if wanted.all():
        return rows, trades
    rows = rows.copy()
    rows[rows] = wanted
    return rows, trades[wanted]


def valid_trades(octets: Values) -> tuple[Values, Trades]:
    """Which of these records are trades, and the trades. Usually all of them are."""
    candidates = octets.view(TRADE_DTYPE)
    found = (candidates["kind"] == TRADE_KIND) & (candidates["version"] == TRADE_VERSION)
    chosen = octets if found.all() else candidates[found].view(np.uint8)
    try:
        return found, records(chosen.data)
    except BadTrade:
        good = np.array([_is_trade(candidate.tobytes()) for candidate in candidates])
        return good, candidates[good]


def _is_trade(payload: bytes) -> bool:
    try:
        records(payload)
    except BadTrade:
        return False
    return True


def trade_columns(trades: Trades) -> dict[str, Arrow]:
    """The columns of trades."""
    return {
        "venue": _names_of(trades["venue"]),
        "symbol": _names_of(trades["symbol"]),
        "price": pa.array(trades["price"]),
        "quantity": pa.array(trades["quantity"]),
        "traded_at_ns": pa.array(trades["traded_at"]),
        "trade_id": pa.array(trades["trade_id"].view(np.int64)),
        "trade_flags": pa.array(trades["flags"].astype(np.int32)),
    }


def _names_of(padded: Values) -> Arrow:
    """Names as text. Each distinct name is decoded once: a batch has few of them, repeated often."""
    coded = fixed_names(padded).dictionary_encode()
    texts = [name.rstrip(b"\0").decode("ascii") for name in coded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(coded.indices)


def _change(change: FormationChange, offset_range: OffsetRange) -> Arrow:
    """A change of formation as a batch of one row of MESSAGES."""
    row = {
        "stripe": offset_range.stripe,
        "site": offset_range.site,
        "formation": change.formation,
        "token": change.token,
        "sequence": change.sequence,
        "kind": BREAK if change.broken else FORMATION,
        "acknowledged_at_ns": change.installed_at,
        "payload": change.layout,
    }
    return pa.RecordBatch.from_pylist([row], schema=MESSAGES)


def _scan(offset_range: OffsetRange, *, ordered: bool = False) -> Iterator[EntryBatch | FormationChange]:
    """Everything in an offset range, from the entry with its first number to the one with its last."""
    assembly = _Assembly(offset_range)
    waiting: list[ScannedEntry] = []
    rows = 0
    for found in entries_of(offset_range, ordered=ordered):
        changes_formation = found.head.changes_formation
        if waiting and (changes_formation or rows >= ENTRY_BATCH_ROWS_MAX):
            yield _entry_batch(waiting, assembly)
            waiting, rows = [], 0
        if changes_formation:
            change = decode_body(found.head, found.encoded)
            assert isinstance(change, FormationChange)
            yield change
        else:
            waiting.append(found)
            rows += found.head.messages
    if waiting:
        yield _entry_batch(waiting, assembly)


def entries_of(offset_range: OffsetRange, *, ordered: bool = False) -> Iterator[ScannedEntry]:
    """Entries with their release marks, which are written later, perhaps in the next segment."""
    entries: deque[ScannedEntry] = deque()
    reached = offset_range.sequence
    for found in _records(offset_range):
        if isinstance(found, ScannedEntry):
            entries.append(found)
            reached = found.head.end
            continue
        while entries and entries[0].head.changes_formation and entries[0].head.sequence <= found.sequence:
            yield entries.popleft()
        if entries and found.sequence >= entries[0].head.sequence:
            yield _joined(entries.popleft(), found)
    if reached < offset_range.end:
        raise _missing(offset_range, reached, "the journal ends before numbers that it had")
    if entries and not ordered:
        raise _missing(offset_range, entries[0].head.sequence, "it has no release mark, though there was one")
    yield from entries


def _records(offset_range: OffsetRange) -> Iterator[ScannedEntry | Release]:
    """Every entry of an offset range, and the release marks up to that of the last entry, if there are any.

    Each record is checked to continue the chain. Where reading begins within a segment, the first mark is not checked:
    the digest before it is unknown.
    """
    previous = offset_range.previous
    scanner = RecordScanner(offset_range.place, offset_range.name.owner)
    marks = scanner.segment.header.tip.marks if offset_range.offset == HEADER_SIZE else b""
    try:
        while (step := scanner.next_record()) is not None:
            offset, record = step
            if isinstance(record, Release):
                marks = scanner.segment.mark_digest(offset, record, marks)
                yield record
                if record.sequence + record.count >= offset_range.end:
                    return
            elif isinstance(record, Head) and record.sequence < offset_range.end:
                place = Place(scanner.segment.path, offset, record.sequence, previous)
                encoded, previous = scanner.segment.encoded(offset, record, previous, record.sequence)
                if offset_range.digest and record.end == offset_range.end and previous.hex() != offset_range.digest:
                    raise scanner.damaged(offset, "this is another entry than when the read was planned")
                yield ScannedEntry(record, encoded, place)
    finally:
        scanner.close()


def _joined(found: ScannedEntry, mark: Release) -> ScannedEntry:
    head = found.head
    if (mark.token, mark.sequence, mark.count) != (head.token, head.sequence, head.messages):
        path, offset, sequence, _ = found.place
        raise Damaged(path, offset, sequence, "its release mark names another token or count")
    return found._replace(release=mark)


def _missing(offset_range: OffsetRange, sequence: int, reason: str) -> Damaged:
    return Damaged(offset_range.place.path, offset_range.offset, sequence, reason)


class _Bodies(NamedTuple):
    """The bodies of several entries, concatenated."""

    octets: Values
    starts: Values
    ends: Values
    counts: Values  # messages of each; 0 for a fragment

    def header_sizes(self) -> tuple[Values, Values]:
        """For each body: the size of its messages (0 where sizes differ), and the bytes before its first message."""
        fragments = self.counts == 0
        first = np.minimum(self.starts + 1, len(self.octets) - 1)
        uniform = (self.octets[self.starts].astype(np.int64) << 8) | self.octets[first]
        uniform[fragments] = 0
        heads = np.where(uniform > 0, _SIZE, _SIZE * (1 + self.counts))
        return uniform, np.where(fragments, self.ends - self.starts, heads)


def _entry_batch(entries: Sequence[ScannedEntry], assembly: "_Assembly") -> EntryBatch:
    """The messages of these entries as columns."""
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
    """The rows of all spans, and all bodies, checked against the heads of all entries at once."""
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
    """Whether spans and bodies account for every message of their entries."""
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
    """The error that names the first entry whose body contradicts its head. Rare, so entries are decoded one by one."""
    for head, encoded, (path, offset, sequence, _), _ in entries:
        try:
            decode_body(head, encoded)
        except Malformed as error:
            return Damaged(path, offset, sequence, str(error))
    path, offset, sequence, _ = entries[0].place
    return Damaged(path, offset, sequence, "a body does not hold the messages that its entry counts")


def _fill_sizes(sizes: Values, bodies: _Bodies, uniform: Values, row_at: Values) -> None:
    """Read the tables of sizes that stand before messages of different sizes."""
    for body in np.flatnonzero((uniform == 0) & (bodies.counts > 0)):
        count, start = int(bodies.counts[body]), int(bodies.starts[body]) + _SIZE
        table = bodies.octets[start : start + _SIZE * count]
        if len(table) == _SIZE * count:
            sizes[row_at[body] : row_at[body] + count] = table.view(">u2")


def _with_long(sizes: Values, payloads: Values, long: dict[int, bytes | None]) -> tuple[Values, Values]:
    """Payloads and their sizes, with each long message in the place of its last fragment."""
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
    """The indices of all ranges, each given by its start and its length."""
    total = int(lengths.sum())
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(total)


class _Assembly:
    """Assembles long messages, also those whose first fragments are before the offset range."""

    def __init__(self, offset_range: OffsetRange) -> None:
        self._journal = JournalReader(offset_range.place.path.parent)
        self._assembler = MessageAssembler()

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
        if stream not in self._assembler and not _begins_message(body):
            return self._whole(body, sequence)
        return self._assembler.add(stream, body)

    def _whole(self, body: bytes, sequence: int) -> bytes | None:
        """A message in the middle of which reading began: read back from the journal at its last fragment."""
        length, offset = int.from_bytes(body[:4]), int.from_bytes(body[4:_FRAGMENT_HEAD])
        if offset + len(body) - _FRAGMENT_HEAD != length:
            return None
        found = islice(self._journal.messages(from_sequence=sequence, to_sequence=sequence, ordered=True), 1)
        return next((message.payload for message in found), None)


def _begins_message(fragment: bytes) -> bool:
    """A fragment begins with the length of the message and its offset in it, as `fairtape.wire.blocks` writes them."""
    return fragment[4:_FRAGMENT_HEAD] == bytes(4)
