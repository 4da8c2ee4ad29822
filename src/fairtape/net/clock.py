"""The clock of a site: UTC in nanoseconds, how wrong it may be, and a promise that it never goes back.

Machines compare instants; a clock that is set while they run would make their deadlines due or take them away. So a
site counts with the machine's steady counter (CLOCK_MONOTONIC, whose rate the clock discipline keeps), and reads the
system clock once, at birth, to know what the counter means. From then on the two differ only if somebody sets the
system clock. The rule for that:

 1. A step is noticed when the bound is next asked for, and is from then on part of the bound: a site whose bound has
    grown past `clock_error_max` withdraws from its loop.
 2. A step of up to ADOPTED_MAX is followed at a hundredth of the pace of time, forward or backward, so that no timer
    is lost; the bound shrinks with the distance, and the site returns.
 3. A larger one is never followed: one of the two clocks is wrong altogether, and a person has to find out which. The
    site stays out until it is started again.
"""

import ctypes
import time
from collections.abc import Callable
from typing import Final, Protocol

from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant

UNSYNCHRONISED_BOUND: Final = 16 * SECOND
"""What the kernel itself assumes of a clock that nobody disciplines (NTP_PHASE_LIMIT): far too much to serve fairly."""

READING_BOUND: Final = 1 * MICROSECOND
"""How far apart two readings of one clock at one moment may be: the call itself, and the tick between two cores."""

STEP_MIN: Final = 20 * MICROSECOND  # less is what two readings differ by that cannot be taken at one moment
GLANCE_MAX: Final = 5 * MICROSECOND  # a comparison that took longer was interrupted
GLANCES_MAX: Final = 16  # tries to compare without being interrupted
LOOK_PERIOD: Final = 1 * MILLISECOND  # between two comparisons: the bound is asked for with every datagram
SLEW_SHARE: Final = 100  # a step is followed at a hundredth of the pace of time
ADOPTED_MAX: Final = 10 * SECOND

_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5

Reading = Callable[[], Instant]


class Clock(Protocol):
    """What a driver asks of a clock."""

    def now(self) -> Instant:
        """UTC in nanoseconds; never less than the last answer."""

    def bound(self) -> Duration:
        """How far `now()` may be from the time of the other sites."""


class _SteadyClock:
    """A steady counter that was set by the system clock, and follows it slowly where that is set again."""

    __slots__ = ("_count", "_followed_from", "_look_at", "_offset", "_read", "_step", "skew", "steps")

    def __init__(self, read: Reading, count: Reading) -> None:
        self._read = read
        self._count = count
        self.skew: Duration = 0  # as if somebody had set the system clock by this: for drills
        self.steps = 0  # how often it was set
        self._step: Duration = 0  # by how much the system clock is away from `_offset`
        self._followed_from, self._offset, _ = self._compare()
        self._look_at = self._followed_from  # by the counter

    def now(self) -> Instant:
        """The counter, as the system clock meant it."""
        counted = self._count()
        if self._step:
            return counted + self._offset + self._followed(counted)
        return counted + self._offset

    @property
    def distance(self) -> Duration:
        """How far the system clock is away, after a step that has not been followed yet."""
        counted = self._count()
        if counted >= self._look_at:
            self._look()
        return abs(self._step - self._followed(counted))

    def _look(self) -> None:
        """Notice whether the system clock was set."""
        counted, offset, doubt = self._compare()
        self._look_at = counted + LOOK_PERIOD
        if abs(offset - self._offset - self._step) >= STEP_MIN + doubt:
            self.steps += 1
            self._offset += self._followed(counted)
            self._followed_from = counted
            self._step = offset - self._offset

    def _followed(self, counted: Instant) -> Duration:
        """How much of a step has been followed."""
        if abs(self._step) > ADOPTED_MAX:
            return 0
        possible = (counted - self._followed_from) // SLEW_SHARE
        return max(min(self._step, possible), -possible)

    def _compare(self) -> tuple[Instant, Duration, Duration]:
        """The counter, what the system clock was ahead of it at that moment, and how long the moment was."""
        glances = []
        for _ in range(GLANCES_MAX):
            before, reading, after = self._count(), self._read(), self._count()
            glances.append((after - before, after, reading + self.skew - (before + after) // 2))
            if after - before <= GLANCE_MAX:
                break
        doubt, counted, offset = min(glances)
        return counted, offset, doubt


class SystemClock(_SteadyClock):
    """The clock of a site on a host of its own, with the error bound that the kernel keeps for chrony or PTP."""

    __slots__ = ("_unsynchronised_bound",)

    def __init__(
        self,
        *,
        declared_bound: Duration | None = None,
        read: Reading = time.time_ns,
        count: Reading = time.monotonic_ns,
    ) -> None:
        """Where the kernel knows no bound, the one that the operator declared counts, else a pessimistic one."""
        if declared_bound is not None and declared_bound <= 0:
            raise UserError(f"clock bound is {declared_bound} ns; declare a positive error bound, or none at all")
        super().__init__(read, count)
        self._unsynchronised_bound = UNSYNCHRONISED_BOUND if declared_bound is None else declared_bound

    def bound(self) -> Duration:
        """The kernel's bound, or the declared one, plus what a step adds."""
        kept = kernel_bound()
        return (self._unsynchronised_bound if kept is None else kept) + self.distance


class SharedClock(_SteadyClock):
    """The clock of sites on one host: they read the same one, so only the reading itself tells them apart."""

    __slots__ = ()

    def __init__(self, *, read: Reading = time.time_ns, count: Reading = time.monotonic_ns) -> None:
        super().__init__(read, count)

    def bound(self) -> Duration:
        """The granularity of a reading, whatever the distance to UTC, plus what a step adds."""
        return READING_BOUND + self.distance


def kernel_bound() -> Duration | None:
    """The error bound that the kernel keeps, read without changing anything.

    None where the clock is not synchronised, or where the kernel does not answer: a sandbox may forbid the call.
    """
    timex = _Timex()  # modes = 0: read only
    state = _adjtimex(ctypes.byref(timex))
    if state < 0 or state == _TIME_ERROR or timex.status & _STA_UNSYNC:
        return None
    return int(timex.maxerror) * MICROSECOND


class _Timex(ctypes.Structure):
    """`struct timex` of <sys/timex.h>; the compiler's alignment and that of ctypes agree."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # microseconds
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),  # nothing that we read, and room for the kernel to write all of it
    )


def _refuse(_timex: object) -> int:
    return -1


_adjtimex: Final[Callable[[object], int]] = getattr(ctypes.CDLL(None), "adjtimex", _refuse)
