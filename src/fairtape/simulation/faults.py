"""What can happen to a node, as values: a swarm draws them, a scenario writes them, a world carries them out.

What can happen to a link (clogs, cuts, rules) is the network's matter and stands there; it is scheduled here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fairtape.core.instants import Duration, Instant
from fairtape.core.machine import Machine
from fairtape.wire.frames import NodeId

if TYPE_CHECKING:
    from fairtape.simulation.world import World


@dataclass(frozen=True, slots=True)
class Crash:
    """The node stops at once and forgets everything."""

    at: Instant
    node: NodeId


@dataclass(frozen=True, slots=True)
class Restart:
    """The node comes back as a new incarnation; nothing of its memory survives."""

    at: Instant
    node: NodeId


@dataclass(frozen=True, slots=True)
class Pause:
    """The node's process stands still; datagrams queue up in its socket and arrive late, timers fire late."""

    at: Instant
    node: NodeId
    period: Duration


@dataclass(frozen=True, slots=True)
class Clog:
    """Datagrams on one link are held until it is unclogged; then they all arrive."""

    at: Instant
    origin: NodeId
    to: NodeId
    period: Duration


@dataclass(frozen=True, slots=True)
class Partition:
    """Nothing crosses between `side` and the rest."""

    at: Instant
    side: tuple[NodeId, ...]
    period: Duration


Fault: TypeAlias = Crash | Restart | Pause | Clog | Partition


def schedule(world: "World", fault: Fault, reborn: Callable[[NodeId], Machine]) -> None:
    """Put one fault into the world's future; `reborn` makes the machine of a restarted node."""
    network = world.network
    match fault:
        case Crash(at, node):
            world.at(at, lambda: world.crash(node))
        case Restart(at, node):
            world.at(at, lambda: world.restart(node, reborn(node)))
        case Pause(at, node, period):
            world.at(at, lambda: world.pause(node))
            world.at(at + period, lambda: world.resume(node))
        case Clog(at, origin, to, period):
            world.at(at, lambda: network.clog(origin, to))
            world.at(at + period, lambda: network.unclog(origin, to))
        case Partition(at, side, period):
            world.at(at, lambda: network.cut(side))
            world.at(at + period, lambda: network.mend(side))
