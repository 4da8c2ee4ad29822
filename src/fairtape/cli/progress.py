"""Progress of long work: one line per step on standard error, so that standard output stays for results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

EXIT_BROKEN: Final = 1  # a guarantee or a check failed; 2 is a mistake of the user


@contextmanager
def steps(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that says what is being done now."""
    from rich.console import Console  # noqa: PLC0415 - its import takes longer than most commands

    console = Console(stderr=True, quiet=quiet)
    with console.status("starting") as status:

        def step(text: str) -> None:
            if console.is_terminal:
                status.update(text)
            else:
                console.print(text)

        yield step
