"""What a gateway has taken from its traders and not seen in the sequence: one file that outlives the process.

A request is written here, and is on the disk, before its trader hears that it was taken. When it has its place in the
sequence, a mark says so. What has no mark when the gateway starts again is entered once more; the floor knows an order
by its name, so that one which had come through after all is refused.

A record is a length, a check sum, a kind, the gateway's number and the request itself. What a crash tore off at the end
was never answered, and is cut away.
"""

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.journal.truncation import sync_directory

FILE_MAX: Final = 16 << 20  # bytes before what is done is thrown away
PAYLOAD_MAX: Final = 4_096
MAGIC: Final = b"ftintake1\n"
TAKEN: Final = 1
PLACED: Final = 2
_HEAD: Final = struct.Struct("<II")  # length and check sum of what follows
_RECORD: Final = struct.Struct("<BQ")


class OrderLog:
    """The file of one gateway."""

    def __init__(self, path: Path, *, file_max: int = FILE_MAX) -> None:
        """A `UserError` where the file cannot be had, or is something else."""
        self._path = path
        self._file_max = file_max
        self._unplaced: dict[int, bytes] = {}
        self._buffer = bytearray()
        self._sync_needed = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.lockf(self._file, os.F_TLOCK, 0)
            self._size = self._recover()
        except OSError as error:
            raise UserError(f"{path} cannot be used as an order log ({error.strerror}); name another file") from None

    def unplaced(self) -> list[bytes]:
        """The requests without a mark, in their order."""
        return [self._unplaced[number] for number in sorted(self._unplaced)]

    def append(self, number: int, payload: bytes) -> None:
        """A request was taken; it is on the disk after the next `sync`."""
        assert len(payload) <= PAYLOAD_MAX
        self._unplaced[number] = payload
        self._write(_RECORD.pack(TAKEN, number) + payload)
        self._sync_needed = True

    def mark_placed(self, numbers: Iterable[int]) -> None:
        """These have their place in the sequence. Nobody waits for that to be on the disk."""
        for number in numbers:
            if self._unplaced.pop(number, None) is not None:
                self._write(_RECORD.pack(PLACED, number))

    def sync(self) -> None:
        """All that was taken is on the disk when this returns."""
        if not self._buffer:
            return
        try:
            _write_all(self._file, self._buffer)
        except OSError:  # a torn record would hide all that is written behind it
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(self._buffer)
        self._buffer.clear()
        if self._sync_needed:
            os.fdatasync(self._file)
            self._sync_needed = False
        if self._size > self._file_max:
            self._rewrite()

    def close(self) -> None:
        """Write what is left and let go."""
        self.sync()
        os.close(self._file)

    def _write(self, record: bytes) -> None:
        self._buffer += _framed(record)

    def _recover(self) -> int:
        """Read the whole records and stand behind the last of them."""
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if content and content[: len(MAGIC)] != MAGIC[: len(content)]:
            raise UserError(f"{self._path} is not an order log; name another file")
        at = len(MAGIC)
        while (end := _end_of(content, at)) is not None:
            kind, number = _RECORD.unpack_from(content, at + _HEAD.size)
            if kind == TAKEN:
                self._unplaced[number] = content[at + _HEAD.size + _RECORD.size : end]
            else:
                self._unplaced.pop(number, None)
            at = end
        if len(content) < len(MAGIC):
            os.pwrite(self._file, MAGIC, 0)
        os.ftruncate(self._file, at)
        os.fsync(self._file)
        os.lseek(self._file, at, os.SEEK_SET)
        return at

    def _rewrite(self) -> None:
        """Keep only what waits, in a new file that takes the place of the old one."""
        content = MAGIC + b"".join(
            _framed(_RECORD.pack(TAKEN, number) + payload) for number, payload in self._unplaced.items()
        )
        fresh = self._path.with_name(f"{self._path.name}.new")
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.lockf(file, os.F_TLOCK, 0)
        _write_all(file, content)
        os.fsync(file)
        fresh.replace(self._path)
        sync_directory(self._path.parent)
        os.close(self._file)
        self._file, self._size = file, len(content)
        self._file_max = max(self._file_max, 2 * self._size)


def _write_all(file: int, content: bytes | bytearray) -> None:
    """A disk that is nearly full takes a part of what it is given, and says so only by a number."""
    written = 0
    with memoryview(content) as view:
        while written < len(view):
            written += os.write(file, view[written:])


def _framed(record: bytes) -> bytes:
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def _end_of(content: bytes, at: int) -> int | None:
    """Where the record at this place ends; None where there is no whole one."""
    if at + _HEAD.size > len(content):
        return None
    length, checksum = _HEAD.unpack_from(content, at)
    end = at + _HEAD.size + length
    whole = _RECORD.size <= length <= _RECORD.size + PAYLOAD_MAX and end <= len(content)
    return end if whole and zlib.crc32(content[at + _HEAD.size : end]) == checksum else None
