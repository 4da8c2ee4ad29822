"""The load of a site, as acknowledgments report it and sources regulate to it. Decision 48, Flow control by load.

A site that cannot keep up loses nothing at first. It only gets later: what has arrived waits in its sockets, and its
releases lag behind their instants. Both are measured where they happen and travel in the acknowledgments, because a
source can verify nothing else, and cannot infer them: the slowest site acknowledges nothing that a faster one has not
acknowledged before. So an acknowledgment reports the load of the most loaded member that its site knows of.

Both are durations: a backlog of a token period is one for a slow site and for a fast one. The driver measures it,
because only it knows what waits in the sockets and how fast this site reads.
"""

from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import MICROSECOND, MILLISECOND, Duration
from fairtape.wire.frames import LOAD_MAX, Ack, NodeId

LAG_TARGET: Final = 1 * MILLISECOND  # a fifth of what makes a release late
BACKLOG_TARGET: Final = 0.3  # of a token period: a site that acknowledges has just read what arrived before


@dataclass(frozen=True, slots=True)
class SiteLoad:
    """How far behind a site is."""

    release_lag: Duration = 0  # how long after its instant it made its last release
    backlog: Duration = 0  # how long it will take to read what has arrived

    @classmethod
    def in_ack(cls, ack: Ack) -> "SiteLoad":
        return cls(ack.release_lag_us * MICROSECOND, ack.backlog_us * MICROSECOND)

    @property
    def release_lag_us(self) -> int:
        return min(self.release_lag // MICROSECOND, LOAD_MAX)

    @property
    def backlog_us(self) -> int:
        return min(self.backlog // MICROSECOND, LOAD_MAX)

    def excess(self, token_period: Duration) -> float:
        """x: above 1 the sources are to slow down."""
        return max(self.release_lag / LAG_TARGET, self.backlog / (BACKLOG_TARGET * token_period))


NO_LOAD: Final = SiteLoad()


class LoadReports:
    """What the members of one formation last reported of themselves."""

    __slots__ = ("_formation", "_heard")

    def __init__(self) -> None:
        self._formation = 0  # of the reports
        self._heard: dict[NodeId, SiteLoad] = {}  # at most one for each member; those without any load are not kept

    def heard(self, ack: Ack) -> None:
        """Note the report of a member. One that reports another site's load is less loaded than that one."""
        if not self._belongs(ack.formation):
            return
        load = SiteLoad.in_ack(ack)
        if ack.relayed or load == NO_LOAD:
            self._heard.pop(ack.sender, None)
        else:
            self._heard[ack.sender] = load

    def worst(self, own: SiteLoad, formation: int, token_period: Duration) -> tuple[SiteLoad, bool]:
        """The load to report: that of the most loaded member, and whether that is another one than this site."""
        self._belongs(formation)
        worst = max(self._heard.values(), key=lambda load: load.excess(token_period), default=NO_LOAD)
        return (worst, True) if worst.excess(token_period) > own.excess(token_period) else (own, False)

    def slowest(self, token_period: Duration) -> tuple[NodeId, SiteLoad] | None:
        """The member that slows the sources, by what it last reported of itself; None: no other member does."""
        member, load = max(self._heard.items(), key=lambda each: each[1].excess(token_period), default=(0, NO_LOAD))
        return (member, load) if load.excess(token_period) > 1 else None

    def _belongs(self, formation: int) -> bool:
        """Whether a report of this formation counts. A later one drops the reports: members that left send no more."""
        if formation > self._formation:
            self._formation = formation
            self._heard.clear()
        return formation == self._formation
