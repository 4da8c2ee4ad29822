"""The bytes of a journal. This module is normative for them; it touches no file.

A journal is a directory of segments, each named for the first sequence number that it holds:

    0000000000000000001.segment
    ┌────────┬────────────┬────────────┬──────────┬────────────┬──────────┬───
    │ header │ ORDERED(e) │ ORDERED(f) │ RELEASED │ ORDERED(g) │ RELEASED │ …      f = the next token with messages
    └────────┴────────────┴────────────┴─────(e)──┴────────────┴─────(f)──┴───

ORDERED(e) is what token e put into the order. Its canonical encoding is the same at every site, byte for byte:

    head      kind, stripe, formation, counts, size, token, first sequence number, t_e; closed with its own CRC
    spans     source, incarnation, first number, count, first sequence number, bodies: one row per span
    sizes     one u16 per body
    counts    one u16 per body: its messages, or 0 for a fragment (which counts as one)
    bodies    the opened block bodies, back to back

and is followed by digest_e = SHA-256(digest_previous ‖ canonical encoding), so that the last digest of a journal speaks
for everything in it. RELEASED(e) is what one site did with it and differs between sites; it stands outside the chain,
under a CRC. Both heads have one size and a CRC of their own: a reader can hop from head to head without reading
bodies, and a length that a disk altered is never mistaken for an entry that is still being written.

All integers are big-endian. Decoders raise `Malformed` and nothing else, whatever the bytes.
"""

import hashlib
import struct
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from fairtape.core.effects import Ordered, Release, Span
from fairtape.core.instants import Instant
from fairtape.runtime.complaints import Complaint
from fairtape.wire.frames import COUNT_MAX, NUMBER_MAX, Malformed

MAGIC: Final = b"FAIRTAPE"
VERSION: Final = 1
SUFFIX: Final = ".segment"
GENESIS: Final = bytes(32)
DIGEST_SIZE: Final = 32
BODY_MAX: Final = (1 << 16) - 1
ENTRY_MAX: Final = 1 << 30  # bytes: one token's messages, far above what a second of a fast network brings

_ORDERED_KIND: Final = ord("O")
_RELEASED_KIND: Final = ord("R")

_CRC: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">8sHHIQQQQ32s")
_ORDERED: Final = struct.Struct(">BBHIIIIIQQQ")
_RELEASED: Final = struct.Struct(">BBHIQQQQQ")
_SPAN: Final = struct.Struct(">IQQIQI")
_PER_BODY: Final = 4  # a size and a count

HEADER_SIZE: Final = _HEADER.size + _CRC.size
HEAD_SIZE: Final = _ORDERED.size + _CRC.size
assert _ORDERED.size == _RELEASED.size


class Damaged(Complaint):
    """A journal that does not prove what it says: which file, at which byte, from which sequence number on, and why."""

    def __init__(self, path: Path, offset: int, sequence: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {offset}, sequence {sequence}: {reason}")
        self.path = path
        self.offset = offset
        self.sequence = sequence
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Header:
    """The beginning of a segment: enough to verify it alone, and its place in the chain."""

    stripe: int
    number: int  # of the segment, from 0
    token: int  # of the first entry
    sequence: int  # of the first entry
    released: int  # the sequence number at which the next release mark begins
    latest_at: Instant  # the latest t_e before this segment; 0 where there is none
    previous: bytes  # the digest of the last entry before this segment


class Head(NamedTuple):
    """The head of ORDERED(e): all that an index needs, and the size of the rest. A tuple: hops make many of them."""

    stripe: int
    formation: int
    span_count: int
    body_count: int
    size: int  # bytes between this head and the digest
    messages: int
    token: int
    sequence: int
    acknowledged_at: Instant

    @property
    def end(self) -> int:
        """The sequence number after the last one."""
        return self.sequence + self.messages

    @property
    def stored(self) -> int:
        """Bytes of the whole record."""
        return HEAD_SIZE + self.size + DIGEST_SIZE


Record: TypeAlias = Head | Release


class Tip(NamedTuple):
    """Where a journal stands: what the next entry and the next release mark must continue."""

    token: int  # the last one ordered
    sequence: int  # the number that the next message bears
    released: int  # the number at which the next release mark begins
    latest_at: Instant  # the latest t_e so far: tokens of one loop are scheduled, those of RMP bear their sites' clocks
    digest: bytes  # of the last entry

    @classmethod
    def at_start(cls, header: Header) -> "Tip":
        """Before the first entry of a segment."""
        return cls(header.token - 1, header.sequence, header.released, header.latest_at, header.previous)

    def ordered(self, *, token: int, sequence: int, end: int, acknowledged_at: Instant, digest: bytes) -> "Tip":
        """After this entry."""
        if sequence != self.sequence:
            raise Malformed(f"an entry begins with sequence {sequence}, and {self.sequence} is next")
        if token <= self.token:
            raise Malformed(f"token {token} after token {self.token}")
        return Tip(token, end, self.released, max(self.latest_at, acknowledged_at), digest)

    def release(self, mark: Release) -> "Tip":
        """After this release mark."""
        end = mark.sequence + mark.count
        if mark.sequence != self.released:
            raise Malformed(f"a release mark begins with sequence {mark.sequence}, and {self.released} is next")
        if end > self.sequence:
            raise Malformed(
                f"a release mark reaches sequence {end - 1}, and nothing is ordered from {self.sequence} on"
            )
        return Tip(self.token, self.sequence, end, self.latest_at, self.digest)


def segment_name(sequence: int) -> str:
    """The file that begins with this sequence number. Names sort as numbers do."""
    return f"{sequence:019d}{SUFFIX}"


def sequence_of(name: str) -> int | None:
    """The sequence number that a segment's name bears; None for any other file."""
    digits = name.removesuffix(SUFFIX)
    if len(digits) == 19 and digits.isascii() and digits.isdigit() and name == segment_name(int(digits)):
        return int(digits)
    return None


def link(previous: bytes, encoded: bytes) -> bytes:
    """digest_e = SHA-256(digest_previous ‖ canonical encoding)."""
    state = hashlib.sha256(previous)
    state.update(encoded)
    return state.digest()


def _close(head: bytes) -> bytes:
    return head + _CRC.pack(crc32(head))


def _opened(data: bytes, layout: struct.Struct, what: str) -> bytes:
    """The part of `data` that its CRC protects."""
    if len(data) != layout.size + _CRC.size:
        raise Malformed(f"{what} is cut short")
    head = data[: layout.size]
    if _CRC.unpack_from(data, layout.size)[0] != crc32(head):
        raise Malformed(f"the checksum of {what} is wrong")
    return head


def encode_header(header: Header) -> bytes:
    """The first bytes of a segment."""
    return _close(
        _HEADER.pack(
            MAGIC,
            VERSION,
            header.stripe,
            header.number,
            header.token,
            header.sequence,
            header.released,
            header.latest_at,
            header.previous,
        )
    )


def decode_header(data: bytes) -> Header:
    """The value of a segment's first bytes."""
    if data[: len(MAGIC)] != MAGIC:
        raise Malformed("this is not a segment of a fairtape journal")
    magic_and_rest = _HEADER.unpack(_opened(data, _HEADER, "the segment header"))
    _, version, stripe, number, token, sequence, released, latest_at, previous = magic_and_rest
    if version != VERSION:
        raise Malformed(f"journal version {version}; this program reads version {VERSION}")
    _check_numbers(token, sequence, released, latest_at)
    return Header(stripe, number, token, sequence, released, latest_at, previous)


def encode_ordered(ordered: Ordered) -> bytes:
    """The canonical encoding of Msg(e). No step of it is taken per message, and few per body."""
    spans = ordered.spans
    bodies = list(chain.from_iterable(map(attrgetter("bodies"), spans)))
    sizes = list(map(len, bodies))
    assert max(sizes) <= BODY_MAX
    counts = list(chain.from_iterable(map(_stored_counts, spans)))
    assert len(counts) == len(bodies)
    rows = b"".join(
        [_SPAN.pack(s.source, s.incarnation, s.first, s.count, s.sequence, len(s.bodies)) for s in spans],
    )
    size = len(rows) + _PER_BODY * len(bodies) + sum(sizes)
    assert size <= ENTRY_MAX
    head = _ORDERED.pack(
        _ORDERED_KIND,
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
    return b"".join((_close(head), rows, table, *bodies))


def _stored_counts(span: Span) -> tuple[int, ...] | list[int]:
    assert span.count == sum(span.counts)
    assert 0 not in span.counts
    if not any(span.fragments):
        return span.counts
    # 0 is free to mean a fragment: no body is without messages, and a fragment counts as one.
    return [0 if fragment else count for count, fragment in zip(span.counts, span.fragments, strict=True)]


def encode_release(release: Release) -> bytes:
    """One site's release mark."""
    return _close(
        _RELEASED.pack(
            _RELEASED_KIND,
            release.late,
            0,
            release.count,
            release.token,
            release.sequence,
            release.commit_at,
            release.released_at,
            release.clock_bound,
        )
    )


def decode_record(data: bytes) -> Record:
    """The head of an ordered entry, or a whole release mark: both are `HEAD_SIZE` bytes."""
    head = _opened(data, _ORDERED, "the head of an entry")
    match head[0]:
        case kind if kind == _ORDERED_KIND:
            return _decode_head(head)
        case kind if kind == _RELEASED_KIND:
            return _decode_release(head)
    raise Malformed(f"an entry of unknown kind {head[0]}")


def _decode_head(data: bytes) -> Head:
    _, zero, stripe, formation, spans, bodies, size, count, token, sequence, acknowledged_at = _ORDERED.unpack(data)
    _check_numbers(token, sequence + count, acknowledged_at)
    if zero or not 1 <= spans <= bodies or not sequence or not bodies <= count <= bodies * COUNT_MAX:
        raise Malformed("the head of an entry contradicts itself")
    if not spans * _SPAN.size + bodies * _PER_BODY <= size <= ENTRY_MAX:
        raise Malformed("an entry of impossible size")
    return Head(stripe, formation, spans, bodies, size, count, token, sequence, acknowledged_at)


def _decode_release(data: bytes) -> Release:
    _, late, zero, count, token, sequence, commit_at, released_at, clock_bound = _RELEASED.unpack(data)
    _check_numbers(token, sequence + count, commit_at, released_at, clock_bound)
    if zero or late > 1 or not count or not sequence:
        raise Malformed("a release mark contradicts itself")
    return Release(token, sequence, count, commit_at, released_at, bool(late), clock_bound)


def decode_ordered(head: Head, encoded: bytes) -> Ordered:
    """Msg(e) from its canonical encoding, which begins with the bytes of `head`."""
    table_at = HEAD_SIZE + head.span_count * _SPAN.size
    table = struct.unpack_from(f">{2 * head.body_count}H", encoded, table_at)
    sizes, stored_counts = table[: head.body_count], table[head.body_count :]
    position = table_at + _PER_BODY * head.body_count
    if position + sum(sizes) != len(encoded):
        raise Malformed("an entry's bodies do not fill it")
    bodies = []
    for size in sizes:
        bodies.append(encoded[position : position + size])
        position += size
    spans = _decode_spans(head, encoded[HEAD_SIZE:table_at], tuple(bodies), stored_counts)
    return Ordered(
        head.stripe, head.formation, head.token, head.sequence, head.messages, head.acknowledged_at, tuple(spans)
    )


def _decode_spans(head: Head, rows: bytes, bodies: tuple[bytes, ...], stored_counts: tuple[int, ...]) -> list[Span]:
    spans = []
    sequence, at = head.sequence, 0
    for source, incarnation, first, count, span_sequence, body_count in _SPAN.iter_unpack(rows):
        stored = stored_counts[at : at + body_count]
        counts = tuple(stored_count or 1 for stored_count in stored)
        fragments = tuple(not stored_count for stored_count in stored) if 0 in stored else ()
        _check_numbers(incarnation, first + count)
        if not body_count or len(stored) != body_count or span_sequence != sequence or sum(counts) != count:
            raise Malformed("an entry's spans contradict themselves")
        chunk = bodies[at : at + body_count]
        spans.append(Span(source, incarnation, first, count, span_sequence, chunk, counts, fragments))
        sequence += count
        at += body_count
    if at != len(bodies) or sequence != head.end:
        raise Malformed("an entry's spans do not fill it")
    return spans


def _check_numbers(*numbers: int) -> None:
    if max(numbers) > NUMBER_MAX:
        raise Malformed("a number out of bounds")
