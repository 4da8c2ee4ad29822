"""Addresses for a ring on one machine: free ports, and multicast groups on the loopback interface."""

import random
import socket
from itertools import cycle, islice
from typing import Final

from fairtape.core.errors import UserError
from fairtape.net.transports import LOOPBACK, Groups

PORTS: Final = range(20_000, 32_000)
"""Below the ephemeral ports of Linux: a port that is reserved for a source which starts later stays free."""

_candidates: Final = cycle(random.sample(PORTS, len(PORTS)))


def free_ports(count: int) -> list[int]:
    """Ports that are free now and that this process was not given recently: it may not have bound those yet."""
    found = list(islice(filter(_is_free, islice(_candidates, len(PORTS))), count))
    if len(found) < count:
        raise UserError(f"only {len(found)} of {count} ports from {PORTS.start} on are free; stop what uses the others")
    return found


def _is_free(port: int) -> bool:
    """Whether a port is free for UDP and TCP: the user may need either."""
    return all(_can_bind(kind, port) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))


def _can_bind(kind: socket.SocketKind, port: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        # A closed connection keeps its port for a minute (TIME_WAIT), which does not prevent listening there.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, kind is socket.SOCK_STREAM)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def random_groups() -> Groups:
    """Two random multicast groups on the loopback interface."""
    data, control = free_ports(2)
    host = f"239.195.{random.randrange(1, 255)}.{random.randrange(1, 127)}"  # noqa: S311 - an address, no secret
    return Groups(data=(host, data), control=(host, control), interface=LOOPBACK, ttl=0)
