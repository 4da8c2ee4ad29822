"""Requests that gather for a moment: what several customers lack is repaired for all of them at once.

It is likely that the same messages are lost by many receivers of a region, so retransmissions should be multicast,
too (TRMP 2001 §7.1). Requests seldom name exactly the same messages; what counts is how many customers want a number.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fairtape.edge.protocol.effects import Address


class RepairRequest(NamedTuple):
    """Somebody wants these numbers."""

    by: Address
    first: int
    end: int  # the number after the last one


class Repair(NamedTuple):
    """These numbers are for one customer; or for everybody, where `to` is None."""

    to: Address | None
    first: int
    end: int
    hosts: frozenset[str] = frozenset()  # who wanted what everybody gets: it counts as waiting for each of them


def batched(wishes: Iterable[RepairRequest], *, multicast_min: int) -> list[Repair]:
    """What at least so many customers want goes to everybody, the rest to each who wants it; no number twice to one."""
    repairs: dict[Address | None, list[Repair]] = {}
    for first, end, wanting in _segments(wishes):
        everybody = len(wanting) >= multicast_min
        hosts = frozenset(host for host, _ in wanting) if everybody else frozenset[str]()
        for to in (None,) if everybody else sorted(wanting):
            known = repairs.setdefault(to, [])
            before = known.pop() if known and known[-1].end == first else Repair(to, first, end)
            known.append(Repair(to, before.first, end, before.hosts | hosts))
    return [repair for each in repairs.values() for repair in each]


def _segments(wishes: Iterable[RepairRequest]) -> Iterator[tuple[int, int, Counter[Address]]]:
    """The numbers cut wherever a wish begins or ends, and who wants each piece."""
    edges = sorted(edge for wish in wishes for edge in ((wish.first, 1, wish.by), (wish.end, -1, wish.by)))
    wanting: Counter[Address] = Counter()
    at = 0
    for edge, step, by in edges:
        if wanting and edge > at:
            yield at, edge, wanting
        at = edge
        wanting[by] += step
        if not wanting[by]:
            del wanting[by]
