"""Flow control of a source: bytes in flight, packet size, and send rate."""

from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import SECOND, Instant

PACKET_MIN: Final = 256
GROWTH_DIVISOR: Final = 16  # above its threshold the window grows by 1/16 of what is acknowledged
WINDOW_MIN: Final = 64 << 10
WINDOW_MAX: Final = 2 << 20  # fits the receive buffers that Linux allows by default


def packet_size(*, offered: int, window: int, available: int, packet_min: int, packet_max: int) -> int | None:
    """The size of the packet to send; None: wait for an acknowledgment. RMP, Figure 1, line by line."""
    if available < packet_min and available < window:
        return None
    size = min(offered, window // 2)  # at most half of the window at a time
    size = max(size, packet_min)
    size = min(size, available)
    return min(size, packet_max)  # limits the cost of a lost packet


@dataclass(slots=True)
class SendWindow:
    """A sliding window in bytes that opens with acknowledgments and closes with losses. RMP §7.

    Receivers that fall behind lose nothing at first: their token is late. So the window also closes when the token is
    behind schedule; a source that kept filling queues would delay it for all. The token site reports it in its
    acknowledgment, because it knows the schedule and its clock is disciplined. An inference from the source's own clock
    would be wrong whenever that clock drifts or steps, or the ring is idle.
    """

    minimum: int = WINDOW_MIN  # 1 % loss on a long path must not starve a market source
    maximum: int = WINDOW_MAX
    size: int = WINDOW_MIN
    threshold: int = WINDOW_MAX  # below it the window doubles each round, above it grows slowly
    flight: int = 0  # bytes sent and not acknowledged

    @property
    def available(self) -> int:
        return max(self.size - self.flight, 0)

    def sent(self, size: int) -> None:
        """A packet was sent for the first time."""
        self.flight += size

    def acknowledged(self, size: int, packet_max: int, *, behind: bool) -> None:
        """Packets of `size` bytes together were acknowledged; `behind`: the token is behind schedule."""
        self.flight -= size
        if behind:
            self.threshold = self.size = max(self.size - self.size // 4, self.minimum)
            return
        growth = size if self.size < self.threshold else max(size // GROWTH_DIVISOR, packet_max * size // self.size)
        self.size = min(self.size + growth, self.maximum)

    def hole_reported(self) -> None:
        """A token site reported a hole: halve the window."""
        self.threshold = self.size = max(self.size // 2, self.minimum)

    def timed_out(self) -> None:
        """No acknowledgment arrived: restart from the minimum."""
        self.threshold = max(self.size // 2, self.minimum)
        self.size = self.minimum


@dataclass(slots=True)
class SendPace:
    """Limits the send rate, with a small burst."""

    bytes_per_s: int | None = None
    burst: int = 64 << 10
    next_at: Instant = 0  # when the next packet may leave

    def sent(self, size: int, now: Instant) -> None:
        if self.bytes_per_s is None:
            return
        credit = self.burst * SECOND // self.bytes_per_s
        self.next_at = max(self.next_at, now - credit) + size * SECOND // self.bytes_per_s
