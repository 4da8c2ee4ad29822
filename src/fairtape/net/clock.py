"""The clock of a site: UTC in nanoseconds with an error bound. It never goes back.

Machines compare instants. A clock that is set while they run would fire their deadlines early or drop them. So a site
counts with CLOCK_MONOTONIC, whose rate the clock discipline corrects, and reads the system clock once, at the start, to
find the offset. From then on the two differ only if the system clock is stepped. The rules for a step:

 1. A step is detected when the bound is next read, and is part of the bound from then on. A site whose bound exceeds
    `clock_error_max` withdraws from its loop.
 2. A step of up to ADOPTED_MAX is slewed at 1 % of the rate of time, forward or backward, so that no timer is lost. The
    bound shrinks with the remaining step, and the site returns.
 3. A larger step is never followed: one of the two clocks is wrong, and an operator has to find out which. The site
    stays out until it is restarted.
"""

import ctypes
import time
from collections.abc import Callable
from typing import Final, Protocol

from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant

UNSYNCHRONISED_BOUND: Final = 16 * SECOND
"""The kernel's own bound for an undisciplined clock (NTP_PHASE_LIMIT): far too large to release fairly."""

READING_BOUND: Final = 1 * MICROSECOND
"""How far two simultaneous readings of one clock may differ: the call itself, and the tick between two cores."""

STEP_MIN: Final = 20 * MICROSECOND  # smaller differences come from the two clocks not being read at the same moment
SAMPLE_MAX: Final = 5 * MICROSECOND  # a comparison that took longer was interrupted
SAMPLES_MAX: Final = 16  # attempts at a comparison without an interruption
COMPARE_PERIOD: Final = 1 * MILLISECOND  # between two comparisons: the bound is read with every datagram
SLEW_SHARE: Final = 100  # a step is slewed at one part in this many of the rate of time
ADOPTED_MAX: Final = 10 * SECOND

_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5

Reading = Callable[[], Instant]


class Clock(Protocol):
    """The clock of a driver."""

    def now(self) -> Instant:
        """UTC in nanoseconds; never less than the last reading."""

    def bound(self) -> Duration:
        """The largest possible difference between `now()` and the time of the other sites."""


class _SteadyClock:
    """A monotonic counter with the offset of the system clock; slews after a step of the system clock."""

    __slots__ = ("_compare_at", "_count", "_offset", "_read", "_slewed_from", "_step", "skew", "steps")

    def __init__(self, read: Reading, count: Reading) -> None:
        self._read = read
        self._count = count
        self.skew: Duration = 0  # simulates a step of the system clock, for drills
        self.steps = 0  # number of steps detected
        self._step: Duration = 0  # difference between the system clock and `_offset`
        self._slewed_from, self._offset, _ = self._compare()
        self._compare_at = self._slewed_from  # by the counter

    def now(self) -> Instant:
        """The counter plus the offset, and what has been slewed."""
        count = self._count()
        if self._step:
            return count + self._offset + self._slewed(count)
        return count + self._offset

    @property
    def distance(self) -> Duration:
        """The part of a step that has not been slewed yet."""
        count = self._count()
        if count >= self._compare_at:
            self._check_for_step()
        return abs(self._step - self._slewed(count)) if self._step else 0

    def _check_for_step(self) -> None:
        count, offset, uncertainty = self._compare()
        self._compare_at = count + COMPARE_PERIOD
        if abs(offset - self._offset - self._step) >= STEP_MIN + uncertainty:
            self.steps += 1
            self._offset += self._slewed(count)
            self._slewed_from = count
            self._step = offset - self._offset

    def _slewed(self, count: Instant) -> Duration:
        """The part of a step that has been slewed."""
        if abs(self._step) > ADOPTED_MAX:
            return 0
        possible = (count - self._slewed_from) // SLEW_SHARE
        return max(min(self._step, possible), -possible)

    def _compare(self) -> tuple[Instant, Duration, Duration]:
        """The counter, the offset of the system clock at that moment, and the uncertainty of the comparison."""
        samples = []
        for _ in range(SAMPLES_MAX):
            before, reading, after = self._count(), self._read(), self._count()
            samples.append((after - before, after, reading + self.skew - (before + after) // 2))
            if after - before <= SAMPLE_MAX:
                break
        uncertainty, count, offset = min(samples)
        return count, offset, uncertainty


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
        """Where the kernel has no bound, the declared one applies, else a pessimistic one."""
        if declared_bound is not None and declared_bound <= 0:
            raise UserError(f"clock bound is {declared_bound} ns; declare a positive error bound, or none")
        super().__init__(read, count)
        self._unsynchronised_bound = UNSYNCHRONISED_BOUND if declared_bound is None else declared_bound

    def bound(self) -> Duration:
        """The kernel's bound, or the declared one, plus the rest of a step."""
        kept = kernel_bound()
        return (self._unsynchronised_bound if kept is None else kept) + self.distance


class SharedClock(_SteadyClock):
    """The clock of sites on one host: they read the same clock, so only the reading itself adds an error."""

    __slots__ = ()

    def __init__(self, *, read: Reading = time.time_ns, count: Reading = time.monotonic_ns) -> None:
        super().__init__(read, count)

    def bound(self) -> Duration:
        """The granularity of a reading, whatever the distance to UTC, plus the rest of a step."""
        return READING_BOUND + self.distance


def kernel_bound() -> Duration | None:
    """The error bound that the kernel keeps; nothing is changed.

    None where the clock is not synchronised, or where a sandbox forbids the call.
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
        ("rest", ctypes.c_long * 32),  # not read here; large enough for what the kernel writes
    )


def _refuse(_timex: object) -> int:
    return -1


_adjtimex: Final[Callable[[object], int]] = getattr(ctypes.CDLL(None), "adjtimex", _refuse)
