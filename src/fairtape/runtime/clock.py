"""The clock of a site: UTC in nanoseconds, how wrong it may be, and a promise that it never goes back.

Machines compare instants and would lose their timers if time ran backward, so a backward step of the system clock is
held: `now()` stands still until the clock has caught up, the step is counted, and for as long as the reading is held
the distance to the true reading is part of the bound. A forward step passes through: it only makes deadlines due.
"""

import ctypes
import time
from collections.abc import Callable
from typing import Final, Protocol

from fairtape.core.instants import MICROSECOND, SECOND, Duration, Instant
from fairtape.runtime.complaints import Complaint

UNSYNCHRONISED_BOUND: Final = 16 * SECOND
"""What the kernel itself assumes of a clock that nobody disciplines (NTP_PHASE_LIMIT): far too much to serve fairly."""

READING_BOUND: Final = 1 * MICROSECOND
"""How far apart two readings of one clock at one moment may be: the call itself, and the tick between two cores."""

_STA_UNSYNC: Final = 0x0040
_TIME_ERROR: Final = 5


class Clock(Protocol):
    """What a driver asks of a clock."""

    def now(self) -> Instant:
        """UTC in nanoseconds; never less than the last answer."""

    def bound(self) -> Duration:
        """How far `now()` may be from the time of the other sites."""


class _SteadyClock:
    """CLOCK_REALTIME without its backward steps."""

    __slots__ = ("_held_at", "_read", "_reading", "steps")

    def __init__(self, read: Callable[[], Instant]) -> None:
        self._read = read
        self._reading = self._held_at = read()
        self.steps = 0  # how often the system clock went back

    def now(self) -> Instant:
        """The reading, or the highest one so far while the clock is behind it."""
        reading = self._read()
        if reading < self._reading:
            self.steps += 1
        self._reading = reading
        if reading > self._held_at:
            self._held_at = reading
        return self._held_at

    @property
    def _lead(self) -> Duration:
        """By how much the last answer ran ahead of its reading."""
        return self._held_at - self._reading


class SystemClock(_SteadyClock):
    """The clock of a site on a host of its own, with the error bound that the kernel keeps for chrony or PTP."""

    __slots__ = ("_unsynchronised_bound",)

    def __init__(self, *, declared_bound: Duration | None = None, read: Callable[[], Instant] = time.time_ns) -> None:
        """Where the kernel knows no bound, the one that the operator declared counts, else a pessimistic one."""
        if declared_bound is not None and declared_bound <= 0:
            raise Complaint(f"clock bound is {declared_bound} ns; declare a positive error bound, or none at all")
        super().__init__(read)
        self._unsynchronised_bound = UNSYNCHRONISED_BOUND if declared_bound is None else declared_bound

    def bound(self) -> Duration:
        """The kernel's bound, or the declared one, plus what a held reading adds."""
        kept = kernel_bound()
        return (self._unsynchronised_bound if kept is None else kept) + self._lead


class SharedClock(_SteadyClock):
    """The clock of sites on one host: they read the same one, so only the reading itself tells them apart."""

    __slots__ = ()

    def __init__(self, *, read: Callable[[], Instant] = time.time_ns) -> None:
        super().__init__(read)

    def bound(self) -> Duration:
        """The granularity of a reading, whatever the distance to UTC, plus what a held reading adds."""
        return READING_BOUND + self._lead


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
