"""What must hold when nodes get more work than their processors can carry.

Overload may make releases late, and then they are marked. It must not last: the sources are slowed, so that after a
second the sites keep their instants again, no site is taken for failed, and the processors still do useful work.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairtape.core.effects import Ordered, Release, Report
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.simulation.checkers import LATE_AFTER
from fairtape.simulation.world import Observer, Violation
from fairtape.wire.frames import NodeId

GRACE: Final = SECOND  # within it the sources must have been slowed
LATE_SHARE_MAX: Final = 0.01  # of the messages released after that
CARRIED_SHARE_MIN: Final = 0.3  # of what was offered and could be carried
STALLS_UNTIL_CAUGHT_UP: Final = 3  # how often the length of a stall passes before its backlog must be gone


class LateIsMarked(Observer):
    """A hand-over more than `LATE_AFTER` after its commit instant has the late mark, and no hand-over in time has it.

    A site that knows K + 1 holders only after the commit instant is late, too, however small the delay. Where sites
    need leases, a lease that was renewed after the commit instant is another such reason, which is not seen here.
    """

    def __init__(self, *, resilience: int, leases: bool) -> None:
        self._resilience = resilience
        self._leases = leases
        self._appended_at: dict[tuple[NodeId, int, int], Instant] = {}  # by site, formation and token

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        self._appended_at[node, ordered.formation, ordered.token] = now

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        behind, token = now - release.commit_at, ordered.token
        if release.released_at != now:
            self._violated(node, now, f"Msg({token}) is marked as released at {release.released_at}; it is {now}")
        if behind > LATE_AFTER and not release.late:
            self._violated(node, now, f"Msg({token}) was handed over {behind / 1e6:.3f} ms late and not marked")
        if release.late and behind <= LATE_AFTER and self._ready_in_time(node, ordered, release):
            self._violated(node, now, f"Msg({token}) was handed over in time and marked late")
        self._appended_at.pop((node, ordered.formation, token), None)

    def _ready_in_time(self, node: NodeId, ordered: Ordered, release: Release) -> bool:
        known_at = self._appended_at.get((node, ordered.formation, ordered.token + self._resilience))
        return known_at is not None and known_at <= release.commit_at and not self._leases

    def _violated(self, node: NodeId, now: Instant, text: str) -> None:
        raise Violation(type(self).__name__, node, now, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What is expected of one overload."""

    begins_at: Instant
    calms_at: Instant
    messages_per_s: float  # that were offered and could be carried
    commit_delay: Duration
    stalls: tuple[tuple[Instant, Duration], ...] = ()  # what is late because a processor stopped is not counted
    grace: Duration = GRACE
    late_share_max: float = LATE_SHARE_MAX
    carried_share_min: float = CARRIED_SHARE_MIN

    @property
    def measured_from(self) -> Instant:
        return self.begins_at + self.grace

    @property
    def messages_min(self) -> int:
        """The messages that a site must release in the measured time."""
        period = (self.calms_at - self.measured_from) / SECOND
        return int(self.carried_share_min * self.messages_per_s * period)

    def is_excused(self, commit_at: Instant) -> bool:
        """Whether a processor stopped before Msg(e) could be ordered and released, or has not caught up since."""
        for at, period in self.stalls:
            caught_up_at = at + STALLS_UNTIL_CAUGHT_UP * period
            if at - self.commit_delay <= commit_at <= caught_up_at + 2 * self.commit_delay:
                return True
        return False


class SlowedWithinASecond(Observer):
    """After the first second of an overload the sources are slowed to what the sites can carry.

    Then at most 1 % of the messages are late, besides those whose blocks were lost, no site is declared failed,
    and the sites release at least 0.3 of what was offered and could be carried. Decided when the run has ended.
    """

    def __init__(self, expected: Expectation, sites: Iterable[NodeId]) -> None:
        self.expected = expected
        self.released = dict.fromkeys(sites, 0)  # messages in the measured time
        self.counted = 0  # of all sites, without those that a stall excuses
        self.late = 0  # of these
        self.declared: tuple[NodeId, Report] | None = None
        self.reformations = 0

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        if not self.expected.measured_from <= now < self.expected.calms_at:
            return
        self.released[node] += release.count
        if not self.expected.is_excused(release.commit_at):
            self.counted += release.count
            self.late += release.count if release.late else 0

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:  # noqa: ARG002
        if self.declared is None:
            self.declared = node, report

    @property
    def late_share(self) -> float:
        return self.late / self.counted if self.counted else 0.0

    @property
    def carried_share(self) -> float:
        """What the slowest site released, as a share of what was offered and could be carried."""
        return min(self.released.values()) * self.expected.carried_share_min / max(self.expected.messages_min, 1)

    def missed(self) -> str | None:
        """What was not kept; None if everything was."""
        expected = self.expected
        if self.declared is not None:
            node, report = self.declared
            return f"site {node} declared site {report.suspect} failed: {report.reason.value}"
        if self.reformations:
            return f"{self.reformations} reformations, although no node had failed"
        if self.late_share > expected.late_share_max:
            return (
                f"{self.late_share:.1%} of the messages were released late; at most {expected.late_share_max:.1%} may"
            )
        if min(self.released.values()) < expected.messages_min:
            return (
                f"{self.carried_share:.2f} of what could be carried was released; "
                f"at least {expected.carried_share_min:.2f} must"
            )
        return None
