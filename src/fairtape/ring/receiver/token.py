"""The token: when a site acknowledges, and what.

In TRMP the clock moves the token: Ack(e) is sent at t_e, or as soon afterwards as its site holds everything before.
In RMP events move it: its site waits for a source message, acknowledges only that one, and retransmits its
acknowledgment until the next site shows that it has accepted the token. TRMP 2001 §2.
"""

from collections.abc import Callable, Sequence

from fairtape.core.effects import Send
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.ring.load import SiteLoad
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.wire.frames import ACK_PARTS_MAX, Ack, Control, NodeId, Range, TokenAck, ack_ranges_max


class TimedToken:
    """The token of TRMP, as one site sees it. No base class: `isinstance` is called with every acknowledgment."""

    def __init__(self, *, formations: FormationHistory, buffer: ReceiveBuffer) -> None:
        self._formations = formations
        self._buffer = buffer
        self.held: int | None = None  # the token that this site sends next; it holds everything before it

    def accept(self, token: int, now: Instant) -> None:  # noqa: ARG002 - the schedule, not the arrival, decides
        """It is this site's turn, and it holds everything before `token`."""
        self.held = token

    def due_at(self, *, flush: bool) -> Instant:  # noqa: ARG002 - a timed token never waits for messages
        """When to send Ack(held): at t_e, whatever there is to acknowledge."""
        return NEVER if self.held is None else self._formations.scheduled_at(self.held)

    def ranges(self, ranges_max: int) -> list[Range]:
        """What Ack(held) names: everything that is not acknowledged yet, a bulk acknowledgment. T-RMP §3."""
        return self._buffer.unacknowledged(ranges_max)

    def passed(self, now: Instant) -> None:  # noqa: ARG002 - the next Ack confirms a timed token
        """Ack(held) was sent: this site gives up the right to acknowledge."""
        self.held = None


class EventToken:
    """The token of RMP, with the same interface and its repetition."""

    def __init__(self, *, formations: FormationHistory, buffer: ReceiveBuffer) -> None:
        self._formations = formations
        self._buffer = buffer
        self.held: int | None = None
        self._accepted_at: Instant = NEVER
        self.passing: int | None = None  # the token whose acceptance by the next site is not confirmed
        self._repeat_at: Instant = NEVER
        self._attempts = 0

    def accept(self, token: int, now: Instant) -> None:
        if self.held is None:
            self._accepted_at = now
        self.held = token

    def due_at(self, *, flush: bool) -> Instant:
        """At once if there is a message; with `flush`, while messages wait for a commit, a little later and empty."""
        if self.held is None:
            return NEVER
        if self._buffer.has_unacknowledged:
            return self._accepted_at
        return self._accepted_at + self._formations.latest.timing.one_way_max if flush else NEVER

    def ranges(self, ranges_max: int) -> list[Range]:  # noqa: ARG002 - one acknowledgment, one source message
        """One block."""
        return self._buffer.first_unacknowledged()

    def passed(self, now: Instant) -> None:
        """Give the token up, and retransmit the acknowledgment until the next site has accepted the token."""
        self.passing, self.held = self.held, None
        self._attempts = 0
        self._repeat_at = now + self._formations.latest.timing.retry_period

    def confirmed(self, token: int) -> None:
        """A later acknowledgment, or a TokenAck, confirms that the token passed by Ack(token) was accepted."""
        if self.passing is not None and token >= self.passing:
            self.passing = None
            self._repeat_at = NEVER

    def repeat_at(self) -> Instant:
        return self._repeat_at

    def repeat(self, now: Instant) -> bool:
        """Count one more attempt. False if the next site must be suspected."""
        self._attempts += 1
        self._repeat_at = now + self._formations.latest.timing.retry_period
        return self._attempts <= self._formations.latest.timing.retries_max

    def give_up(self) -> None:
        self._repeat_at = NEVER

    @property
    def next_site(self) -> NodeId:
        """The site that the token was passed to."""
        assert self.passing is not None
        return self._formations.holder(self.passing + 1)


def token_for(formations: FormationHistory, buffer: ReceiveBuffer) -> TimedToken | EventToken:
    kind = TimedToken if formations.latest.timed else EventToken
    return kind(formations=formations, buffer=buffer)


def ranges_max(datagram_max: int) -> int:
    """The number of ranges that fit one acknowledgment in all its parts."""
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
    load: tuple[SiteLoad, bool],
    now: Instant,
) -> list[Ack]:
    """The parts of Ack(token), each range marked for its source; one empty part if there is nothing to acknowledge."""
    ranges_per_part = ack_ranges_max(datagram_max)
    parts = [tuple(ranges[start : start + ranges_per_part]) for start in range(0, len(ranges), ranges_per_part)] or [()]
    number = formation.number
    (reported, relayed) = load
    lag_us, backlog_us = reported.release_lag_us, reported.backlog_us
    acks = []
    for position, named in enumerate(parts):
        first, marks = sequence, []
        for one in named:
            marker = buffer.marker(one.source)
            marks.append(marker.mark(number, token, sequence, one, release_lag_us=lag_us, backlog_us=backlog_us))
            sequence += one.count
        acks.append(
            Ack(
                stripe=stripe,
                formation=number,
                sender=me,
                token=token,
                sequence=first,
                sent_at=now,
                clock_bound=clock_bound,
                part=position,
                parts=len(parts),
                ranges=named,
                marks=tuple(marks),
                release_lag_us=lag_us,
                backlog_us=backlog_us,
                relayed=relayed,
            )
        )
    return acks


class TokenRefused(Exception):
    """The next site has not accepted the token after all retries."""

    def __init__(self, site: NodeId, token: int) -> None:
        super().__init__(site, token)
        self.site = site
        self.token = token


class TokenPassing:
    """Passing RMP's token: retransmitted until the next site shows that it accepted it. TRMP 2001 §2."""

    def __init__(self, *, me: NodeId, ordering: Ordering, authenticated: Callable[[Control], bytes]) -> None:
        self._me = me
        self._ordering = ordering
        self._authenticated = authenticated  # the datagram of a message to sites

    def repeat(self, token: EventToken, now: Instant) -> Send | None:
        """Pass the token again if that is due. Raises `TokenRefused` after all retries."""
        if token.passing is None or token.repeat_at() > now:
            return None
        if len(self._ordering.formations.latest.members) == 1:
            token.give_up()
            return None
        if token.repeat(now):
            return Send(token.next_site, self._ordering.datagrams(token.passing))
        token.give_up()
        raise TokenRefused(token.next_site, token.passing + 1)

    def confirm(self, token: int) -> list[Send]:
        """Confirm that the token was accepted, if there is no source message to acknowledge.

        This prevents unnecessary reformations. A TokenAck is not answered: two sites that answered an Ack with an Ack
        would never stop.
        """
        formations = self._ordering.formations
        previous = formations.holder(token)
        if previous == self._me:
            return []
        message = TokenAck(self._ordering.stripe, formations.latest.number, self._me, token)
        return [Send(previous, [self._authenticated(message)])]
