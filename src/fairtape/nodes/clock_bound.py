"""The error bound of a site's clock.

There are two estimates. The clock reports its own bound (`Clock.bound`, from the kernel's discipline). A two-way
exchange with a reformation server gives another one: the request sent at `asked_at` arrived at `received_at` by the
other clock, between request and response, so the offset of the clocks is known to half a round trip. If the two are
consistent, the smaller bound holds. If they contradict each other, the exchange is believed.
"""

from collections import deque
from typing import Final

from fairtape.core.instants import NEVER, Duration, Instant

EXCHANGES_MAX: Final = 8  # of which the best counts


class ClockBoundEstimator:
    """Combines the clock's own bound with the latest exchanges of one site."""

    def __init__(self) -> None:
        self._exchanges: deque[tuple[Duration, Duration]] = deque(maxlen=EXCHANGES_MAX)  # uncertainty, offset
        self._best: tuple[Duration, Duration] | None = None  # the one with the shortest round trip

    def exchanged(self, *, asked_at: Instant, received_at: Instant, bound: Duration, now: Instant) -> None:
        """Note one round trip; `bound` is that of the other clock."""
        if now < asked_at:  # the clock was set back in between: the exchange proves nothing
            self._exchanges.clear()
            self._best = None
            return
        uncertainty = (now - asked_at) // 2 + bound
        self._exchanges.append((uncertainty, received_at - (asked_at + now) // 2))
        self._best = min(self._exchanges)

    def bound(self, own: Duration) -> Duration:
        """The error bound of a clock that claims `own`."""
        if self._best is None:
            return own
        uncertainty, offset = self._best
        measured = abs(offset) + uncertainty
        contradicted = abs(offset) > uncertainty + own
        return measured if contradicted else min(own, measured, NEVER)
