"""Transmission: the source's side of the ring.

Messages wait in a bounded queue, are cut into blocks as the window allows, sealed once, and sent; a block is repeated,
byte for byte, until an acknowledgment covers it. Numbers are contiguous, so one number says what is acknowledged.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Protocol, TypeAlias

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.ring.window import PACKET_MIN, Pace, Window, packet_size
from fairtape.wire.blocks import (
    MESSAGE_MAX,
    fits,
    message_room,
    pack_messages,
    pack_records,
    records_room,
    records_size,
    split_message,
)
from fairtape.wire.frames import Flag, NodeId, Range, encode_block_header
from fairtape.wire.seals import SEAL_ROOM, Keys

QUEUE_MAX: Final = 16 << 20  # bytes that wait to be cut
FLIGHT_BLOCKS_MAX: Final = 8_192
CUT_MAX: Final = 92  # blocks that leave in one step, two full trains; then it is time to look for acknowledgments
RESEND_MAX: Final = 64  # blocks that one expiry repeats
BACKOFF_MAX: Final = 8  # times the first delay


class MessageTooLong(ValueError):
    """A message above `MESSAGE_MAX`."""


Cut: TypeAlias = tuple[bytes, int, int]
"""A body ready to be sealed, how many messages it holds, and the header's flags."""


class Batch(Protocol):
    """Messages that wait."""

    size: int  # bytes still waiting

    def need(self) -> int:
        """The least body that takes the first message."""

    def cut(self, room: int) -> Cut:
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

    def need(self) -> int:
        """A message, its size and the two bytes before it; of a long one, the next fragment."""
        if self._fragments:
            return len(self._fragments[0])
        return min(len(self._messages[self._at]) + self._body_max - message_room(self._body_max), self._body_max)

    def cut(self, room: int) -> Cut:
        """As many whole messages as fit, or one fragment."""
        if not self._fragments and len(self._messages[self._at]) > message_room(self._body_max):
            self._fragments.extend(split_message(self._messages[self._at], self._body_max))
            self._at += 1
        if self._fragments:
            body = self._fragments.popleft()
            self._finish_if_empty()
            return body, 1, Flag.FRAGMENT
        count = max(fits(self._messages[self._at : self._at + room], room), 1)
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

    def need(self) -> int:
        """One record and the size before it."""
        return records_size(1, self._record_size)

    def cut(self, room: int) -> Cut:
        """As many records as fit."""
        size = self._record_size
        count = min(records_room(room, size) or 1, self.size // size)
        start, self._at = self._at, self._at + count * size
        self.size -= count * size
        return pack_records(self._records[start : self._at], size), count, 0


@dataclass(slots=True)
class Flight:
    """A block that is sent and not acknowledged."""

    datagram: bytes
    count: int
    due_at: Instant
    delay: Duration


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
        window: Window,
        pace: Pace,
    ) -> None:
        self._source = source
        self._incarnation = incarnation
        self._stripe = stripe
        self._seal = keys.seal(keys.sources[source], stripe=stripe, source=source, incarnation=incarnation)
        self._datagram_max = datagram_max
        self._body_max = datagram_max - SEAL_ROOM
        self._resend_delay = resend_delay
        self._window = window
        self._pace = pace
        self._queue: deque[Batch] = deque()
        self._flight: dict[int, Flight] = {}  # in the order of their numbers
        self._held_back_until: Instant = NEVER  # by the pace, or by what left a moment ago
        self.queued = 0  # bytes that wait
        self.next_number = 1
        self.acked_through = 0

    @property
    def idle(self) -> bool:
        """Everything that was offered has been acknowledged."""
        return not self._queue and not self._flight

    @property
    def in_flight(self) -> int:
        """Blocks that are sent and not acknowledged."""
        return len(self._flight)

    def offer(self, messages: Sequence[bytes]) -> int:
        """Queue messages; how many were taken. The rest did not fit and may be offered again."""
        room = QUEUE_MAX - self.queued
        taken = 0
        for message in messages:
            if not 0 < len(message) <= MESSAGE_MAX:
                raise MessageTooLong(f"a message has {len(message)} bytes; it must have 1 to {MESSAGE_MAX}")
            if len(message) > room:
                break
            room -= len(message)
            taken += 1
        if taken:
            self._enqueue(Messages(messages[:taken], self._body_max))
        return taken

    def offer_records(self, records: bytes, record_size: int) -> int:
        """Queue back-to-back records of one size; how many were taken: all or none."""
        if not 0 < record_size <= message_room(self._body_max) or len(records) % record_size:
            raise MessageTooLong(
                f"record_size is {record_size}; it must divide the {len(records)} bytes and be at most "
                f"{message_room(self._body_max)}"
            )
        if not records or len(records) > QUEUE_MAX - self.queued:
            return 0
        self._enqueue(Records(records, record_size))
        return len(records) // record_size

    def _enqueue(self, batch: Batch) -> None:
        self._queue.append(batch)
        self.queued += batch.size

    def cut(self, now: Instant) -> list[bytes]:
        """The datagrams that may leave now."""
        datagrams: list[bytes] = []
        self._held_back_until = NEVER
        while self._queue and len(self._flight) < FLIGHT_BLOCKS_MAX:
            room = self._room(self._queue[0])
            if room is None:
                break
            if self._pace.next_at > now or len(datagrams) == CUT_MAX:
                self._held_back_until = self._pace.next_at
                break
            datagrams.append(self._send(self._cut_one(room), now))
        return datagrams

    def _room(self, batch: Batch) -> int | None:
        """The body size that Figure 1 allows; a first message larger than that goes alone."""
        window = self._window
        if self.queued >= self._datagram_max and window.size - window.flight >= 2 * self._datagram_max:
            return self._body_max  # what the rule gives where there is plenty of everything
        size = packet_size(
            offered=self.queued + SEAL_ROOM,
            window=window.size,
            available=window.available,
            packet_min=PACKET_MIN,
            packet_max=self._datagram_max,
        )
        if size is None:
            return None
        room, need = size - SEAL_ROOM, batch.need()
        if room >= need:
            return room
        fits_window = need + SEAL_ROOM <= window.available or not self._flight
        return need if fits_window else None

    def _cut_one(self, room: int) -> Cut:
        batch = self._queue[0]
        waiting = batch.size
        cut = batch.cut(room)
        if batch.size == 0:
            self._queue.popleft()
            self.queued -= waiting
        else:
            self.queued -= waiting - batch.size
        return cut

    def _send(self, cut: Cut, now: Instant) -> bytes:
        body, count, flags = cut
        first = self.next_number
        header = encode_block_header(flags, self._stripe, self._source, self._incarnation, first, count)
        datagram = self._seal.close(header, first, body)
        self.next_number = first + count
        self._flight[first] = Flight(datagram, count, now + self._resend_delay, self._resend_delay)
        self._window.sent(len(datagram))
        if self._pace.bytes_per_s is not None:
            self._pace.sent(len(datagram), now)
        return datagram

    def acknowledged(self, through: int, *, behind: bool) -> None:
        """Everything up to `through` has its place in the order; `behind` where the token is late."""
        if not self.acked_through < through < self.next_number:
            return
        self.acked_through = through
        covered = list(takewhile(lambda first: first + self._flight[first].count - 1 <= through, self._flight))
        if not covered:  # an honest site acknowledges whole blocks
            return
        flights = [self._flight.pop(first) for first in covered]
        self._window.acknowledged(sum(len(f.datagram) for f in flights), self._datagram_max, behind=behind)

    def missing(self, wanted: Range) -> list[bytes]:
        """A token site misses these: the same bytes again."""
        datagrams = [flight.datagram for first, flight in self._flight.items() if wanted.first <= first < wanted.end][
            :RESEND_MAX
        ]
        if datagrams:
            self._window.lost_one()
        return datagrams

    def overdue(self, now: Instant) -> list[bytes]:
        """Blocks whose acknowledgment is overdue: the same bytes again, less and less often."""
        if self.resend_at() > now:
            return []
        self._window.lost_touch()
        overdue = [flight for flight in self._flight.values() if flight.due_at <= now][:RESEND_MAX]
        for flight in overdue:
            flight.delay = min(2 * flight.delay, BACKOFF_MAX * self._resend_delay)
            flight.due_at = now + flight.delay
        return [flight.datagram for flight in overdue]

    def resend_at(self) -> Instant:
        """When the oldest block is overdue."""
        for flight in self._flight.values():
            return flight.due_at
        return NEVER

    def deadline(self) -> Instant:
        """The next repetition, or the next packet that the pace holds back."""
        return min(self.resend_at(), self._held_back_until)
