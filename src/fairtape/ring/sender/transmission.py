"""Transmission: the source's side of the ring.

Messages wait in a bounded queue, are cut into blocks as the window allows, sealed once, and sent; a block is repeated,
byte for byte, until an acknowledgment covers it, and kept until it is settled. Numbers are contiguous, so one number
says what is acknowledged.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, Protocol, TypeAlias

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.ring.sender.retention import Block, RetentionBuffer
from fairtape.ring.sender.window import PACKET_MIN, SendPace, SendWindow, packet_size
from fairtape.wire.blocks import (
    MESSAGE_MAX,
    fitting_count,
    message_max,
    pack_messages,
    pack_records,
    records_max,
    records_size,
    split_message,
)
from fairtape.wire.frames import Flag, NodeId, Range, encode_block_header
from fairtape.wire.seals import SEAL_OVERHEAD, Keys

QUEUE_MAX: Final = 16 << 20  # bytes that wait to be cut
FLIGHT_BLOCKS_MAX: Final = 8_192
BURST_BLOCKS_MAX: Final = (
    92  # blocks that leave in one step, two full trains; then it is time to look for acknowledgments
)
RESEND_MAX: Final = 64  # blocks that one expiry repeats
BACKOFF_MAX: Final = 8  # times the first delay


class MessageTooLong(ValueError):
    """A message above `MESSAGE_MAX`."""


PackedBody: TypeAlias = tuple[bytes, int, int]
"""A body ready to be sealed, how many messages it holds, and the header's flags."""


class OutgoingBatch(Protocol):
    """Messages that wait."""

    size: int  # bytes still waiting

    def min_size(self) -> int:
        """The least body that takes the first message."""

    def cut(self, size_max: int) -> PackedBody:
        """The next body, of at most `room` bytes."""


class Messages:
    """Messages of any size."""

    def __init__(self, messages: Sequence[bytes], body_max: int) -> None:
        self._messages = messages
        self._at = 0
        self._body_max = body_max
        self._fragments: deque[bytes] = deque()
        self.size = sum(map(len, messages))
        self._finish_if_empty()

    def min_size(self) -> int:
        """A message, its size and the two bytes before it; of a long one, the next fragment."""
        if self._fragments:
            return len(self._fragments[0])
        return min(len(self._messages[self._at]) + self._body_max - message_max(self._body_max), self._body_max)

    def cut(self, size_max: int) -> PackedBody:
        """As many whole messages as fit, or one fragment."""
        if not self._fragments and len(self._messages[self._at]) > message_max(self._body_max):
            self._fragments.extend(split_message(self._messages[self._at], self._body_max))
            self._at += 1
        if self._fragments:
            body = self._fragments.popleft()
            self._finish_if_empty()
            return body, 1, Flag.FRAGMENT
        count = max(fitting_count(self._messages[self._at : self._at + size_max], size_max), 1)
        taken = self._messages[self._at : self._at + count]
        self._at += count
        self._finish_if_empty()
        return pack_messages(taken), count, 0

    def _finish_if_empty(self) -> None:
        if self._at >= len(self._messages) and not self._fragments:
            self.size = 0


class Records:
    """Back-to-back records of one size: no work per message."""

    def __init__(self, records: bytes, record_size: int) -> None:
        self._records = records
        self._record_size = record_size
        self._at = 0
        self.size = len(records)

    def min_size(self) -> int:
        """One record and the size before it."""
        return records_size(1, self._record_size)

    def cut(self, size_max: int) -> PackedBody:
        """As many records as fit."""
        size = self._record_size
        count = min(records_max(size_max, size) or 1, self.size // size)
        start, self._at = self._at, self._at + count * size
        self.size -= count * size
        return pack_records(self._records[start : self._at], size), count, 0


class Transmission:
    """One incarnation of one source."""

    def __init__(
        self,
        *,
        source: NodeId,
        incarnation: int,
        stripe: int,
        keys: Keys,
        datagram_max: int,
        resend_delay: Duration,
        round_trip: Duration,
        resilience: int,
        window: SendWindow,
        pace: SendPace,
    ) -> None:
        self._source = source
        self._incarnation = incarnation
        self._stripe = stripe
        self._seal = keys.seal(keys.sources[source], stripe=stripe, source=source, incarnation=incarnation)
        self._datagram_max = datagram_max
        self._body_max = datagram_max - SEAL_OVERHEAD
        self._resend_delay = resend_delay
        self._round_trip = round_trip
        self._window = window
        self._pace = pace
        self._queue: deque[OutgoingBatch] = deque()
        self._flight: deque[Block] = deque()  # in the order of their numbers
        self._kept = RetentionBuffer(resilience)
        self._formation = -1  # the latest that was heard
        self._settled_in = -1  # the formation in which something was settled last
        self._held_back_until: Instant = NEVER  # by the pace, or by what left a moment ago
        self._probe_at: Instant = NEVER
        self._probe_delay = resend_delay
        self._eased_until: Instant = 0  # a hole that is named before then closes the window no further
        self.queued = 0  # bytes that wait
        self.next_number = 1
        self.acked_through = 0

    @property
    def idle(self) -> bool:
        """Everything that was offered is settled."""
        return not self._queue and not self._flight and not self._kept

    @property
    def in_flight(self) -> int:
        """Blocks that are sent and not acknowledged."""
        return len(self._flight)

    @property
    def kept(self) -> int:
        """Blocks that are acknowledged and not settled."""
        return len(self._kept)

    @property
    def settled_through(self) -> int:
        """The highest number up to which everything is settled and forgotten."""
        for block in chain(self._kept, self._flight):
            return block.first - 1
        return self.next_number - 1

    def offer(self, messages: Sequence[bytes]) -> int:
        """Queue messages; how many were taken. The rest did not fit and may be offered again."""
        size_max = QUEUE_MAX - self.queued
        taken = 0
        for message in messages:
            if not 0 < len(message) <= MESSAGE_MAX:
                raise MessageTooLong(f"a message has {len(message)} bytes; it must have 1 to {MESSAGE_MAX}")
            if len(message) > size_max:
                break
            size_max -= len(message)
            taken += 1
        if taken:
            self._enqueue(Messages(messages[:taken], self._body_max))
        return taken

    def offer_records(self, records: bytes, record_size: int) -> int:
        """Queue back-to-back records of one size; how many were taken: all or none."""
        if not 0 < record_size <= message_max(self._body_max) or len(records) % record_size:
            raise MessageTooLong(
                f"record_size is {record_size}; it must divide the {len(records)} bytes and be at most "
                f"{message_max(self._body_max)}"
            )
        if not records or len(records) > QUEUE_MAX - self.queued:
            return 0
        self._enqueue(Records(records, record_size))
        return len(records) // record_size

    def _enqueue(self, batch: OutgoingBatch) -> None:
        self._queue.append(batch)
        self.queued += batch.size

    def cut(self, now: Instant) -> list[bytes]:
        """The datagrams that may leave now."""
        datagrams: list[bytes] = []
        self._held_back_until = NEVER
        if self._kept.full:
            return datagrams
        while self._queue and len(self._flight) < FLIGHT_BLOCKS_MAX:
            size_max = self._body_size(self._queue[0])
            if size_max is None:
                break
            if self._pace.next_at > now or len(datagrams) == BURST_BLOCKS_MAX:
                self._held_back_until = self._pace.next_at
                break
            datagrams.append(self._send(self._next_body(size_max), now))
        return datagrams

    def _body_size(self, batch: OutgoingBatch) -> int | None:
        """The body size that Figure 1 allows; a first message larger than that goes alone."""
        window = self._window
        if self.queued >= self._datagram_max and window.size - window.flight >= 2 * self._datagram_max:
            return self._body_max  # what the rule gives where there is plenty of everything
        size = packet_size(
            offered=self.queued + SEAL_OVERHEAD,
            window=window.size,
            available=window.available,
            packet_min=PACKET_MIN,
            packet_max=self._datagram_max,
        )
        if size is None:
            return None
        size_max, min_size = size - SEAL_OVERHEAD, batch.min_size()
        if size_max >= min_size:
            return size_max
        fits_window = min_size + SEAL_OVERHEAD <= window.available or not self._flight
        return min_size if fits_window else None

    def _next_body(self, size_max: int) -> PackedBody:
        batch = self._queue[0]
        waiting = batch.size
        cut = batch.cut(size_max)
        if batch.size == 0:
            self._queue.popleft()
            self.queued -= waiting
        else:
            self.queued -= waiting - batch.size
        return cut

    def _send(self, cut: PackedBody, now: Instant) -> bytes:
        body, count, flags = cut
        first = self.next_number
        header = encode_block_header(flags, self._stripe, self._source, self._incarnation, first, count)
        datagram = self._seal.close(header, first, body)
        self.next_number = first + count
        self._flight.append(Block(first, first + count, datagram, now + self._resend_delay, self._resend_delay))
        self._window.sent(len(datagram))
        if self._pace.bytes_per_s is not None:
            self._pace.sent(len(datagram), now)
        return datagram

    def enter(self, formation: int, now: Instant) -> bool:
        """Whether a proved word of this formation counts; one of an earlier formation is out of date.

        A later one may have begun before what an earlier one acknowledged: all of that is under way again. It is not
        repeated at once, since mostly it is in the order, and the next acknowledgment says so.
        """
        if formation <= self._formation:
            return formation == self._formation
        self._formation = formation
        blocks = self._kept.take_all()
        for block in blocks:
            block.delay = self._resend_delay
            block.due_at = now + block.delay
            self._window.sent(len(block.datagram))
        if blocks:
            self._flight.extendleft(reversed(blocks))
            self.acked_through = blocks[0].first - 1
        return True

    def acknowledged(self, through: int, token: int, now: Instant, *, behind: bool) -> None:
        """Everything up to `through` has its place in the order, by Ack(token) at the latest; `behind`: a late one."""
        if not self.acked_through < through < self.next_number:
            return
        self.acked_through = through
        flight = self._flight
        landed: list[Block] = []
        size = 0
        while flight and flight[0].end <= through + 1:
            block = flight.popleft()
            landed.append(block)
            size += len(block.datagram)
        if not landed:  # an honest site acknowledges whole blocks
            return
        self._kept.keep(landed, size, token)
        self._window.acknowledged(size, self._datagram_max, behind=behind)
        if not flight:
            self._probe_delay = self._resend_delay
            self._probe_at = now + self._probe_delay

    def ack_received(self, token: int) -> None:
        """An acknowledgment of this token was heard: what K tokens before it named is settled."""
        self._settle(lambda: self._kept.ack_received(token))

    def settled(self, end: int) -> None:
        """A site knows that K + 1 sites hold everything below `end`."""
        self._settle(lambda: self._kept.settle(end))

    def _settle(self, forget: Callable[[], None]) -> None:
        before = len(self._kept)
        forget()
        if len(self._kept) < before:
            self._settled_in = self._formation

    def is_contradicted(self, following: int, token: int) -> bool:
        """Whether the order, in the present formation up to this token, goes on with a number that was settled here.

        Then it has lost what K + 1 sites held (a Break), and nobody can close that hole: it is forgotten here.
        """
        settled = following <= self.settled_through and self._settled_in >= 0
        return settled and token >= self._kept.settled_by

    def missing(self, wanted: Range, now: Instant) -> list[bytes]:
        """A token site misses these: the same bytes again.

        Several sites may name one hole before the answer has reached them all: a block is repeated, and the window
        closes, once in a round trip.
        """
        blocks = [
            block
            for block in chain(self._kept, self._flight)
            if wanted.first <= block.first < wanted.end and block.answered_until <= now
        ][:RESEND_MAX]
        for block in blocks:
            block.answered_until = now + self._round_trip
        if blocks and blocks[-1].first > self.acked_through and self._eased_until <= now:
            self._eased_until = now + self._round_trip
            self._window.hole_reported()
        return [block.datagram for block in blocks]

    def overdue(self, now: Instant) -> list[bytes]:
        """Blocks whose acknowledgment is overdue: the same bytes again, less and less often."""
        if self.resend_at() > now:
            return []
        self._window.timed_out()
        overdue = [block for block in self._flight if block.due_at <= now][:RESEND_MAX]
        for block in overdue:
            block.delay = self._backed_off(block.delay)
            block.due_at = now + block.delay
            block.answered_until = now + self._round_trip
        return [block.datagram for block in overdue]

    def probe(self, now: Instant) -> list[bytes]:
        """The last block that is kept, when nothing is under way whose acknowledgment would settle it.

        The token site answers a repetition with what it knows.
        """
        if self.probe_at() > now:
            return []
        self._probe_delay = self._backed_off(self._probe_delay)
        self._probe_at = now + self._probe_delay
        return [self._kept.last.datagram]

    def _backed_off(self, delay: Duration) -> Duration:
        return min(2 * delay, BACKOFF_MAX * self._resend_delay)

    def resend_at(self) -> Instant:
        """When the oldest block is overdue."""
        return self._flight[0].due_at if self._flight else NEVER

    def probe_at(self) -> Instant:
        """When a site will be asked what is settled."""
        return self._probe_at if self._kept and not self._flight else NEVER

    def deadline(self) -> Instant:
        """The next repetition, or the next packet that the pace holds back."""
        return min(self.resend_at(), self.probe_at(), self._held_back_until)
