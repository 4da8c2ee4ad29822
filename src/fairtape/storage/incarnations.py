"""The incarnation of a node: a number that is higher at each start, whatever the clock shows.

What a node sends is accepted once: serial numbers continue from its incarnation, and sources seal with a key of their
incarnation. The present time would do, unless the clock was set back: then everything would count as replayed until the
clock has passed the earlier start. So each node keeps its last incarnation in a small file and takes a higher one. If
the file is lost, a good clock makes up for it (decision 62, Incarnations on the disk).
"""

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.storage.files import write_atomically

SERIALS_MAX: Final = 1 << 34
"""Serial numbers of one incarnation of a site or a server: 19 days at 10,000 per second, if its clock is set back."""

_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def next_incarnation(path: Path, now: Instant, *, step: int = 1) -> int:
    """The present time, or the last incarnation plus `step` if that is later. It is on the disk before this returns."""
    return next_incarnations([path], now, step=step)


def next_incarnations(paths: Sequence[Path], now: Instant, *, step: int = 1) -> int:
    """The incarnation of the first of several nodes; those of the others are the numbers that follow it."""
    try:
        with _locked(paths[0].parent) as directory:
            first = max(now, *(_read(path) + step for path in paths))
            for number, path in enumerate(paths, first):
                write_atomically(path, f"{number}\n".encode(), sync=True)
            os.fsync(directory)
            return first
    except OSError as error:
        raise UserError(
            f"incarnation file {str(paths[0])!r} cannot be written ({error.strerror}); a node that starts must be able"
            " to write there"
        ) from None


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Two processes that start as the same node must not get the same number."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(path: Path) -> int:
    """The last incarnation; 0 where there is none."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return 0
    if not _NUMBER.fullmatch(text):
        raise UserError(
            f"incarnation file {str(path)!r} has {text[:20]!r} and no number; remove it, if the clock of this machine"
            " is right"
        )
    return int(text)
