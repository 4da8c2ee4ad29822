"""The segments of a journal, found without listing its directory.

A month of a busy journal is more than 100,000 segments, and listing as many files takes most of a second. So the writer
keeps a file beside them, `segments.list`: a header, and the first sequence number of every segment, 8 bytes each, in
order. A search in it reads a few blocks.

Nothing has to trust this file. A reader proves what it finds there by the segment's own name, header and records, and
lists the directory where the proof fails: the file may be missing, short, damaged or stale. The number of a new segment
is appended after the segment has its name, so a crash between the two leaves a file that lacks the last segment, which
is found by its name: a segment begins with the number after the last one of the segment before it.

The writer is the only one to write the file. It uses the file when it opens the journal only if the file is certain to
have every append of its writers, which its header tells: it names the boot of the machine and the inode of the file. A
loss of power or a copy changes one of them. Then the directory is listed, once, and the file is written anew. The same
happens where the file contradicts the end of the journal, and after a truncation.
"""

import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, Self, TypeAlias, overload

from fairtape.core.errors import UserError
from fairtape.journal.format import HEADER_SIZE, segment_name, sequence_of
from fairtape.wire.frames import NUMBER_MAX

LIST_NAME: Final = "segments.list"
_DRAFT_NAME: Final = "segments.draft"
BEHIND_MAX: Final = 2  # segments that the file of an open journal may lack: those that were begun last

_HEADER: Final = struct.Struct(">8s36sQ12x")  # magic, boot id as text, inode
_MAGIC: Final = b"FAIRTLS1"
_FIRST: Final = struct.Struct(">Q")
_BLOCK: Final = 512  # numbers read at once
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

LIST_HEADER_SIZE: Final = _HEADER.size


def first_sequences(directory: Path) -> list[int]:
    """The first sequence number of every segment, in order. Lists the directory."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - the names alone: a path for each doubles the time
    except OSError as error:
        raise UserError(f"journal directory {str(directory)!r} cannot be read ({error.strerror})") from None
    return sorted(sequence for name in names if (sequence := sequence_of(name)) is not None)


def file_size(path: Path) -> int:
    """The current size in bytes; 0 where there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def is_begun(path: Path) -> bool:
    """Whether there is a segment with a whole header."""
    return file_size(path) >= HEADER_SIZE


class SegmentList(Sequence[int]):
    """The numbers in a list file, as many as it has when it is opened; empty where there is none. Proves nothing."""

    def __init__(self, directory: Path) -> None:
        self._file: int | None = None
        self._length = self._rest = 0
        self._block: array[int] = array("Q")
        self._block_at = 0
        self._header = b""
        with suppress(OSError):
            self._file = os.open(directory / LIST_NAME, os.O_RDONLY | os.O_CLOEXEC)
            self._header = self._read(LIST_HEADER_SIZE, 0)
            if self._header.startswith(_MAGIC):
                size = max(os.fstat(self._file).st_size - LIST_HEADER_SIZE, 0)
                self._length, self._rest = divmod(size, _FIRST.size)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_current(self) -> bool:
        """Whether it is certain to have every append of its writers: written in this boot, no copy, and whole."""
        if self._file is None or self._rest or not (boot := _boot()):
            return False
        return self._header == _header(self._file, boot)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._length))]
        index += self._length if index < 0 else 0
        if not 0 <= index < self._length:
            raise IndexError(index)
        within = index - self._block_at
        if not 0 <= within < len(self._block):
            self._block_at = index - index % _BLOCK
            self._block = self._numbers(self._block_at)
            within = index - self._block_at
        number = self._block[within] if within < len(self._block) else 0
        return number if number <= NUMBER_MAX else 0

    def _numbers(self, index: int) -> "array[int]":
        data = self._read(_BLOCK * _FIRST.size, LIST_HEADER_SIZE + index * _FIRST.size)
        numbers = array("Q", data[: len(data) // _FIRST.size * _FIRST.size])
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers

    def _read(self, size: int, offset: int) -> bytes:
        assert self._file is not None
        try:
            return os.pread(self._file, size, offset)
        except OSError:
            return b""


Probe: TypeAlias = Callable[[int], tuple[int, bool]]
"""The key of the segment that begins with this number, and whether what is searched is before the segment."""


def count_before(firsts: Sequence[int], target: int, probe: Probe) -> int:
    """How many of these segments begin before what is searched, whose key is `target`.

    Keys are numbers, tokens or times. They grow about evenly, so a guess by interpolation is near, and a few probes are
    enough, however many segments there are. After a guess that leaves more than half, the rest is halved, so that
    uneven keys take at most twice as many probes as a bisection. The segments before and after the result were both
    probed: what a probe says is true, also where the numbers are wrong.
    """
    low, high = 0, len(firsts) - 1
    high_key, beyond = probe(firsts[high])
    if not beyond:
        return high + 1
    low_key, beyond = probe(firsts[low])
    if beyond:
        return 0
    guessing = True
    while (left := high - low) > 1:
        middle = low + left // 2
        if guessing and low_key < high_key:
            middle = low + (target - low_key) * left // (high_key - low_key)
            middle = min(max(middle, low + 1), high - 1)
        key, beyond = probe(firsts[middle])
        if beyond:
            high, high_key = middle, key
        else:
            low, low_key = middle, key
        guessing = not guessing or 2 * (high - low) <= left
    return high


def first_after(directory: Path, sequence: int) -> int | None:
    """The first number of the first segment that begins after this number, if there is one."""
    with SegmentList(directory) as listed:
        if listed:
            if listed[-1] <= sequence:
                return None
            ahead = min(bisect_right(listed, sequence), len(listed) - 1)
            if listed[ahead] > sequence and is_begun(directory / segment_name(listed[ahead])):
                return listed[ahead]
    return next((first for first in first_sequences(directory) if first > sequence), None)


def firsts_between(directory: Path, after: int, before: int) -> list[int]:
    """The first numbers of segments that begin between these two."""
    with SegmentList(directory) as listed:
        if listed:
            found = listed[bisect_right(listed, after) : bisect_left(listed, before)]
            if all(one < other for one, other in pairwise((after, *found, before))):
                return found
    return [first for first in first_sequences(directory) if after < first < before]


def has_segments(directory: Path) -> bool:
    """Whether this directory is a journal with at least one segment."""
    with SegmentList(directory) as listed:
        if listed and is_begun(directory / segment_name(listed[-1])):
            return True
    return bool(first_sequences(directory))


def journals_below(folder: Path) -> Iterator[Path]:
    """The journals with segments in this folder and below it. A journal holds no other, and neither do links."""
    try:
        if has_segments(folder):
            yield folder
            return
        inside = sorted(each for each in folder.iterdir() if each.is_dir() and not each.is_symlink())
    except (OSError, UserError):
        return  # it cannot be read
    for each in inside:
        yield from journals_below(each)


def write_list(directory: Path, firsts: Sequence[int]) -> None:
    """Write the file anew, atomically. Where it cannot be written there is none, and readers list the directory."""
    draft = directory / _DRAFT_NAME
    numbers = array("Q", firsts)
    if sys.byteorder == "little":
        numbers.byteswap()
    try:
        with draft.open("wb") as file:
            file.write(_header(file.fileno(), _boot()))
            file.write(numbers.tobytes())
        draft.rename(directory / LIST_NAME)
    except OSError:
        remove_list(directory)


def remove_list(directory: Path) -> None:
    """Remove the file before segments are removed. Where that fails, it contradicts them."""
    for name in (LIST_NAME, _DRAFT_NAME):
        with suppress(OSError):
            (directory / name).unlink()


class SegmentListWriter:
    """Appends to the list file of a journal that is being written. An error ends the file, not the journal."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(directory / LIST_NAME, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def append(self, first: int) -> None:
        """Add a segment that has its name."""
        if self._file is None:
            return
        try:
            written = os.write(self._file, _FIRST.pack(first))
        except OSError:
            written = 0
        if written < _FIRST.size:
            self.close()
            remove_list(self._directory)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _header(file: int, boot: bytes) -> bytes:
    """The header of this list file, when it is written in this boot."""
    return _HEADER.pack(_MAGIC, boot, os.fstat(file).st_ino)


def _boot() -> bytes:
    """The kernel's name of the present boot; empty where it has none."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return b""
