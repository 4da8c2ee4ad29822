"""The charter of a deployment: what its operator wants, for the reformation servers to bring about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fairtape.core.instants import Duration
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import LOOPS_MAX, MEMBERS_MAX
from fairtape.wire.frames import NodeId

CLOCK_MARGIN: Final = 2  # a lease is measured by two clocks, each of which may be wrong at its beginning and its end


class BadTopology(ValueError):
    """A charter that cannot work; the message names the field, the value and the remedy."""


class Excess(Enum):
    """What to do when more than K members are silent (decision 21, Where a formation resumes)."""

    HALT = "halt"  # wait for them, or for the operator
    CONTINUE = "continue"  # go on, with a Break in the sequence


class Remedy(Enum):
    """What becomes of the place of a failed member."""

    BYPASS = "bypass"  # the token passes it by. TRMP 2001 §5.3
    REPLACE = "replace"  # a site of its secondary loop takes it. TRMP 2001 §8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTopology:
    """One loop as it is meant to be."""

    number: int
    tour: tuple[NodeId, ...]  # its own sites in the order in which the token travels; a junction is not among them
    timing: Timing
    parent: int = 0  # the loop that its junction belongs to
    junction: NodeId | None = None  # who is meant to join it to its parent; None for the primary loop
    stride: int = 1
    request_sets: int = 1

    def __post_init__(self) -> None:
        if not self.tour:
            raise BadTopology(f"loop {self.number} has no sites; it needs at least one")
        if len(self.tour) >= MEMBERS_MAX:
            raise BadTopology(f"loop {self.number} has {len(self.tour)} sites; a loop takes up to {MEMBERS_MAX - 1}")
        if self.number and self.junction is None:
            raise BadTopology(f"loop {self.number} has no junction; name the site that joins it to loop {self.parent}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All loops, and the rules for all of them."""

    loops: tuple[LoopTopology, ...]
    resilience: int | str = 1  # K, or "majority", or "all"
    excess: Excess = Excess.CONTINUE
    remedy: Remedy = Remedy.BYPASS
    timed: bool = True

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

    @property
    def primary(self) -> LoopTopology:
        """The loop that orders."""
        return self.loops[0]

    def homes(self) -> Mapping[NodeId, int]:
        """The loop that each site is meant to be in."""
        return {site: loop.number for loop in self.loops for site in loop.tour}

    def resilience_of(self, members: Sequence[NodeId]) -> int:
        """K for a loop of these members: no more than it has further members."""
        wanted = {"majority": len(members) // 2, "all": len(members) - 1}.get(str(self.resilience))
        if wanted is None:
            wanted = int(self.resilience)
        return min(wanted, len(members) - 1)


def lease_margin(timing: Timing) -> Duration:
    """How much longer a reformation server waits than a lease lasts: what the two clocks may be wrong by."""
    return CLOCK_MARGIN * 2 * timing.clock_error_max
