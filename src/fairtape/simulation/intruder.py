"""An intruder: somebody who can put datagrams into the network and has no keys.

It sends noise, repeats what it overheard, and sends what it overheard with bytes changed, cut off or put together
anew. Nothing that it does may change the order by one bit.
"""

from collections import deque
from random import Random
from typing import Final, TypeAlias

from fairtape.core.effects import Channel, Ordered, Release, Report
from fairtape.core.instants import Duration, Instant
from fairtape.simulation.observer import Observer
from fairtape.simulation.world import World
from fairtape.wire.frames import NodeId

OVERHEARD_MAX: Final = 200
NOISE_MAX: Final = 200

Datagram: TypeAlias = bytes


class Intruder(Observer):
    """Overhears as a witness, and strikes every now and then."""

    def __init__(self, world: World, *, targets: tuple[NodeId, ...], period: Duration, chance: Random) -> None:
        self.strikes = 0
        self._world = world
        self._targets = targets
        self._period = period
        self._chance = chance
        self._overheard: deque[Datagram] = deque(maxlen=OVERHEARD_MAX)
        self._leaves_at: Instant = 0

    def stay(self, until: Instant) -> None:
        """Strike at random times until then."""
        self._leaves_at = until
        self._return()

    def sent(self, _node: NodeId, _to: NodeId | Channel, datagram: bytes, _at: Instant, /) -> None:
        """Overhear."""
        self._overheard.append(datagram)

    def appended(self, _node: NodeId, _ordered: Ordered, _now: Instant, /) -> None:
        """Journals are out of its sight."""

    def delivered(self, _node: NodeId, _ordered: Ordered, _release: Release, _now: Instant, /) -> None:
        """So are releases."""

    def reported(self, _node: NodeId, _report: Report, _now: Instant, /) -> None:
        """So are reports."""

    def befell(self, _node: NodeId, _what: str, _now: Instant, /) -> None:
        """So are faults."""

    def _return(self) -> None:
        at = self._world.now + 1 + int(self._chance.expovariate(1.0) * self._period)
        if at < self._leaves_at:
            self._world.at(at, self._strike)

    def _strike(self) -> None:
        self.strikes += 1
        self._world.inject(self._chance.choice(self._targets), self._forge())
        self._return()

    def _forge(self) -> Datagram:
        chance = self._chance
        if not self._overheard or chance.random() < 0.1:
            return chance.randbytes(chance.randrange(NOISE_MAX))
        prey = self._overheard[chance.randrange(len(self._overheard))]
        match chance.randrange(5):
            case 0:
                return prey
            case 1:
                return prey[: chance.randrange(len(prey))]
            case 2:
                other = self._overheard[chance.randrange(len(self._overheard))]
                cut = chance.randrange(min(len(prey), len(other)))
                return prey[:cut] + other[cut:]
            case 3:
                place = chance.randrange(min(len(prey), 32))  # the header, where a change does most
                return prey[:place] + chance.randbytes(1) + prey[place + 1 :]
            case _:
                place = chance.randrange(len(prey))
                return prey[:place] + chance.randbytes(1) + prey[place + 1 :]
