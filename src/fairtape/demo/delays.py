"""A histogram of the delays from trade to release. Its memory does not grow with the length of the run."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fairtape.core.effects import Ordered
from fairtape.core.instants import MICROSECOND, SECOND, Duration, Instant
from fairtape.core.spans import messages
from fairtape.market.trades import records

STEP: Final = 100 * MICROSECOND
STEPS_MAX: Final = 60 * SECOND // STEP  # longer delays count in the last step; the maximum is exact


class Delays:
    """Delays from trade to release, over all sites."""

    def __init__(self) -> None:
        self._counts = np.zeros(STEPS_MAX, np.int64)
        self.most: Duration | None = None

    def add(self, ordered: Ordered, released: Sequence[Instant]) -> None:
        """Add the trades of one token, and when each site released them. Trades and sites use the same clock."""
        delays = np.subtract.outer(np.array(released, np.int64), _traded_at(ordered)).ravel()
        if len(delays):
            np.add.at(self._counts, np.clip(delays // STEP, 0, STEPS_MAX - 1), 1)
            self.most = max(self.most or 0, int(delays.max()))

    def percentile(self, share: float) -> Duration | None:
        """The delay that this share of releases does not exceed, rounded up to a step. None without releases."""
        if self.most is None:
            return None
        through = np.cumsum(self._counts)
        wanted = min(int(share * through[-1]), through[-1] - 1)
        return min((int(np.searchsorted(through, wanted, side="right")) + 1) * STEP, self.most)


def _traded_at(ordered: Ordered) -> npt.NDArray[np.int64]:
    payloads = [payload for span in ordered.spans for _, payload in messages(span)]
    traded_at: npt.NDArray[np.int64] = records(b"".join(payloads))["traded_at"].astype(np.int64)
    return traded_at
