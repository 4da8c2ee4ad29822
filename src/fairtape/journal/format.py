"""The bytes of a journal. This module and `fairtape.core.entries` are normative; no file is touched here.

A journal is a directory of segments, each named for its first sequence number:

    0000000000000000001.segment
    ┌────────┬──────────────┬────────────┬────────────┬────────────┬──────────┬────────────┬──────────┬───
    │ header │ FORMATION(1) │ ORDERED(e) │ CHECKPOINT │ ORDERED(f) │ RELEASED │ ORDERED(g) │ RELEASED │ …
    └────────┴──────────────┴────────────┴────────────┴────────────┴─────(e)──┴────────────┴─────(f)──┴───

Every record is a head of `HEAD_SIZE` bytes with its own CRC, a body of the size that the head names, and a digest of 32
bytes. So a reader can scan heads without reading bodies, and a corrupted length is never mistaken for a record that is
still being written. The digest is SHA-256(previous ‖ head ‖ body). The kinds of records differ in `previous`:

    ORDERED, FORMATION  `fairtape.core.entries`: equal at every site, byte for byte. `previous` is the digest of the
                        entry before, of either kind, so that the last digest identifies the whole order; the first
                        entry of a journal continues GENESIS
    RELEASED(e)         this site's release mark of Msg(e); differs between sites. `previous` is the digest of the
                        site's mark before, so that an altered or removed mark is detected; the first continues
                        SHA-256(GENESIS ‖ site number)
    CHECKPOINT          the position of every source before this segment, and the last change of formation before it: a
                        writer that resumes need not read the whole journal. Derived from the order, outside its chain;
                        `previous` is the last digest before the segment. The body is the size of that change (4 bytes;
                        0 where there is none), the change as an entry, and per source, ascending: source 4,
                        incarnation 8, next number 8

The header names the stripe and the site, and repeats the journal's `Tip` before this segment, so that every segment can
be checked and ordered by itself. All records at one sequence number are in one segment: a new segment never begins
right after a FORMATION. So names are unique, and a segment is found by a sequence number.

A checkpoint is written once the disk has confirmed everything before its segment, and before the next segment begins
(the first segment of a journal needs none). So a power failure can tear the last segment, and the one before it only
while the last one has no checkpoint.

All integers are big-endian. Decoders raise `Malformed` and nothing else, whatever the bytes.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from fairtape.core.effects import FormationChange, Release
from fairtape.core.entries import (
    HEAD_SIZE,
    LAYOUT_MAX,
    Entry,
    Head,
    Position,
    close_head,
    decode_entry,
    decode_head,
    encode_entry,
    open_head,
)
from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.wire.frames import NUMBER_MAX, Malformed, NodeId

MAGIC: Final = b"FAIRTAPE"
VERSION: Final = 2
SUFFIX: Final = ".segment"
GENESIS: Final = bytes(32)
DIGEST_SIZE: Final = 32
SOURCES_MAX: Final = 1 << 20  # of one checkpoint

_RELEASED_KIND: Final = b"R"
_CHECKPOINT_KIND: Final = b"C"

_BEGIN: Final = struct.Struct(">8sH")  # magic and version: the same in every version
_HEADER: Final = struct.Struct(">8sHHIIqQQQQQ32s32s")
_OLDER_HEADER_SIZES: Final = {1: 80}
_CRC_SIZE: Final = 4
_RELEASED: Final = struct.Struct(">cBHIQQQQQ")
_CHECKPOINT: Final = struct.Struct(">cBHII36x")
_CHANGE_SIZE: Final = struct.Struct(">I")
_ROW: Final = struct.Struct(">IQQ")
_SITE: Final = struct.Struct(">I")

HEADER_SIZE: Final = _HEADER.size + _CRC_SIZE
MARK_SIZE: Final = HEAD_SIZE + DIGEST_SIZE
assert _RELEASED.size == _CHECKPOINT.size == HEAD_SIZE - _CRC_SIZE

Streams: TypeAlias = Mapping[NodeId, tuple[int, int]]
"""By source: its latest incarnation in the order, and the number of its next message."""


class Damaged(UserError):
    """A journal file fails a check: names the file, the byte, the first sequence number concerned and the reason."""

    def __init__(self, path: Path, offset: int, sequence: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {offset}, sequence {sequence}: {reason}")
        self.path = path
        self.offset = offset
        self.sequence = sequence
        self.reason = reason


class OtherVersion(Malformed):
    """A segment in another version of the format."""


class Tip(NamedTuple):
    """The end of a journal: what the next entry and the next release mark must continue."""

    formation: int  # of the last entry; may be -1 before the first
    token: int  # the order is complete up to this one
    sequence: int  # of the next message
    latest_at: Instant  # the latest t_e so far: tokens of one loop are scheduled, those of RMP have their sites' clocks
    digest: bytes  # of the last entry
    released: int  # the number at which the next release mark begins
    released_token: int  # of the last release mark; of the beginning while there is none
    marks: bytes  # the digest of the last release mark

    @classmethod
    def before(cls, entry: Entry, site: NodeId) -> "Tip":
        """The tip of this site's journal before its first entry."""
        token, sequence = entry.token - 1, entry.sequence
        return cls(entry.formation - 1, token, sequence, 0, GENESIS, sequence, token, first_mark(site))

    @property
    def position(self) -> Position:
        return Position(self.formation, self.token)

    def after_messages(
        self, *, formation: int, token: int, sequence: int, end: int, acknowledged_at: Instant, digest: bytes
    ) -> "Tip":
        """The tip after Msg(e)."""
        if sequence != self.sequence:
            raise Malformed(f"an entry begins with sequence {sequence}; {self.sequence} is next")
        if token <= self.token:
            raise Malformed(f"token {token} after token {self.token}")
        if formation != self.formation and self.digest != GENESIS:
            raise Malformed(f"a token of formation {formation} while formation {self.formation} is in force")
        latest_at = max(self.latest_at, acknowledged_at)
        return Tip(formation, token, end, latest_at, digest, self.released, self.released_token, self.marks)

    def after_formation(self, *, formation: int, token: int, sequence: int, digest: bytes) -> "Tip":
        """The tip after a change of formation: the order is complete up to its first token, and gains no message."""
        if sequence != self.sequence:
            raise Malformed(f"a formation begins with sequence {sequence}; {self.sequence} is next")
        if token <= self.token:
            raise Malformed(f"a formation begins with token {token} after token {self.token}")
        if formation <= self.formation:
            raise Malformed(f"formation {formation} after formation {self.formation}")
        return self._replace(formation=formation, token=token - 1, digest=digest)

    def after_entry(self, head: Head, digest: bytes) -> "Tip":
        """The tip after the entry with this head."""
        if head.changes_formation:
            return self.after_formation(
                formation=head.formation, token=head.token, sequence=head.sequence, digest=digest
            )
        return self.after_messages(
            formation=head.formation,
            token=head.token,
            sequence=head.sequence,
            end=head.end,
            acknowledged_at=head.instant,
            digest=digest,
        )

    def after_release(self, mark: Release, digest: bytes) -> "Tip":
        """The tip after this release mark."""
        end = mark.sequence + mark.count
        if mark.sequence != self.released:
            raise Malformed(f"a release mark begins with sequence {mark.sequence}; {self.released} is next")
        if end > self.sequence:
            raise Malformed(f"a release mark reaches sequence {end - 1}; nothing is ordered from {self.sequence} on")
        return Tip(*self[:5], end, mark.token, digest)


class Owner(NamedTuple):
    """The stripe and the site of a journal."""

    stripe: int
    site: NodeId

    def __str__(self) -> str:
        return f"stripe {self.stripe} of site {self.site}"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The beginning of a segment: its owner, and the journal's tip before it."""

    stripe: int
    site: NodeId
    number: int  # of the segment, from 0
    tip: Tip

    @property
    def owner(self) -> Owner:
        return Owner(self.stripe, self.site)

    @property
    def has_valid_start(self) -> bool:
        """Whether a first segment continues nothing, as it must. Always true of later segments."""
        return self.number > 0 or (self.tip.digest, self.tip.marks) == (GENESIS, first_mark(self.site))


@dataclass(frozen=True, slots=True)
class SegmentCheckpoint:
    """The position of every source, and the formation in force, before a segment."""

    streams: Streams
    change: FormationChange | None


class CheckpointHead(NamedTuple):
    """The decoded head of a checkpoint record."""

    sources: int
    size: int  # bytes between this head and the digest


Record: TypeAlias = Head | Release | CheckpointHead


def stored_size(record: Record) -> int:
    """The size of a record in its segment, in bytes."""
    return MARK_SIZE if isinstance(record, Release) else MARK_SIZE + record.size


def segment_name(sequence: int) -> str:
    """The name of the segment that begins with this sequence number. Names sort like numbers."""
    return f"{sequence:019d}{SUFFIX}"


def sequence_of(name: str) -> int | None:
    """The sequence number in a segment's name; None for any other file."""
    digits = name.removesuffix(SUFFIX)
    if len(digits) == 19 and digits.isascii() and digits.isdigit() and name == segment_name(int(digits)):
        return int(digits)
    return None


def link(previous: bytes, encoded: bytes) -> bytes:
    """SHA-256(previous ‖ encoded)."""
    state = hashlib.sha256(previous)
    state.update(encoded)
    return state.digest()


def first_mark(site: NodeId) -> bytes:
    """The digest that the first release mark of a site continues."""
    return link(GENESIS, _SITE.pack(site))


def encode_header(header: SegmentHeader) -> bytes:
    """The header of a segment as bytes."""
    tip = header.tip
    return close_head(
        _HEADER.pack(
            MAGIC,
            VERSION,
            header.stripe,
            header.site,
            header.number,
            tip.formation,
            tip.token,
            tip.sequence,
            tip.latest_at,
            tip.released,
            tip.released_token,
            tip.digest,
            tip.marks,
        )
    )


def decode_header(data: bytes) -> SegmentHeader:
    """The header in a segment's first bytes. Raises `OtherVersion`, or `Malformed`."""
    if data[: len(MAGIC)] != MAGIC or len(data) < _BEGIN.size:
        raise Malformed("this is not a segment of a fairtape journal")
    _, version = _BEGIN.unpack_from(data)
    if version != VERSION:
        _check_older(data, version)
    fields = _HEADER.unpack(open_head(data, _HEADER.size, "the segment header"))
    _, _, stripe, site, number, formation, token, sequence, latest_at, released, released_token, digest, marks = fields
    if formation < -1 or not sequence or max(token, sequence, latest_at, released, released_token) > NUMBER_MAX:
        raise Malformed("the numbers of a segment header are out of bounds")
    tip = Tip(formation, token, sequence, latest_at, digest, released, released_token, marks)
    return SegmentHeader(stripe, site, number, tip)


def _check_older(data: bytes, version: int) -> None:
    """Distinguish an older version from a corrupted version number: an older header has a valid checksum."""
    size = _OLDER_HEADER_SIZES.get(version)
    if size is not None:
        open_head(data[: size + _CRC_SIZE], size, "the segment header")
        raise OtherVersion(f"journal version {version}; this program reads version {VERSION}")
    raise Malformed(f"the segment header has the unknown version {version}")


def encode_release(release: Release) -> bytes:
    """A release mark, without its digest."""
    return close_head(
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


def encode_checkpoint(checkpoint: SegmentCheckpoint) -> bytes:
    """A checkpoint, without its digest."""
    change = encode_entry(checkpoint.change) if checkpoint.change else b""
    rows = [_ROW.pack(source, *stream) for source, stream in sorted(checkpoint.streams.items())]
    assert len(rows) <= SOURCES_MAX
    body = b"".join((_CHANGE_SIZE.pack(len(change)), change, *rows))
    return close_head(_CHECKPOINT.pack(_CHECKPOINT_KIND, 0, 0, len(rows), len(body))) + body


def is_mark(head: bytes) -> bool:
    """Whether these bytes are a release mark with a valid checksum; its fields are not checked."""
    return head[:1] == _RELEASED_KIND and int.from_bytes(head[_RELEASED.size :]) == crc32(head[: _RELEASED.size])


def decode_record(data: bytes) -> Record:
    """The head of an entry or of a checkpoint, or a release mark: all have `HEAD_SIZE` bytes."""
    match data[:1]:
        case kind if kind == _RELEASED_KIND:
            return _decode_release(open_head(data, _RELEASED.size, "a release mark"))
        case kind if kind == _CHECKPOINT_KIND:
            return _decode_checkpoint_head(open_head(data, _CHECKPOINT.size, "a checkpoint"))
    return decode_head(data)


def _decode_release(head: bytes) -> Release:
    _, late, zero, count, token, sequence, commit_at, released_at, clock_bound = _RELEASED.unpack(head)
    if max(token, sequence + count, commit_at, released_at, clock_bound) > NUMBER_MAX:
        raise Malformed("the numbers of a release mark are out of bounds")
    if zero or late > 1 or not count or not sequence:
        raise Malformed("a release mark contradicts itself")
    return Release(token, sequence, count, commit_at, released_at, bool(late), clock_bound)


def _decode_checkpoint_head(head: bytes) -> CheckpointHead:
    _, zero, zeros, sources, size = _CHECKPOINT.unpack(head)
    change_size = size - _CHANGE_SIZE.size - sources * _ROW.size
    if zero or zeros or head != _CHECKPOINT.pack(_CHECKPOINT_KIND, 0, 0, sources, size):
        raise Malformed("a checkpoint contradicts itself")
    if sources > SOURCES_MAX or not 0 <= change_size <= HEAD_SIZE + LAYOUT_MAX:
        raise Malformed("a checkpoint of impossible size")
    return CheckpointHead(sources, size)


def decode_checkpoint(head: CheckpointHead, encoded: bytes) -> SegmentCheckpoint:
    """The checkpoint in its encoding, which begins with the bytes of `head`."""
    if len(encoded) != HEAD_SIZE + head.size:
        raise Malformed("a checkpoint does not have the size in its head")
    change_at = HEAD_SIZE + _CHANGE_SIZE.size
    (change_size,) = _CHANGE_SIZE.unpack_from(encoded, HEAD_SIZE)
    rows_at = change_at + change_size
    if rows_at + head.sources * _ROW.size != len(encoded):
        raise Malformed("a checkpoint has another size than its rows need")
    rows = list(_ROW.iter_unpack(encoded[rows_at:]))
    if any(one[0] >= other[0] for one, other in pairwise(rows)):
        raise Malformed("the sources of a checkpoint do not ascend")
    if any(not following or max(incarnation, following) > NUMBER_MAX for _, incarnation, following in rows):
        raise Malformed("the numbers of a checkpoint are out of bounds")
    change = decode_entry(encoded[change_at:rows_at]) if change_size else None
    if not isinstance(change, FormationChange | None):
        raise Malformed("a checkpoint holds an entry that is no formation")
    return SegmentCheckpoint({source: (incarnation, following) for source, incarnation, following in rows}, change)
