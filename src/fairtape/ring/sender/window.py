"""Flow control of a source: how much may be under way, how large a packet may be, how fast packets may follow."""

from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import SECOND, Instant

PACKET_MIN: Final = 256
GROWTH_DIVISOR: Final = (
    16  # the share of what was acknowledged by which a window that has met its limit once grows again
)
WINDOW_MIN: Final = 64 << 10
WINDOW_MAX: Final = 2 << 20  # fits the socket buffers that Linux grants by default on the receiving side


def packet_size(*, offered: int, window: int, available: int, packet_min: int, packet_max: int) -> int | None:
    """The size of the packet to send, or None: wait for an acknowledgment. RMP, Figure 1, line by line."""
    if available < packet_min and available < window:
        return None
    size = min(offered, window // 2)  # up to half of the window at a time
    size = max(size, packet_min)
    size = min(size, available)
    return min(size, packet_max)  # a lost packet costs no more than this


@dataclass(slots=True)
class SendWindow:
    """A sliding window in bytes that opens with acknowledgments and closes with losses. RMP §7.

    Receivers that fall behind lose nothing at first: they are late with their token. So the window also closes when
    the token falls behind its schedule, for a source that went on filling queues would hold it up for everyone. It is
    the token site that says so in its acknowledgment: it alone knows the schedule, and its clock is disciplined. What
    a source could infer from its own clock would be wrong whenever that clock drifts or steps, or the ring is idle.
    """

    minimum: int = WINDOW_MIN  # a market source must not be starved by 1 % loss on a long path
    maximum: int = WINDOW_MAX
    size: int = WINDOW_MIN
    threshold: int = WINDOW_MAX  # below it the window doubles each round, above it grows gently
    flight: int = 0  # bytes sent and not acknowledged

    @property
    def available(self) -> int:
        """What may still be sent."""
        return max(self.size - self.flight, 0)

    def sent(self, size: int) -> None:
        """A packet has left for the first time."""
        self.flight += size

    def acknowledged(self, size: int, packet_max: int, *, behind: bool) -> None:
        """Packets of this size together have been acknowledged; `behind` where the token is late."""
        self.flight -= size
        if behind:
            self.threshold = self.size = max(self.size - self.size // 4, self.minimum)
            return
        growth = size if self.size < self.threshold else max(size // GROWTH_DIVISOR, packet_max * size // self.size)
        self.size = min(self.size + growth, self.maximum)

    def hole_reported(self) -> None:
        """A token site has named a hole: half as much, and on."""
        self.threshold = self.size = max(self.size // 2, self.minimum)

    def timed_out(self) -> None:
        """No acknowledgment came at all: begin anew."""
        self.threshold = max(self.size // 2, self.minimum)
        self.size = self.minimum


@dataclass(slots=True)
class SendPace:
    """Lets packets follow one another no faster than a rate, with a small burst."""

    bytes_per_s: int | None = None
    burst: int = 64 << 10
    next_at: Instant = 0  # when the next packet may leave

    def sent(self, size: int, now: Instant) -> None:
        """A packet has left."""
        if self.bytes_per_s is None:
            return
        credit = self.burst * SECOND // self.bytes_per_s
        self.next_at = max(self.next_at, now - credit) + size * SECOND // self.bytes_per_s
