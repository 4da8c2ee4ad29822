"""Which directories this process lists, noticed by an audit hook of the interpreter."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_listed: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _listed is not None and event in ("os.listdir", "os.scandir"):
        _listed.append(str(arguments[0]))


sys.addaudithook(_note)


@contextmanager
def listings(directory: Path) -> Iterator[list[str]]:
    """The listings of this directory by any thread of this process, until the context ends."""
    global _listed  # because an audit hook cannot be removed
    found: list[str] = []
    _listed = found
    try:
        yield found
    finally:
        _listed = None
        found[:] = [path for path in found if path == str(directory)]
