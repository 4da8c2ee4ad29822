"""The outlet: a receiver remulticasts what it releases, on the edge stripes of its region. TRMP 2001 §4.1, §7.1.

It runs where releases are due, so its work is per token and per packet, never per message. Each stripe is paced under
its cap; what waits too long is counted, and nothing is ever sent out of its order within a stripe.

Silence is filled with heartbeats, soon after the last packet and then ever more rarely: a customer who lost the end of
a burst learns of it within `heartbeat_delay`, and an idle stripe costs next to nothing. A session that is over says so
for `farewell_period`.

An outlet may speak on several feeds, and on others after a reformation (see `assignment`): the same packets, each under
its stripe's cap. One without any feed keeps its numbers and is silent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from heapq import heappop, heappush

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.token_bucket import TokenBucket
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.effects import EdgeEffect, SendMulticast, SequenceLost
from fairtape.edge.protocol.itch_encoder import ItchEncoder
from fairtape.edge.protocol.pacing import OVERHEAD, QUEUE_BYTES_MAX, PacedQueue
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import SessionClosed, SessionOpened, Step, StripeMessages, StripeSequencer
from fairtape.formats.moldudp64 import bare, packets, session_field
from fairtape.market.stripes import EdgeStripe, Endpoint, StripePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RemulticastOptions:
    """How an outlet speaks."""

    burst_period: Duration = 20 * MILLISECOND  # of a stripe's rate that may go out at once
    overrun_delay: Duration = 5 * MILLISECOND  # whatever waits longer for its pace is an overrun
    heartbeat_delay: Duration = (
        20 * MILLISECOND
    )  # of silence before the first heartbeat; each next one waits twice as long
    heartbeat_period: Duration = SECOND  # but no longer than this
    farewell_period: Duration = 30 * SECOND  # the end of a session is said for so long
    queue_bytes_max: int = QUEUE_BYTES_MAX  # of one stripe

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise ValueError(f"{each.name} is {getattr(self, each.name)}; it must be above 0")


@dataclass(slots=True)
class RemulticastCounts:
    """What an operator wants to see."""

    messages: int = 0
    packets: int = 0
    heartbeats: int = 0
    overruns: int = 0  # messages that waited for their pace longer than `overrun_delay`
    dropped: int = 0  # messages that waited until there was no room; customers ask for them
    strayed: int = 0  # tokens that were not sent, because the outlet is adrift


class _Stream:
    """One session on its way out."""

    def __init__(self, stripe: EdgeStripe, session: str, number: int, options: RemulticastOptions) -> None:
        self.field = session_field(session)
        self.stripe = stripe
        self.number = number  # of the next message
        self.ended = False
        self.quiet_at: Instant = NEVER  # when silence must be filled
        self.quiet_period = options.heartbeat_delay
        self.farewell_until: Instant = NEVER
        self.scheduled_at: Instant = NEVER  # the earliest entry in the outlet's schedule
        self.out: list[bytes] = []
        pacer = TokenBucket(stripe.bits_per_s_max, options.burst_period)
        self.pacer = pacer
        self.queue = PacedQueue(pacer, overrun_delay=options.overrun_delay, bytes_max=options.queue_bytes_max)

    @property
    def due_at(self) -> Instant:
        """A waiting packet is the better heartbeat."""
        return self.queue.due_at if len(self.queue) else self.quiet_at


class Remulticaster:
    """Remulticasts one core stripe on the feeds of its receiver."""

    def __init__(
        self,
        standing: StripePosition,
        *,
        feeds: Iterable[str],
        options: RemulticastOptions | None = None,
        shelf: RecentMessages | None = None,
        press: ItchEncoder | None = None,
    ) -> None:
        """A `shelf` gets everything at the instant at which it is released, and no earlier."""
        self.counts = RemulticastCounts()
        self._options = options or RemulticastOptions()
        self._feeds = tuple(feeds)
        self._shelf = shelf
        self._striper = StripeSequencer(standing, press=press)
        self._told_adrift = False
        self._streams: dict[str, _Stream] = {}
        self._touched: list[_Stream] = []
        self._schedule: list[tuple[Instant, str]] = []
        self._effects: list[EdgeEffect] = []

    @property
    def standing(self) -> StripePosition:
        """What to `resume` from after a restart."""
        return self._striper.standing

    @property
    def adrift(self) -> bool:
        """Whether it is silent until it is given its place again."""
        return self._striper.lost

    def start(self, now: Instant) -> None:
        """Speak: open the sessions where they are new, go on where they are not."""
        self._take(self._striper.begin(), now)

    def resume(self, standing: StripePosition, now: Instant) -> None:
        """Go on from another place, which a journal proves; changes behind it must be told again."""
        self._striper.resume(standing)
        self._told_adrift = False
        self._streams = {name: stream for name, stream in self._streams.items() if stream.ended}
        self.start(now)

    def deliver(self, delivery: Deliver, now: Instant) -> None:
        """Send what was released."""
        expected = self._striper.sequence
        self._take(self._striper.deliver(delivery.ordered), now)
        if self._striper.lost:
            self.counts.strayed += 1
            if not self._told_adrift:
                self._told_adrift = True
                self._effects.append(SequenceLost(expected, delivery.ordered.sequence))

    def turn(self, change: FormationChange) -> None:
        """A formation takes over at its place in the order; after a Break all sessions begin anew there."""
        self._striper.turn(change)

    def change_plan(self, plan: StripePlan, *, at_sequence: int, at: Instant, press: ItchEncoder | None = None) -> None:
        """Another plan takes over at this place of the order, which is where a formation begins."""
        assert set(self._feeds) <= set(plan.feeds)
        self._striper.change_plan(plan, at_sequence=at_sequence, at=at, press=press)

    def speak_on(self, feeds: Iterable[str], now: Instant) -> None:
        """Other feeds from now on, and soon heard there: in whatever place of the order, all have the same numbers."""
        self._feeds = tuple(feeds)
        for session, stream in self._streams.items():
            if not stream.ended:
                stream.quiet_at, stream.quiet_period = now, self._options.heartbeat_delay
                self._plan_wake(stream, session)

    def end(self, at: Instant, now: Instant) -> None:
        """Nothing will follow; `at` goes into the sessions and must be equal everywhere."""
        self._take(self._striper.finish(at), now)

    def wake(self, now: Instant) -> None:
        """Send what may go by now, and fill the silence."""
        while self._schedule and self._schedule[0][0] <= now:
            at, session = heappop(self._schedule)
            stream = self._streams.get(session)
            if stream is None or at != stream.scheduled_at:
                continue
            stream.scheduled_at = NEVER
            if stream.due_at <= now:
                self._go_on(stream, now)
            if session in self._streams:
                self._plan_wake(stream, session)
        self._flush()

    def deadline(self) -> Instant | None:
        """The earliest that any stripe waits for."""
        return self._schedule[0][0] if self._schedule else None

    def drain(self) -> list[EdgeEffect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def _take(self, steps: list[Step], now: Instant) -> None:
        for step in steps:
            if self._shelf is not None:
                self._shelf.take(step, self._striper.at)
            match step:
                case StripeMessages():
                    self._send(step, now)
                case SessionOpened(edition, following):
                    for stripe, number in zip(edition.stripes, following, strict=True):
                        name = edition.session(stripe.number)
                        stream = self._streams[name] = _Stream(stripe, name, number, self._options)
                        self._spoke(stream, now)
                        self._plan_wake(stream, name)
                case SessionClosed(edition):
                    for stripe in edition.stripes:
                        self._close(edition.session(stripe.number), now)
        self._flush()

    def _send(self, lot: StripeMessages, now: Instant) -> None:
        stream = self._streams[lot.session]
        counts = self.counts
        for datagram, count in packets(stream.field, lot.first, lot.framed, lot.size):
            counts.packets += 1
            if not len(stream.queue) and stream.pacer.take(8 * (len(datagram) + OVERHEAD), now):
                self._put(stream, datagram)
            else:
                stream.queue.put(datagram, count, now)
        counts.messages += lot.count
        stream.number = lot.first + lot.count
        self._spoke(stream, now)
        self._plan_wake(stream, lot.session)

    def _close(self, session: str, now: Instant) -> None:
        stream = self._streams[session]
        stream.ended = True
        stream.quiet_at, stream.quiet_period = now, self._options.heartbeat_delay
        stream.farewell_until = now + self._options.farewell_period
        self._plan_wake(stream, session)

    def _go_on(self, stream: _Stream, now: Instant) -> None:
        if len(stream.queue):
            for datagram in stream.queue.pop(now):
                self._put(stream, datagram)
            self._collect(stream)
            if not stream.ended:
                self._spoke(stream, now)
        elif stream.ended and now >= stream.farewell_until:
            self._streams = {name: each for name, each in self._streams.items() if each is not stream}
        elif self._striper.lost and not stream.ended:
            stream.quiet_at = NEVER  # a heartbeat would say that all is well
        else:
            self._fill(stream, now)

    def _fill(self, stream: _Stream, now: Instant) -> None:
        """A heartbeat, or the end of the session once more."""
        self.counts.heartbeats += 1
        datagram = bare(stream.field, stream.number, ended=stream.ended)
        stream.pacer.charge(8 * (len(datagram) + OVERHEAD), now)
        self._put(stream, datagram)
        stream.quiet_at = now + stream.quiet_period
        stream.quiet_period = min(2 * stream.quiet_period, self._options.heartbeat_period)

    def _spoke(self, stream: _Stream, now: Instant) -> None:
        stream.quiet_period = self._options.heartbeat_delay
        stream.quiet_at = now + stream.quiet_period

    def _collect(self, stream: _Stream) -> None:
        queue = stream.queue
        self.counts.overruns += queue.overruns
        self.counts.dropped += queue.dropped
        queue.overruns = queue.dropped = 0

    def _put(self, stream: _Stream, datagram: bytes) -> None:
        if not stream.out:
            self._touched.append(stream)
        stream.out.append(datagram)

    def _flush(self) -> None:
        """One effect for each feed of each stripe that speaks in this turn."""
        for stream in self._touched:
            self._effects += [SendMulticast(to, stream.out) for to in self._endpoints(stream)]
            stream.out = []
        self._touched.clear()

    def _endpoints(self, stream: _Stream) -> list[Endpoint]:
        """Where a stream is sent; a session that is over may be of a plan that had other feeds."""
        return [endpoint for feed, endpoint in stream.stripe.feeds if feed in self._feeds]

    def _plan_wake(self, stream: _Stream, session: str) -> None:
        """At most one useful entry per stream: an earlier one is looked at again when its time comes."""
        due_at = stream.due_at
        if due_at < stream.scheduled_at:
            stream.scheduled_at = due_at
            heappush(self._schedule, (due_at, session))
