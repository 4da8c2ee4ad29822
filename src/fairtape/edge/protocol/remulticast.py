"""The remulticaster: a receiver sends what it releases, on the edge stripes of its region. TRMP 2001 §4.1, §7.1.

It runs when releases are due, so its work is per token and per packet, never per message. Each stripe keeps its bit
rate limit; messages that wait too long for it are counted. Within a stripe everything is sent in order.

An idle stripe sends heartbeats, soon after the last packet and then less and less often: a customer that lost the end
of a burst notices it within `heartbeat_delay`, and an idle stripe costs little. The end of a session is repeated for
`closing_period`.

A remulticaster may send on several feeds, and on others after a reformation (see `feed_assignment`): the same packets
on each, under the limit of the stripe. Without feeds it keeps its numbers and sends nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from heapq import heappop, heappush
from typing import Final

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.token_bucket import TokenBucket
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.effects import EdgeEffect, SendMulticast, SequenceLost
from fairtape.edge.protocol.itch_codec import ItchEncoder
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import (
    SessionClosed,
    SessionOpened,
    StripeMessages,
    StripeSequencer,
    StripeStep,
)
from fairtape.edge.status import RemulticastCounts
from fairtape.formats.moldudp64 import bare, packets, session_field
from fairtape.market.stripes import UDP_OVERHEAD, EdgeStripe, Endpoint, StripePlan

QUEUE_BYTES_MAX: Final = 4 << 20  # of one stripe


class PacedQueue:
    """The datagrams of one stripe that wait for their rate limit."""

    def __init__(self, pacer: TokenBucket, *, overrun_delay: Duration, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.overruns = 0  # messages that waited longer than `overrun_delay`
        self.dropped = 0  # messages dropped because the queue was full
        self._pacer = pacer
        self._overrun_delay = overrun_delay
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[Instant, int, bytes]] = deque()  # since when, messages, datagram
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def due_at(self) -> Instant:
        """When the next datagram may be sent."""
        return self._pacer.ready_at if self._waiting else NEVER

    def put(self, datagram: bytes, count: int, now: Instant) -> None:
        """Queue a datagram. If the queue is full, the oldest is dropped: it is worth least, and can be requested."""
        self._waiting.append((now, count, datagram))
        self._bytes += len(datagram)
        while self._bytes > self._bytes_max:
            _, lost, oldest = self._waiting.popleft()
            self._bytes -= len(oldest)
            self.dropped += lost

    def pop(self, now: Instant) -> list[bytes]:
        """The datagrams that may be sent now."""
        ready: list[bytes] = []
        while self._waiting and self._pacer.take(8 * (len(self._waiting[0][2]) + UDP_OVERHEAD), now):
            since, count, datagram = self._waiting.popleft()
            self._bytes -= len(datagram)
            if now - since > self._overrun_delay:
                self.overruns += count
            ready.append(datagram)
        return ready


@dataclass(frozen=True, slots=True, kw_only=True)
class RemulticastOptions:
    """Delays and limits."""

    burst_period: Duration = 20 * MILLISECOND  # of a stripe's rate, sent at once
    overrun_delay: Duration = 5 * MILLISECOND  # a message that waits longer for the rate limit is an overrun
    heartbeat_delay: Duration = 20 * MILLISECOND  # from the last packet to a heartbeat; doubled for each next one
    heartbeat_period: Duration = SECOND  # the longest time between heartbeats
    closing_period: Duration = 30 * SECOND  # for which the end of a session is repeated
    queue_bytes_max: int = QUEUE_BYTES_MAX  # of one stripe

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise ValueError(f"{each.name} is {getattr(self, each.name)}; it must be above 0")


class _SessionStream:
    """One session that is being sent."""

    def __init__(self, stripe: EdgeStripe, session: str, number: int, options: RemulticastOptions) -> None:
        self.field = session_field(session)
        self.stripe = stripe
        self.number = number  # of the next message
        self.ended = False
        self.heartbeat_at: Instant = NEVER  # when the next heartbeat is due
        self.heartbeat_wait = options.heartbeat_delay
        self.closing_until: Instant = NEVER
        self.scheduled_at: Instant = NEVER  # the earliest entry in the schedule
        self.out: list[bytes] = []
        pacer = TokenBucket(stripe.bits_per_s_max, options.burst_period)
        self.pacer = pacer
        self.queue = PacedQueue(pacer, overrun_delay=options.overrun_delay, bytes_max=options.queue_bytes_max)

    @property
    def due_at(self) -> Instant:
        """When a queued packet or a heartbeat is due; a queued packet makes the heartbeat unnecessary."""
        return self.queue.due_at if len(self.queue) else self.heartbeat_at


class Remulticaster:
    """Sends one core stripe on the feeds of its receiver."""

    def __init__(
        self,
        position: StripePosition,
        *,
        feeds: Iterable[str],
        options: RemulticastOptions | None = None,
        recent: RecentMessages | None = None,
        encoder: ItchEncoder | None = None,
    ) -> None:
        """`recent` stores everything at its release, and not before."""
        self.counts = RemulticastCounts()
        self._options = options or RemulticastOptions()
        self._feeds = tuple(feeds)
        self._recent = recent
        self._sequencer = StripeSequencer(position, encoder=encoder)
        self._loss_reported = False
        self._streams: dict[str, _SessionStream] = {}
        self._touched: list[_SessionStream] = []
        self._schedule: list[tuple[Instant, str]] = []
        self._effects: list[EdgeEffect] = []

    @property
    def position(self) -> StripePosition:
        """The position to `resume` from after a restart."""
        return self._sequencer.position

    @property
    def lost(self) -> bool:
        """Whether it sends nothing until `resume` with a known position."""
        return self._sequencer.lost

    def start(self, now: Instant) -> None:
        """Start sending: open new sessions, continue others."""
        self._apply(self._sequencer.begin(), now)

    def resume(self, position: StripePosition, now: Instant) -> None:
        """Continue from another position, which a journal proves. Later changes must be given again."""
        self._sequencer.resume(position)
        self._loss_reported = False
        self._streams = {name: stream for name, stream in self._streams.items() if stream.ended}
        self.start(now)

    def deliver(self, delivery: Deliver, now: Instant) -> None:
        for _ in self.deliver_slices(delivery, now):
            pass

    def deliver_slices(self, delivery: Deliver, now: Instant) -> Iterator[None]:
        """Send a token in slices of bounded work; `drain` after each. The position is known when all were taken."""
        expected = self._sequencer.sequence
        for steps in self._sequencer.deliver_slices(delivery.ordered):
            self._apply(steps, now)
            yield
        if self._sequencer.lost:
            self.counts.strayed += 1
            if not self._loss_reported:
                self._loss_reported = True
                self._effects.append(SequenceLost(expected, delivery.ordered.sequence))

    def on_formation(self, change: FormationChange) -> None:
        """A new formation takes over; after a Break all sessions start again at its place in the order."""
        self._sequencer.on_formation(change)

    def change_plan(
        self, plan: StripePlan, *, at_sequence: int, at: Instant, encoder: ItchEncoder | None = None
    ) -> None:
        """Take a new plan, in force from this place of the order on, where a formation begins."""
        assert set(self._feeds) <= set(plan.feeds)
        self._sequencer.change_plan(plan, at_sequence=at_sequence, at=at, encoder=encoder)

    def set_feeds(self, feeds: Iterable[str], now: Instant) -> None:
        """Send on these feeds from now on, beginning with a heartbeat. Numbers are the same on all feeds."""
        self._feeds = tuple(feeds)
        for session, stream in self._streams.items():
            if not stream.ended:
                stream.heartbeat_at, stream.heartbeat_wait = now, self._options.heartbeat_delay
                self._schedule_wake(stream, session)

    def end(self, at: Instant, now: Instant) -> None:
        """End the sessions. `at` is written into them and must be equal everywhere."""
        self._apply(self._sequencer.finish(at), now)

    def wake(self, now: Instant) -> None:
        """Send queued packets and heartbeats that are due."""
        while self._schedule and self._schedule[0][0] <= now:
            at, session = heappop(self._schedule)
            stream = self._streams.get(session)
            if stream is None or at != stream.scheduled_at:
                continue
            stream.scheduled_at = NEVER
            if stream.due_at <= now:
                self._continue(stream, now)
            if session in self._streams:
                self._schedule_wake(stream, session)
        self._flush()

    def deadline(self) -> Instant | None:
        """The earliest due time of any stripe."""
        return self._schedule[0][0] if self._schedule else None

    def drain(self) -> list[EdgeEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _apply(self, steps: list[StripeStep], now: Instant) -> None:
        for step in steps:
            if self._recent is not None:
                self._recent.take(step, self._sequencer.at)
            match step:
                case StripeMessages():
                    self._send(step, now)
                case SessionOpened(edition, following):
                    for stripe, number in zip(edition.stripes, following, strict=True):
                        name = edition.session(stripe.number)
                        stream = self._streams[name] = _SessionStream(stripe, name, number, self._options)
                        self._reset_heartbeat(stream, now)
                        self._schedule_wake(stream, name)
                case SessionClosed(edition):
                    for stripe in edition.stripes:
                        self._close(edition.session(stripe.number), now)
        self._flush()

    def _send(self, messages: StripeMessages, now: Instant) -> None:
        stream = self._streams[messages.session]
        counts = self.counts
        for datagram, count in packets(stream.field, messages.first, messages.framed, messages.size):
            counts.packets += 1
            if not len(stream.queue) and stream.pacer.take(8 * (len(datagram) + UDP_OVERHEAD), now):
                self._put(stream, datagram)
            else:
                stream.queue.put(datagram, count, now)
        counts.messages += messages.count
        stream.number = messages.first + messages.count
        self._reset_heartbeat(stream, now)
        self._schedule_wake(stream, messages.session)

    def _close(self, session: str, now: Instant) -> None:
        stream = self._streams[session]
        stream.ended = True
        stream.heartbeat_at, stream.heartbeat_wait = now, self._options.heartbeat_delay
        stream.closing_until = now + self._options.closing_period
        self._schedule_wake(stream, session)

    def _continue(self, stream: _SessionStream, now: Instant) -> None:
        if len(stream.queue):
            for datagram in stream.queue.pop(now):
                self._put(stream, datagram)
            self._collect(stream)
            if not stream.ended:
                self._reset_heartbeat(stream, now)
        elif stream.ended and now >= stream.closing_until:
            self._streams = {name: each for name, each in self._streams.items() if each is not stream}
        elif self._sequencer.lost and not stream.ended:
            stream.heartbeat_at = NEVER  # a heartbeat would claim that the numbers are known
        else:
            self._send_heartbeat(stream, now)

    def _send_heartbeat(self, stream: _SessionStream, now: Instant) -> None:
        """A heartbeat, or the repeated end of the session."""
        self.counts.heartbeats += 1
        datagram = bare(stream.field, stream.number, ended=stream.ended)
        stream.pacer.charge(8 * (len(datagram) + UDP_OVERHEAD), now)
        self._put(stream, datagram)
        stream.heartbeat_at = now + stream.heartbeat_wait
        stream.heartbeat_wait = min(2 * stream.heartbeat_wait, self._options.heartbeat_period)

    def _reset_heartbeat(self, stream: _SessionStream, now: Instant) -> None:
        stream.heartbeat_wait = self._options.heartbeat_delay
        stream.heartbeat_at = now + stream.heartbeat_wait

    def _collect(self, stream: _SessionStream) -> None:
        queue = stream.queue
        self.counts.overruns += queue.overruns
        self.counts.dropped += queue.dropped
        queue.overruns = queue.dropped = 0

    def _put(self, stream: _SessionStream, datagram: bytes) -> None:
        if not stream.out:
            self._touched.append(stream)
        stream.out.append(datagram)

    def _flush(self) -> None:
        """One effect per feed and stripe with packets."""
        for stream in self._touched:
            self._effects += [SendMulticast(to, stream.out) for to in self._endpoints(stream)]
            stream.out = []
        self._touched.clear()

    def _endpoints(self, stream: _SessionStream) -> list[Endpoint]:
        """Where a stream is sent. An ended session may be of a plan that had other feeds."""
        return [endpoint for feed, endpoint in stream.stripe.feeds if feed in self._feeds]

    def _schedule_wake(self, stream: _SessionStream, session: str) -> None:
        """Keep at most one valid entry per stream; a stale entry is skipped in `wake`."""
        due_at = stream.due_at
        if due_at < stream.scheduled_at:
            stream.scheduled_at = due_at
            heappush(self._schedule, (due_at, session))
