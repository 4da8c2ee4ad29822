"""Small machines for tests of the world itself."""

from collections.abc import Callable, Sequence
from random import Random

from fairtape.core.effects import Channel, Effect, Multicast, Send
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.simulation.clocks import SimulatedClock
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.frames import NodeId

DELAY = 5 * MILLISECOND


class Toy:
    """Remembers what it hears, and speaks at the times that it was given."""

    def __init__(self, *speeches: tuple[Instant, Effect]) -> None:
        self.heard: list[tuple[Instant, bytes]] = []
        self.woken: list[Instant] = []
        self._speeches = list(speeches)
        self._effects: list[Effect] = []

    def receive(self, datagram: bytes, now: Instant) -> None:
        self.heard.append((now, datagram))

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        self.woken.append(now)
        while self._speeches and self._speeches[0][0] <= now:
            self._effects.append(self._speeches.pop(0)[1])

    def deadline(self) -> Instant | None:
        return self._speeches[0][0] if self._speeches else None

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def say(at: Duration, *datagrams: bytes, to: NodeId | None = None) -> tuple[Instant, Effect]:
    if to is None:
        return EPOCH + at, Multicast(Channel.CONTROL, list(datagrams))
    return EPOCH + at, Send(to, list(datagrams))


def calm_world(link_faults: LinkFaults | None = None, *, seed: int = 1) -> World:
    return World(chance=Random(seed), sky=lambda _origin, _to: link_faults or LinkFaults(delay=DELAY))


def seat(world: World, toys: dict[NodeId, Toy], clock: Callable[[NodeId], SimulatedClock] | None = None) -> None:
    for node, toy in toys.items():
        world.add(node, toy, channels=(Channel.CONTROL,), clock=clock(node) if clock else None)
