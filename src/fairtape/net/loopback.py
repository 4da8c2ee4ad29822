"""Addresses for a ring on one machine: free ports, multicast groups on the loopback interface, or a mesh."""

import random
import socket
from collections.abc import Iterable
from itertools import cycle, islice
from typing import Final

from fairtape.core.errors import UserError
from fairtape.net.transports import LOOPBACK, AddressBook, Groups, Peer, Role, multicast_works
from fairtape.wire.frames import NodeId

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


def loopback_book(sites: Iterable[NodeId], sources: Iterable[NodeId], reformers: Iterable[NodeId] = ()) -> AddressBook:
    """An address on this machine for every node, on any free ports."""
    roles = dict.fromkeys(sites, Role.SITE) | dict.fromkeys(sources, Role.SOURCE)
    roles |= dict.fromkeys(reformers, Role.COORDINATOR)
    ports = free_ports(len(roles))
    return {node: Peer(LOOPBACK, port, role) for (node, role), port in zip(roles.items(), ports, strict=True)}


def loopback_groups(*, mesh: bool) -> Groups | None:
    """Two random groups; None for a mesh, or where multicast does not work."""
    if mesh or not multicast_works(LOOPBACK):
        return None
    data, control = free_ports(2)
    host = f"239.195.{random.randrange(1, 255)}.{random.randrange(1, 255)}"  # noqa: S311 - an address, no secret
    return Groups(data=(host, data), control=(host, control), interface=LOOPBACK, ttl=0)
