"""Consecutive messages, each with a length prefix of two bytes, big-endian.

ITCH files and the message blocks of MoldUDP64 packets have this form. A file may end with a length of zero, which marks
the end of the session; nothing may follow it, and it is no message.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.core.errors import FormatError

Octets: TypeAlias = bytes | bytearray | memoryview
Positions: TypeAlias = npt.NDArray[np.int64]

PREFIX_SIZE: Final = 2
MESSAGE_MAX: Final = (1 << 16) - 1
END_MARK: Final = bytes(PREFIX_SIZE)
_PREFIX: Final = struct.Struct(">H")


class BadFraming(FormatError):
    """Length prefixes that do not match the buffer."""


class Frames(NamedTuple):
    """The positions of the messages in a buffer."""

    starts: Positions  # of the messages, after their lengths
    sizes: Positions
    ended: bool  # whether the end mark follows the last one


def frame(messages: Iterable[bytes]) -> bytes:
    """The messages with their lengths."""
    parts: list[bytes] = []
    for number, message in enumerate(messages):
        if not 0 < len(message) <= MESSAGE_MAX:
            raise BadFraming(f"message {number} has {len(message)} bytes; it must have 1 to {MESSAGE_MAX}")
        parts += (_PREFIX.pack(len(message)), message)
    return b"".join(parts)


def unframe(buffer: Octets) -> Iterator[bytes]:
    """The messages of a buffer, one by one."""
    frames = find_frames(buffer)
    for start, size in zip(frames.starts.tolist(), frames.sizes.tolist(), strict=True):
        yield bytes(buffer[start : start + size])


def find_frames(buffer: Octets) -> Frames:
    """The positions of the messages in a buffer. Raises `BadFraming` where the lengths do not add up."""
    edges = np.fromiter(_prefix_positions(buffer), np.int64)
    if edges[-1] != len(buffer):
        start = edges[-1] if edges[-1] < len(buffer) else edges[-2]
        raise BadFraming(f"size is {len(buffer)} bytes; the message that begins at byte {start} lacks its end")
    starts, sizes = edges[:-1] + PREFIX_SIZE, np.diff(edges) - PREFIX_SIZE
    ended = bool(len(sizes) and sizes[-1] == 0)
    if ended:
        starts, sizes = starts[:-1], sizes[:-1]
    if not sizes.all():
        bad = int(np.argmin(sizes != 0))
        raise BadFraming(f"message {bad} has 0 bytes; only the end mark has, and it must be last")
    return Frames(starts, sizes, ended)


def _prefix_positions(buffer: Octets) -> Iterator[int]:
    """The position of each length prefix, and of the one that would follow.

    Each depends on the one before, so this is a plain loop; a generator keeps no list in memory.
    """
    position, last = 0, len(buffer) - 1
    while position < last:
        yield position
        position += (buffer[position] << 8) + buffer[position + 1] + PREFIX_SIZE
    yield position
