"""Messages of one size as the rows of a byte matrix: one field of all messages is read or written at once."""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Octets: TypeAlias = npt.NDArray[np.uint8]  # of a whole buffer
Rows: TypeAlias = npt.NDArray[np.uint8]  # a message in each row
Values: TypeAlias = npt.NDArray[Any]

# There is no 6-byte integer type, so such a number is made of two.
_PARTS: Final = {2: (2,), 4: (4,), 6: (2, 4), 8: (8,)}


def gather(octets: Octets, starts: Values, size: int) -> Rows:
    """The messages of this size that begin at these bytes."""
    rows: Rows = _windows(octets, size)[starts].view(np.uint8).reshape(-1, size)
    return rows


def scatter(octets: Octets, starts: Values, rows: Rows) -> None:
    """Write each row to the start of its message."""
    if len(rows):
        size = rows.shape[1]
        _windows(octets, size)[starts] = rows.view(f"V{size}").reshape(-1)


def _windows(octets: Octets, size: int) -> Values:
    """An array of overlapping items of `size` bytes, one at every byte of the buffer."""
    return np.ndarray((len(octets) - size + 1,), f"V{size}", octets, strides=(1,))


def slot(rows: Rows, start: int, kind: str) -> Values:
    """A view of the same bytes of every row as items of one type."""
    width = np.dtype(kind).itemsize
    view: Values = rows[:, start : start + width].view(kind)[:, 0]
    return view


def read_numbers(rows: Rows, start: int, width: int) -> Values:
    """Big-endian numbers of this width; those of 6 bytes are times, and become int64."""
    if width != 6:
        return slot(rows, start, f">u{width}").astype(f"u{width}")
    upper = slot(rows, start, ">u2").astype(np.int64) << 32
    return upper | slot(rows, start + 2, ">u4")


def write_numbers(rows: Rows, start: int, width: int, values: Values) -> None:
    """The inverse of `read_numbers`; the numbers must fit."""
    rest, end = values.astype(np.uint64), start + width
    for part in reversed(_PARTS[width]):
        end -= part
        slot(rows, end, f">u{part}")[:] = rest & np.uint64((1 << 8 * part) - 1)
        rest = rest >> np.uint64(8 * part % 64)
