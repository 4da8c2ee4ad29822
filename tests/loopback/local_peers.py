"""What loopback tests share: ports nobody uses, and waiting for a condition with a deadline instead of sleeping."""

import time
from collections.abc import Callable
from select import select

from fairtape.net.transports import Peer, Role
from fairtape.net.udp import UdpSocket, bind

_GIVEN: set[int] = set()  # the kernel may hand out a port again as soon as it is closed

PATIENCE = 10.0  # seconds: how long a condition may take on a loaded machine before a test fails


def free_port() -> int:
    """A port that was free a moment ago, and that no other caller here was given."""
    while True:
        with bind("127.0.0.1", 0) as bound:
            port: int = bound.getsockname()[1]
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


def at_home(role: Role) -> Peer:
    """A node of this machine."""
    return Peer("127.0.0.1", free_port(), role)


def within_patience(condition: Callable[[], bool]) -> Callable[[], bool]:
    """The condition, or the end of patience: the test then asserts the condition itself."""
    give_up_at = time.monotonic() + PATIENCE
    return lambda: condition() or time.monotonic() > give_up_at


def collect(listener: UdpSocket, count: int) -> list[bytes]:
    """The next `count` datagrams, or fewer at the end of patience."""
    heard: list[bytes] = []
    enough = within_patience(lambda: len(heard) >= count)
    while not enough():
        select((listener.fd,), (), (), 0.1)
        heard += listener.receive(count)
    return heard
