"""Silence: how a receiver notices that an acknowledgment should be here and is not. TRMP 2001 §3, T-RMP §3.

Only the lowest acknowledgment that may exist is awaited by the clock: the one after the highest that was heard. Those
after it are late because it is. To run a recovery for each of them would change nothing, since nothing can be asked for
them yet, and the awaited one declares a failure before any of them would. Where a ring is behind its schedule the
awaited one has just become possible, with the last one heard, so it is given T_R / 2 from there: to ask for it at once
would cost a ring its time to catch up. When it turns out that one was sent and lost after all, its waits are counted
from its own instant, as if it had been awaited all the time. Only a site that was asleep has waited for nobody: its
waits begin when it is awake again.
"""

from collections.abc import Callable

from fairtape.core.instants import NEVER, Instant
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.recovery import Recoveries
from fairtape.ring.receiver.resilience import Resilience


class AckTimeout:
    """Watches over the acknowledgments of one formation."""

    __slots__ = (
        "_awake_since",
        "_formations",
        "_known_at",
        "_noted_at",
        "_ordering",
        "_recoveries",
        "_resilience",
        "_watched",
    )

    def __init__(
        self, *, formations: FormationHistory, ordering: Ordering, resilience: Resilience, recoveries: Recoveries
    ) -> None:
        self._formations = formations
        self._ordering = ordering
        self._resilience = resilience
        self._recoveries = recoveries
        self._watched = formations.latest.first_token  # the lowest token whose silence has not been noticed yet
        self._known_at: Instant = 0  # by when the next site knows the highest acknowledgment, and can send its own
        self._noted_at: Instant = 0
        self._awake_since: Instant = 0

    def ack_received(self, now: Instant, *, own: bool) -> None:
        """An acknowledgment above all others was received; an own one is still on its way to the next site."""
        self._note_time(now)
        self._known_at = now + self._formations.latest.timing.one_way_max if own else now

    def deadline(self) -> Instant:
        """When the next unheard acknowledgment is missed, at the latest when its waits are over. RMP has no instant."""
        if not self._formations.latest.timed or not self._recoveries.has_capacity:
            return NEVER
        ordering = self._ordering
        self._watched = max(self._watched, ordering.complete_through + 1)
        while ordering.whole(self._watched):
            self._watched += 1
        if self._watched > self._resilience.highest_ack + 1:
            return NEVER
        due_at, timing = self._due_at(self._watched), self._formations.of(self._watched).timing
        if self._watched <= self._resilience.highest_ack:
            return due_at
        # Held back, but not beyond the last of its waits, which would end in a failure.
        return max(due_at, min(self._known_at + timing.one_way_max, due_at + timing.retries_max * timing.retry_period))

    def start_overdue(self, now: Instant, is_mine: Callable[[int], bool]) -> None:
        """Begin to recover what is overdue. A site that is late itself awaits nobody."""
        self._note_time(now)
        while self.deadline() <= now:
            if not is_mine(self._watched):
                self._recoveries.overdue(self._watched, max(self._due_at(self._watched), self._awake_since), now)
            self._watched += 1

    def waits_exhausted(self, token: int, now: Instant) -> bool:
        """Whether an acknowledgment that came without all of its messages came when all waits were over.

        What it was not asked for, because it was not yet possible, counts as if it had been (decision 30,
        Awaited acknowledgment).
        """
        since = max(self._due_at(token), self._awake_since)
        if token < self._watched or since > now:
            return False
        self._recoveries.overdue(token, since, now)
        return token not in self._recoveries.running

    def _due_at(self, token: int) -> Instant:
        """t_e + T_R / 2: when an acknowledgment of a ring on schedule has arrived, and its waits begin."""
        formation = self._formations.of(token)
        return formation.scheduled_at(token) + formation.timing.one_way_max

    def _note_time(self, now: Instant) -> None:
        """While anything is missing this site hears something or is woken in every T_R: a longer absence was sleep.

        A clock that was set back must not make it wait for a time to come again.
        """
        timing = self._formations.latest.timing
        if now < self._noted_at:
            self._awake_since = min(self._awake_since, now)
            self._known_at = min(self._known_at, now + timing.one_way_max)
        elif now - self._noted_at > 2 * timing.retry_period:
            self._awake_since = now
        self._noted_at = now

    def start_overtaken(self, now: Instant) -> None:
        """RMP: an acknowledgment above the expected one was received, so those between are missing."""
        self._watched = max(self._watched, self._ordering.complete_through + 1)
        while self._watched < self._resilience.highest_ack and self._recoveries.has_capacity:
            if not self._ordering.whole(self._watched):
                self._recoveries.overtaken(self._watched, now)
            self._watched += 1

    def restart(self) -> None:
        """Recoveries were given up: what is still missing is noticed anew."""
        self._watched = self._ordering.complete_through + 1
