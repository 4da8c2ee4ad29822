"""Shared by loopback tests: free ports, and waiting for a condition with a deadline instead of sleeping."""

import time
from collections.abc import Callable
from select import select

from fairtape.net.transports import Peer, Role
from fairtape.net.udp import UdpSocket, bind

_USED: set[int] = set()  # the kernel may hand out a port again as soon as it is closed

PATIENCE = 10.0  # seconds: how long a condition may take on a loaded machine before a test fails


def free_port() -> int:
    """A free port that was not returned before in this process."""
    while True:
        with bind("127.0.0.1", 0) as bound:
            port: int = bound.getsockname()[1]
        if port not in _USED:
            _USED.add(port)
            return port


def local_peer(role: Role) -> Peer:
    """A node on this machine, at a free port."""
    return Peer("127.0.0.1", free_port(), role)


def within_patience(condition: Callable[[], bool]) -> Callable[[], bool]:
    """True once the condition holds or PATIENCE is over; the test then asserts the condition itself."""
    give_up_at = time.monotonic() + PATIENCE
    return lambda: condition() or time.monotonic() > give_up_at


def collect(listener: UdpSocket, count: int) -> list[bytes]:
    """The next `count` datagrams, or fewer once PATIENCE is over."""
    received: list[bytes] = []
    enough = within_patience(lambda: len(received) >= count)
    while not enough():
        select((listener.fd,), (), (), 0.1)
        received += listener.receive(count)
    return received
