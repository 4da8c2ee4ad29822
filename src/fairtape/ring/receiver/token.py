"""The token: when a site may acknowledge, and what.

TRMP's token travels by the clock: Ack(e) goes out at t_e, or as soon after as its site holds everything before.
RMP's travels by events: its site waits for a source message, acknowledges that one alone, and repeats its
acknowledgment until the next site shows that it has taken the token up. TRMP 2001 §2.
"""

from collections.abc import Sequence
from typing import Protocol

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.wire.frames import ACK_PARTS_MAX, Ack, NodeId, Range, ack_ranges_max


class Token(Protocol):
    """One site's side of the token."""

    held: int | None  # the token that this site must send next; it is complete up to the one before

    def accept(self, token: int, now: Instant) -> None:
        """This site holds everything before `token`, and it is its turn."""

    def due_at(self, *, flush: bool) -> Instant:
        """When to send Ack(held); `flush` where messages wait for further tokens to commit."""

    def ranges(self, ranges_max: int) -> list[Range]:
        """What Ack(held) acknowledges."""

    def passed(self, now: Instant) -> None:
        """Ack(held) has been sent: this site gives up the right to acknowledge."""


class TimedToken:
    """TRMP."""

    def __init__(self, *, formations: FormationHistory, buffer: ReceiveBuffer) -> None:
        self._formations = formations
        self._buffer = buffer
        self.held: int | None = None

    def accept(self, token: int, now: Instant) -> None:  # noqa: ARG002 - the schedule, not the arrival, decides
        """Hold the token until its scheduled time."""
        self.held = token

    def due_at(self, *, flush: bool) -> Instant:  # noqa: ARG002 - a timed token never stands still
        """t_e, whatever there is to acknowledge."""
        return NEVER if self.held is None else self._formations.scheduled_at(self.held)

    def ranges(self, ranges_max: int) -> list[Range]:
        """Everything that no earlier token site has acknowledged: a bulk acknowledgment. T-RMP §3."""
        return self._buffer.unacknowledged(ranges_max)

    def passed(self, now: Instant) -> None:  # noqa: ARG002 - nobody confirms a timed token: the next one is proof
        """Give the token up."""
        self.held = None


class EventToken:
    """RMP."""

    def __init__(self, *, formations: FormationHistory, buffer: ReceiveBuffer) -> None:
        self._formations = formations
        self._buffer = buffer
        self.held: int | None = None
        self._accepted_at: Instant = NEVER
        self.passing: int | None = None  # the token whose acceptance by the next site is not yet proved
        self._repeat_at: Instant = NEVER
        self._attempts = 0

    def accept(self, token: int, now: Instant) -> None:
        """Hold the token until there is something to acknowledge."""
        if self.held is None:
            self._accepted_at = now
        self.held = token

    def due_at(self, *, flush: bool) -> Instant:
        """At once when there is a message; a little later, with nothing, when others wait for the token to move."""
        if self.held is None:
            return NEVER
        if self._buffer.has_unacknowledged:
            return self._accepted_at
        return self._accepted_at + self._formations.latest.timing.one_way_max if flush else NEVER

    def ranges(self, ranges_max: int) -> list[Range]:  # noqa: ARG002 - one acknowledgment, one source message
        """One block."""
        return self._buffer.first_unacknowledged()

    def passed(self, now: Instant) -> None:
        """Give the token up, and repeat the acknowledgment until the next site has shown that it took it."""
        self.passing, self.held = self.held, None
        self._attempts = 0
        self._repeat_at = now + self._formations.latest.timing.retry_period

    def confirmed(self, token: int) -> None:
        """A later acknowledgment, or a token acknowledgment, proves that the token passed by Ack(token) was taken."""
        if self.passing is not None and token >= self.passing:
            self.passing = None
            self._repeat_at = NEVER

    def repeat_at(self) -> Instant:
        """When the acknowledgment is to be repeated."""
        return self._repeat_at

    def repeat(self, now: Instant) -> bool:
        """Count one more attempt; False when the next site must be given up."""
        self._attempts += 1
        self._repeat_at = now + self._formations.latest.timing.retry_period
        return self._attempts <= self._formations.latest.timing.retries_max

    def give_up(self) -> None:
        """Stop repeating."""
        self._repeat_at = NEVER

    @property
    def next_site(self) -> NodeId:
        """Whom the token was passed to."""
        assert self.passing is not None
        return self._formations.holder(self.passing + 1)


def token_for(formations: FormationHistory, buffer: ReceiveBuffer) -> TimedToken | EventToken:
    """The token that the formation asks for."""
    kind = TimedToken if formations.latest.timed else EventToken
    return kind(formations=formations, buffer=buffer)


# Ack(e) as its token site writes it: ranges in parts that fit a datagram, each range marked for its source.


def ranges_max(datagram_max: int) -> int:
    """How many ranges one acknowledgment can name."""
    return ack_ranges_max(datagram_max) * ACK_PARTS_MAX


def write_acks(
    token: int,
    ranges: Sequence[Range],
    *,
    formation: Formation,
    stripe: int,
    me: NodeId,
    sequence: int,
    buffer: ReceiveBuffer,
    datagram_max: int,
    clock_bound: Duration,
    now: Instant,
) -> list[Ack]:
    """The parts of Ack(token); one without ranges where there is nothing to acknowledge."""
    ranges_per_part = ack_ranges_max(datagram_max)
    parts = [tuple(ranges[start : start + ranges_per_part]) for start in range(0, len(ranges), ranges_per_part)] or [()]
    number = formation.number
    behind = formation.timed and now - formation.scheduled_at(token) > formation.timing.retry_period
    acks = []
    for position, named in enumerate(parts):
        first, marks = sequence, []
        for one in named:
            marks.append(buffer.marker(one.source).mark(number, token, sequence, one, behind=behind))
            sequence += one.count
        acks.append(
            Ack(
                stripe, number, me, token, first, now, clock_bound, position, len(parts), named, tuple(marks), behind
            )
        )  # fmt: skip
    return acks
