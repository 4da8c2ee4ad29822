"""What commands share: progress on standard error, checks of numbers, exit codes, Ctrl-C during long work."""

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
    """Yield a function that shows the current step on standard error."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with console.status("starting") as status:

        def step(text: str) -> None:
            if console.is_terminal:
                status.update(text)
            else:
                console.print(text)

        yield step


SHOWN_MAX: Final = 32  # characters of a value in an error message


def check_within(name: str, value: float | None, least: float, most: float, *, hint: str = "") -> None:
    """Refuse a value out of bounds, NaN included, in one sentence that ends with `hint`. None is accepted."""
    if value is None or least <= value <= most:
        return
    raise UserError(f"{name} is {_shown(value)}; give from {_shown(least)} to {_shown(most)}{hint}")


def _shown(value: float) -> str:
    text = f"{value:,.10g}" if isinstance(value, float) else f"{value:,}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def counted(number: int, noun: str) -> str:
    """A count with its noun: `1 site`, `2 sites`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@contextmanager
def asked_to_stop(say: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. The second Ctrl-C interrupts as usual.

    `say` is called at the first one. Spark's own handler would call Java in the middle of another call, which breaks
    the connection.
    """
    stopped = threading.Event()

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()
        say()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield stopped.is_set
    finally:
        signal.signal(signal.SIGINT, before)
