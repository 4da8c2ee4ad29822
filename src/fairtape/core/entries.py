"""Entries: the order as bytes, in one canonical encoding that is identical at every site.

An entry is Msg(e), the messages that one token ordered, or a change of formation, which has no messages and uses no
sequence numbers. Journals chain these bytes, and a site that catches up receives them unchanged. So decoding trusts
nothing: it raises `Malformed` and nothing else, and its time and memory are bounded by the size of its input.

Both kinds begin with a head of fixed size that ends with its own CRC, so that a reader can skip from entry to entry:

    kind 1, flags 1, stripe 2, formation 4, spans 4, bodies 4, size 4, messages 4, token 8, sequence 8, instant 8, CRC 4

    ORDERED(e)    `O`   instant is t_e. `size` bytes follow:
                        spans     source 4, incarnation 8, first number 8, count 4, first sequence 8, bodies 4; each
                        sizes     one u16 per body
                        counts    one u16 per body: its messages, or 0 for a fragment (which counts as one)
                        bodies    the decrypted block bodies, back to back
    FORMATION(f)  `F`   instant is its start; token and sequence are its first ones; flag 1 is a Break; spans,
                        bodies and messages are 0. `size` bytes of layout follow, which are opaque here

All integers are big-endian. Every entry has exactly one valid encoding.
"""

import struct
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.core.instants import Instant
from fairtape.wire.frames import COUNT_MAX, NUMBER_MAX, Malformed

Entry: TypeAlias = Ordered | FormationChange

BODY_MAX: Final = (1 << 16) - 1
ENTRY_MAX: Final = 1 << 30  # bytes of one token's messages; far above one second of a fast network
LAYOUT_MAX: Final = 4 << 10

ORDERED_KIND: Final = ord("O")
FORMATION_KIND: Final = ord("F")
_BROKEN: Final = 1

_CRC: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">BBHIIIIIQQQ")
_SPAN: Final = struct.Struct(">IQQIQI")
_PER_BODY: Final = 4  # a size and a count

HEAD_SIZE: Final = _HEAD.size + _CRC.size


class Position(NamedTuple):
    """A position in the order. Positions ascend strictly from entry to entry, over all formations."""

    formation: int
    token: int  # the last token up to this position


class Head(NamedTuple):
    """The head of an entry: all that an index needs, and the size of the rest. A tuple, because scans create many."""

    kind: int
    broken: bool
    stripe: int
    formation: int
    span_count: int
    body_count: int
    size: int  # bytes after this head
    messages: int
    token: int  # e, or the first one of the formation
    sequence: int
    instant: Instant  # t_e, or when the formation starts

    @property
    def encoded_size(self) -> int:
        """The size of the whole entry in bytes."""
        return HEAD_SIZE + self.size

    @property
    def end(self) -> int:
        """The sequence number after the last one."""
        return self.sequence + self.messages

    @property
    def changes_formation(self) -> bool:
        """Whether the entry is a change of formation."""
        return self.kind == FORMATION_KIND

    @property
    def position(self) -> Position:
        """The position after this entry."""
        return Position(self.formation, self.token - self.changes_formation)


class EntryChunk(NamedTuple):
    """One chunk of an entry, as a site that catches up receives it."""

    after: Position  # the position before the entry
    chunk: int
    chunks: int  # of the entry
    check: int  # equal for equal entries: two entries may follow one position
    data: bytes


class Extract(NamedTuple):
    """Chunks of consecutive entries of a journal."""

    chunks: list[EntryChunk]
    end: Position  # everything up to it was read or skipped
    counted: int  # chunks between the position that was asked for and `end`
    exhausted: bool  # nothing follows in the journal


def chunks_of(size: int, chunk_size: int) -> int:
    """The number of chunks of an entry of `size` bytes."""
    return -(-size // chunk_size)


def position_of(entry: Entry) -> Position:
    """The position after this entry. A change of formation comes before the first of its tokens."""
    return Position(entry.formation, entry.token - isinstance(entry, FormationChange))


def encode_entry(entry: Entry) -> bytes:
    return _encode_ordered(entry) if isinstance(entry, Ordered) else _encode_change(entry)


def decode_entry(encoded: bytes) -> Entry:
    return decode_body(decode_head(encoded[:HEAD_SIZE]), encoded)


def close_head(head: bytes) -> bytes:
    """Append the CRC to a head."""
    return head + _CRC.pack(crc32(head))


def open_head(data: bytes, size: int, what: str) -> bytes:
    """The first `size` bytes of `data`, verified by the CRC after them; `what` names the data in errors."""
    if len(data) != size + _CRC.size:
        raise Malformed(f"{what} is truncated")
    head = data[:size]
    if _CRC.unpack_from(data, size)[0] != crc32(head):
        raise Malformed(f"the checksum of {what} is wrong")
    return head


def decode_head(data: bytes) -> Head:
    """Decode the head of an entry and check its fields."""
    head = open_head(data, _HEAD.size, "the head of an entry")
    kind, flags, stripe, formation, spans, bodies, size, messages, token, sequence, instant = _HEAD.unpack(head)
    if not token or not sequence or max(token, sequence + messages, instant) > NUMBER_MAX:
        raise Malformed("an entry's numbers are out of bounds")
    if kind == ORDERED_KIND:
        if flags or not 1 <= spans <= bodies or not bodies <= messages <= bodies * COUNT_MAX:
            raise Malformed("the head of an entry contradicts itself")
        if not spans * _SPAN.size + bodies * (_PER_BODY + 1) <= size <= ENTRY_MAX:
            raise Malformed("the size of an entry is out of bounds")
    elif kind == FORMATION_KIND:
        if flags & ~_BROKEN or spans or bodies or messages or size > LAYOUT_MAX:
            raise Malformed("the head of a formation contradicts itself")
    else:
        raise Malformed(f"an entry has unknown kind {kind}")
    return Head(kind, flags == _BROKEN, stripe, formation, spans, bodies, size, messages, token, sequence, instant)


def decode_body(head: Head, encoded: bytes) -> Entry:
    """Decode an entry whose head is already decoded. `encoded` is the whole entry, including its head."""
    if len(encoded) != HEAD_SIZE + head.size:
        raise Malformed("the length of an entry differs from its head")
    if not head.changes_formation:
        return _decode_ordered(head, encoded)
    layout = encoded[HEAD_SIZE:]
    return FormationChange(head.stripe, head.formation, head.token, head.sequence, head.broken, layout, head.instant)


def _encode_change(change: FormationChange) -> bytes:
    assert len(change.layout) <= LAYOUT_MAX
    head = _HEAD.pack(
        FORMATION_KIND,
        _BROKEN * change.broken,
        change.stripe,
        change.formation,
        0,
        0,
        len(change.layout),
        0,
        change.token,
        change.sequence,
        change.installed_at,
    )
    return close_head(head) + change.layout


def _encode_ordered(ordered: Ordered) -> bytes:
    """Does no work per message, and little per body."""
    spans = ordered.spans
    bodies = list(chain.from_iterable(map(attrgetter("bodies"), spans)))
    sizes = list(map(len, bodies))
    assert min(sizes) > 0
    assert max(sizes) <= BODY_MAX
    counts = list(chain.from_iterable(map(_stored_counts, spans)))
    assert len(counts) == len(bodies)
    rows = b"".join(
        [_SPAN.pack(s.source, s.incarnation, s.first, s.count, s.sequence, len(s.bodies)) for s in spans],
    )
    size = len(rows) + _PER_BODY * len(bodies) + sum(sizes)
    assert size <= ENTRY_MAX
    head = _HEAD.pack(
        ORDERED_KIND,
        0,
        ordered.stripe,
        ordered.formation,
        len(spans),
        len(bodies),
        size,
        ordered.count,
        ordered.token,
        ordered.sequence,
        ordered.acknowledged_at,
    )
    table = struct.pack(f">{2 * len(bodies)}H", *sizes, *counts)
    return b"".join((close_head(head), rows, table, *bodies))


def _stored_counts(span: Span) -> tuple[int, ...] | list[int]:
    assert span.count == sum(span.counts)
    assert 0 not in span.counts
    if not any(span.fragments):
        return span.counts
    # 0 is free to mean a fragment: no body is without messages, and a fragment counts as one.
    return [0 if fragment else count for count, fragment in zip(span.counts, span.fragments, strict=True)]


def _decode_ordered(head: Head, encoded: bytes) -> Ordered:
    table_at = HEAD_SIZE + head.span_count * _SPAN.size
    table = struct.unpack_from(f">{2 * head.body_count}H", encoded, table_at)
    sizes, stored_counts = table[: head.body_count], table[head.body_count :]
    position = table_at + _PER_BODY * head.body_count
    if not min(sizes) or position + sum(sizes) != len(encoded):
        raise Malformed("an entry's bodies do not fill it")
    bodies = []
    for size in sizes:
        bodies.append(encoded[position : position + size])
        position += size
    spans = _decode_spans(head, encoded[HEAD_SIZE:table_at], tuple(bodies), stored_counts)
    return Ordered(head.stripe, head.formation, head.token, head.sequence, head.messages, head.instant, tuple(spans))


def _decode_spans(head: Head, rows: bytes, bodies: tuple[bytes, ...], stored_counts: tuple[int, ...]) -> list[Span]:
    spans = []
    sequence, at = head.sequence, 0
    for source, incarnation, first, count, span_sequence, body_count in _SPAN.iter_unpack(rows):
        stored = stored_counts[at : at + body_count]
        counts = tuple(stored_count or 1 for stored_count in stored)
        fragments = tuple(not stored_count for stored_count in stored) if 0 in stored else ()
        if not first or max(incarnation, first + count) > NUMBER_MAX:
            raise Malformed("an entry's numbers are out of bounds")
        if not body_count or len(stored) != body_count or span_sequence != sequence or sum(counts) != count:
            raise Malformed("an entry's spans contradict themselves")
        chunk = bodies[at : at + body_count]
        spans.append(Span(source, incarnation, first, count, span_sequence, chunk, counts, fragments))
        sequence += count
        at += body_count
    if at != len(bodies) or sequence != head.end:
        raise Malformed("an entry's spans do not fill it")
    return spans
