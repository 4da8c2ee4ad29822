"""How fast a site catches up: a window of requested chunks that fills the path and keeps its queues short.

The ring shares links and processors with the sites that catch up, so their queues are the measure, and not their
losses alone. The lowest round trip of some seconds is that of the empty path. What the lowest one of the latest chunks
is longer is a standing queue, wherever it is: in a link, in the sockets, or in the server, which answers one request
per turn. While it is short the window grows, at first by half in each round trip and then by an eighth. When it is
longer than the limit the window becomes less than what the empty path holds. Losses of more than 2 % of a round halve
it; fewer are not a sign of a full queue, and would starve a long path. What was requested before the window was reduced
does not reduce it again. Requests leave evenly over the round trip.
"""

from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant

WINDOW_START: Final = 64  # chunks
WINDOW_MIN: Final = 4
WINDOW_MAX: Final = 1 << 15  # 43 MB, more than several hundred Mbit/s around the world
REQUEST_MAX: Final = 64  # chunks of one request: so few that serving them makes no token late
QUEUE_MIN: Final = 2 * MILLISECOND  # a shorter queue may be the wait for a processor
LOSS_MAX: Final = 0.02
LOST_MIN: Final = 8  # chunks beyond that share: of few chunks, a few lost ones mean nothing
MEMORY_PERIOD: Final = 10 * SECOND  # of the lowest round trip; kept for up to two
BACKOFF_MAX: Final = 6  # doublings of the timeout


class CongestionWindow:
    """The window of one client and its pace, in chunks."""

    def __init__(self, retry_period: Duration) -> None:
        self.size = WINDOW_START
        self.backoff = 0  # timeouts in a row
        self.is_full = False  # a request had to wait for the window in this round
        self._retry_period = retry_period
        self._queue_max = max(retry_period // 8, QUEUE_MIN)
        self._starting = True  # no queue was ever long
        self._settling = False  # the window was reduced, and what arrives now was requested before
        self._growth = 0  # chunks that have arrived while it is
        self._smoothed: Duration = 0  # round trip; 0: none measured
        self._deviation: Duration = 0
        self._lowest = self._lowest_before = 0  # round trip of this memory period, and of the one before; 0: none
        self._memory_until: Instant = 0
        self._round_began_at: Instant = 0  # a round ends with the first chunk of a request made after this
        self._queue: Duration = 0
        self._latest_lowest: Duration = 0  # round trip of the latest chunks
        self._latest = 0  # their number
        self._latest_since: Instant = 0
        self._arrived = self._lost = 0  # in this round

    def request_max(self, outstanding: int, *, repairs: bool) -> int:
        """The chunks that may be requested now, beside those that are `outstanding`; 0: wait for some of them.

        What was not requested before waits for half a window, so that requests are few. Repairs wait for nothing.
        """
        spare = self.size - outstanding
        if spare < (1 if repairs else min(self.size // 2, REQUEST_MAX)):
            self.is_full = True
            return 0
        return min(spare, REQUEST_MAX)

    def gap_after(self, chunks: int) -> Duration:
        """The time after a request for as many chunks: all leave within four fifths of a round trip."""
        return self._smoothed * 4 * chunks // (5 * self.size)

    @property
    def burst_period(self) -> Duration:
        """How much of the pace a client may make up for after it did not run: what the queue of a path holds."""
        return self._smoothed // 8

    @property
    def timeout(self) -> Duration:
        """How long to wait for a response before everything requested counts as lost."""
        return max(self._smoothed + 4 * self._deviation, self._retry_period) << self.backoff

    @property
    def reordering(self) -> Duration:
        """How much later a request must have been made for its response to overtake an earlier one, and not by chance.

        What was overtaken is waited for as long again.
        """
        return max(self._smoothed // 8, MILLISECOND)

    def arrived(self, asked_at: Instant, now: Instant) -> None:
        """A chunk arrived that was requested at `asked_at`."""
        self._arrived += 1
        self.backoff = 0
        round_trip = now - asked_at
        if round_trip < 0 or asked_at < 0:
            return  # the clock was set back
        self._measure(max(round_trip, 1), now)
        measured = self._note_queue(max(round_trip, 1), now)
        if asked_at >= self._round_began_at:
            self._end_round(now)
        elif self._starting and self.is_full:
            self._growth += 1
            self.size = min(self.size + self._growth % 2, WINDOW_MAX)
            if measured and self._queue > self._queue_max:  # this growth is too fast to wait for the end of a round
                self._drain(now)

    def lost(self, chunks: int, *, whole: bool) -> None:
        """As many requested chunks will not arrive; where it is a `whole` request, that may be what was lost."""
        self._lost += min(chunks, LOST_MIN) if whole else chunks

    def timed_out(self) -> None:
        """Nothing arrives any more."""
        self.size = max(self.size // 2, WINDOW_MIN)
        self._starting = False
        self.backoff = min(self.backoff + 1, BACKOFF_MAX)
        self._lost = 0

    def _measure(self, round_trip: Duration, now: Instant) -> None:
        if not self._smoothed:
            self._smoothed, self._deviation = round_trip, round_trip // 2
        error = round_trip - self._smoothed
        self._smoothed += error // 64  # a round trip has many chunks
        self._deviation += (abs(error) - self._deviation) // 64
        if now >= self._memory_until or self._memory_until > now + MEMORY_PERIOD:
            self._lowest, self._lowest_before = round_trip, self._lowest
            self._memory_until = now + MEMORY_PERIOD
        self._lowest = min(self._lowest, round_trip)

    @property
    def _empty(self) -> Duration:
        """The round trip of the empty path."""
        return min(self._lowest, self._lowest_before or self._lowest)

    def _note_queue(self, round_trip: Duration, now: Instant) -> bool:
        """Measure the queue by the lowest of the latest round trips; whether there were enough.

        They are those of half a round trip: chunks also wait where this process does not run, but not all that long.
        While the window grows fast, those of one request have to do.
        """
        if not self._latest or self._latest_since > now:
            self._latest, self._latest_lowest, self._latest_since = 0, round_trip, now
        self._latest_lowest = min(self._latest_lowest, round_trip)
        self._latest += 1
        period = 0 if self._starting else self._smoothed // 2
        if self._latest < REQUEST_MAX or now - self._latest_since < period:
            return False
        self._queue, self._latest = self._latest_lowest - self._empty, 0
        return True

    def _end_round(self, now: Instant) -> None:
        if self._settling:  # this round has shown what was requested before the window was reduced
            self._begin_round(now)
        elif self._lost > LOSS_MAX * (self._arrived + self._lost) + LOST_MIN:
            self._reduce(self.size // 2, now)
        elif self._queue > self._queue_max:
            self._drain(now)
        else:
            if self.is_full and not self._starting:
                share = 8 if self._queue < self._queue_max // 4 else 16
                self.size = min(self.size + max(self.size // share, 1), WINDOW_MAX)
            self._begin_round(now)

    def _drain(self, now: Instant) -> None:
        """Reduce the window to what the empty path holds, and by an eighth more: then its round trip is seen again."""
        fitting = self.size * self._empty // (self._empty + self._queue)
        self._reduce(max(fitting * 7 // 8, self.size // 2), now)

    def _reduce(self, size: int, now: Instant) -> None:
        self.size = max(size, WINDOW_MIN)
        self._starting = False
        self._begin_round(now)
        self._settling = True

    def _begin_round(self, now: Instant) -> None:
        self._round_began_at = now
        self._arrived = self._lost = 0
        self._settling = self.is_full = False
