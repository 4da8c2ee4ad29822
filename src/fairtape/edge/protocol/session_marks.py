"""Messages of our own inside the sessions of the edge, of types that ITCH 5.0 does not have and its clients skip.

A *mark* is an event at a place of the order. The first message of a session is the mark `Begun`, the last one `Over`.
Where one session takes over from another, both name the same place: numbers of the order below it are in the old
sessions, numbers from it on in the new ones. So a customer of both knows exactly where one ends and the other begins,
whichever arrives first.

An *opaque* message carries a payload that is neither a trade nor the cancel or correction of one. A payload that does
not fit into a datagram is cut into parts. Fragments of long messages are carried unchanged: reassembling them needs
state, which a restarted receiver does not have.
"""

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

MARK: Final = b"M"
OPAQUE: Final = b"G"
_MARK: Final = struct.Struct(">cHH6sQBII")  # letter, two unused, since midnight, sequence, kind, two numbers
_OPAQUE: Final = struct.Struct(">cHH6sQIHHB")  # letter, two unused, since midnight, sequence, source, part, parts, flag
MARK_SIZE: Final = _MARK.size
OPAQUE_HEAD_SIZE: Final = _OPAQUE.size
PARTS_MAX: Final = (1 << 16) - 1
_BEGUN, _OVER, _REFORMED = 1, 2, 3


class BadMark(ValueError):
    """Bytes that are neither a mark nor an opaque message."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The session begins here, after the session of this version and Breaks; version 0: after none."""

    sequence: int
    version: int
    breaks: int


@dataclass(frozen=True, slots=True)
class Over:
    """The session ends before this place; the one of this version and Breaks follows. Version 0: none follows."""

    sequence: int
    version: int
    breaks: int


@dataclass(frozen=True, slots=True)
class Reformed:
    """From this place on another formation numbers the order; after a Break its numbers may have been used before."""

    sequence: int
    formation: int
    broken: bool


Mark: TypeAlias = Begun | Over | Reformed


@dataclass(frozen=True, slots=True)
class Opaque:
    """A payload that is no trade, or one part of it."""

    sequence: int
    source: int
    part: int  # from 0 on
    parts: int
    fragment: bool  # the payload is one fragment of a long message, as `fairtape.wire.blocks.Assembler` takes it
    payload: bytes


def encode_mark(mark: Mark, since: int) -> bytes:
    """The message of a mark, with its time since midnight."""
    match mark:
        case Begun(sequence, version, breaks):
            kind, one, other = _BEGUN, version, breaks
        case Over(sequence, version, breaks):
            kind, one, other = _OVER, version, breaks
        case Reformed(sequence, formation, broken):
            kind, one, other = _REFORMED, formation, int(broken)
    return _MARK.pack(MARK, 0, 0, since.to_bytes(6, "big"), sequence, kind, one, other)


def decode_mark(message: bytes) -> Mark:
    """Decode a message that begins with the letter of marks."""
    if len(message) != MARK_SIZE or message[:1] != MARK:
        raise BadMark(f"a mark has {len(message)} bytes; it must have {MARK_SIZE}")
    _, _, _, _, sequence, kind, one, other = _MARK.unpack(message)
    if kind == _BEGUN:
        return Begun(sequence, one, other)
    if kind == _OVER:
        return Over(sequence, one, other)
    if kind == _REFORMED and other <= 1:
        return Reformed(sequence, one, bool(other))
    raise BadMark(f"a mark is of kind {kind} with {other}, which has no meaning")


def encode_opaque(
    payload: bytes, *, sequence: int, source: int, fragment: bool, since: int, size_max: int
) -> list[bytes]:
    """The messages that carry a payload, each of at most `size_max` bytes."""
    capacity = size_max - OPAQUE_HEAD_SIZE
    parts = max(-(-len(payload) // capacity), 1)
    assert parts <= PARTS_MAX
    stamp = since.to_bytes(6, "big")
    return [
        _OPAQUE.pack(OPAQUE, 0, 0, stamp, sequence, source, part, parts, fragment)
        + payload[part * capacity : (part + 1) * capacity]
        for part in range(parts)
    ]


def decode_opaque(message: bytes) -> Opaque:
    """Decode a message that begins with the letter of opaque messages."""
    if len(message) < OPAQUE_HEAD_SIZE or message[:1] != OPAQUE:
        raise BadMark(f"an opaque message has {len(message)} bytes; it must have at least {OPAQUE_HEAD_SIZE}")
    _, _, _, _, sequence, source, part, parts, fragment = _OPAQUE.unpack_from(message)
    if part >= parts or fragment > 1:
        raise BadMark(f"an opaque message is part {part} of {parts} with flag {fragment}, which has no meaning")
    return Opaque(sequence, source, part, parts, bool(fragment), message[OPAQUE_HEAD_SIZE:])
