"""Flow control of a source: bytes in flight, packet size, and send rate. RMP §7; decision 48, Flow control by load.

The window is what a source may have in flight, and what it may send in one token period. Losses close it, as in RMP.
So does the load that token sites report in their acknowledgments: by how much their releases lag behind their instants,
and how many bytes wait there to be read. A receiver that cannot keep up loses nothing at first. It only gets later, and
what it releases late is lost for fairness even if no byte of it is.

The law is that of a delay-based congestion control (additive increase, proportional decrease). With

    x = max(release lag / 1 ms, backlog / (0.3 token periods)), of the most loaded site,

the window grows by a constant while x <= 1, and shrinks by (1 - 1/x) / 2 of itself while x > 1, at most once until the
sites can have noticed. Sources that share a site get the same reports, grow by the same amount and shrink by the same
fraction, so their windows converge.

A token period here is the one that the token has now. Where the pace may change (decision 51, Pace), a source measures
it: it does not learn of formations.
"""

from collections import Counter
from enum import Enum
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.ring.load import LAG_TARGET, SiteLoad

PACKET_MIN: Final = 256
WINDOW_MIN: Final = 64 << 10  # losses close the window no further: 1 % of them must not starve a long path
WINDOW_MAX: Final = 16 << 20
LOADED_WINDOW_MIN: Final = 128  # load closes it further: thousands of sources may share a site
RATE_MAX: Final = 512 << 20  # bytes per second that the window of one source never prevents, up to WINDOW_MAX

GROWTH_PERIOD: Final = 8 * SECOND  # in which a window would grow from nothing to its maximum by constant steps
GROWTH_DIVISOR: Final = 64  # a window also grows by this part of itself in each token period
GROWTH_STEPS_MAX: Final = 4  # token periods for which it grows at one acknowledgment
BURST_MAX: Final = 128 << 10  # bytes that leave at once: two UDP_SEGMENT trains of full datagrams
BURST_DIVISOR: Final = 4  # part of the window that leaves at once, less than what BACKLOG_TARGET allows
MEASURED_PERIOD: Final = 80 * MILLISECOND  # of tokens at the configured period: twice as long as a site may be late
MEASURED_TOKENS_MIN: Final = 8


def packet_size(*, offered: int, window: int, available: int, packet_min: int, packet_max: int) -> int | None:
    """The size of the packet to send; None: wait for an acknowledgment. RMP, Figure 1, line by line."""
    if available < packet_min and available < window:
        return None
    size = min(offered, window // 2)  # at most half of the window at a time
    size = max(size, packet_min)
    size = min(size, available)
    return min(size, packet_max)  # limits the cost of a lost packet


def window_max_of(token_period: Duration) -> int:
    """The largest useful window: a source sends one window in a token period."""
    return min(max(RATE_MAX * token_period // SECOND, WINDOW_MIN), WINDOW_MAX)


class Limit(Enum):
    """Why a window is no larger."""

    START = "the window still grows, or is at its maximum"
    RELEASE_LAG = "releases of a site lag behind their instants"
    BACKLOG = "a site does not keep up with reading"
    LOSS = "blocks are lost"
    SILENCE = "acknowledgments do not arrive"


class TokenPeriod:
    """How long the token takes now: the configured period, or a multiple of it (decision 51, Pace).

    A source does not learn of formations, so it measures this by the instants of acknowledgments. These may be late, so
    it measures over many tokens, and a change counts if it was measured twice in a row.
    """

    __slots__ = ("_configured", "_measured", "_pace_max", "_token", "_token_at", "_tokens_min", "present")

    def __init__(self, configured: Duration, pace_max: int = 1) -> None:
        self.present = configured
        self._configured = configured
        self._pace_max = pace_max
        self._tokens_min = max(MEASURED_PERIOD // configured, MEASURED_TOKENS_MIN)
        self._measured = 1  # the last multiple
        self._token = 0  # where the present measurement began
        self._token_at: Instant = 0

    def note(self, token: int, now: Instant) -> None:
        """Ack(token) was received."""
        passed = token - self._token
        if passed < self._tokens_min:
            return
        multiple = round((now - self._token_at) / (passed * self._configured))
        before, self._measured = self._measured, min(max(multiple, 1), self._pace_max)
        if self._measured == before:
            self.present = before * self._configured
        self._token, self._token_at = token, now


class SendWindow:
    """A sliding window in bytes that opens with acknowledgments and closes with losses and load."""

    def __init__(
        self,
        *,
        token_period: Duration,
        commit_delay: Duration = 0,
        packet_max: int,
        maximum: int | None = None,
        pace_max: int = 1,
    ) -> None:
        self.token_period = TokenPeriod(token_period, pace_max)
        self._maximum = maximum  # configured
        self.minimum = min(WINDOW_MIN, self.maximum)
        self.size = self.minimum
        self.threshold = self.maximum  # below it the window doubles, above it grows slowly
        self._doubling_rounds = max(commit_delay // token_period, 1)  # a release lag is known a commit delay later
        self.flight = 0  # bytes sent and not acknowledged
        self.limit = Limit.START
        self.held_back_by: Counter[Limit] = Counter()  # acknowledgments before which something was held back
        self.rounds = 0  # all acknowledgments
        self._flight_min = min(2 * packet_max, self.maximum)
        self._is_full = False  # it held something back since the last acknowledgment
        self._eased_until: Instant = 0  # reports before then precede the effect of the last cut
        self._grown_at: Instant = 0

    @property
    def maximum(self) -> int:
        return window_max_of(self.token_period.present) if self._maximum is None else self._maximum

    @property
    def flight_max(self) -> int:
        """What may be in flight. A window of less than two packets is kept by the rate alone."""
        return max(self.size, self._flight_min)

    @property
    def available(self) -> int:
        return max(self.flight_max - self.flight, 0)

    @property
    def bytes_per_s(self) -> int:
        """The rate that sends the window in a token period, and a quarter more, for tokens that come early."""
        return max(5 * self.size * SECOND // (4 * self.token_period.present), 1)

    @property
    def burst(self) -> int:
        """What may leave at once: no burst alone makes a backlog that slows the sources."""
        return min(self.size // BURST_DIVISOR, BURST_MAX)

    @property
    def train_delay(self) -> Duration:
        """What a packet that must wait waits longer, for half a burst to leave at once: a train costs less."""
        return self.burst * SECOND // (2 * self.bytes_per_s)

    def sent(self, size: int) -> None:
        """A packet was sent for the first time."""
        self.flight += size

    def held_back(self) -> None:
        """Something waits to be sent that the window, or its rate, holds back."""
        self._is_full = True

    def acknowledged(self, size: int, load: SiteLoad | None, now: Instant) -> None:
        """Packets of `size` bytes together were acknowledged, by a site with this load; None: it reports no load.

        The window grows only if it held something back: what was not used has shown nothing. Without a report it grows
        no further than to the threshold, because that the sites have time for more is not known.
        """
        self.flight -= size
        was_full, self._is_full = self._is_full, False
        self.rounds += 1
        if was_full:
            self.held_back_by[self.limit] += 1
        period = self.token_period.present
        if load is not None and load.excess(period) > 1:
            self._ease(load.excess(period), now, period)
            self.limit = Limit.RELEASE_LAG if load.release_lag > LAG_TARGET else Limit.BACKLOG
        elif was_full and self.size < self.threshold:
            self.size = min(self.size + max(size // self._doubling_rounds, 1), self.threshold)
        elif was_full and load is not None:
            periods = min(max((now - self._grown_at) / period, 0.0), GROWTH_STEPS_MAX)
            maximum = self.maximum
            growth = int(periods * (maximum * period / GROWTH_PERIOD + self.size / GROWTH_DIVISOR)) + 1
            self.size = min(self.size + growth, maximum)
        self._grown_at = now
        if self.limit is Limit.SILENCE and self.size >= self.threshold:
            self.limit = Limit.START

    def _ease(self, excess: float, now: Instant, period: Duration) -> None:
        """Close the window in proportion to the load, once until the sites can have noticed."""
        if now < self._eased_until <= now + 2 * period:  # not where the clock was set back
            return
        self._eased_until = now + 2 * period
        self._close(self.size - int(self.size * (1 - 1 / excess) / 2), LOADED_WINDOW_MIN)

    def hole_reported(self) -> None:
        """A token site reported a hole: halve the window."""
        self._close(self.size // 2, self.minimum)
        self.limit = Limit.LOSS

    def timed_out(self) -> None:
        """No acknowledgment arrived: restart from the minimum."""
        threshold = max(self.size // 2, min(self.size, self.minimum))
        self._close(0, self.minimum)
        self.threshold = threshold
        self.limit = Limit.SILENCE

    def _close(self, size: int, minimum: int) -> None:
        """Close the window to `size`, not below `minimum`; a window that load has closed further stays as it is."""
        self.threshold = self.size = min(max(size, minimum), self.size)


class SendPace:
    """Limits the send rate, with a small burst."""

    __slots__ = ("_bytes_per_s", "_bytes_per_s_max", "_credit", "next_at")

    def __init__(self, bytes_per_s_max: int | None = None) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self.next_at: Instant = 0  # when the next packet may leave
        self.set_rate(bytes_per_s_max or RATE_MAX, BURST_MAX, 0)

    def set_rate(self, bytes_per_s: int, burst: int, now: Instant) -> None:
        """Send at this rate, at most at the configured one, and up to `burst` bytes at once, a packet or more.

        Nothing waits for longer than a burst takes: the rate was lower, or the clock was set back.
        """
        limit = self._bytes_per_s_max
        self._bytes_per_s = bytes_per_s if limit is None else min(bytes_per_s, limit)
        self._credit = burst * SECOND // self._bytes_per_s
        self.next_at = min(self.next_at, now + self._credit)

    def sent(self, size: int, now: Instant) -> None:
        self.next_at = max(self.next_at, now - self._credit) + size * SECOND // self._bytes_per_s
