"""The frames of the ring: one versioned header, strict bounds on every field.

Every datagram begins with the same sixteen bytes: magic, version, kind, flags, stripe, count, formation, sender.
`decode_*` raise `Malformed`, and nothing else, for anything that a correct node would not have sent. PROTOCOL.md
defines the layouts.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

NodeId: TypeAlias = int

MAGIC: Final = 0xFA
VERSION: Final = 3

NODE_MAX: Final = (1 << 32) - 1
NUMBER_MAX: Final = (1 << 63) - 1  # message numbers, sequence numbers and tokens fit signed 64-bit columns
STRIPE_MAX: Final = (1 << 16) - 1
FORMATION_MAX: Final = (1 << 32) - 1
COUNT_MAX: Final = (1 << 16) - 1
DATAGRAM_MAX: Final = 1_400  # default: fits a 1,500-byte path MTU, with a margin for tunnels
DATAGRAM_MIN: Final = 256
DATAGRAM_LIMIT: Final = 65_507  # the largest UDP payload over IPv4
ACK_PARTS_MAX: Final = 64
RANGE_COUNT_MAX: Final = (1 << 32) - 1
LOAD_MAX: Final = (1 << 32) - 1  # microseconds of a site's release lag and backlog; more is reported as this
TAG_SIZE: Final = 16

HEADER: Final = struct.Struct(">BBBBHHII")
BLOCK_HEADER: Final = struct.Struct(">BBBBHHIIQQ")
_SERIAL: Final = struct.Struct(">Q")
_ACK: Final = struct.Struct(">QQQQIIHHH")
_ACK_RANGE: Final = struct.Struct(">IQQI8s")
_RANGE: Final = struct.Struct(">IQQI")
_STREAM: Final = struct.Struct(">IQ")
_REQUEST: Final = struct.Struct(">QQHH")
_TOKEN: Final = struct.Struct(">Q")
_PROGRESS: Final = struct.Struct(">QQQQ")

CONTROL_SIZE: Final = HEADER.size + _SERIAL.size  # before the body of every control datagram


class Kind(IntEnum):
    """The kind of a datagram. Sources send BLOCK; all others are control datagrams."""

    BLOCK = 1  # source -> sites: sealed messages
    ACK = 2  # token site -> all: Ack(e)
    REQUEST = 3  # site -> site: resend these acknowledgments and messages
    HOLE = 4  # token site -> source: these numbers are missing here
    PROGRESS = 5  # token site -> source: everything below this number is acknowledged
    TOKEN_ACK = 6  # RMP only, site -> site: has the token and nothing to acknowledge
    # Encoded in fairtape.wire.membership:
    SITE_REPORT = 7  # site -> reformation server: state and position; requests a lease
    GRANT = 8  # reformation server -> site: a lease
    FENCE = 9  # reformation server -> member: stop working in this formation
    INSTALL = 10  # reformation server -> site: a formation
    CATCH_UP = 11  # site -> site: send the journal entries after this token
    HISTORY_CHUNK = 12  # site -> site: a part of such an entry
    LOOP_TOKEN = 13  # site -> secondary loop: holds everything up to this token
    OPERATOR_COMMAND = 14  # operator -> reformation server


class Flag(IntEnum):
    """Bits of the header's flags."""

    FRAGMENT = 1  # BLOCK: the body is a fragment of a message longer than a block
    RELAYED = 2  # ACK: the load that it reports is that of another member


_BLOCK_FLAGS: Final = int(Flag.FRAGMENT)
_FLAGS: Final = {Kind.BLOCK: _BLOCK_FLAGS, Kind.ACK: int(Flag.RELAYED)}  # all other kinds have none
BLOCK_PREFIX: Final = bytes((MAGIC, VERSION, Kind.BLOCK))


class Malformed(ValueError):
    """Bytes that no correct node sends. Receivers count and drop them."""


class Range(NamedTuple):
    """Messages first … first + count - 1 of one incarnation of one source. A tuple, because every Ack creates some."""

    source: NodeId
    incarnation: int
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count

    @property
    def end(self) -> int:
        """The number after the last one."""
        return self.first + self.count


class BlockFrame(NamedTuple):
    """The clear header of a source block; the body is sealed. A tuple, because every datagram creates one."""

    flags: int
    stripe: int
    source: NodeId
    incarnation: int
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count


@dataclass(frozen=True, slots=True)
class Ack:
    """One part of Ack(e): ranges, contiguous per source, that get consecutive sequence numbers."""

    stripe: int
    formation: int
    sender: NodeId
    token: int  # e
    sequence: int  # of the first message of this part
    sent_at: int
    clock_bound: int
    part: int
    parts: int
    ranges: tuple[Range, ...]
    marks: tuple[bytes, ...] = ()  # one per range: a proof for that source, under its key
    release_lag_us: int = 0  # how long after its instant the most loaded member made its last release; up to LOAD_MAX
    backlog_us: int = 0  # how long that member will take to read what has arrived; up to LOAD_MAX
    relayed: bool = False  # that member is not the sender


@dataclass(frozen=True, slots=True)
class Request:
    """Combined requests of one site to another: acknowledgments and ranges of messages."""

    stripe: int
    formation: int
    sender: NodeId
    tokens: tuple[int, ...]
    ranges: tuple[Range, ...]
    sent_at: int = 0  # by a clock with an error of up to `clock_bound`
    clock_bound: int = 0


@dataclass(frozen=True, slots=True)
class Hole:
    """Token site to source: these message numbers are missing."""

    stripe: int
    formation: int
    sender: NodeId
    missing: Range


@dataclass(frozen=True, slots=True)
class Progress:
    """Token site to source: everything below `next` is acknowledged, by `token` at the latest.

    K + 1 sites hold everything below `settled`: the source may forget it.
    """

    stripe: int
    formation: int
    sender: NodeId
    incarnation: int
    next: int
    token: int
    settled: int


@dataclass(frozen=True, slots=True)
class TokenAck:
    """RMP: the token passed by Ack(token) has been accepted."""

    stripe: int
    formation: int
    sender: NodeId
    token: int


Control: TypeAlias = Ack | Request | Hole | Progress | TokenAck


def is_block(datagram: bytes) -> bool:
    """Whether this is a source block. Cheap, because nearly all datagrams are."""
    return datagram[:3] == BLOCK_PREFIX


def kind_of(datagram: bytes) -> Kind:
    """The kind, after checks of magic, version, flags and minimum size."""
    if len(datagram) < HEADER.size + TAG_SIZE:
        raise Malformed("shorter than header and tag")
    if datagram[0] != MAGIC or datagram[1] != VERSION:
        raise Malformed("not a fairtape datagram of this version")
    try:
        kind = Kind(datagram[2])
    except ValueError:
        raise Malformed("unknown kind") from None
    if datagram[3] & ~_FLAGS.get(kind, 0):
        raise Malformed("unknown flag")
    return kind


_unpack_block: Final = BLOCK_HEADER.unpack_from
_block_frame: Final = partial(tuple.__new__, BlockFrame)  # faster than BlockFrame(...)


def decode_block(datagram: bytes) -> BlockFrame:
    """The clear header of a source block. The caller checks the seal, after the cheap checks."""
    if len(datagram) <= BLOCK_HEADER.size + TAG_SIZE:
        raise Malformed("block without a body")
    _, _, _, flags, stripe, count, formation, source, incarnation, first = _unpack_block(datagram)
    if flags > _BLOCK_FLAGS or formation:
        raise Malformed("block with an unknown flag or a formation")
    if not count or not 0 < first <= NUMBER_MAX - count or incarnation > NUMBER_MAX:
        raise Malformed("block numbers out of bounds")
    if flags and count != 1:
        raise Malformed("fragment with a count other than 1")
    return _block_frame((flags, stripe, source, incarnation, first, count))


def encode_block_header(flags: int, stripe: int, source: NodeId, incarnation: int, first: int, count: int) -> bytes:
    """The formation field of a block is 0, so a retransmission in a later formation has the same bytes."""
    return BLOCK_HEADER.pack(MAGIC, VERSION, Kind.BLOCK, flags, stripe, count, 0, source, incarnation, first)


def _control_header(kind: Kind, message: Control, serial: int) -> bytes:
    flags = Flag.RELAYED if isinstance(message, Ack) and message.relayed else 0
    head = HEADER.pack(MAGIC, VERSION, kind, flags, message.stripe, 0, message.formation, message.sender)
    return head + _SERIAL.pack(serial)


def range_key(source: NodeId, incarnation: int) -> bytes:
    """The first bytes of every range of this stream. A datagram without them does not name the stream."""
    return _STREAM.pack(source, incarnation)


def _pack_range(wanted: Range) -> bytes:
    return _RANGE.pack(wanted.source, wanted.incarnation, wanted.first, wanted.count)


def encode_control(message: Control, serial: int) -> bytes:
    """The datagram without its authenticator."""
    match message:
        case Ack():
            kind = Kind.ACK
            body = _ACK.pack(
                message.token,
                message.sequence,
                message.sent_at,
                message.clock_bound,
                message.release_lag_us,
                message.backlog_us,
                message.part,
                message.parts,
                len(message.ranges),
            ) + b"".join(
                _ACK_RANGE.pack(r.source, r.incarnation, r.first, r.count, mark)
                for r, mark in zip(message.ranges, message.marks, strict=True)
            )
        case Request():
            kind = Kind.REQUEST
            body = _REQUEST.pack(message.sent_at, message.clock_bound, len(message.tokens), len(message.ranges))
            body += b"".join(map(_TOKEN.pack, message.tokens)) + b"".join(map(_pack_range, message.ranges))
        case Hole():
            kind, body = Kind.HOLE, _pack_range(message.missing)
        case Progress():
            kind = Kind.PROGRESS
            body = _PROGRESS.pack(message.incarnation, message.next, message.token, message.settled)
        case TokenAck():
            kind, body = Kind.TOKEN_ACK, _TOKEN.pack(message.token)
    return _control_header(kind, message, serial) + body


def ack_ranges_max(datagram_max: int) -> int:
    """The number of ranges that fit one part of an acknowledgment."""
    return (datagram_max - CONTROL_SIZE - _ACK.size - TAG_SIZE) // _ACK_RANGE.size


def request_items_max(datagram_max: int) -> int:
    """The number of tokens and ranges together that always fit one request."""
    return (datagram_max - CONTROL_SIZE - _REQUEST.size - TAG_SIZE) // _RANGE.size


def serial_of(datagram: bytes) -> int:
    """The serial number of a decoded control datagram."""
    serial: int = _SERIAL.unpack_from(datagram, HEADER.size)[0]
    return serial


def control_body(datagram: bytes, count: int) -> bytes:
    """The body of a control datagram whose header has this count. Raises `Malformed`."""
    if len(datagram) < CONTROL_SIZE + TAG_SIZE:
        raise Malformed("control datagram without a serial")
    if count:
        raise Malformed("control datagram with a count")
    if serial_of(datagram) > NUMBER_MAX:
        raise Malformed("serial out of bounds")
    return datagram[CONTROL_SIZE:-TAG_SIZE]


def decode_control(datagram: bytes) -> Control:
    """Decode a control datagram whose kind has been checked. The caller checks the authenticator."""
    _, _, kind, flags, stripe, count, formation, sender = HEADER.unpack_from(datagram)
    body = control_body(datagram, count)
    try:
        match kind:
            case Kind.ACK:
                return _decode_ack(body, stripe, formation, sender, relayed=flags != 0)
            case Kind.REQUEST:
                return _decode_request(body, stripe, formation, sender)
            case Kind.HOLE:
                (missing,) = (_checked_range(*parts) for parts in _RANGE.iter_unpack(body))
                return Hole(stripe, formation, sender, missing)
            case Kind.PROGRESS:
                return _decode_progress(body, stripe, formation, sender)
            case Kind.TOKEN_ACK:
                (token,) = _TOKEN.unpack(body)
                _check_ordinals(token)
                return TokenAck(stripe, formation, sender, token)
    except (struct.error, ValueError) as error:
        raise Malformed(str(error)) from None
    raise Malformed("not a control datagram")


def _check_numbers(*numbers: int) -> None:
    if max(numbers) > NUMBER_MAX:
        raise Malformed("number out of bounds")


def _check_ordinals(*ordinals: int) -> None:
    """Message numbers, sequence numbers and tokens start at 1."""
    if min(ordinals) == 0:
        raise Malformed("number 0; numbers start at 1")
    _check_numbers(*ordinals)


def _checked_range(source: int, incarnation: int, first: int, count: int) -> Range:
    if not count or not first:
        raise Malformed("empty range")
    if incarnation > NUMBER_MAX or first + count > NUMBER_MAX:
        raise Malformed("number out of bounds")
    return Range(source, incarnation, first, count)


def _decode_progress(body: bytes, stripe: int, formation: int, sender: NodeId) -> Progress:
    incarnation, following, token, settled = _PROGRESS.unpack(body)
    _check_ordinals(following, settled)
    _check_numbers(incarnation, token)
    if settled > following:
        raise Malformed("settled beyond acknowledged")
    return Progress(stripe, formation, sender, incarnation, following, token, settled)


def _decode_ack(body: bytes, stripe: int, formation: int, sender: NodeId, *, relayed: bool) -> Ack:
    token, sequence, sent_at, clock_bound, release_lag_us, backlog_us, part, parts, count = _ACK.unpack_from(body)
    _check_ordinals(token, sequence)
    _check_numbers(sent_at, clock_bound)
    if not part < parts <= ACK_PARTS_MAX:
        raise Malformed("parts out of bounds")
    if len(body) != _ACK.size + count * _ACK_RANGE.size:
        raise Malformed("body length differs from its range count")
    ranges = []
    marks = []
    for source, incarnation, first, length, mark in _ACK_RANGE.iter_unpack(body[_ACK.size :]):
        ranges.append(_checked_range(source, incarnation, first, length))
        marks.append(mark)
    _check_numbers(sequence + sum(r.count for r in ranges))
    return Ack(
        stripe,
        formation,
        sender,
        token,
        sequence,
        sent_at,
        clock_bound,
        part,
        parts,
        tuple(ranges),
        tuple(marks),
        release_lag_us,
        backlog_us,
        relayed,
    )


def _decode_request(body: bytes, stripe: int, formation: int, sender: NodeId) -> Request:
    sent_at, clock_bound, token_count, range_count = _REQUEST.unpack_from(body)
    _check_numbers(sent_at, clock_bound)
    middle = _REQUEST.size + token_count * _TOKEN.size
    if len(body) != middle + range_count * _RANGE.size:
        raise Malformed("body length differs from its token and range counts")
    if token_count + range_count == 0:
        raise Malformed("empty request")
    tokens = tuple(token for (token,) in _TOKEN.iter_unpack(body[_REQUEST.size : middle]))
    _check_ordinals(1, *tokens)
    ranges = tuple(_checked_range(*parts) for parts in _RANGE.iter_unpack(body[middle:]))
    return Request(stripe, formation, sender, tokens, ranges, sent_at, clock_bound)
