"""How fast a node works through what arrives: from that follows how long it will take for what waits.

The rate is measured where much was read at once, over the whole time that this took: the processor may have been taken
away meanwhile. Recent reads count more. Small reads tell nothing, because their cost does not depend on their size.
"""

from typing import Final

from fairtape.core.instants import SECOND, Duration

SAMPLE_MIN: Final = 4 << 10  # bytes of a read that counts
DECAY: Final = 0.9  # of the weight of all earlier reads, with each new one
RATE_ASSUMED: Final = 64 << 20  # bytes per second, before anything is measured


class ReadRate:
    """The rate of one node."""

    __slots__ = ("_period", "_size")

    def __init__(self) -> None:
        self._size = RATE_ASSUMED / 1_000
        self._period = SECOND / 1_000

    def note(self, size: int, period: Duration, *, overhead: int = 0) -> None:
        """This many bytes were read and handled in this period; while they waited, they took `overhead` more."""
        if size >= SAMPLE_MIN and period > 0:
            self._size = DECAY * self._size + size + overhead
            self._period = DECAY * self._period + period

    def period_for(self, size: int) -> Duration:
        """How long it will take to read and handle this many bytes, with their overhead."""
        return int(size * self._period / self._size)
