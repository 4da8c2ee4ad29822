"""Ack timeout: which acknowledgment is overdue. TRMP 2001 §3, T-RMP §3; decision 30, Awaited acknowledgment.

The clock watches one acknowledgment: the one after the highest received. Those after it are late because it is. A
recovery for each of them would change nothing: they cannot be requested yet, and the awaited one declares a failure
before any of them would. If the ring is behind schedule, the awaited one became possible only with the last one
received, so it gets T_R / 2 from there; requesting it at once would keep the ring behind. If it turns out that it was
sent and lost, its waits count from its own scheduled instant, as if it had been awaited all along. Only time during
which this site did not run does not count: its waits begin when it runs again.

Where acknowledgments have come later than T_R / 2, the first request waits as long (decision 50, Request thresholds).
The waits themselves are the same: those that pass meanwhile count as made.
"""

from collections.abc import Callable

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ack_lateness import AckLateness
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.recovery import Recoveries
from fairtape.ring.receiver.resilience import Resilience


class AckTimeout:
    """Watches the acknowledgments of one formation."""

    __slots__ = (
        "_awake_since",
        "_formations",
        "_is_mine",
        "_known_at",
        "_lateness",
        "_noted_at",
        "_ordering",
        "_recoveries",
        "_resilience",
        "_watched",
    )

    def __init__(
        self,
        *,
        formations: FormationHistory,
        ordering: Ordering,
        resilience: Resilience,
        recoveries: Recoveries,
        lateness: AckLateness,
        is_mine: Callable[[int], bool],
    ) -> None:
        """`is_mine` says whether it is this site's turn to send the acknowledgment of a token."""
        self._formations = formations
        self._ordering = ordering
        self._resilience = resilience
        self._recoveries = recoveries
        self._lateness = lateness
        self._is_mine = is_mine
        self._watched = formations.latest.first_token  # the lowest token whose timeout has not been handled
        self._known_at: Instant = 0  # when the next site knows the highest acknowledgment and can send its own
        self._noted_at: Instant = 0
        self._awake_since: Instant = 0

    def ack_sent(self, now: Instant) -> None:
        """This site sent the highest acknowledgment; it is still on its way to the next site."""
        self.note_time(now)
        self._known_at = now + self._formations.latest.timing.one_way_max

    def ack_received(self, token: int, sent_at: Instant, now: Instant) -> None:
        """A new highest acknowledgment was received."""
        self.note_time(now)
        formation = self._formations.of(token)
        if formation.timed:
            self._lateness.arrived(
                token, possible_at=self._possible_at(token), sent_at=sent_at, timing=formation.timing, now=now
            )
        self._known_at = now

    def deadline(self) -> Instant:
        """When to look for overdue acknowledgments: at the latest at the end of their waits. NEVER in RMP.

        While one is awaited that is due, at least once in T_R, so that a site that does not run notices it.
        """
        if not self._formations.latest.timed or not self._recoveries.has_capacity:
            return NEVER
        ordering = self._ordering
        self._watched = max(self._watched, ordering.complete_through + 1)
        while ordering.whole(self._watched):
            self._watched += 1
        if self._watched > self._resilience.highest_ack + 1:
            return NEVER
        formation = self._formations.of(self._watched)
        timing, scheduled_at = formation.timing, formation.scheduled_at(self._watched)
        due_at = scheduled_at + timing.one_way_max
        if self._watched <= self._resilience.highest_ack:
            expected_at = self.requests_from(self._watched)
        else:  # delayed, but not beyond the last of its waits, which would end in a failure
            expected_at = max(scheduled_at, self._known_at) + self._wait(self._watched)
            expected_at = min(expected_at, due_at + timing.retries_max * timing.retry_period)
        return max(due_at, min(expected_at, self._noted_at + timing.retry_period))

    def requests_from(self, token: int) -> Instant:
        """Before that, nothing of a token is requested; 0: at once, where acknowledgments come within T_R / 2."""
        formation, wait = self._formations.of(token), self._wait(token)
        if wait <= formation.timing.one_way_max or not formation.timed:
            return 0
        known = token <= self._resilience.highest_ack
        return wait + (formation.scheduled_at(token) if known else self._possible_at(token))

    def _wait(self, token: int) -> Duration:
        """From when an acknowledgment is possible until it is first requested.

        As long as others were late; but where a loss delays other sites or a release, T_R at most, with T_R left for a
        repair before the commit. That is so if something is shown to be missing, by a later acknowledgment or by one
        that names messages, and if this site's own turn follows.
        """
        timing = self._formations.of(token).timing
        wait = self._lateness.wait(timing)
        if token <= self._resilience.highest_ack or self._is_mine(token + 1):
            urgent = min(timing.retry_period, timing.commit_delay - timing.retry_period)
            return max(min(wait, urgent), timing.one_way_max)
        return wait

    def start_overdue(self, now: Instant) -> None:
        """Start the recovery of overdue acknowledgments. A site that is late itself awaits none."""
        self.note_time(now)
        while self.deadline() <= now:
            if not self._is_mine(self._watched):
                self._recoveries.overdue(self._watched, max(self._due_at(self._watched), self._awake_since), now)
            self._watched += 1

    def waits_exhausted(self, token: int, now: Instant) -> bool:
        """Whether an acknowledgment that arrived without all of its messages arrived after all of its waits.

        Requests that were not possible yet count as made (decision 30, Awaited acknowledgment).
        """
        self.note_time(now)
        since = max(self._due_at(token), self._awake_since)
        if token < self._watched or since > now:
            return False
        self._recoveries.overdue(token, since, now)
        return token not in self._recoveries.running

    def _possible_at(self, token: int) -> Instant:
        """When the site of a token could send Ack(token): at t_e, once it knew the highest acknowledgment."""
        return max(self._formations.of(token).scheduled_at(token), self._known_at)

    def _due_at(self, token: int) -> Instant:
        """t_e + T_R / 2: when the acknowledgment of a ring on schedule has arrived, and its waits begin."""
        formation = self._formations.of(token)
        return formation.scheduled_at(token) + formation.timing.one_way_max

    def note_time(self, now: Instant) -> None:
        """Detect that this site did not run: while anything is missing, it receives or is woken in every T_R.

        A clock that was set back must not extend a wait.
        """
        timing = self._formations.latest.timing
        if now < self._noted_at:
            self._awake_since = min(self._awake_since, now)
            self._known_at = min(self._known_at, now + timing.one_way_max)
        elif now - self._noted_at > 2 * timing.retry_period:
            self._awake_since = now
        self._noted_at = now

    def start_overtaken(self, now: Instant) -> None:
        """RMP: an acknowledgment above the expected one was received, so start the recovery of those between."""
        self._watched = max(self._watched, self._ordering.complete_through + 1)
        while self._watched < self._resilience.highest_ack and self._recoveries.has_capacity:
            if not self._ordering.whole(self._watched):
                self._recoveries.overtaken(self._watched, now)
            self._watched += 1

    def restart(self) -> None:
        """Recoveries were stopped: watch from the first missing token again."""
        self._watched = self._ordering.complete_through + 1
