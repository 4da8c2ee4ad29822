"""How long a formation store takes for a write, measured before a deployment is started on it.

The lease of a leading reformation server is several times as long as that, up to a limit (decision 68, Leader's lease).
With a store that is slower than the limit allows, leaders would come and go, and the ring would wait for them.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.percentiles import Rank, percentile
from fairtape.storage.formation_stores.formation_store import FormationStore

PROBES: Final = 25  # of so few the 99th percentile is the longest
PROBES_PERIOD: Final = 1 * SECOND  # of all together; a slow store is probed less often


def measure_writes(store: FormationStore, *, clock: Callable[[], Instant] = perf_counter_ns) -> Duration | None:
    """The 99th percentile of the time that a durable write takes now; None if the store does not carry it out.

    The first write after a start prepares a file or a connection as well, so it does not count.
    """
    if not store.probe():
        return None
    periods: list[Duration] = []
    while len(periods) < PROBES and sum(periods) < PROBES_PERIOD:
        began_at = clock()
        if not store.probe():
            return None
        periods.append(clock() - began_at)
    return percentile(periods, 0.99, 0, rank=Rank.HIGHER)
