"""How long a site that failed stays out of the primary loop (decision 57, Exclusion).

Each failure of a member stops the ring. A site that crashes again and again, or that others do not hear, must not do
that each time it comes back. The first failure costs nothing: the site joins again as soon as it can. From the second
one on it waits, twice as long with each failure in a row.

Where it may not leave, the ring waits instead, a shorter time: its members stop with each reformation, and each one is
recorded.

Only the leading reformation server knows this. Its successor begins anew: an exclusion protects the ring from
interruptions, and no guarantee depends on it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.wire.frames import NodeId

FORGIVEN_AFTER: Final = 600 * SECOND  # without a failure
FIRST_WAIT: Final = 4  # leases, after the second failure
DOUBLINGS_MAX: Final = 4
WAIT_MAX: Final = FIRST_WAIT << DOUBLINGS_MAX  # leases
RING_WAIT_MAX: Final = 4 * FIRST_WAIT  # leases, for which the ring waits with a member that may not leave


@dataclass(slots=True)
class _Failures:
    formation: int  # the last one that it failed in
    count: int
    last_at: Instant
    wait: Duration


class Exclusions:
    """The sites that failed lately, at most those of the topology."""

    def __init__(self) -> None:
        self._failures: dict[NodeId, _Failures] = {}

    def clear(self) -> None:
        self._failures.clear()

    def failed(self, site: NodeId, formation: int, lease: Duration, now: Instant) -> list[str]:
        """A member of this formation failed. Returns a notice if it has to wait."""
        before = self._failures.get(site)
        if before is not None and before.formation == formation:
            return []
        count = before.count + 1 if before is not None and now - before.last_at < FORGIVEN_AFTER else 1
        leases = 0 if count == 1 else min(FIRST_WAIT << min(count - 2, DOUBLINGS_MAX), WAIT_MAX)
        self._failures[site] = _Failures(formation, count, now, leases * lease)
        if not leases:
            return []
        return [f"site {site} failed {count} times in a row: it joins again after {leases * lease / SECOND:.1f} s"]

    def excludes(self, site: NodeId, now: Instant) -> bool:
        """Whether a site has to wait. A clock that was set back must not extend the wait."""
        failures = self._failures.get(site)
        return failures is not None and 0 <= now - failures.last_at < failures.wait

    def holds_up(self, site: NodeId, lease: Duration, now: Instant) -> bool:
        """Whether the ring waits with a site that may not leave."""
        failures = self._failures.get(site)
        return failures is not None and 0 <= now - failures.last_at < min(failures.wait, RING_WAIT_MAX * lease)

    def among(self, sites: Collection[NodeId], now: Instant) -> set[NodeId]:
        return {site for site in sites if self.excludes(site, now)}
