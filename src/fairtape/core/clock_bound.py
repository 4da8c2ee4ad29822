"""How wrong a site's clock may be, as far as it can tell.

A clock says itself how wrong it may be (`Clock.bound`, from the kernel's discipline). A two-way exchange with a
reformation server says it, too: what was asked at `asked_at` was heard at `heard_at` of the other clock, between asking
and the answer, so the difference of the clocks is known to half a round trip. Where the two agree the smaller bound
holds; where they contradict each other the clock cannot be trusted further than the exchange shows.
"""

from collections import deque
from typing import Final

from fairtape.core.instants import NEVER, Duration, Instant

EXCHANGES_MAX: Final = 8  # the best of the last few counts: a short round trip says more


class ClockBoundEstimator:
    """The exchanges of one site."""

    def __init__(self) -> None:
        self._exchanges: deque[tuple[Duration, Duration]] = deque(maxlen=EXCHANGES_MAX)  # uncertainty, difference

    def exchanged(self, *, asked_at: Instant, received_at: Instant, bound: Duration, now: Instant) -> None:
        """One round trip; `bound` is that of the other clock."""
        if now < asked_at:  # the clock was set back in between: nothing can be learned from it
            self._exchanges.clear()
            return
        uncertainty = (now - asked_at) // 2 + bound
        self._exchanges.append((uncertainty, received_at - (asked_at + now) // 2))

    def bound(self, own: Duration) -> Duration:
        """The error bound of a clock that claims `own`."""
        if not self._exchanges:
            return own
        uncertainty, difference = min(self._exchanges)
        shown = abs(difference) + uncertainty
        contradicted = abs(difference) > uncertainty + own
        return shown if contradicted else min(own, shown, NEVER)
