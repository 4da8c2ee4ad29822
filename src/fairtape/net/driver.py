"""Turns machines in one thread: wait, then let every seat take its turn, and wait again.

The driver knows no protocol. There is one timer, the earliest deadline of everything in every seat, and one wait, which
ends with that deadline or with the first datagram.

The wait must be precise, because a release is only as simultaneous as its timers. epoll counts milliseconds; `select`
counts microseconds, but the kernel lets a wait end late by a thousandth of its length, and a processor that slept takes
its time to wake. So the wait is cut short by as much, the rest of it is spent looking at the clock, and the thread asks
for no timer slack.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.net.clock import Clock
from fairtape.net.node_runtime import NodeRuntime

HOUSEKEEPING_PERIOD: Final = 50 * MILLISECOND  # the longest wait: the stop condition is looked at
COLLECTED_AFTER: Final = 100_000  # new objects that outlive their makers, before the collector looks at them
WATCHED_MAX: Final = 1_024  # FD_SETSIZE: file descriptors from this one on are beyond `select`

WAKE_DELAY: Final = 75 * MICROSECOND  # what a sleeping processor needs until the driver runs, on a virtual machine too
STARE_MAX: Final = 200 * MICROSECOND  # before a deadline: longer than any wait is cut short
LOOKS_MAX: Final = 2_000  # at the clock, while it is nearly time

_SLACK_SHIFT: Final = 10  # the kernel's thousandth, and a little more
_PR_SET_TIMERSLACK: Final = 29
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Driver:
    """Runs the seats of one process."""

    def __init__(self, runtimes: Sequence[NodeRuntime], clock: Clock, *, gather_period: Duration = 0) -> None:
        """With a `gather_period` data wakes nobody for that long after the last turn.

        Nobody is in a hurry for it: it is read in every turn, so before the site acknowledges and before it hears what
        an acknowledgment names.
        """
        self._runtimes = tuple(runtimes)
        self._clock = clock
        self._gather_period = gather_period
        self._stopping = False
        self._acted = True  # a consumer may have given any seat new work: then the next wait is only a look
        self._wakened, self._waker = socket.socketpair()
        self._wakened.settimeout(0)
        self._waker.settimeout(0)
        self._urgent = [self._wakened.fileno()]
        for runtime in self._runtimes:
            self._urgent += [each.fd for each in runtime.transport.control]
        self._watched = self._urgent + [each.fd for runtime in self._runtimes for each in runtime.transport.data]
        highest = max(self._watched)
        if highest >= WATCHED_MAX:
            self._wakened.close()
            self._waker.close()
            raise UserError(
                f"sockets of this process are numbered up to {highest}; they must stay below {WATCHED_MAX}: run fewer"
                " sites in one process"
            )

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Turn until the condition holds (`event.is_set` will do), `stop` is called, or SIGINT or SIGTERM comes.

        The condition is looked at before every turn, at least once in each housekeeping period. A driver that was
        stopped stays stopped.
        """
        _refuse_timer_slack()
        with _signals_calling(self.stop, self._waker.fileno()):
            while not self._stopping and not (until is not None and until()):
                self.step()

    def step(self) -> None:
        """Wait for the first datagram or deadline, then let every seat take its turn, at one reading of the clock each.

        A reading for all seats would date the releases of the last one by the time the first one began.
        """
        ready = self._wait()
        self._acted = False
        for runtime in self._runtimes:
            self._acted |= runtime.step(ready, self._clock, collect_data=self._gather_period > 0)

    def wakeup(self) -> None:
        """End the present wait. May be called from any thread, after giving a producer something to do."""
        with suppress(BlockingIOError):  # full of nudges that have not been heard yet
            self._waker.send(b"\0")

    def stop(self) -> None:
        """End `run` after the present turn. May be called from any thread."""
        self._stopping = True
        self.wakeup()

    def close(self) -> None:
        """Close every seat, even where the journal of another one fails to, and what the driver itself holds."""
        with ExitStack() as closing:
            closing.enter_context(self._wakened)
            closing.enter_context(self._waker)
            for runtime in self._runtimes:
                closing.callback(runtime.close)

    def _wait(self) -> Collection[int]:
        """Wait until something arrives or falls due."""
        due_at, other_due_at = self._deadlines()
        ready = self._select(due_at, other_due_at)
        if not ready:
            self._busy_wait(due_at)
        elif self._wakened.fileno() in ready:
            with suppress(BlockingIOError):
                self._wakened.recv(4_096)
        return ready

    def _deadlines(self) -> tuple[Instant, Instant]:
        """The earliest of all seats; the past where one of them may have given another something to do."""
        if self._acted and len(self._runtimes) > 1:
            return 0, 0
        due_at = min((runtime.due_at() for runtime in self._runtimes), default=NEVER)
        other_due_at = min((runtime.other_due_at() for runtime in self._runtimes), default=NEVER)
        return due_at, other_due_at

    def _select(self, due_at: Instant, other_due_at: Instant) -> list[int]:
        """The sockets on which something has arrived, as soon as there are any or it is time."""
        wait_period = self._wait_period(due_at, other_due_at)
        if self._gather_period:
            ready, _, _ = select.select(self._urgent, (), (), min(wait_period, self._gather_period) / SECOND)
            if ready or wait_period <= self._gather_period:
                return ready
            wait_period = self._wait_period(due_at, other_due_at)
        ready, _, _ = select.select(self._watched, (), (), wait_period / SECOND)
        return ready

    def _wait_period(self, due_at: Instant, other_due_at: Instant) -> Duration:
        """How long the kernel is asked to wait: short of what must be exact by as much as it is used to oversleep."""
        now = self._clock.now()
        left = min(due_at - now, HOUSEKEEPING_PERIOD)
        left -= (left >> _SLACK_SHIFT) + WAKE_DELAY
        return max(min(left, other_due_at - now), 0)

    def _busy_wait(self, due_at: Instant) -> None:
        """Look at the clock until it is time, if that is near."""
        now = self._clock.now
        if 0 < due_at - now() < STARE_MAX:
            for _ in range(LOOKS_MAX):
                if now() >= due_at:
                    return


def tune_gc() -> None:
    """Let the garbage collector come seldom, in a process that does nothing but drive.

    No cycle is made in the path of a datagram, so there is little to find, and a search in the middle of a token makes
    it late. What exists now is never searched again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


def run_in_real_time() -> bool:
    """Ask the kernel to prefer this process to ordinary ones, as the releases of a site deserve; whether it does.

    It needs a privilege (CAP_SYS_NICE). Processes in real time take turns, and the kernel keeps a share for the others.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError:
        return False
    return True


def may_run_in_real_time() -> bool:
    """Whether `run_in_real_time` would be granted; nothing changes by asking."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    granted = run_in_real_time()
    if granted:
        os.sched_setscheduler(0, before, parameters)
    return granted


def _refuse_timer_slack() -> None:
    """Ask that timers of this thread not be put off to be served together; where that fails, waits are less exact."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


@contextmanager
def _signals_calling(stop: Callable[[], None], waker: int) -> Iterator[None]:
    """While it lasts, SIGINT and SIGTERM stop the driver. Only the main thread of a program hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop()

    # The descriptor ends a wait that has begun between the signal and the moment Python calls its handler.
    previous_waker = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, on_signal) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(previous_waker)


# How many files and connections this process may have open: as many as it needs, where the system lets it.


def allow_files(needed: int) -> int:
    """Raise this process's own limit to what is needed, as far as that goes; how many files it may open then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
