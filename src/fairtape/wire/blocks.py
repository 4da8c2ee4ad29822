"""The body of a block: several whole messages, or one fragment of a long one.

A body of messages begins with a size. If all messages have the same size (as market records do), it is that size;
otherwise it is 0 and a table of sizes follows. Either way a reader finds every message without a search, and NumPy can
read a uniform body in one step.

A message longer than a block is split into fragments. Each fragment is numbered like a message, so holes, windows,
acknowledgments and repairs need no second mechanism. The message is delivered with its last fragment and has that
fragment's number.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from fairtape.wire.frames import COUNT_MAX, Malformed

MESSAGE_MAX: Final = 1 << 20  # 1 MiB

_SIZE: Final = struct.Struct(">H")
_FRAGMENT: Final = struct.Struct(">II")  # length of the whole message, offset of this fragment


def pack_messages(messages: Sequence[bytes]) -> bytes:
    assert messages
    sizes = [len(message) for message in messages]
    if sizes.count(sizes[0]) == len(sizes) and sizes[0]:
        return _SIZE.pack(sizes[0]) + b"".join(messages)
    return _SIZE.pack(0) + struct.pack(f">{len(sizes)}H", *sizes) + b"".join(messages)


def pack_records(records: bytes, size: int) -> bytes:
    """The body of back-to-back records of one size."""
    return _SIZE.pack(size) + records


def fitting_count(messages: Sequence[bytes], size_max: int) -> int:
    """How many messages, from the first on, fit a body of `size_max` bytes in the table layout; 0 if none does."""
    used = _SIZE.size
    for position, message in enumerate(messages):
        used += _SIZE.size + len(message)
        if used > size_max or position == COUNT_MAX:
            return position
    return len(messages)


def records_max(size_max: int, size: int) -> int:
    """How many records of one size fit a body of `size_max` bytes."""
    return min((size_max - _SIZE.size) // size, COUNT_MAX)


def records_size(count: int, size: int) -> int:
    """The length of a body of this many records of one size."""
    return _SIZE.size + count * size


def table_size(count: int, size: int) -> int:
    """The length of a body of this many messages of any sizes, `size` bytes together."""
    return _SIZE.size * (count + 1) + size


def message_max(size_max: int) -> int:
    """The longest message that fits a body of `size_max` bytes without fragmentation."""
    return size_max - 2 * _SIZE.size


def split_message(message: bytes, size_max: int) -> Iterator[bytes]:
    """The bodies of the fragments of a long message."""
    step = size_max - _FRAGMENT.size
    for offset in range(0, len(message), step):
        yield _FRAGMENT.pack(len(message), offset) + message[offset : offset + step]


def unpack_messages(body: bytes, count: int) -> list[bytes]:
    """The messages of a body. Raises `Malformed` if it does not hold exactly `count`."""
    size = _uniform_size(body, count)
    if size:
        return [body[start : start + size] for start in range(_SIZE.size, len(body), size)]
    start = _SIZE.size * (1 + count)
    messages = []
    for length in _table(body, count):
        messages.append(body[start : start + length])
        start += length
    return messages


def check_body(body: bytes, count: int, *, fragment: bool) -> None:
    """Raise `Malformed` if a body does not hold what its header says."""
    if fragment:
        if len(body) <= _FRAGMENT.size:
            raise Malformed("empty fragment")
    elif not _uniform_size(body, count):
        _table(body, count)


def _uniform_size(body: bytes, count: int) -> int:
    """The size of every message; 0 if they differ and a table of sizes follows."""
    if len(body) < _SIZE.size:
        raise Malformed("body without a size")
    size = body[0] << 8 | body[1]
    if size and len(body) != size * count + 2:
        raise Malformed("wrong length of a uniform body")
    return size


def _table(body: bytes, count: int) -> tuple[int, ...]:
    start = _SIZE.size * (1 + count)
    if len(body) < start:
        raise Malformed("truncated table of sizes")
    sizes = struct.unpack_from(f">{count}H", body, _SIZE.size)
    if len(body) != start + sum(sizes):
        raise Malformed("body length differs from its table of sizes")
    return sizes


def uniform_records(body: bytes, count: int) -> tuple[int, memoryview] | None:
    """(size, records) of a uniform body, without copying; None if sizes differ."""
    if len(body) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack_from(body)
    if size == 0 or len(body) != _SIZE.size + size * count:
        return None
    return size, memoryview(body)[_SIZE.size :]


class Assembler:
    """Reassembles the fragmented messages of one source. Holds at most one incomplete message."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held = 0
        self._length = 0

    def add(self, body: bytes) -> bytes | None:
        """Add the next fragment; returns the message if it is complete. A fragment out of place discards the parts."""
        if len(body) <= _FRAGMENT.size:
            self.reset()
            return None
        length, offset = _FRAGMENT.unpack_from(body)
        if offset == 0:
            self.reset()
            self._length = length
        chunk = body[_FRAGMENT.size :]
        if offset != self._held or length != self._length or length > MESSAGE_MAX or offset + len(chunk) > length:
            self.reset()
            return None
        self._parts.append(chunk)
        self._held += len(chunk)
        if self._held < length:
            return None
        message = b"".join(self._parts)
        self.reset()
        return message

    def reset(self) -> None:
        """Discard an incomplete message."""
        self._parts = []
        self._held = 0
