"""Progress of long work: one line per step on standard error, so that standard output stays for results."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from fairtape.core.errors import UserError

EXIT_BROKEN: Final = 1  # a guarantee or a check failed; 2 is a mistake of the user


@contextmanager
def steps(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that says what is being done now."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with console.status("starting") as status:

        def step(text: str) -> None:
            if console.is_terminal:
                status.update(text)
            else:
                console.print(text)

        yield step


# Numbers that a user types: each has a least and a most, and `nan` is neither.

SHOWN_MAX: Final = 32  # characters of a value: enough to recognise what was typed


def check_within(name: str, value: float | None, least: float, most: float, *, hint: str = "") -> None:
    """Refuse a value out of bounds, in one sentence; `hint` ends it. An option that was not given is within."""
    if value is None or least <= value <= most:
        return
    raise UserError(f"{name} is {_shown(value)}; give from {_shown(least)} to {_shown(most)}{hint}")


def _shown(value: float) -> str:
    text = f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


# Numbers in sentences.


def counted(number: int, noun: str) -> str:
    """So many of something: `1 site`, `2 sites`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# Ctrl-C on long work that should end in good order.


@contextmanager
def asked_to_stop(say: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """While it lasts, the first Ctrl-C is only noted (and answered by `say`); the second one interrupts as usual.

    Spark's own handler would talk to Java in the middle of whatever is being said to it, which breaks the line.
    """
    stopped = threading.Event()

    def heed(_number: int, _frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()
        say()

    before = signal.signal(signal.SIGINT, heed)
    try:
        yield stopped.is_set
    finally:
        signal.signal(signal.SIGINT, before)
