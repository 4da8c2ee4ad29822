"""Transmission: the source side of the ring.

Messages wait in a bounded queue. As the window allows, they are packed into blocks, sealed once, and sent. A block is
retransmitted, byte for byte, until an acknowledgment covers it, and kept until it is settled. Numbers are contiguous,
so one number states what is acknowledged.
"""

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Final, Protocol, TypeAlias

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.ring.load import SiteLoad
from fairtape.ring.sender.retention import Block, RetentionBuffer
from fairtape.ring.sender.window import PACKET_MIN, Limit, SendPace, SendWindow, packet_size
from fairtape.wire.blocks import (
    MESSAGE_MAX,
    fitting_count,
    message_max,
    pack_messages,
    pack_records,
    records_max,
    records_size,
    split_message,
    table_size,
)
from fairtape.wire.frames import Flag, NodeId, Range, encode_block_header
from fairtape.wire.seals import SEAL_OVERHEAD, Keys

QUEUE_MAX: Final = 16 << 20  # bytes that wait to be packed
FLIGHT_BLOCKS_MAX: Final = 12_288  # a window of full datagrams
BURST_BLOCKS_MAX: Final = 92  # blocks sent in one step: two full UDP_SEGMENT trains; then receive acknowledgments
RESEND_MAX: Final = 64  # blocks that one timeout retransmits
BACKOFF_MAX: Final = 8  # times the initial delay


class MessageTooLong(ValueError):
    """A message above `MESSAGE_MAX`."""


PackedBody: TypeAlias = tuple[bytes, int, int]
"""A body ready to be sealed, its number of messages, and the header's flags."""


class OutgoingBatch(Protocol):
    """Messages that wait to be packed."""

    size: int  # bytes still waiting

    def min_size(self) -> int:
        """The size of the smallest body that holds the first message."""

    def whole_size(self) -> int:
        """The size of one body that would hold everything waiting, or more."""

    def pack(self, size_max: int) -> PackedBody:
        """The next body, of at most `size_max` bytes."""


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
        """A message with its size and the size field of the body; for a long one, the next fragment."""
        if self._fragments:
            return len(self._fragments[0])
        return min(len(self._messages[self._at]) + self._body_max - message_max(self._body_max), self._body_max)

    def whole_size(self) -> int:
        return table_size(len(self._messages), self.size)

    def pack(self, size_max: int) -> PackedBody:
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
    """Back-to-back records of one size. No work per message."""

    def __init__(self, records: bytes, record_size: int) -> None:
        self._records = records
        self._record_size = record_size
        self._at = 0
        self.size = len(records)

    def min_size(self) -> int:
        return records_size(1, self._record_size)

    def whole_size(self) -> int:
        return records_size(self.size // self._record_size, self._record_size)

    def pack(self, size_max: int) -> PackedBody:
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
        self.formation = -1  # the latest one received
        self._settled_in = -1  # the last formation in which something was settled
        self._held_back_until: Instant = NEVER  # by the pace or the burst limit
        self._probe_at: Instant = NEVER
        self._probe_delay = resend_delay
        self._eased_until: Instant = 0  # holes reported before then do not close the window further
        self.queued = 0  # bytes that wait
        self.next_number = 1
        self.acked_through = 0

    @property
    def idle(self) -> bool:
        """Whether everything that was offered is settled."""
        return not self._queue and not self._flight and not self._kept

    @property
    def in_flight(self) -> int:
        """Blocks sent and not acknowledged."""
        return len(self._flight)

    @property
    def kept(self) -> int:
        """Blocks acknowledged and not settled."""
        return len(self._kept)

    @property
    def held_back_by(self) -> dict[Limit, float]:
        """Why the window held something back, as shares of all acknowledgments, the most frequent reason first."""
        window = self._window
        return {limit: count / window.rounds for limit, count in window.held_back_by.most_common()}

    @property
    def settled_through(self) -> int:
        """The highest number up to which everything is settled."""
        for block in chain(self._kept, self._flight):
            return block.first - 1
        return self.next_number - 1

    def offer(self, messages: Sequence[bytes]) -> int:
        """Queue messages. Returns how many were taken; the rest did not fit and may be offered again."""
        space = QUEUE_MAX - self.queued
        taken = 0
        for message in messages:
            if not 0 < len(message) <= MESSAGE_MAX:
                raise MessageTooLong(f"a message has {len(message)} bytes; it must have 1 to {MESSAGE_MAX}")
            if len(message) > space:
                break
            space -= len(message)
            taken += 1
        if taken:
            self._enqueue(Messages(messages[:taken], self._body_max))
        return taken

    def offer_records(self, records: bytes, record_size: int) -> int:
        """Queue back-to-back records of one size. Returns how many were taken: all or none."""
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

    def next_blocks(self, now: Instant) -> list[bytes]:
        """The new datagrams that may be sent now."""
        datagrams: list[bytes] = []
        self._held_back_until = NEVER
        if self._kept.full or not self._queue:
            return datagrams
        window, pace = self._window, self._pace
        pace.set_rate(window.bytes_per_s, max(window.burst, self._datagram_max), now)
        while self._queue and len(self._flight) < FLIGHT_BLOCKS_MAX:
            size_max = self._body_size(self._queue[0])
            if size_max is None:
                window.held_back()
                break
            if pace.next_at > now:
                window.held_back()
                self._held_back_until = pace.next_at + window.train_delay
                break
            if len(datagrams) == BURST_BLOCKS_MAX:
                self._held_back_until = now
                break
            datagrams.append(self._send(self._next_body(size_max), now))
        return datagrams

    def _body_size(self, batch: OutgoingBatch) -> int | None:
        """The body size that Figure 1 allows. A first message that is larger is sent alone."""
        window = self._window
        if window.available >= 2 * self._datagram_max:
            return self._body_max  # the common case of the rule: the window is open, and a body has no more than waits
        size = packet_size(
            offered=batch.whole_size() + SEAL_OVERHEAD,
            window=window.flight_max,
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
        packed = batch.pack(size_max)
        if batch.size == 0:
            self._queue.popleft()
            self.queued -= waiting
        else:
            self.queued -= waiting - batch.size
        return packed

    def _send(self, packed: PackedBody, now: Instant) -> bytes:
        body, count, flags = packed
        first = self.next_number
        header = encode_block_header(flags, self._stripe, self._source, self._incarnation, first, count)
        datagram = self._seal.close(header, first, body)
        self.next_number = first + count
        self._flight.append(Block(first, first + count, datagram, now + self._resend_delay, self._resend_delay))
        self._window.sent(len(datagram))
        self._pace.sent(len(datagram), now)
        return datagram

    def enter(self, formation: int, now: Instant) -> bool:
        """Note an authentic datagram of this formation. Returns whether it counts: earlier formations are outdated.

        A later formation may have begun before what an earlier one acknowledged, so all kept blocks are in flight
        again. They are not retransmitted at once: most are in the order, and the next acknowledgment will cover them.
        """
        if formation <= self.formation:
            return formation == self.formation
        self.formation = formation
        blocks = self._kept.take_all()
        for block in blocks:
            block.delay = self._resend_delay
            block.due_at = now + block.delay
            self._window.sent(len(block.datagram))
        if blocks:
            self._flight.extendleft(reversed(blocks))
            self.acked_through = blocks[0].first - 1
        return True

    def acknowledged(self, through: int, token: int, now: Instant, *, load: SiteLoad | None = None) -> None:
        """Everything up to `through` is in the order, by Ack(token) at the latest; with its load, if reported."""
        if not self.acked_through < through < self.next_number:
            return
        self.acked_through = through
        flight = self._flight
        acked: list[Block] = []
        size = 0
        while flight and flight[0].end <= through + 1:
            block = flight.popleft()
            acked.append(block)
            size += len(block.datagram)
        if not acked:  # a correct site acknowledges whole blocks
            return
        self._kept.keep(acked, size, token)
        self._window.acknowledged(size, load, now)
        if not flight:
            self._probe_delay = self._resend_delay
            self._probe_at = now + self._probe_delay

    def ack_received(self, token: int, now: Instant) -> bool:
        """Ack(token) was received: what was acknowledged K tokens before it is settled, if any."""
        self._window.token_period.note(token, now)
        return self._note_settled(new=self._kept.ack_received(token))

    def ack_verified(self, formation: int, token: int) -> bool:
        """Ack(token) of this formation exists, and need not name this source; whether it settled anything."""
        return formation == self.formation and self._note_settled(new=self._kept.ack_received(token))

    @property
    def settling_token(self) -> int | None:
        """The acknowledgment that settles the first kept block."""
        return self._kept.settling_token

    def settled(self, end: int) -> None:
        """A site reports that K + 1 sites hold everything below `end`."""
        self._note_settled(new=self._kept.settle(end))

    def _note_settled(self, *, new: bool) -> bool:
        if new:
            self._settled_in = self.formation
        return new

    def is_contradicted(self, following: int, token: int) -> bool:
        """Whether the order, in the current formation up to this token, continues with a number that was settled here.

        Then a Break has lost what K + 1 sites held. The hole stays open for ever: this source has dropped the block.
        """
        settled = following <= self.settled_through and self._settled_in >= 0
        return settled and token >= self._kept.settled_by

    def missing(self, wanted: Range, now: Instant) -> list[bytes]:
        """A token site misses this range: the blocks to retransmit.

        Several sites may report one hole before the retransmission reaches them all, so a block is retransmitted, and
        the window closes, at most once per round trip.
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
        """Blocks whose acknowledgment is overdue, to be retransmitted with exponential backoff."""
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
        """The last kept block, if nothing is in flight whose acknowledgment would settle it.

        The token site answers the duplicate with a `Progress`.
        """
        if self.probe_at() > now:
            return []
        self._probe_delay = self._backed_off(self._probe_delay)
        self._probe_at = now + self._probe_delay
        return [self._kept.last.datagram]

    def _backed_off(self, delay: Duration) -> Duration:
        return min(2 * delay, BACKOFF_MAX * self._resend_delay)

    def resend_at(self) -> Instant:
        return self._flight[0].due_at if self._flight else NEVER

    def probe_at(self) -> Instant:
        return self._probe_at if self._kept and not self._flight else NEVER

    def deadline(self) -> Instant:
        """The next retransmission, probe, or packet that the pace delays."""
        answer_at = self._flight[0].due_at if self._flight else self.probe_at()
        return min(answer_at, self._held_back_until)
