"""A customer's sockets on the loopback interface, and plans whose groups no other test uses."""

import random
import select
import socket
import time
from collections.abc import Callable

from fairtape.formats import moldudp64
from fairtape.market.stripes import Endpoint, StripePlan, plan_by_rate
from fairtape.net.loopback import free_ports
from fairtape.net.transports import LOOPBACK, Interface
from fairtape.net.udp import UdpSocket
from unit.edge.edge_values import MIDNIGHT, SYMBOLS

PATIENCE = 30.0  # seconds, for a machine that is busy with other things


class Groups:
    """The multicast groups of the plans of one test: the same for all versions."""

    def __init__(self) -> None:
        host = f"239.197.{random.randrange(1, 255)}.{random.randrange(1, 200)}"
        self.base = Endpoint(host, free_ports(1)[0])

    def plan(self, version: int = 1, *, stripes: int = 2, cap: int = 10**9) -> StripePlan:
        rates = {symbol: 100 + version * place % 7 for place, symbol in enumerate(SYMBOLS)}
        venues = ("XNYS", "XLON")
        planned = plan_by_rate(
            rates, stripes, cap, version=version, midnight_at=MIDNIGHT, venues=venues, base=self.base
        )
        return planned.plan


class PacketReceiver:
    """Receives one feed of a plan, and keeps the packets of each session by their numbers."""

    def __init__(self, plan: StripePlan, feed: str) -> None:
        interface = Interface.named(LOOPBACK)
        endpoints = [stripe.endpoint(feed) for stripe in plan.edge]
        self._sockets = [UdpSocket(interface.join((each.address, each.port))) for each in endpoints]
        self.datagrams: list[bytes] = []
        self.packets: list[moldudp64.Packet] = []

    def receive(self, wait: float = 0.02) -> None:
        ready, _, _ = select.select([each.fd for each in self._sockets], (), (), wait)
        for each in self._sockets:
            if each.fd in ready:
                datagrams = each.receive(1_000)
                self.datagrams += datagrams
                self.packets += map(moldudp64.decode, datagrams)

    def messages(self) -> dict[str, dict[int, bytes]]:
        """The messages of each session by number; the same number never has two contents."""
        found: dict[str, dict[int, bytes]] = {}
        for packet in self.packets:
            for number, message in enumerate(packet.messages, packet.number):
                assert found.setdefault(packet.session, {}).setdefault(number, message) == message
        return found

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def until(condition: Callable[[], bool], *turns: Callable[[], object], patience: float = PATIENCE) -> None:
    """Run each of the turns repeatedly until the condition holds."""
    give_up_at = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < give_up_at
        for turn in turns:
            turn()


def asker() -> socket.socket:
    """A customer's socket for requests."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((LOOPBACK, 0))
    made.settimeout(0)
    return made
