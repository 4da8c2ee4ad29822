"""Pace: how fast the token passes, from how many releases are late. T-RMP §4; decision 51, Pace.

The paper recommends to slow down the token passing when receivers initiate unnecessary reformations, and to speed it up
when there is a long time between them. Receivers that have no time for every token release late before that. So the
token period becomes twice and then three times the configured one where sites release late, and where a reformation
finds that no site had failed. After a long quiet time it becomes shorter again, one step at a time.

The present pace is that of the present formation, so a new leader continues with it. What this machine remembers is
only how long the sites have been late or in time.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from fairtape.core.instants import Duration, Instant
from fairtape.core.timing import Timing
from fairtape.ring.membership.topology import PACE_MAX, PACES, PaceRule, Topology
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import SiteReport

LATE_MIN: Final = 3  # late messages of a site in one window: fewer are no trend
WINDOWS_LATE: Final = 2  # in a row, until the token is slowed: one hiccup is no trend
QUIET_SHARE: Final = 5  # a window is quiet below this fraction of the share that slows the token
QUIET_FACTOR_MAX: Final = 8  # the quiet time doubles each time that the token was sped up too soon, up to this


def paced(timing: Timing, topology: Topology, pace: int) -> Timing:
    """This timing with the token period and the commit delay of a pace."""
    primary = topology.primary
    turns = min(primary.request_sets, len(primary.tour)) - 1
    slowed = primary.timing.slowed(pace, topology.resilience_of(primary.tour) + turns)
    return replace(timing, token_period=slowed.token_period, commit_delay=slowed.commit_delay)


def pace_of(timing: Timing, topology: Topology) -> int | None:
    """The pace of a formation with this timing; None if its token period is no multiple of the operator's."""
    pace, rest = divmod(timing.token_period, topology.primary.timing.token_period)
    return pace if not rest and pace in PACES else None


def slower(timing: Timing, topology: Topology) -> Timing:
    """This timing one step slower, if the operator allows it and it is not the slowest."""
    pace = pace_of(timing, topology)
    if topology.pace is None or not topology.timed or pace is None:
        return timing
    return paced(timing, topology, min(pace + 1, PACE_MAX))


@dataclass(frozen=True, slots=True)
class LateSite:
    """The site with the largest share of late releases in a window."""

    site: NodeId
    late: int
    released: int

    @property
    def share(self) -> float:
        return self.late / max(self.released, 1)


class PaceControl:
    """Decides on the pace of the primary loop, under one leader of the reformation servers."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._rule: PaceRule | None = topology.pace if topology.timed else None
        self._counted: dict[NodeId, SiteReport] = {}  # at the begin of the window
        self._window_ends_at: Instant = 0
        self._windows_late = 0  # in a row
        self._quiet_since: Instant = 0
        self._quiet_factor = 1
        self._token_period: Duration = 0  # of the present formation
        self._sped_up = False  # by the last change of the pace
        self._late: LateSite | None = None  # of the last window, if one site was late in it

    def lead(self) -> None:
        """Start to lead: nothing is known about earlier changes."""
        self._token_period = 0
        self._quiet_factor = 1
        self._sped_up = False

    def begin(self, timing: Timing, now: Instant) -> None:
        """A formation begins: what was counted before says nothing about it."""
        before, self._token_period = self._token_period, timing.token_period
        if before and timing.token_period != before:
            if self._sped_up and timing.token_period > before:
                self._quiet_factor = min(2 * self._quiet_factor, QUIET_FACTOR_MAX)
            self._sped_up = timing.token_period < before
        self._counted.clear()
        self._window_ends_at = now
        self._windows_late = 0
        self._quiet_since = now
        self._late = None

    def count(self, reports: Collection[SiteReport], now: Instant) -> None:
        """Compare the reports of the members with those at the begin of the window, if it is over."""
        rule = self._rule
        if rule is None or self._window_ends_at - rule.window <= now < self._window_ends_at:
            return
        worst = self._worst(reports)
        is_late = worst is not None and worst.late >= LATE_MIN and worst.share > rule.late_share_max
        self._windows_late = self._windows_late + 1 if is_late else 0
        if worst is not None and worst.share > rule.late_share_max / QUIET_SHARE:
            self._quiet_since = now
        self._quiet_since = min(self._quiet_since, now)  # a clock that was set back must not extend it
        self._late = worst if is_late else None
        self._counted = {report.sender: report for report in reports}
        self._window_ends_at = now + rule.window

    @property
    def cause(self) -> str:
        """Why another pace is wanted."""
        if self._rule is None:
            return "its pace is fixed"
        late = self._late
        if late is None:
            return "after a quiet time"
        return f"{100 * late.share:.1f} % of the releases of site {late.site} were late"

    def wanted(self, present: Timing, now: Instant) -> int | None:
        """The pace that the loop should have; None: leave it as it is."""
        pace = pace_of(present, self._topology)
        if pace is None:
            return None
        if self._rule is None:
            return 1 if self._topology.timed else None
        if self._windows_late >= WINDOWS_LATE:
            return min(pace + 1, PACE_MAX)
        if now - self._quiet_since >= self._quiet_factor * self._rule.quiet_period:
            return max(pace - 1, 1)
        return pace

    def _worst(self, reports: Collection[SiteReport]) -> LateSite | None:
        """The member with the largest share of late releases. A restarted site counts from its next report on."""
        found = []
        for report in reports:
            before = self._counted.get(report.sender)
            if before is not None and before.incarnation == report.incarnation and report.late > before.late:
                found.append(LateSite(report.sender, report.late - before.late, report.sequence - before.sequence))
        return max(found, key=lambda each: each.share, default=None)


def describe_change(before: Timing, after: Timing, cause: str) -> str:
    """What another pace means for the guaranteed delay, and why it changes."""
    change = "slowed" if after.token_period > before.token_period else "sped up"
    return (
        f"the token is {change} from {_ms(before.token_period)} to {_ms(after.token_period)} ms ({cause}); the"
        f" guaranteed delay is {_ms(after.delay_max)} ms instead of {_ms(before.delay_max)} ms"
    )


def _ms(duration: Duration) -> str:
    return f"{duration / 1e6:g}"
