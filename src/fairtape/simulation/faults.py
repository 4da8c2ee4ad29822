"""Faults as values, their scheduling, and an intruder.

A configuration draws faults from a seed and a scenario script names them; `schedule_fault` puts them on the event queue
of a world. How the network carries out clogs, partitions and drop rules is in `network`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from fairtape.core.instants import Duration, Instant
from fairtape.core.machine import Machine
from fairtape.simulation.world import Observer, World
from fairtape.wire.frames import NodeId

OVERHEARD_MAX: Final = 200  # datagrams that the intruder remembers
NOISE_MAX: Final = 200  # bytes of a random datagram
HEADER_SIZE: Final = 32  # a changed byte does most damage in the header


@dataclass(frozen=True, slots=True)
class Crash:
    """The node stops at once and loses its memory."""

    at: Instant
    node: NodeId


@dataclass(frozen=True, slots=True)
class Restart:
    """The node starts again as a new incarnation; nothing of its memory survives."""

    at: Instant
    node: NodeId


@dataclass(frozen=True, slots=True)
class Pause:
    """The process of the node stops running: datagrams queue in its socket, timers fire late."""

    at: Instant
    node: NodeId
    period: Duration


@dataclass(frozen=True, slots=True)
class Clog:
    """Datagrams on one link are held for a period; then all of them arrive."""

    at: Instant
    origin: NodeId
    to: NodeId
    period: Duration


@dataclass(frozen=True, slots=True)
class Partition:
    """No datagram crosses between `side` and the other nodes."""

    at: Instant
    side: tuple[NodeId, ...]
    period: Duration


Fault: TypeAlias = Crash | Restart | Pause | Clog | Partition


def schedule_fault(world: World, fault: Fault, new_incarnation: Callable[[NodeId], Machine]) -> None:
    """Schedule one fault; `new_incarnation` makes the machine of a restarted node."""
    network = world.network
    match fault:
        case Crash(at, node):
            world.at(at, lambda: world.crash(node))
        case Restart(at, node):
            world.at(at, lambda: world.restart(node, new_incarnation(node)))
        case Pause(at, node, period):
            world.at(at, lambda: world.pause(node))
            world.at(at + period, lambda: world.resume(node))
        case Clog(at, origin, to, period):
            world.at(at, lambda: network.clog(origin, to))
            world.at(at + period, lambda: network.unclog(origin, to))
        case Partition(at, side, period):
            world.at(at, lambda: network.cut(side))
            world.at(at + period, lambda: network.mend(side))


class Intruder(Observer):
    """Injects datagrams without having any key.

    It sends random bytes, replays datagrams that it overheard, and sends them changed, truncated or spliced. None of
    this may change the order.
    """

    def __init__(self, world: World, *, targets: tuple[NodeId, ...], period: Duration, chance: Random) -> None:
        self._world = world
        self._targets = targets
        self._period = period  # the mean of an exponential distribution
        self._chance = chance
        self._overheard: deque[bytes] = deque(maxlen=OVERHEARD_MAX)
        self._stops_at: Instant = 0

    def start(self, until: Instant) -> None:
        """Inject at random times until then."""
        self._stops_at = until
        self._schedule_next()

    def sent(self, _node: NodeId, _to: int, datagram: bytes, _at: Instant, /) -> None:
        self._overheard.append(datagram)

    def _schedule_next(self) -> None:
        at = self._world.now + 1 + int(self._chance.expovariate(1.0) * self._period)
        if at < self._stops_at:
            self._world.at(at, self._inject)

    def _inject(self) -> None:
        self._world.inject(self._chance.choice(self._targets), self._forge())
        self._schedule_next()

    def _forge(self) -> bytes:
        chance = self._chance
        if not self._overheard or chance.random() < 0.1:
            return chance.randbytes(chance.randrange(NOISE_MAX))
        original = self._overheard[chance.randrange(len(self._overheard))]
        match chance.randrange(5):
            case 0:
                return original
            case 1:
                return original[: chance.randrange(len(original))]
            case 2:
                other = self._overheard[chance.randrange(len(self._overheard))]
                cut = chance.randrange(min(len(original), len(other)))
                return original[:cut] + other[cut:]
            case 3:
                place = chance.randrange(min(len(original), HEADER_SIZE))
                return original[:place] + chance.randbytes(1) + original[place + 1 :]
            case _:
                place = chance.randrange(len(original))
                return original[:place] + chance.randbytes(1) + original[place + 1 :]
