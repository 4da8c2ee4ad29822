"""Silence: how a receiver notices that an acknowledgment should be here and is not. TRMP 2001 §3, T-RMP §3.

Only the lowest acknowledgment that may exist is awaited by the clock: the one after the highest that was heard. Those
after it are late because it is. To run a recovery for each of them would change nothing, since nothing can be asked for
them yet, and the awaited one declares a failure before any of them would; so a ring that falls behind its schedule
costs its receivers nothing. When it turns out that one was sent and lost after all, its waits are counted from its own
instant, as if it had been awaited all the time. Only a site that was asleep has waited for nobody: its waits begin when
it is awake again.
"""

from collections.abc import Callable

from fairtape.core.instants import NEVER, Instant
from fairtape.ring.course import Course
from fairtape.ring.ordering import Ordering
from fairtape.ring.recovery import RecoveryDesk
from fairtape.ring.resilience import Resilience


class Silence:
    """Watches over the acknowledgments of one formation."""

    __slots__ = ("_awake_since", "_course", "_desk", "_looked_at", "_ordering", "_resilience", "_watched")

    def __init__(self, *, course: Course, ordering: Ordering, resilience: Resilience, desk: RecoveryDesk) -> None:
        self._course = course
        self._ordering = ordering
        self._resilience = resilience
        self._desk = desk
        self._watched = course.latest.first_token  # the lowest token whose silence has not been noticed yet
        self._looked_at: Instant = 0
        self._awake_since: Instant = 0

    def noticed_at(self) -> Instant:
        """When the next unheard acknowledgment is overdue: t_e + T_R / 2. RMP has no such instant."""
        if not self._course.latest.timed or not self._desk.has_room:
            return NEVER
        ordering = self._ordering
        self._watched = max(self._watched, ordering.complete_through + 1)
        while ordering.whole(self._watched):
            self._watched += 1
        if self._watched > self._resilience.heard_through + 1:
            return NEVER
        formation = self._course.of(self._watched)
        return formation.scheduled_at(self._watched) + formation.timing.one_way_max

    def notice(self, now: Instant, is_mine: Callable[[int], bool]) -> None:
        """Begin to recover what is overdue. A site that is late itself awaits nobody."""
        self._look(now)
        while (since := self.noticed_at()) <= now:
            if not is_mine(self._watched):
                self._desk.overdue(self._watched, max(since, self._awake_since), now)
            self._watched += 1

    def _look(self, now: Instant) -> None:
        """While anything is missing its recovery wakes this site in every T_R: a longer absence was sleep."""
        if now - self._looked_at > 2 * self._course.latest.timing.retry_period:
            self._awake_since = now
        self._looked_at = now

    def notice_overtaken(self, now: Instant) -> None:
        """RMP: an acknowledgment above the expected one was received, so those between are missing."""
        self._watched = max(self._watched, self._ordering.complete_through + 1)
        while self._watched < self._resilience.heard_through and self._desk.has_room:
            if not self._ordering.whole(self._watched):
                self._desk.overtaken(self._watched, now)
            self._watched += 1

    def notice_again(self) -> None:
        """Recoveries were given up: what is still missing is noticed anew."""
        self._watched = self._ordering.complete_through + 1
