"""A balanced hierarchy of loops: how many sites need how many loops, and where the loops meet. TRMP 2001 §4.1.

A token must pass through all sites of a loop to detect every failure in it, so a loop should have a few tens of sites
at most. More sites form loops of loops. Every site is a member of one loop at the lowest level, its *own* loop. The
first member of each loop is its *junction*: it is also a member of the loop above, and so on up to the primary loop.
The junction counts as a site of its loop, as in the paper: 100 receivers are 10 groups of 10, and the 10 junctions R_P
are the primary group. Each secondary ring "includes an R_P on the primary token ring".

Loops keep the given order of the sites: if neighbours in the list are neighbours on the map, loops are regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from fairtape.ring.membership.formation import MEMBERS_MAX

SITES_MAX: Final = 1_000_000
LOOP_MAX: Final = 30  # "a few tens of receivers"
LOOP_MIN: Final = 3  # with less, most numbers of sites would need a loop of only a junction


class BadHierarchy(ValueError):
    """A hierarchy that is impossible; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: sites by index, in token order."""

    level: int  # 1 is the primary loop
    members: tuple[int, ...]
    parent: int | None  # the index of the loop above; None for the primary one

    @property
    def junction(self) -> int | None:
        """The member that is also a member of the loop above."""
        return None if self.parent is None else self.members[0]


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A tree of loops, the primary one first, level by level."""

    sites: int
    loops: tuple[Loop, ...]

    @property
    def levels(self) -> int:
        """i: the number of levels."""
        return self.loops[-1].level

    @property
    def passes_max(self) -> int:
        """L_i: token passes until a failure anywhere is detected, since all loops pass their tokens in parallel."""
        return max(len(loop.members) for loop in self.loops)

    def level(self, level: int) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.level == level)


def plan(sites: int, levels: int | None = None, loop_max: int = LOOP_MAX) -> Hierarchy:
    """The balanced hierarchy of `levels` levels; by default, of the fewest that keep loops within `loop_max`."""
    _check_limits(sites, loop_max)
    chosen = _fewest_levels(sites, loop_max) if levels is None else levels
    _check_levels(sites, chosen, loop_max)
    layers = [_divided(range(sites), _loops_wanted(sites, chosen))]
    for above in range(chosen - 1, 0, -1):
        junctions = [members[0] for members in layers[0]]
        layers.insert(0, _divided(junctions, _loops_wanted(len(junctions), above)))
    return Hierarchy(sites, tuple(_linked(layers)))


def loop_size(sites: int, levels: int) -> int:
    """L_i = ⌈L_1^(1/i)⌉: the minimum size of the largest loop for these numbers of sites and levels."""
    size: int = round(sites ** (1 / levels))  # close: the loops below correct it in a few steps
    while size**levels < sites:
        size += 1
    while size > 1 and (size - 1) ** levels >= sites:
        size -= 1
    return size


def _loops_wanted(sites: int, levels: int) -> int:
    """The number of loops of the lowest level: enough to keep them short and to give each loop above two sites."""
    if levels == 1:
        return 1
    return max(-(-sites // loop_size(sites, levels)), 1 << (levels - 1))


def _divided(sites: Sequence[int], loops: int) -> list[tuple[int, ...]]:
    """Split into runs whose lengths differ by at most one."""
    size, longer = divmod(len(sites), loops)
    ends = accumulate((size + (loop < longer) for loop in range(loops)), initial=0)
    return [tuple(sites[start:end]) for start, end in pairwise(ends)]


def _linked(layers: Sequence[Sequence[tuple[int, ...]]]) -> list[Loop]:
    loops: list[Loop] = []
    above: dict[int, int] = {}  # site of the level above: index of its loop
    for level, layer in enumerate(layers, 1):
        first = len(loops)
        loops += [Loop(level, members, above[members[0]] if above else None) for members in layer]
        above = {site: first + index for index, members in enumerate(layer) for site in members}
    return loops


def _fewest_levels(sites: int, loop_max: int) -> int:
    levels = 1
    while loop_max**levels < sites:
        levels += 1
    return levels


def _check_limits(sites: int, loop_max: int) -> None:
    if not 1 <= sites <= SITES_MAX:
        raise BadHierarchy(f"sites is {sites:,}; give 1 to {SITES_MAX:,}")
    if not LOOP_MIN <= loop_max <= MEMBERS_MAX:
        raise BadHierarchy(f"loop_max is {loop_max:,}; give {LOOP_MIN} to {MEMBERS_MAX} sites")


def _check_levels(sites: int, levels: int, loop_max: int) -> None:
    most = max(1, sites.bit_length() - 1)  # every loop has at least two sites: 2^i <= sites
    if not 1 <= levels <= most:
        raise BadHierarchy(f"levels is {levels}; give 1 to {most}; {sites:,} sites do not fill more")
    size = loop_size(sites, levels)
    if size > loop_max:
        raise BadHierarchy(
            f"levels is {levels}, which makes loops of {size:,} where loop_max is {loop_max}; "
            f"give {_fewest_levels(sites, loop_max)} levels or more, or a larger loop_max"
        )
