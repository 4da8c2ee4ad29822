"""Trace files: what a site's machines recorded of every token, for the analysis of links. Bounded; never synced.

A directory of files. Each begins with a header: magic, stripe, site, and the number of its first record. Frames follow:
the number of records, their CRC-32, the CRC-32 of these eight bytes, and the records, 72 bytes each. When all files
together exceed `total_max`, the oldest is deleted. Because nothing is synced, the last records may be missing after a
crash of the machine; readers skip a torn end.

Record numbers only grow, and no number is used twice, even where a crash lost records that had been read: every
incarnation of a site starts at the next multiple of `INCARNATION_RECORDS`. Within an incarnation there are no gaps.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from fairtape.journal import Damaged
from fairtape.ring.receiver.tracing import Trace

TRACES: Final = "traces"  # the name of the directory, in that of a journal
MAGIC: Final = b"FTTRACE1"
FILE_BYTES_MAX: Final = 4 << 20
TOTAL_BYTES_MAX: Final = 256 << 20  # where the caller names no limit
FRAME_RECORDS_MAX: Final = 65_536
INCARNATION_RECORDS: Final = 1 << 24  # more than a crash of the machine can lose

RECORD: Final = np.dtype(
    [
        ("kind", "<u1"),
        ("premature", "<u1"),
        ("copies", "<u2"),
        ("ack_requests", "<u2"),
        ("message_requests", "<u2"),
        ("peer", "<u4"),
        ("formation", "<u4"),
        ("token", "<i8"),
        ("due_at", "<i8"),
        ("sent_at", "<i8"),
        ("came_at", "<i8"),
        ("complete_at", "<i8"),
        ("clock_bound", "<i8"),
        ("messages", "<u4"),
        ("missing", "<u4"),
    ]
)
"""The fields of `Trace`, in order."""

_RECORD: Final = struct.Struct("<BBHHHIIqqqqqqII")
_HEAD: Final = struct.Struct("<8sHxxIQI")  # magic, stripe, site, number of the first record, CRC-32 of all before it
_FRAME: Final = struct.Struct("<III")
_LIMITS: Final = (255,) * 2 + (65_535,) * 3 + (0xFFFF_FFFF,) * 2 + ((1 << 63) - 1,) * 6 + (0xFFFF_FFFF,) * 2

Records = npt.NDArray[Any]

assert _RECORD.size == RECORD.itemsize
assert tuple(RECORD.names or ()) == Trace._fields


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file of a site, with the fields of its header."""

    path: Path
    stripe: int
    site: int
    first: int  # the number of its first record

    def read(self, *, last: bool) -> Iterator[tuple[int, Records]]:
        """The records frame by frame, each frame with the number of its first record.

        In the `last` file of an incarnation, which may be growing, a torn end is skipped. Any other error is `Damaged`.
        """
        data = self.path.read_bytes()
        position, number = _HEAD.size, self.first
        while position < len(data):
            records = _frame(data, position)
            if records is None:
                if last and _is_last_frame(data, position):
                    return
                raise Damaged(self.path, position, number, "a frame of traces fails its checksum")
            yield number, records
            position += _FRAME.size + records.nbytes
            number += len(records)


def trace_files(folder: Path) -> list[TraceFile]:
    """The trace files of a directory, in the order of their records; a file without a whole header is skipped."""
    found = []
    for path in sorted(folder.glob("*.trace")):
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD.size)
        except FileNotFoundError:
            continue  # deleted by its site
        if len(head) < _HEAD.size:
            continue
        magic, stripe, site, first, checksum = _HEAD.unpack(head)
        if magic != MAGIC or crc32(head[:-4]) != checksum:
            raise Damaged(path, 0, 0, "it does not begin with the header of a trace file")
        found.append(TraceFile(path, stripe, site, first))
    return sorted(found, key=lambda each: (each.stripe, each.site, each.first))


def file_ends(files: Sequence[TraceFile]) -> list[int | None]:
    """The number after each file's last record; None for an incarnation's last file, which may be growing or torn."""
    firsts = [file.first for file in files[1:]]
    return [None if starts_incarnation(first) else first for first in firsts] + [None] * bool(files)


def _frame(data: bytes, position: int) -> Records | None:
    if not _has_head(data, position):
        return None
    count, checksum, _ = _FRAME.unpack_from(data, position)
    begin = position + _FRAME.size
    end = begin + count * RECORD.itemsize
    if end > len(data) or crc32(data[begin:end]) != checksum:
        return None
    return np.frombuffer(data, RECORD, count, begin)


def _has_head(data: bytes, position: int) -> bool:
    """Whether a valid frame head is at this position."""
    if position + _FRAME.size > len(data):
        return False
    count, _, checksum = _FRAME.unpack_from(data, position)
    return bool(0 < count <= FRAME_RECORDS_MAX and crc32(data[position : position + 8]) == checksum)


def _is_last_frame(data: bytes, position: int) -> bool:
    """Whether a writer that died may have left this frame: nothing follows it, or only zeros are there."""
    if not _has_head(data, position):
        return len(data) - position < _FRAME.size or not any(data[position:])
    count: int = _FRAME.unpack_from(data, position)[0]
    return position + _FRAME.size + count * RECORD.itemsize >= len(data)


class TraceWriter:
    """Appends records to the files of one site."""

    def __init__(self, folder: Path, *, stripe: int, site: int, total_max: int = TOTAL_BYTES_MAX) -> None:
        self._folder = folder
        self._stripe = stripe
        self._site = site
        self._total_max = total_max
        folder.mkdir(parents=True, exist_ok=True)
        self._number = _next_number(folder, stripe, site)
        self._begin_file()

    def append(self, traces: Sequence[Trace]) -> None:
        for begin in range(0, len(traces), FRAME_RECORDS_MAX):
            frame = traces[begin : begin + FRAME_RECORDS_MAX]
            data = b"".join(_packed(trace) for trace in frame)
            head = struct.pack("<II", len(frame), crc32(data))
            encoded = head + struct.pack("<I", crc32(head)) + data
            if self._file.write(encoded) != len(encoded):
                raise OSError(ENOSPC, "no space for a frame of traces", str(self._folder))
            self._number += len(frame)
            if self._file.tell() >= FILE_BYTES_MAX:
                self._file.close()
                self._begin_file()

    def close(self) -> None:
        self._file.close()

    def _begin_file(self) -> None:
        self._file = (self._folder / f"{self._number:016d}.trace").open("wb", buffering=0)
        head = _HEAD.pack(MAGIC, self._stripe, self._site, self._number, 0)[:-4]
        self._file.write(head + struct.pack("<I", crc32(head)))
        paths = sorted(self._folder.glob("*.trace"))
        sizes = [path.stat().st_size for path in paths]
        excess = sum(sizes) + FILE_BYTES_MAX - self._total_max
        for path, size in zip(paths[:-1], sizes, strict=False):
            if excess <= 0:
                break
            path.unlink()
            excess -= size


def _packed(trace: Trace) -> bytes:
    return _RECORD.pack(*map(min, trace, _LIMITS))


def _next_number(folder: Path, stripe: int, site: int) -> int:
    """The first record number of a new incarnation."""
    files = trace_files(folder)
    if not files:
        return 1
    last = files[-1]
    if (last.stripe, last.site) != (stripe, site):
        raise Damaged(last.path, 0, 0, f"it is of stripe {last.stripe}, site {last.site}")
    used = last.first
    for first, records in last.read(last=True):
        used = first + len(records)
    return (used // INCARNATION_RECORDS + 1) * INCARNATION_RECORDS


def starts_incarnation(number: int) -> bool:
    """Whether records before this one may be missing."""
    return number % INCARNATION_RECORDS == 0
