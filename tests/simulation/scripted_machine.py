"""A machine that follows a script, for tests of the world itself."""

from collections.abc import Callable, Sequence
from random import Random

from fairtape.core.effects import Channel, Effect, Multicast, Send
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.simulation.clocks import SimulatedClock
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.frames import NodeId

DELAY = 5 * MILLISECOND


class ScriptedMachine:
    """Records what it receives, and emits the given effects at the given instants."""

    def __init__(self, *script: tuple[Instant, Effect]) -> None:
        self.received: list[tuple[Instant, bytes]] = []
        self.woken: list[Instant] = []
        self._script = list(script)
        self._effects: list[Effect] = []

    def receive(self, datagram: bytes, now: Instant) -> None:
        self.received.append((now, datagram))

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        self.woken.append(now)
        while self._script and self._script[0][0] <= now:
            self._effects.append(self._script.pop(0)[1])

    def deadline(self) -> Instant | None:
        return self._script[0][0] if self._script else None

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def send_at(at: Duration, *datagrams: bytes, to: NodeId | None = None) -> tuple[Instant, Effect]:
    if to is None:
        return EPOCH + at, Multicast(Channel.CONTROL, list(datagrams))
    return EPOCH + at, Send(to, list(datagrams))


def fault_free_world(link_faults: LinkFaults | None = None, *, seed: int = 1) -> World:
    return World(chance=Random(seed), link_model=lambda _origin, _to: link_faults or LinkFaults(delay=DELAY))


def add_machines(
    world: World, machines: dict[NodeId, ScriptedMachine], clock: Callable[[NodeId], SimulatedClock] | None = None
) -> None:
    for node, machine in machines.items():
        world.add(node, machine, channels=(Channel.CONTROL,), clock=clock(node) if clock else None)
