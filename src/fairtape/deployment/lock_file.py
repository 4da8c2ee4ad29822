"""Who runs the deployment of a folder: one command at a time, known by a lock that ends with it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.storage.files import LockHeld, is_locked, lock_file

LOCK: Final = "lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Be the one who runs this deployment."""
    with ExitStack() as held:
        try:
            held.enter_context(lock_file(folder / LOCK))
        except LockHeld:
            raise UserError(f"the deployment in {str(folder)!r} is running already; stop it first") from None
        except OSError as error:
            raise UserError(
                f"folder {str(folder)!r} cannot be written ({error.strerror}); name one that is yours"
            ) from None
        yield


def is_running(folder: Path) -> bool:
    """Whether somebody does."""
    return is_locked(folder / LOCK)
