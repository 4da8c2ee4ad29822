"""What commands share: progress on standard error, checks of numbers, instants as text, exit codes, Ctrl-C."""

import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Final, TypeVar

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Instant

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

EXIT_BROKEN: Final = 1  # a guarantee or a check failed; 2 is a mistake of the user
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DIGITS_MAX: Final = 19  # of an instant: nanoseconds in 64 bits
REFRESHES_PER_S: Final = 2  # of a spinner

Result = TypeVar("Result")


@contextmanager
def steps(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step on standard error."""
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    if quiet or not console.is_terminal:  # without the thread of a spinner, which would disturb what is measured
        yield lambda text: console.print(text, soft_wrap=True)
        return
    with console.status("starting", refresh_per_second=REFRESHES_PER_S) as status:
        yield status.update


@contextmanager
def progress_bar(completed: "ProgressColumn", *, quiet: bool) -> Iterator["Progress"]:
    """A progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), completed, TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        yield bar


def with_progress(
    results: Iterable[Result], label: str, total: int, *, completed: "ProgressColumn | None" = None, quiet: bool = False
) -> Iterator[Result]:
    """The results, each of which advances a progress bar."""
    from rich.progress import MofNCompleteColumn

    with progress_bar(completed or MofNCompleteColumn(), quiet=quiet) as bar:
        task = bar.add_task(label, total=total)
        for result in results:
            yield result
            bar.advance(task)


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


def parse_instant(option: str, text: str) -> Instant:
    """Nanoseconds since 1970, or an ISO 8601 time, by default in UTC."""
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        return int(text)
    whole, finer = _beyond_microseconds(text)
    try:
        moment = datetime.fromisoformat(whole)
    except ValueError:
        raise UserError(
            f"{option} is {text[:SHOWN_MAX]!r}; give nanoseconds since 1970 or a time such as 2026-07-01T14:30:00Z"
        ) from None
    elapsed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * SECOND + elapsed.microseconds * 1_000 + finer


def _beyond_microseconds(text: str) -> tuple[str, int]:
    """The text without digits that `datetime` cannot parse, and the nanoseconds of these digits."""
    found = re.search(r"([.,]\d{6})(\d{1,3})(?!\d)", text)
    if found is None:
        return text, 0
    return text[: found.end(1)] + text[found.end() :], int(found[2].ljust(3, "0"))


def format_instant(instant: Instant) -> str:
    """ISO 8601 with nanoseconds, which `datetime` does not support."""
    seconds, nanoseconds = divmod(instant, SECOND)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError):
        return f"{instant}ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


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
