"""The bytes of a journal. This module is normative for them, with `fairtape.core.entries`; it touches no file.

A journal is a directory of segments, each named for the first sequence number that it holds:

    0000000000000000001.segment
    ┌────────┬──────────────┬────────────┬────────────┬────────────┬──────────┬────────────┬──────────┬───
    │ header │ FORMATION(1) │ ORDERED(e) │ CHECKPOINT │ ORDERED(f) │ RELEASED │ ORDERED(g) │ RELEASED │ …
    └────────┴──────────────┴────────────┴────────────┴────────────┴─────(e)──┴────────────┴─────(f)──┴───

Every record is a head of `HEAD_SIZE` bytes under its own CRC, what the head announces, and a digest of 32 bytes. So a
reader can hop from record to record without reading bodies, and a length that a disk altered is never mistaken for a
record that is still being written. The digest is SHA-256(previous ‖ head ‖ rest); what `previous` is makes the kinds:

    ORDERED, FORMATION  `fairtape.core.entries`: equal at every site, byte for byte. `previous` is the digest of the
                        entry before, of either kind, so that the last one speaks for the whole order; the first of a
                        journal continues GENESIS
    RELEASED(e)         what this site did with Msg(e); differs between sites. `previous` is the digest of the site's
                        mark before, so that no mark is altered or taken out unseen; the first continues
                        SHA-256(GENESIS ‖ site number)
    CHECKPOINT          where the order had left every source before this segment, and the last change of formation
                        before it: what a writer has to know to go on, so that it need not read the whole journal.
                        Derived from the order, outside its chain; `previous` is the last digest before the segment.
                        Its body is the size of that change (4; 0 where there is none), the change as an entry, and per
                        source, ascending: source 4, incarnation 8, next number 8

The header says whose journal it is and repeats where it stood before this segment (`Tip`), so that every segment can
be proved alone and put into its place. What stands at one sequence number stands in one segment: a new one never
begins right after a FORMATION, so names are unique and a place is found by its number.

A checkpoint is written once the disk has confirmed everything before its segment, and a segment has its checkpoint
before the next one begins (the first segment of all needs none). So a power failure can tear the last segment, and the
one before it only while the last one has no checkpoint.

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
SOURCES_MAX: Final = 1 << 20  # whose place in the order is kept

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
"""Of each source: its latest incarnation in the order, and the number of its next message."""


class Damaged(UserError):
    """A journal that does not prove what it says: which file, at which byte, from which sequence number on, and why."""

    def __init__(self, path: Path, offset: int, sequence: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {offset}, sequence {sequence}: {reason}")
        self.path = path
        self.offset = offset
        self.sequence = sequence
        self.reason = reason


class OtherVersion(Malformed):
    """A segment that another release of this program wrote."""


class Tip(NamedTuple):
    """Where a journal stands: what the next entry and the next release mark must continue."""

    formation: int  # of the last entry; may be -1 before the first
    token: int  # the order is held up to this one
    sequence: int  # the number that the next message bears
    latest_at: Instant  # the latest t_e so far: tokens of one loop are scheduled, those of RMP bear their sites' clocks
    digest: bytes  # of the last entry
    released: int  # the number at which the next release mark begins
    released_token: int  # of the last release mark; of the beginning while there is none
    marks: bytes  # the digest of the last release mark

    @classmethod
    def before(cls, entry: Entry, site: NodeId) -> "Tip":
        """Where a journal of this site begins whose first entry this is."""
        token, sequence = entry.token - 1, entry.sequence
        return cls(entry.formation - 1, token, sequence, 0, GENESIS, sequence, token, first_mark(site))

    @property
    def position(self) -> Position:
        """Of the last entry."""
        return Position(self.formation, self.token)

    def ordered(
        self, *, formation: int, token: int, sequence: int, end: int, acknowledged_at: Instant, digest: bytes
    ) -> "Tip":
        """After Msg(e)."""
        if sequence != self.sequence:
            raise Malformed(f"an entry begins with sequence {sequence}, and {self.sequence} is next")
        if token <= self.token:
            raise Malformed(f"token {token} after token {self.token}")
        if formation != self.formation and self.digest != GENESIS:
            raise Malformed(f"a token of formation {formation} while formation {self.formation} stands")
        latest_at = max(self.latest_at, acknowledged_at)
        return Tip(formation, token, end, latest_at, digest, self.released, self.released_token, self.marks)

    def turned(self, *, formation: int, token: int, sequence: int, digest: bytes) -> "Tip":
        """After a change of formation: the order is known up to its first token, and nothing is added to it."""
        if sequence != self.sequence:
            raise Malformed(f"a formation begins with sequence {sequence}, and {self.sequence} is next")
        if token <= self.token:
            raise Malformed(f"a formation begins with token {token} after token {self.token}")
        if formation <= self.formation:
            raise Malformed(f"formation {formation} after formation {self.formation}")
        return self._replace(formation=formation, token=token - 1, digest=digest)

    def follow(self, head: Head, digest: bytes) -> "Tip":
        """After the entry with this head."""
        if head.changes_formation:
            return self.turned(formation=head.formation, token=head.token, sequence=head.sequence, digest=digest)
        return self.ordered(
            formation=head.formation,
            token=head.token,
            sequence=head.sequence,
            end=head.end,
            acknowledged_at=head.instant,
            digest=digest,
        )

    def release(self, mark: Release, digest: bytes) -> "Tip":
        """After this release mark."""
        end = mark.sequence + mark.count
        if mark.sequence != self.released:
            raise Malformed(f"a release mark begins with sequence {mark.sequence}, and {self.released} is next")
        if end > self.sequence:
            raise Malformed(
                f"a release mark reaches sequence {end - 1}, and nothing is ordered from {self.sequence} on"
            )
        return Tip(*self[:5], end, mark.token, digest)


class Owner(NamedTuple):
    """Whose a journal is."""

    stripe: int
    site: NodeId

    def __str__(self) -> str:
        return f"stripe {self.stripe} of site {self.site}"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The beginning of a segment: whose it is, and where the journal stood before it."""

    stripe: int
    site: NodeId
    number: int  # of the segment, from 0
    tip: Tip

    @property
    def owner(self) -> Owner:
        """Whose journal it belongs to."""
        return Owner(self.stripe, self.site)

    @property
    def has_valid_start(self) -> bool:
        """Whether the first segment of a journal continues nothing, as it must; later ones continue another."""
        return self.number > 0 or (self.tip.digest, self.tip.marks) == (GENESIS, first_mark(self.site))


@dataclass(frozen=True, slots=True)
class SegmentCheckpoint:
    """Where the order had left every source, and which formation stood, before a segment."""

    streams: Streams
    change: FormationChange | None


class CheckpointHead(NamedTuple):
    """The head of a checkpoint."""

    sources: int
    size: int  # bytes between this head and the digest


Record: TypeAlias = Head | Release | CheckpointHead


def stored_size(record: Record) -> int:
    """Bytes that a record takes in its segment."""
    return MARK_SIZE if isinstance(record, Release) else MARK_SIZE + record.size


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
    """SHA-256(previous ‖ encoded)."""
    state = hashlib.sha256(previous)
    state.update(encoded)
    return state.digest()


def first_mark(site: NodeId) -> bytes:
    """What the first release mark of a site continues."""
    return link(GENESIS, _SITE.pack(site))


def encode_header(header: SegmentHeader) -> bytes:
    """The first bytes of a segment."""
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
    """The value of a segment's first bytes."""
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
    """Tell a segment of an older version from one whose version was altered: the older one has its own checksum."""
    size = _OLDER_HEADER_SIZES.get(version)
    if size is not None:
        open_head(data[: size + _CRC_SIZE], size, "the segment header")
        raise OtherVersion(f"journal version {version}; this program reads version {VERSION}")
    raise Malformed(f"the segment header names a version {version}")


def encode_release(release: Release) -> bytes:
    """One site's release mark, without its digest."""
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
    """Whether this is a whole release mark, whatever it says."""
    return head[:1] == _RELEASED_KIND and int.from_bytes(head[_RELEASED.size :]) == crc32(head[: _RELEASED.size])


def decode_record(data: bytes) -> Record:
    """The head of an entry or of a checkpoint, or a whole release mark: all are `HEAD_SIZE` bytes."""
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
    """A checkpoint from its encoding, which begins with the bytes of `head`."""
    if len(encoded) != HEAD_SIZE + head.size:
        raise Malformed("a checkpoint is not as long as its head says")
    change_at = HEAD_SIZE + _CHANGE_SIZE.size
    (change_size,) = _CHANGE_SIZE.unpack_from(encoded, HEAD_SIZE)
    rows_at = change_at + change_size
    if rows_at + head.sources * _ROW.size != len(encoded):
        raise Malformed("a checkpoint is not filled")
    rows = list(_ROW.iter_unpack(encoded[rows_at:]))
    if any(one[0] >= other[0] for one, other in pairwise(rows)):
        raise Malformed("the sources of a checkpoint do not ascend")
    if any(not following or max(incarnation, following) > NUMBER_MAX for _, incarnation, following in rows):
        raise Malformed("the numbers of a checkpoint are out of bounds")
    change = decode_entry(encoded[change_at:rows_at]) if change_size else None
    if not isinstance(change, FormationChange | None):
        raise Malformed("a checkpoint names something else than a formation")
    return SegmentCheckpoint({source: (incarnation, following) for source, incarnation, following in rows}, change)
