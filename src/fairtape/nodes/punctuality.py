"""Punctuality: whether a site has time for its tokens, and one notice when it has not.

A site that waits for a processor releases late, and one that waits for too long is taken for failed. The operator must
learn of it, with the remedy, and once: not at every token. The notice comes again only after the site was in time for a
while.

All sites release late while they wait for one of them. Those that had time to run say so, and blame neither a program
nor the machine.

Sources regulate to the most loaded site (decision 48, Flow control by load). One that reports a load all the time slows
them forever, whether its report is true or not, so the other sites name it.
"""

from collections import Counter
from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.ring.load import SiteLoad
from fairtape.ring.receiver.release import LATE_AFTER
from fairtape.wire.frames import NodeId

WINDOW: Final = 10 * SECOND
LATE_SHARE_MAX: Final = 0.005  # of the messages of a window
LATE_MIN: Final = 10  # messages of a window: fewer are no trend
IN_TIME_PERIOD: Final = 60 * SECOND  # until trouble is reported again
SLOWING_SHARE_MAX: Final = 0.5  # of the reports of a window: a flood that is regulated shows a tenth

REMEDY: Final = (
    "another program takes the processor, this machine was paused, or it is too slow for the profile: stop that"
    ' program, run fewer sites here, let the token slow down with pace = "adapt", or choose a slower --profile'
)
SLOW_REMEDY: Final = (
    "see its notices, its processor and its links, or remove it with fairtape operate DIRECTORY retire SITE"
)
ELSEWHERE: Final = "another site or the network was late; see the notices of the other sites"


def wait_max(timing: Timing) -> Duration:
    """How long a site may have to wait for a processor and still release in time."""
    return min(LATE_AFTER, timing.commit_delay // 2)


def stall_max(timing: Timing) -> Duration:
    """Half of Δ_R: a site that does not run for twice as long is declared failed."""
    return timing.reform_delay // 2


class Punctuality:
    """The punctuality of one site. It counts only while the site is a member of one formation."""

    __slots__ = ("_begins_at", "_formation", "_late", "_longest_stall", "_sequence", "_silent_until")

    def __init__(self) -> None:
        self._formation = 0
        self._begins_at: Instant = 0  # of the window
        self._sequence = 0
        self._late = 0
        self._longest_stall: Duration = 0
        self._silent_until: Instant = 0  # no notice before

    def woken(self, behind: Duration) -> None:
        """The site was woken this long after its deadline."""
        self._longest_stall = max(self._longest_stall, behind)

    def notice(self, *, formation: int, timing: Timing, sequence: int, late: int, now: Instant) -> str | None:
        """What to report now; None: nothing. The number of a formation is 0 where the site is no member."""
        if formation != self._formation or now < self._begins_at:
            self._formation = formation
            self._begin(sequence, late, now)
            self._silent_until = min(self._silent_until, now + IN_TIME_PERIOD)
            return None
        trouble = self._stall(timing)
        if trouble is None and now - self._begins_at < WINDOW:
            return None
        remedy = REMEDY if self._longest_stall > wait_max(timing) else ELSEWHERE
        trouble = trouble or self._lateness(timing, sequence, late, now)
        self._begin(sequence, late, now)
        if trouble is None or not formation:
            return None
        silent, self._silent_until = now < self._silent_until, now + IN_TIME_PERIOD
        return None if silent else f"{trouble} (the guaranteed delay is {timing.delay_max / 1e6:,g} ms): {remedy}"

    def _begin(self, sequence: int, late: int, now: Instant) -> None:
        self._begins_at, self._sequence, self._late, self._longest_stall = now, sequence, late, 0

    def _stall(self, timing: Timing) -> str | None:
        stall = self._longest_stall
        if stall <= stall_max(timing):
            return None
        failed_after = timing.reform_delay / 1e6
        return f"this site did not run for {stall / 1e6:,.0f} ms, and counts as failed after {failed_after:,.0f} ms"

    def _lateness(self, timing: Timing, sequence: int, late: int, now: Instant) -> str | None:
        messages, late = max(sequence - self._sequence, 1), late - self._late
        if late < LATE_MIN or late <= LATE_SHARE_MAX * messages:
            return None
        waited = (
            "and this site had to wait for up to"
            if self._longest_stall > wait_max(timing)
            else "although this site never had to wait for more than"
        )
        return (
            f"{late:,} of {messages:,} messages ({min(late / messages, 1):.1%}) were released late here in"
            f" {(now - self._begins_at) / SECOND:.0f} s, {waited} {self._longest_stall / 1e6:,.1f} ms to run"
        )


class SlowMembers:
    """Which other member slows the sources, as one site of a formation hears it."""

    __slots__ = ("_begins_at", "_formation", "_reports", "_silent_until", "_slowing")

    def __init__(self) -> None:
        self._formation = 0
        self._begins_at: Instant = 0  # of the window
        self._reports = 0
        self._slowing: list[tuple[NodeId, SiteLoad]] = []  # who did at the reports of the window
        self._silent_until: Instant = 0

    def notice(self, *, formation: int, slowest: tuple[NodeId, SiteLoad] | None, now: Instant) -> str | None:
        """To be called for each site report; what to report now. The number of a formation is 0 outside of one."""
        if formation != self._formation or now < self._begins_at:
            self._formation = formation
            self._silent_until = min(self._silent_until, now + IN_TIME_PERIOD)
            self._begin(now)
        if slowest is not None:
            self._slowing.append(slowest)
        self._reports += 1
        if now - self._begins_at < WINDOW:
            return None
        slowing, reports = dict(self._slowing), self._reports
        counts = Counter(member for member, _ in self._slowing)
        self._begin(now)
        member, count = next(iter(counts.most_common(1)), (0, 0))
        if not formation or count <= SLOWING_SHARE_MAX * reports:
            return None
        silent, self._silent_until = now < self._silent_until, now + IN_TIME_PERIOD
        if silent:
            return None
        return f"site {member} slows the sources: it reports {_described(slowing[member])}; {SLOW_REMEDY}"

    def _begin(self, now: Instant) -> None:
        self._begins_at, self._reports = now, 0
        self._slowing.clear()


def _described(load: SiteLoad) -> str:
    return f"a release lag of {load.release_lag / 1e6:,.1f} ms and a backlog of {load.backlog / 1e6:,.1f} ms"
