"""The topology that the operator wants. Reformation servers establish and keep it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fairtape.core.instants import SECOND, Duration
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import JOURNALS_MAX, LOOPS_MAX, MEMBERS_MAX
from fairtape.wire.frames import NodeId

PACE_MAX: Final = 3  # so that three sites of one machine, in the metro profile, guarantee 55 ms
PACES: Final = range(1, PACE_MAX + 1)  # multiples of the token period that the operator asked for
CLOCK_MARGIN: Final = 2  # two clocks measure a lease, and each may be wrong at its start and its end


class BadTopology(ValueError):
    """A topology that cannot work; the message names the field, the value and the remedy."""


class Excess(Enum):
    """What to do when more than K members are silent (decision 21, Where a formation resumes)."""

    HALT = "halt"  # wait for the members, or for the operator
    CONTINUE = "continue"  # continue, with a Break in the order


class Remedy(Enum):
    """What happens to the position of a failed member."""

    BYPASS = "bypass"  # the token skips it. TRMP 2001 §5.3
    REPLACE = "replace"  # a site of its secondary loop takes over. TRMP 2001 §8


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRule:
    """When reformation servers slow the token of the primary loop, and when they speed it up again."""

    late_share_max: float = 0.005  # of the releases of any member in a window
    window: Duration = 3 * SECOND
    quiet_period: Duration = 600 * SECOND  # until the token is sped up by one step


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTopology:
    """The intended state of one loop."""

    number: int
    tour: tuple[NodeId, ...]  # its own sites in token order, without the junction
    timing: Timing
    parent: int = 0  # the loop that its junction belongs to
    junction: NodeId | None = None  # the site that should join it to its parent; None for the primary loop
    stride: int = 1
    request_sets: int = 1  # k_p

    def __post_init__(self) -> None:
        if not self.tour:
            raise BadTopology(f"loop {self.number} has no sites; it needs at least one")
        if len(self.tour) >= MEMBERS_MAX:
            raise BadTopology(f"loop {self.number} has {len(self.tour)} sites; a loop takes up to {MEMBERS_MAX - 1}")
        if not self.number and len(self.tour) > JOURNALS_MAX:
            raise BadTopology(f"loop 0 has {len(self.tour)} sites; the primary loop takes up to {JOURNALS_MAX}")
        if self.number and self.junction is None:
            raise BadTopology(f"loop {self.number} has no junction; name the site that joins it to loop {self.parent}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All loops, and the rules that apply to all of them."""

    loops: tuple[LoopTopology, ...]
    resilience: int | str = 1  # K, or "majority", or "all"
    resilience_min: int | None = None  # with a smaller K the loop halts; None: see `least_resilience`
    excess: Excess = Excess.CONTINUE
    remedy: Remedy = Remedy.BYPASS
    timed: bool = True
    pace: PaceRule | None = None  # None: the token keeps its pace

    @property
    def pace_max(self) -> int:
        """How many times its configured period the token may take."""
        return PACE_MAX if self.pace is not None and self.timed else 1

    def __post_init__(self) -> None:
        numbers = [loop.number for loop in self.loops]
        if not numbers or numbers[0] != 0 or len(set(numbers)) != len(numbers):
            raise BadTopology(f"loops are numbered {numbers}; the first must be 0, the primary one, and none twice")
        sites = [site for loop in self.loops for site in loop.tour]
        for site in sites:
            if sites.count(site) > 1 and len(sites) < MEMBERS_MAX:
                raise BadTopology(
                    f"site {site} is in two loops; name it in its own, and as junction where it joins another"
                )
        if max(numbers) >= LOOPS_MAX:
            raise BadTopology(f"loops are numbered up to {max(numbers)}; use numbers below {LOOPS_MAX}")
        for loop in self.loops[1:]:
            if loop.parent not in numbers or loop.parent == loop.number:
                raise BadTopology(f"loop {loop.number} has parent {loop.parent}; expected one of the other loops")
        if isinstance(self.resilience, str) and self.resilience not in ("majority", "all"):
            raise BadTopology(f'resilience is {self.resilience!r}; expected a number, "majority" or "all"')
        if isinstance(self.resilience, int) and self.resilience < 0:
            raise BadTopology(f"resilience is {self.resilience}; it must not be negative")
        most = self.resilience_of(self.primary.tour)
        if self.resilience_min is not None and not 0 <= self.resilience_min <= most:
            raise BadTopology(
                f"resilience_min is {self.resilience_min}; expected 0 to {most}, the K of all sites of loop 0 together"
            )

    @property
    def primary(self) -> LoopTopology:
        """The loop that orders."""
        return self.loops[0]

    def homes(self) -> Mapping[NodeId, int]:
        """The loop that each site belongs to."""
        return {site: loop.number for loop in self.loops for site in loop.tour}

    @property
    def least_resilience(self) -> int:
        """The smallest K with which the primary loop goes on (decision 56, Least resilience).

        Where nothing may be lost (`halt`), K is a promise: it does not shrink with the members. "majority" and "all"
        are shares of the members that are there.
        """
        if self.resilience_min is not None:
            return self.resilience_min
        promised = self.excess is Excess.HALT and isinstance(self.resilience, int)
        return self.resilience_of(self.primary.tour) if promised else 0

    def resilience_of(self, members: Sequence[NodeId]) -> int:
        """K for a loop of these members: at most the number of other members."""
        return resilience_among(len(members), self.resilience)


def resilience_among(members: int, wanted: int | str) -> int:
    """K for this number of members, where K, "majority" or "all" is wanted."""
    named = {"majority": members // 2, "all": members - 1}.get(str(wanted))
    return max(min(int(wanted) if named is None else named, members - 1), 0)


def lease_margin(timing: Timing) -> Duration:
    """How much longer than a lease a reformation server waits, to allow for the error of two clocks."""
    return CLOCK_MARGIN * 2 * timing.clock_error_max
