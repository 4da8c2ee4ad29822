"""Rate limits: a token bucket as one integer, and the queue of a stripe in front of it.

The state of the bucket is one instant (the generic cell rate algorithm of ATM Forum TM 4.0): `free_at` is when the line
would be idle if everything had been sent at exactly the rate. Sending is allowed while that instant is at most
`burst_period` ahead. It needs no float, no refill and no timer.
"""

from collections import deque
from typing import Final

from fairtape.core.instants import NEVER, SECOND, Duration, Instant

OVERHEAD: Final = 28  # bytes of the IP and UDP headers of a datagram
QUEUE_BYTES_MAX: Final = 4 << 20  # of one stripe


class Pacer:
    """Limits units to `per_s` per second, with bursts of `burst_period` of that rate."""

    __slots__ = ("_burst_period", "_free_at", "_per_s")

    def __init__(self, per_s: int, burst_period: Duration) -> None:
        assert per_s > 0
        self._per_s = per_s
        self._burst_period = burst_period
        self._free_at: Instant = 0

    @property
    def ready_at(self) -> Instant:
        """From when on `takes` succeeds."""
        return self._free_at - self._burst_period

    def takes(self, units: int, now: Instant) -> bool:
        """Take units if the rate allows it; returns whether it does."""
        if now < self._free_at - self._burst_period:
            return False
        self.charge(units, now)
        return True

    def charge(self, units: int, now: Instant) -> None:
        """Take units in any case; later ones wait accordingly longer."""
        self._free_at = max(self._free_at, now) + units * SECOND // self._per_s


class PacedQueue:
    """The datagrams of one stripe that wait for their rate limit."""

    def __init__(self, pacer: Pacer, *, overrun_delay: Duration, bytes_max: int = QUEUE_BYTES_MAX) -> None:
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
        while self._waiting and self._pacer.takes(8 * (len(self._waiting[0][2]) + OVERHEAD), now):
            since, count, datagram = self._waiting.popleft()
            self._bytes -= len(datagram)
            if now - since > self._overrun_delay:
                self.overruns += count
            ready.append(datagram)
        return ready
