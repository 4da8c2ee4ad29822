"""Ack lateness: how late acknowledgments come, and how long the first request waits for them.

T_R / 2 bounds the delay of the network (TRMP 2001 §5.1). But a token site is a process: where it waits for a processor,
its acknowledgment is late by more than that, and all other sites would request what does not exist yet. So a receiver
measures how late acknowledgments come after they became possible, and waits that long before its first request
(decision 50, Request thresholds).

A machine stalls rarely and for long: of a thousand acknowledgments, one is late by several T_R. A smoothed mean with
its deviation, as for TCP's timer, has forgotten one stall before the next. So the threshold is the largest lateness,
which fades over seconds.

An acknowledgment that was requested may be a repair, whose arrival says nothing about the original (Karn's rule). It
counts as late as its sender sent it, with T_R / 2 for the network. If a second copy comes, the original was not lost
and the request was needless: then the arrival of the first copy counts.
"""

from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing

LATENESS_MAX: Final = 20 * MILLISECOND  # a token site that is later than that does not wait for a processor
FADING_PERIOD: Final = 30 * SECOND  # in which a stall is forgotten, if no other one follows
HELD_WAITS_MAX: Final = 2  # waits of T_R by which a first request may be delayed
HELD_SHARE: Final = 4  # of all waits, at most one in four
REQUESTED_MAX: Final = 256  # requested acknowledgments whose second copy is watched for


class AckLateness:
    """The largest recent lateness of acknowledgments at one receiver. It outlives formations."""

    __slots__ = ("_largest", "_noted_at", "_requested", "_timing", "_wait_max")

    def __init__(self) -> None:
        self._largest: Duration = 0
        self._noted_at: Instant = 0
        self._requested: dict[int, Duration] = {}  # by token: how late its first copy came; 0 before that
        self._timing: Timing | None = None  # of the present formation
        self._wait_max: Duration = 0  # with this timing

    def wait(self, timing: Timing) -> Duration:
        """From when an acknowledgment is possible until it is requested: T_R / 2, or as late as others were."""
        return max(min(self._largest, self._limit(timing)), timing.one_way_max)

    def requested(self, token: int) -> None:
        """Ack(token) was requested."""
        self._requested.setdefault(token, 0)
        if len(self._requested) > REQUESTED_MAX:
            del self._requested[next(iter(self._requested))]

    def arrived(self, token: int, *, possible_at: Instant, sent_at: Instant, timing: Timing, now: Instant) -> None:
        """The first copy of Ack(token) was received. By `possible_at` its site could send it."""
        late = now - possible_at
        if token in self._requested:
            self._requested[token] = min(late, self._limit(timing))
            late = min(late, sent_at + timing.one_way_max - possible_at)
        self._note(min(late, self._limit(timing)), now)

    def copied(self, token: int, now: Instant) -> None:
        """Another copy of Ack(token) was received."""
        self._note(self._requested.pop(token, 0), now)

    def _limit(self, timing: Timing) -> Duration:
        """`wait_max`, computed once per timing: it is needed with every acknowledgment."""
        if timing is not self._timing:
            self._timing, self._wait_max = timing, wait_max(timing)
        return self._wait_max

    def _note(self, late: Duration, now: Instant) -> None:
        """Keep the largest lateness. A clock that was set back lets nothing fade."""
        passed = min(max(now - self._noted_at, 0), FADING_PERIOD)
        self._noted_at = now
        self._largest = max(self._largest - self._largest * passed // FADING_PERIOD, late)


def wait_max(timing: Timing) -> Duration:
    """The longest delay of a first request. Most requests remain possible before the end of the waits."""
    held = min(timing.retries_max // HELD_SHARE, HELD_WAITS_MAX)
    return min(timing.one_way_max + held * timing.retry_period, LATENESS_MAX)
