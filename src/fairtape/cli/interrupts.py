"""Ctrl-C on long work that should end in good order."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


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
