"""Chance is injected. A pure machine that needs it gets this; only drivers and worlds create one."""

from typing import Protocol


class Chance(Protocol):
    """The part of `random.Random` that machines may use."""

    def random(self) -> float:
        """A float in [0, 1)."""

    def getrandbits(self, count: int, /) -> int:
        """An integer of `count` random bits."""
