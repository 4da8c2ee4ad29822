"""The lock of a deployment folder: one command at a time runs the deployment."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.storage.files import LockHeld, is_locked, lock_file

LOCK: Final = "lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of this deployment. Raises `UserError` where another process holds it."""
    with ExitStack() as held:
        try:
            held.enter_context(lock_file(folder / LOCK))
        except LockHeld:
            raise UserError(f"the deployment in {str(folder)!r} is running already; stop it first") from None
        except OSError as error:
            raise UserError(
                f"folder {str(folder)!r} cannot be written ({error.strerror}); name one that you can write"
            ) from None
        yield


def is_running(folder: Path) -> bool:
    """Whether a process runs the deployment of this folder."""
    return is_locked(folder / LOCK)
