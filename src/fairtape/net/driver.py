"""The event loop of one process: wait for a datagram or a deadline, step the runtimes concerned, repeat. One thread.

The driver knows no protocol. It has one timer, the earliest deadline of all runtimes, and one wait, which ends with
that deadline or with the first datagram.

A runtime is stepped when a socket of it is ready, or when it is due. Its deadlines are looked up again after its own
step only: they change by nothing else, with three exceptions, after which all runtimes are stepped. A consumer or
another callback of one runtime may have given work to any other; so may another thread, which calls `wakeup`; and once
per housekeeping period, whatever was overlooked.

The wait must be precise, because releases are only as simultaneous as their timers (`fairtape.net.poll`). The kernel
lets a wait end late by a thousandth of its length, and a sleeping processor needs time to wake up. So the wait is
shortened by as much as waits have lasted too long, the rest is a busy-wait, and the thread asks for no timer slack.
"""

import ctypes
import gc
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Final

from fairtape.core.instants import MICROSECOND, MILLISECOND, NEVER, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.net.clock import Clock
from fairtape.net.node_runtime import NodeRuntime
from fairtape.net.poll import Poll

HOUSEKEEPING_PERIOD: Final = 50 * MILLISECOND  # the longest wait: the stop condition is checked at least this often
GATHER_PERIOD_MAX: Final = 1 * MILLISECOND
COLLECTED_AFTER: Final = 100_000  # allocations without a deallocation before the garbage collector runs

WAKE_DELAY_MAX: Final = 125 * MICROSECOND  # a longer one is no wake-up: the processor was taken by another program
OVERSLEPT_AFTER: Final = 1 * MILLISECOND  # this process did not run: datagrams may have arrived since the wait ended
BUSY_WAIT_MAX: Final = 200 * MICROSECOND  # before a deadline: more than any wait is shortened by
CLOCK_READS_MAX: Final = 2_000  # of one busy-wait

_SLACK_SHIFT: Final = 10  # the kernel's thousandth, and a little more
_PR_SET_TIMERSLACK: Final = 29
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class WakeDelay:
    """How long a sleeping processor takes to wake up: the mean and four mean deviations, as TCP's timer (RFC 6298)."""

    __slots__ = ("_deviation", "_mean", "period")

    def __init__(self) -> None:
        self._mean: Duration = WAKE_DELAY_MAX // 2
        self._deviation: Duration = 0
        self.period: Duration = self._mean

    def note(self, overslept: Duration) -> None:
        """A wait has ended this long after the instant at which it was to end."""
        error = min(max(overslept, 0), WAKE_DELAY_MAX) - self._mean
        self._mean += error // 8
        self._deviation += (abs(error) - self._deviation) // 4
        self.period = min(self._mean + 4 * self._deviation, WAKE_DELAY_MAX)


class Driver:
    """Runs the runtimes of one process."""

    def __init__(self, runtimes: Sequence[NodeRuntime], clock: Clock, *, gather_period: Duration = 0) -> None:
        """With a `gather_period`, data ends no wait for that long after a step that read data.

        Data is not urgent, and more of it will follow. It is read in every step then, and so before the site
        acknowledges, and before it handles an acknowledgment that names it. Without data nothing is gathered: an idle
        site is woken by its tokens alone.
        """
        self._runtimes = tuple(runtimes)
        self._clock = clock
        self._gather_period = gather_period
        self._gathers = False  # the last step read data, so the next wait leaves data alone for a gather period
        self._wake_delay = WakeDelay()
        self._wakes_at: Instant = NEVER  # when the present wait is to end
        self._sleeps = False  # the present wait is long enough for a sleep
        self._stopping = False
        self._any_has_work = True  # the application may have given any runtime work: then the next wait only polls
        self._step_all_at: Instant = 0
        self._stepped: Sequence[int] = range(len(self._runtimes))  # in the last step; their deadlines are looked up
        self._due_at = [NEVER] * len(self._runtimes)
        self._other_due_at = [NEVER] * len(self._runtimes)
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.settimeout(0)
        self._wake_sender.settimeout(0)
        self._runtime_of: dict[int, int] = {}  # by file descriptor
        control, data = [self._wake_receiver.fileno()], []
        for place, runtime in enumerate(self._runtimes):
            urgent = [each.fd for each in runtime.transport.control]
            urgent += [] if runtime.producer_fd is None else [runtime.producer_fd]
            gathered = [each.fd for each in runtime.transport.data]
            control += urgent
            data += gathered
            self._runtime_of |= dict.fromkeys((*urgent, *gathered), place)
        self._urgent, self._watched = Poll(control), Poll([*control, *data])

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Run until the condition holds (`event.is_set` will do), `stop` is called, or SIGINT or SIGTERM arrives.

        The condition is checked before every step, at least once per housekeeping period. A stopped driver stays
        stopped.
        """
        _disable_timer_slack()
        with _stop_on_signals(self.stop, self._wake_sender.fileno()):
            while not self._stopping and not (until is not None and until()):
                self.step()

    def step(self) -> None:
        """One iteration: wait for the first datagram or deadline, then step the runtimes that are ready or due.

        Each runtime reads the clock itself. One reading for all would date the releases of the last runtime by the time
        at which the first one began.
        """
        ready = self._wait()
        self._stepped = self._concerned(ready)
        due = self._any_has_work or not ready or len(self._runtimes) > 1 or self._due_at[0] <= self._clock.now()
        self._any_has_work = False
        collect_data, self._gathers = self._gathers, False
        for place in self._stepped:
            runtime = self._runtimes[place]
            self._any_has_work |= runtime.step(ready, self._clock, collect_data=collect_data, due=due)
            self._gathers |= runtime.took_data and self._gather_period > 0

    def _concerned(self, ready: Collection[int]) -> Sequence[int]:
        """The runtimes with a ready socket or a deadline that has passed; all, where any may have been given work."""
        if len(self._runtimes) == 1:
            return (0,)
        now = self._clock.now()
        if self._any_has_work or now >= self._step_all_at:
            self._step_all_at = now + HOUSEKEEPING_PERIOD
            return range(len(self._runtimes))
        found = {self._runtime_of[each] for each in ready}
        for deadlines in (self._due_at, self._other_due_at):
            if min(deadlines) <= now:
                found.update(place for place, deadline in enumerate(deadlines) if deadline <= now)
        return sorted(found)

    def wakeup(self) -> None:
        """End the current wait. May be called from any thread, after giving a producer something to do."""
        with suppress(BlockingIOError):  # full of wakeups that have not been read yet
            self._wake_sender.send(b"\0")

    def stop(self) -> None:
        """End `run` after the current step. May be called from any thread."""
        self._stopping = True
        self.wakeup()

    def close(self) -> None:
        """Close every runtime, even where the journal of another one fails to close, and the driver's own sockets."""
        with ExitStack() as closing:
            closing.enter_context(self._wake_receiver)
            closing.enter_context(self._wake_sender)
            closing.callback(self._urgent.close)
            closing.callback(self._watched.close)
            for runtime in self._runtimes:
                closing.callback(runtime.close)

    def _wait(self) -> Collection[int]:
        """Wait until a datagram arrives or a deadline passes; the file descriptors of runtimes that are ready."""
        due_at, other_due_at = self._deadlines()
        ready = self._poll(due_at, other_due_at)
        if not ready:
            self._busy_wait(due_at)
            if self._clock.now() - self._wakes_at > OVERSLEPT_AFTER:
                ready = self._watched.wait(0)
        if not ready:
            return ready
        if self._wake_receiver.fileno() in ready:
            self._any_has_work = True
            with suppress(BlockingIOError):
                self._wake_receiver.recv(4_096)
            return [each for each in ready if each in self._runtime_of]
        return ready

    def _deadlines(self) -> tuple[Instant, Instant]:
        """The earliest of all runtimes; 0 where one runtime may have given another one work."""
        for place in self._stepped:
            runtime = self._runtimes[place]
            self._due_at[place] = runtime.due_at()
            self._other_due_at[place] = runtime.other_due_at()
        if self._any_has_work and len(self._runtimes) > 1:
            return 0, 0
        return min(self._due_at, default=NEVER), min(self._other_due_at, default=NEVER)

    def _poll(self, due_at: Instant, other_due_at: Instant) -> Collection[int]:
        wait_period = self._wait_period(due_at, other_due_at)
        if self._gathers:
            ready = self._urgent.wait(min(wait_period, self._gather_period))
            if ready or wait_period <= self._gather_period:
                return ready
            wait_period = self._wait_period(due_at, other_due_at)
        return self._watched.wait(wait_period)

    def _wait_period(self, due_at: Instant, other_due_at: Instant) -> Duration:
        """How long to wait in the kernel: shortened by its usual oversleep where the deadline must be exact."""
        now = self._clock.now()
        left = min(due_at - now, HOUSEKEEPING_PERIOD)
        left -= (left >> _SLACK_SHIFT) + self._wake_delay.period
        period = max(min(left, other_due_at - now), 0)
        self._sleeps = period > WAKE_DELAY_MAX
        self._wakes_at = now + period
        return period

    def _busy_wait(self, due_at: Instant) -> None:
        """Busy-wait until the deadline, if it is near. The wait before has ended without a datagram."""
        now = self._clock.now
        woken_at = now()
        if self._sleeps:
            self._wake_delay.note(woken_at - self._wakes_at)
        if 0 < due_at - woken_at < BUSY_WAIT_MAX:
            for _ in range(CLOCK_READS_MAX):
                if now() >= due_at:
                    return


def gather_period(timing: Timing) -> Duration:
    """How long a site may let data wait in its sockets: half a token, and never long enough to fill a buffer."""
    return min(timing.token_period // 2, GATHER_PERIOD_MAX)


def tune_gc() -> None:
    """Run the garbage collector seldom, in a process that only drives machines.

    The path of a datagram makes no reference cycles, so there is little to collect, and a collection in the middle of a
    token makes it late. Objects that exist now are never scanned again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


def run_in_real_time() -> bool:
    """Ask for real-time scheduling (SCHED_RR) of this process, for exact releases; whether the kernel grants it.

    It needs the privilege CAP_SYS_NICE. Real-time processes share the processor in turn, and the kernel reserves a
    share for the others.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError:
        return False
    return True


def may_run_in_real_time() -> bool:
    """Whether `run_in_real_time` would be granted; the scheduling stays as it is."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    granted = run_in_real_time()
    if granted:
        os.sched_setscheduler(0, before, parameters)
    return granted


def _disable_timer_slack() -> None:
    """Ask the kernel not to defer timers of this thread for batching. Where that fails, waits are less exact."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


@contextmanager
def _stop_on_signals(stop: Callable[[], None], waker: int) -> Iterator[None]:
    """SIGINT and SIGTERM stop the driver. Only the main thread can handle signals; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop()

    # The descriptor ends a wait that began between the signal and the moment Python calls its handler.
    previous_waker = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, on_signal) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(previous_waker)


def allow_files(needed: int) -> int:
    """Raise this process's limit of open files to `needed`, as far as the system allows; the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
