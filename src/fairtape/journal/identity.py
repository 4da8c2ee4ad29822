"""The identity of a journal: a random number that its directory keeps from its first use on.

A formation names the identity of each member's journal (decision 52, Identity of a journal). A site whose directory was
emptied or replaced has another identity, so its empty journal is not taken for proof that nothing was held.
"""

import os
import re
import secrets
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.journal.truncation import sync_directory

IDENTITY_NAME: Final = "identity"
_BITS: Final = 32
_IDENTITY: Final = re.compile(r"(?!0{8})[0-9a-f]{8}")


def journal_identity(directory: Path) -> int:
    """The identity of the journal in this directory; a new one is on the disk before this returns."""
    path = directory / IDENTITY_NAME
    try:
        return _read(path) if path.exists() else _create(path)
    except OSError as error:
        raise UserError(f"journal file {str(path)!r} cannot be used ({error.strerror})") from None


def _read(path: Path) -> int:
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not _IDENTITY.fullmatch(text):
        raise UserError(
            f"journal file {str(path)!r} has {text[:20]!r} and no identity; remove it, and the site counts as one that "
            "lost its journal"
        )
    return int(text, 16)


def _create(path: Path) -> int:
    number = 1 + secrets.randbelow((1 << _BITS) - 1)
    new = path.with_suffix(".new")
    with new.open("w", encoding="ascii") as file:
        file.write(f"{number:0{_BITS // 4}x}\n")
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    sync_directory(path.parent)
    return number
