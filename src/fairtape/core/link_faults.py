"""Faults of a link: loss, delay, duplication and reordering. The simulator and the UDP receive path share this model.

Traffic shaping needs privileges, so faults are injected where a datagram arrives. Equal random numbers give equal
faults.
"""

from dataclasses import dataclass
from math import log1p
from typing import Final, Protocol

from fairtape.core.instants import Duration


class Chance(Protocol):
    """The part of `random.Random` that machines may use. Randomness is injected: only drivers and worlds create it."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def getrandbits(self, count: int, /) -> int:
        """An integer of `count` random bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFaults:
    """The faults of one direction of one link."""

    delay: Duration = 0  # propagation delay
    jitter: Duration = 0  # queueing delay: exponential, with this mean
    loss: float = 0.0
    duplication: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "duplication"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} is {value}; it must be from 0 to 1")
        for name in ("delay", "jitter"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} ns; it must not be negative")


NO_FAULTS: Final = LinkFaults()


def arrival_delays(link_faults: LinkFaults, chance: Chance) -> tuple[Duration, ...]:
    """The delay of each copy of one datagram; empty if it is lost."""
    if link_faults.loss and chance.random() < link_faults.loss:
        return ()
    first = link_faults.delay + _queueing(link_faults, chance)
    if link_faults.duplication and chance.random() < link_faults.duplication:
        return first, first + _queueing(link_faults, chance)
    return (first,)


def _queueing(link_faults: LinkFaults, chance: Chance) -> Duration:
    """An exponential delay, at most twelve means."""
    if not link_faults.jitter:
        return 0
    return int(link_faults.jitter * min(-log1p(-chance.random()), 12.0))
