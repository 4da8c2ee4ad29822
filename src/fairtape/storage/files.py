"""Atomic replacement of small files, and lock files. Every user states the durability that it needs."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["LockHeld", "is_locked", "lock_file", "write_atomically"]


class LockHeld(Exception):
    """Another process holds the lock."""


def write_atomically(
    path: Path, *content: bytes, sync: bool = False, concurrent: bool = False, mode: int = 0o666
) -> None:
    """Replace a file, so that a reader finds either the old content or the new one. Raises OSError.

    The content goes to a temporary file beside it, which is then renamed. With `sync` the content is on the disk before
    the rename, so that a power failure leaves no empty file. With `concurrent` several processes may write the same
    file: each has its own temporary file. Permissions are `mode` without the umask, from the first byte on.
    """
    suffix = f".{os.getpid()}.part" if concurrent else ".part"
    partial = path.with_name(f"{path.name}{suffix}")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.writelines(content)
        if sync:
            file.flush()
            os.fdatasync(file.fileno())
    partial.replace(path)


@contextmanager
def lock_file(path: Path) -> Iterator[int]:
    """Hold the exclusive lock of a file, which is created if need be; yields its descriptor.

    The kernel releases the lock when the process ends, however it ends. Raises OSError, and `LockHeld` where
    another process holds it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockHeld(f"{path} is locked by another process") from None
        yield lock
    finally:
        os.close(lock)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file. A file that is not there is not locked."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
