"""The order log of a gateway: requests that were accepted and are not yet in the sequence, in one file.

A request is written here, and synced to disk, before its trader gets the answer that it was accepted. When the sequence
contains it, a mark is appended. Requests without a mark are entered again when the gateway restarts. The floor
recognises a client id, so a request that had arrived after all is rejected as a duplicate.

A record is a length, a checksum, a kind, the gateway's number and the request itself. A record that a crash left
incomplete at the end was never answered, and is cut off.
"""

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.journal.truncation import sync_directory

FILE_MAX: Final = 16 << 20  # bytes before the log is rewritten without placed requests
PAYLOAD_MAX: Final = 4_096
MAGIC: Final = b"ftintake1\n"
TAKEN: Final = 1
PLACED: Final = 2
_HEAD: Final = struct.Struct("<II")  # length and checksum of what follows
_RECORD: Final = struct.Struct("<BQ")


class OrderLog:
    """The order log of one gateway."""

    def __init__(self, path: Path, *, file_max: int = FILE_MAX) -> None:
        """Raises `UserError` if the file cannot be opened, or is no order log."""
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
        """The requests without a mark, in order."""
        return [self._unplaced[number] for number in sorted(self._unplaced)]

    def append(self, number: int, payload: bytes) -> None:
        """Add a request; it is on disk after the next `sync`."""
        assert len(payload) <= PAYLOAD_MAX
        self._unplaced[number] = payload
        self._write(_RECORD.pack(TAKEN, number) + payload)
        self._sync_needed = True

    def mark_placed(self, numbers: Iterable[int]) -> None:
        """Mark requests that are in the sequence. The marks need not be on disk: a lost one only causes a duplicate."""
        for number in numbers:
            if self._unplaced.pop(number, None) is not None:
                self._write(_RECORD.pack(PLACED, number))

    def sync(self) -> None:
        """Write to disk; on return all appended requests are durable."""
        if not self._buffer:
            return
        try:
            _write_all(self._file, self._buffer)
        except OSError:  # a torn record would hide everything written after it
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
        self.sync()
        os.close(self._file)

    def _write(self, record: bytes) -> None:
        self._buffer += _framed(record)

    def _recover(self) -> int:
        """Read all complete records, and continue after the last of them."""
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
        """Replace the file by one that has only the unplaced requests."""
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
    """Write everything: on a disk that is nearly full, `os.write` may write only a part."""
    written = 0
    with memoryview(content) as view:
        while written < len(view):
            written += os.write(file, view[written:])


def _framed(record: bytes) -> bytes:
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def _end_of(content: bytes, at: int) -> int | None:
    """The end of the record at this offset; None if there is no complete one."""
    if at + _HEAD.size > len(content):
        return None
    length, checksum = _HEAD.unpack_from(content, at)
    end = at + _HEAD.size + length
    whole = _RECORD.size <= length <= _RECORD.size + PAYLOAD_MAX and end <= len(content)
    return end if whole and zlib.crc32(content[at + _HEAD.size : end]) == checksum else None
