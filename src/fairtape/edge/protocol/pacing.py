"""The send queue of a stripe, in front of a token bucket."""

from collections import deque
from typing import Final

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.token_bucket import TokenBucket

OVERHEAD: Final = 28  # bytes of the IP and UDP headers of a datagram
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
        while self._waiting and self._pacer.take(8 * (len(self._waiting[0][2]) + OVERHEAD), now):
            since, count, datagram = self._waiting.popleft()
            self._bytes -= len(datagram)
            if now - since > self._overrun_delay:
                self.overruns += count
            ready.append(datagram)
        return ready
