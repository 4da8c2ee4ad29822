"""A ring that lives on one machine: free ports and groups on the loopback interface, and what carries its multicast."""

import random
import socket
from collections.abc import Iterable
from typing import Final

from fairtape.runtime.carriers import LOOPBACK, AddressBook, Groups, Peer, Role, multicast_works
from fairtape.runtime.complaints import Complaint
from fairtape.wire.frames import NodeId

PORTS: Final = range(20_000, 32_000)
"""Below the ports that Linux gives to whoever asks for any: a port kept for a source that comes later stays free."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
        found.append(port)
    if len(found) < count:
        raise Complaint(f"only {len(found)} of {count} ports from {PORTS.start} on are free; stop what uses the others")
    return found


def loopback_book(sites: Iterable[NodeId], sources: Iterable[NodeId]) -> AddressBook:
    """An address on this machine for every node."""
    roles = dict.fromkeys(sites, Role.SITE) | dict.fromkeys(sources, Role.SOURCE)
    ports = free_ports(len(roles))
    return {node: Peer(LOOPBACK, port, role) for (node, role), port in zip(roles.items(), ports, strict=True)}


def loopback_groups(*, mesh: bool) -> Groups | None:
    """Two groups that no other ring of this machine uses; None for a mesh, or where multicast does not work."""
    if mesh or not multicast_works(LOOPBACK):
        return None
    data, control = free_ports(2)
    host = f"239.195.{random.randrange(1, 255)}.{random.randrange(1, 255)}"  # noqa: S311 - an address, no secret
    return Groups(data=(host, data), control=(host, control), interface=LOOPBACK, ttl=0)


def carrier_words(groups: Groups | None, *, mesh: bool) -> str:
    """How multicast travels, for people."""
    if groups is not None:
        return "IP multicast on the loopback interface"
    if mesh:
        return "a mesh of unicasts, as asked"
    return "a mesh of unicasts, because IP multicast does not work on this machine"
