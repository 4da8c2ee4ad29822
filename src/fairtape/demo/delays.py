"""From the trade to its release, counted in steps: a long demonstration needs no more memory than a short one."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fairtape.core.effects import Ordered
from fairtape.core.instants import MICROSECOND, SECOND, Duration, Instant
from fairtape.core.spans import messages
from fairtape.market.trades import records

STEP: Final = 100 * MICROSECOND
STEPS_MAX: Final = 60 * SECOND // STEP  # what takes longer is in the last one, and the most is known exactly


class Delays:
    """How long trades took, over all sites."""

    def __init__(self) -> None:
        self._counts = np.zeros(STEPS_MAX, np.int64)
        self.most: Duration | None = None

    def add(self, ordered: Ordered, released: Sequence[Instant]) -> None:
        """One token: its trades, and when each site released them. All sites read one clock, which the trades carry."""
        delays = np.subtract.outer(np.array(released, np.int64), _traded_at(ordered)).ravel()
        if len(delays):
            np.add.at(self._counts, np.clip(delays // STEP, 0, STEPS_MAX - 1), 1)
            self.most = max(self.most or 0, int(delays.max()))

    def percentile(self, share: float) -> Duration | None:
        """The delay that this share of all releases does not exceed, up to a step; None where there is none."""
        if self.most is None:
            return None
        through = np.cumsum(self._counts)
        wanted = min(int(share * through[-1]), through[-1] - 1)
        return min((int(np.searchsorted(through, wanted, side="right")) + 1) * STEP, self.most)


def _traded_at(ordered: Ordered) -> npt.NDArray[np.int64]:
    """When the trades of one token happened."""
    payloads = [payload for span in ordered.spans for _, payload in messages(span)]
    traded_at: npt.NDArray[np.int64] = records(b"".join(payloads))["traded_at"].astype(np.int64)
    return traded_at
