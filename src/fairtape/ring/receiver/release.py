"""Release: the commit of Msg(e), at the same instant at every site.

Decision 6, Commit: a message commits at its commit instant if it and everything before it is held, K + 1 sites hold it,
and this site's lease is valid. A message that becomes ready later is released at once and marked late. It is never
reordered.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from fairtape.core.effects import Deliver, Ordered, Release
from fairtape.core.instants import MILLISECOND, NEVER, Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory

WORST_LAG_WEIGHT: Final = 0.5  # a single release may lag by twice as much as the usual one
LATE_AFTER: Final = 5 * MILLISECOND
"""A release delayed by more than this is late, whatever the cause, such as a process that did not run."""


class ReleaseQueue:
    """Tokens that are complete and not yet committed."""

    def __init__(
        self, formations: FormationHistory, *, after: int, clock_bound: Callable[[], Duration] = lambda: 0
    ) -> None:
        """Tokens up to `after` have been released."""
        self._formations = formations
        self._clock_bound = clock_bound
        self._complete: deque[tuple[Ordered, Formation | None]] = deque()  # not yet known to survive K failures
        self._ready: deque[tuple[Ordered, Instant, bool]] = deque()  # waiting only for the clock
        self._lease_until: Instant = NEVER
        self.lease_expired = False  # the lease has expired: no timer for a release
        self._renewed_at: Instant = 0  # when an expired lease was renewed
        self.unverified = False  # the order here may differ from that of the others: release nothing
        self.clock_behind: Duration = 0  # by how much the clock is proved to be behind
        self._clock_excess: Duration = 0  # by how much the clock's error bound exceeds what a lease allows for
        self._lag: Duration = 0  # how long after its instant the last release was made that was ready in time
        self._worst_lag: Duration = 0  # the largest since it was taken
        self.released_through = after

    def complete(self, ordered: Ordered) -> None:
        """This site holds Msg(e) and everything before it.

        It commits by the timing of its own formation, which may have ended.
        """
        self._complete.append((ordered, self._formations.numbered(ordered.formation)))

    @property
    def waits_for_others(self) -> bool:
        """Whether complete messages are not known to survive K failures."""
        return any(ordered.count for ordered, _ in self._complete)

    @property
    def lease_until(self) -> Instant:
        """When the right to commit ends: earlier by the excess of the clock's error bound."""
        return self._lease_until - self._clock_excess

    @property
    def granted_until(self) -> Instant:
        """The end of the lease for a clock within its error bound."""
        return self._lease_until

    @property
    def clock_untrusted(self) -> bool:
        """Whether the clock's error bound is too large: then nothing is released."""
        return self._clock_excess > 0

    def set_clock_excess(self, excess: Duration, now: Instant) -> bool:
        """Set by how much the clock's error bound is too large. Returns whether it changed."""
        if excess == self._clock_excess:
            return False
        if not excess:
            self._renewed_at = now
        self._clock_excess = excess
        self.lease_expired = now >= self.lease_until
        return True

    def verify(self, now: Instant) -> None:
        """The order here is confirmed to be that of the others."""
        self.unverified = False
        self._renewed_at = now

    def require_lease(self) -> None:
        """Release nothing before a lease is granted."""
        self._lease_until = 0
        self.lease_expired = True

    def renew_lease(self, until: Instant, now: Instant) -> None:
        if now >= self.lease_until:
            self._renewed_at = now
        self._lease_until = until
        self.lease_expired = now >= self.lease_until

    def settle(self, survives_through: int, now: Instant) -> None:
        """Queue for the clock everything up to the token that is known to survive K failures."""
        while self._complete and self._complete[0][0].token <= survives_through:
            ordered, formation = self._complete.popleft()
            unknown = formation is None  # a formation of long ago: the others have released its tokens
            formation = self._formations.latest if formation is None else formation
            commit_at = ordered.acknowledged_at + formation.timing.commit_delay if formation.timed else now
            self._ready.append((ordered, commit_at, unknown or now > commit_at))

    def deadline(self) -> Instant:
        """The next commit instant. A token without messages needs no timer: it passes with the next one."""
        if self.lease_expired or self._clock_excess or self.unverified:
            return NEVER
        for ordered, commit_at, _ in self._ready:
            if ordered.count:
                return commit_at if commit_at < self._lease_until else NEVER
        return NEVER

    def take_lag(self) -> Duration:
        """How long after its instant the last release was made; or half of the longest since the last call.

        It shows how late this site acts, because of its load: a release that waited for another site does not count.
        The longest counts because stalls are short, and the next release is in time again; and only a part of it,
        because a single release may have to wait for a time slice of another program.
        """
        worst, self._worst_lag = self._worst_lag, 0
        return max(self._lag, int(WORST_LAG_WEIGHT * worst))

    def due(self, now: Instant) -> list[Deliver]:
        """What commits now. Tokens without messages are skipped."""
        delivered: list[Deliver] = []
        self.lease_expired = now >= self.lease_until
        if self._clock_excess or self.unverified:
            return delivered
        while self._ready and self._ready[0][1] <= now < self._lease_until:
            ordered, commit_at, late = self._ready.popleft()
            self.released_through = ordered.token
            late = late or self._renewed_at > commit_at
            self._lag = now - commit_at if ordered.count and not late else 0
            self._worst_lag = max(self._worst_lag, self._lag)
            if ordered.count:
                late = late or now + self.clock_behind - commit_at > LATE_AFTER
                release = Release(
                    token=ordered.token,
                    sequence=ordered.sequence,
                    count=ordered.count,
                    commit_at=commit_at,
                    released_at=now,
                    late=late,
                    clock_bound=self._clock_bound(),
                    clock_behind=self.clock_behind,
                )
                delivered.append(Deliver(ordered, release))
        return delivered
