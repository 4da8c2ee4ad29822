"""What a receiver tells its tracer: each call is one line there, and nothing at all where nobody traces."""

from collections.abc import Callable, Iterable

from fairtape.core.instants import Duration, Instant
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.recovery import Recovery
from fairtape.ring.receiver.recovery_tables import State
from fairtape.ring.receiver.tracing import Tracer
from fairtape.wire.frames import Ack, NodeId


class TraceCalls:
    """Knows the course and the order, so that a record says whose turn it was, when, and what was missing."""

    def __init__(
        self,
        tracer: Tracer | None,
        *,
        formations: FormationHistory,
        ordering: Ordering,
        clock_bound: Callable[[], Duration],
    ) -> None:
        self._tracer = tracer
        self._formations = formations
        self._ordering = ordering
        self._clock_bound = clock_bound

    def begin(self, now: Instant) -> None:
        """Another formation."""
        if self._tracer is not None:
            self._tracer.end_formation(now)

    def heard(self, ack: Ack, now: Instant) -> None:
        """A part of an acknowledgment came that was not held yet."""
        if self._tracer is None or not self._ordering.whole(ack.token):
            return
        self._tracer.heard(
            ack,
            self._ordering.ranges(ack.token),
            due_at=self._due_at(ack.token),
            clock_bound=ack.clock_bound + self._clock_bound(),
            now=now,
        )

    def copied(self, ack: Ack) -> None:
        """A part came again; of an acknowledgment in parts one is enough to count it."""
        if self._tracer is not None and ack.part == 0:
            self._tracer.copied(ack.token)

    def asked(self, site: NodeId, recoveries: Iterable[Recovery], now: Instant) -> None:
        """A site is asked for all that these recoveries want."""
        if self._tracer is None:
            return
        for recovery in recoveries:
            token = recovery.token
            wants_ack = recovery.state is State.AWAIT_REQUESTED_ACK
            formation = self._formations.of(token)
            self._tracer.asked(
                token,
                site,
                None if wants_ack else self._ordering.missing(token),
                holder=formation.holder(token),
                formation=formation.number,
                due_at=self._due_at(token),
                hop=formation.timing.retry_period // 2,
                now=now,
            )

    def completed(self, token: int, now: Instant) -> None:
        """All of Msg(e) is here."""
        if self._tracer is not None:
            self._tracer.completed(token, linger=self._formations.of(token).timing.retry_period, now=now)

    def _due_at(self, token: int) -> Instant:
        formation = self._formations.of(token)
        return formation.scheduled_at(token) if formation.timed else 0
