"""A token bucket: a number of units per second, with a limited burst.

The state is one instant (the generic cell rate algorithm of ATM Forum TM 4.0): `free_at` is when
all units taken so far would have been sent at exactly the rate. A unit may be taken while that instant is at most
`burst_period` ahead. Integer nanoseconds only, nothing to refill, no timer.
"""

from fairtape.core.instants import SECOND, Duration, Instant


class TokenBucket:
    """`per_s` units per second in the long run, and `burst_period` worth of them ahead of time.

    A bucket that starts full of n units is one with a `burst_period` of (n - 1) / `per_s` seconds: the unit that is
    taken at the limit is still granted.
    """

    __slots__ = ("_burst_period", "_free_at", "_per_s")

    def __init__(self, per_s: int, burst_period: Duration) -> None:
        assert per_s > 0
        self._per_s = per_s
        self._burst_period = burst_period
        self._free_at: Instant = 0

    @property
    def ready_at(self) -> Instant:
        """When `take` succeeds again."""
        return self._free_at - self._burst_period

    def take(self, units: int, now: Instant) -> bool:
        """Take the units and return True, or change nothing and return False while the rate is exceeded."""
        if now < self._free_at - self._burst_period:
            return False
        self.charge(units, now)
        return True

    def charge(self, units: int, now: Instant) -> None:
        """Take the units unconditionally; later calls of `take` wait the longer."""
        self._free_at = max(self._free_at, now) + units * SECOND // self._per_s
