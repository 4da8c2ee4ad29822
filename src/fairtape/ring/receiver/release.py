"""Release: the commit of Msg(e), at one instant everywhere.

Decision 6, Commit: a message commits when its time has come, it and everything before it is held, K + 1 sites hold it,
and this site's lease is valid. What becomes ready only after its commit instant is released at once and marked late:
never silent, never reordered.
"""

from collections import deque
from typing import Final

from fairtape.core.effects import Deliver, Ordered, Release
from fairtape.core.instants import MILLISECOND, NEVER, Duration, Instant
from fairtape.ring.membership.formation_history import FormationHistory

LATE_AFTER: Final = 5 * MILLISECOND
"""A release that comes later than this is late, whatever held it up: a site that stood still must not hide it."""


class ReleaseQueue:
    """Tokens that are complete and not yet committed."""

    def __init__(self, formations: FormationHistory, *, after: int) -> None:
        """Tokens up to `after` have been released."""
        self._formations = formations
        self._complete: deque[Ordered] = deque()  # held, not yet known to survive K failures
        self._ready: deque[tuple[Ordered, Instant, bool]] = deque()  # waiting for the clock alone
        self._lease_until: Instant = NEVER
        self.lease_expired = False  # the lease has run out: no timer may wait for what must not be done
        self._renewed_at: Instant = 0  # when a lease that had run out was renewed
        self.unverified = False  # what is complete here may not be what the others hold: nothing may be released
        self._clock_excess: Duration = 0  # by how much this site's clock may be worse than a lease allows for
        self.released_through = after

    def complete(self, ordered: Ordered) -> None:
        """This site holds Msg(e) and everything before it."""
        self._complete.append(ordered)

    @property
    def waits_for_others(self) -> bool:
        """Whether something is complete here that is not known to survive K failures."""
        return any(ordered.count for ordered in self._complete)

    @property
    def lease_until(self) -> Instant:
        """When the right to commit ends: the sooner, the less the clock can be trusted."""
        return self._lease_until - self._clock_excess

    @property
    def granted_until(self) -> Instant:
        """The same by a clock that is as good as it must be."""
        return self._lease_until

    @property
    def clock_untrusted(self) -> bool:
        """Whether the clock is worse than it must be: then nothing is released, rather than unfairly."""
        return self._clock_excess > 0

    def set_clock_excess(self, excess: Duration, now: Instant) -> bool:
        """The clock may be worse than it must be by this much; whether that is news."""
        if excess == self._clock_excess:
            return False
        if not excess:
            self._renewed_at = now
        self._clock_excess = excess
        self.lease_expired = now >= self.lease_until
        return True

    def verify(self, now: Instant) -> None:
        """What is complete here is what the others hold, after all."""
        self.unverified = False
        self._renewed_at = now

    def require_lease(self) -> None:
        """Release nothing before a lease is given."""
        self._lease_until = 0
        self.lease_expired = True

    def renew_lease(self, until: Instant, now: Instant) -> None:
        """The site may commit until then."""
        if now >= self.lease_until:
            self._renewed_at = now
        self._lease_until = until
        self.lease_expired = now >= self.lease_until

    def settle(self, survives_through: int, now: Instant) -> None:
        """More acknowledgments were heard: move on what is known to survive."""
        while self._complete and self._complete[0].token <= survives_through:
            ordered = self._complete.popleft()
            formation = self._formations.of(ordered.token)
            commit_at = ordered.acknowledged_at + formation.timing.commit_delay if formation.timed else now
            self._ready.append((ordered, commit_at, now > commit_at))

    def deadline(self) -> Instant:
        """The next commit instant. Nobody is woken for a token without messages: it passes with the next one."""
        if self.lease_expired or self._clock_excess or self.unverified:
            return NEVER
        for ordered, commit_at, _ in self._ready:
            if ordered.count:
                return commit_at if commit_at < self._lease_until else NEVER
        return NEVER

    def due(self, now: Instant, clock_bound: Duration) -> list[Deliver]:
        """What commits now. Tokens without messages pass unseen."""
        delivered: list[Deliver] = []
        self.lease_expired = now >= self.lease_until
        if self._clock_excess or self.unverified:
            return delivered
        while self._ready and self._ready[0][1] <= now < self._lease_until:
            ordered, commit_at, late = self._ready.popleft()
            self.released_through = ordered.token
            if ordered.count:
                late = late or self._renewed_at > commit_at or now - commit_at > LATE_AFTER
                release = Release(
                    token=ordered.token,
                    sequence=ordered.sequence,
                    count=ordered.count,
                    commit_at=commit_at,
                    released_at=now,
                    late=late,
                    clock_bound=clock_bound,
                )
                delivered.append(Deliver(ordered, release))
        return delivered
