"""Who runs the deployment of a folder: one command at a time, known by a lock that ends with it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError

LOCK: Final = "lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Be the one who runs this deployment."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(
            f"folder {str(folder)!r} cannot be written ({error.strerror}); name one that is yours"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"the deployment in {str(folder)!r} is running already; stop it first") from None
    finally:
        os.close(lock)


def is_running(folder: Path) -> bool:
    """Whether somebody does."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
