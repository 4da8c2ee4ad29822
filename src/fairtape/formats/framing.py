"""Messages one behind the other, each with its length before it: two bytes, big-endian.

Files of ITCH have this shape, and so have the message blocks of a MoldUDP64 packet. A file may end with a length of
zero, which says that the session is over; nothing may follow it, and it counts as no message.
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
    """Lengths that do not lead from message to message."""


class Frames(NamedTuple):
    """Where the messages of a buffer lie."""

    starts: Positions  # of the messages, behind their lengths
    sizes: Positions
    ended: bool  # whether the mark of the end stands behind the last one


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


def whole_size(buffer: Octets) -> int:
    """How many bytes of a buffer are whole messages; the rest is the beginning of the next one."""
    edges = _edges(buffer)
    return int(edges[-1] if edges[-1] <= len(buffer) else edges[-2])


def find_frames(buffer: Octets) -> Frames:
    """Where the messages of a buffer lie. Raises `BadFraming` where the lengths do not add up."""
    edges = _edges(buffer)
    if edges[-1] != len(buffer):
        begun = edges[-1] if edges[-1] < len(buffer) else edges[-2]
        raise BadFraming(f"size is {len(buffer)} bytes; the message that begins at byte {begun} lacks its end")
    starts, sizes = edges[:-1] + PREFIX_SIZE, np.diff(edges) - PREFIX_SIZE
    ended = bool(len(sizes) and sizes[-1] == 0)
    if ended:
        starts, sizes = starts[:-1], sizes[:-1]
    if not sizes.all():
        bad = int(np.argmin(sizes != 0))
        raise BadFraming(f"message {bad} has 0 bytes; only the mark of the end has, and it stands at the end")
    return Frames(starts, sizes, ended)


def _edges(buffer: Octets) -> Positions:
    """Where each length stands, and where the next would."""
    return np.fromiter(_stepping(buffer), np.int64)


def _stepping(buffer: Octets) -> Iterator[int]:
    """Each step needs the one before, so this is a plain loop; as a generator it keeps no number in memory."""
    position, last = 0, len(buffer) - 1
    while position < last:
        yield position
        position += (buffer[position] << 8) + buffer[position + 1] + PREFIX_SIZE
    yield position
