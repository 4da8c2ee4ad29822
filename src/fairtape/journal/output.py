"""The files that a journal is written to: the segment at hand, and the spare one that will be the next.

Creating a file and syncing it take their time, so both happen ahead or behind, in the background. A spare file has no
segment's name and nobody reads it; it gets its name together with its header and its first entry.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

SPARE_NAME: Final = "spare"
SEGMENT_ENTRIES_MAX: Final = 1 << 14  # so that hopping over a segment stays quick, however small its entries are

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class Output:
    """The segment that is being written. Raises `OSError`; what it could not write as a whole it takes back."""

    __slots__ = ("entries", "file", "path", "size", "turned")

    def __init__(self, path: Path, file: int, *, size: int = 0, entries: int = 0, turned: bool = False) -> None:
        self.path = path
        self.file = file
        self.size = size  # bytes
        self.entries = entries
        self.turned = turned  # the last entry changes the formation, and what follows it belongs to it

    def is_full(self, size: int, size_max: int) -> bool:
        """Whether an entry of this size belongs into the next segment."""
        return not self.turned and (self.size + size > size_max or self.entries >= SEGMENT_ENTRIES_MAX)

    def write(self, buffers: list[bytes]) -> None:
        """All of it, or none: what a full disk accepted of a record is taken back."""
        size = sum(map(len, buffers))
        try:
            written = os.writev(self.file, buffers)
            if written < size:
                rest = memoryview(b"".join(buffers))
                while written < size:
                    written += os.write(self.file, rest[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.file, self.size)
            raise
        self.size += size

    def enter(self, buffers: list[bytes], turns: bool) -> None:
        """Write an entry."""
        self.write(buffers)
        self.entries += 1
        self.turned = turns

    def name(self, path: Path) -> None:
        """Give a spare file the name of its segment."""
        self.path.rename(path)
        self.path = path


def open_output(path: Path, *, size: int, entries: int, turned: bool) -> Output:
    """Go on with a segment that is there."""
    return Output(path, os.open(path, _FLAGS), size=size, entries=entries, turned=turned)


def create_spare(directory: Path) -> Output:
    """An empty file for the next segment; what a killed writer had left in one was never in the journal."""
    path = directory / SPARE_NAME
    return Output(path, os.open(path, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o644))
