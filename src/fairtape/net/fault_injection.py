"""Injected weather: the receive path of one node, as if it stood behind real links.

Ordinary machines cannot shape traffic, so what a link does to datagrams happens where they arrive: the node that sent
one selects the weather, chance decides, and a delayed datagram waits here until it is due. The simulator uses the same
description (`fairtape.core.link_faults`), so a demonstration and a simulated world live in one climate.

Who sent a datagram is not always who wrote it: a repair is the original, and its header names the source or the old
token site. So the network's own answer counts, and the header only where that is not known.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.core.link_faults import NO_FAULTS, Chance, LinkFaults, arrival_delays
from fairtape.wire.frames import HEADER, NODE_MAX, NodeId

WAITING_MAX: Final = 1 << 16
_WRITER: Final = slice(HEADER.size - 4, HEADER.size)  # where the header names who wrote it


class FaultInjector:
    """The weather on every link to one node. Equal chance and equal arrivals give equal fates."""

    __slots__ = ("_arrivals", "_chance", "_links", "_waiting", "_waiting_max", "lost", "overflowed")

    def __init__(self, links: Mapping[NodeId, LinkFaults], chance: Chance, *, waiting_max: int = WAITING_MAX) -> None:
        """`links` gives the weather from each sender to this node; whoever is not named has calm weather."""
        if waiting_max < 1:
            raise UserError(f"waiting_max is {waiting_max}; at least one delayed datagram must fit")
        for sender in links:
            if not 0 <= sender <= NODE_MAX:
                raise UserError(f"weather names the sender {sender}; node numbers go from 0 to {NODE_MAX}")
        self._links: dict[NodeId | None, LinkFaults] = {
            sender: link_faults for sender, link_faults in links.items() if link_faults != NO_FAULTS
        }
        self._chance = chance
        self._waiting: list[tuple[Instant, int, bytes]] = []
        self._waiting_max = waiting_max
        self._arrivals = 0  # breaks ties, so that equal delays keep the order of arrival
        self.lost = 0
        self.overflowed = 0  # lost because too many were waiting

    def admit(self, datagrams: Sequence[bytes], origins: Sequence[NodeId | None], now: Instant) -> list[bytes]:
        """Take what the network brought, each datagram with the node that sent it where that is known.

        What is ready at once comes back, the rest waits or is lost.
        """
        ready: list[bytes] = []
        for datagram, origin in zip(datagrams, origins, strict=True):
            link_faults = self._links.get(writer_of(datagram) if origin is None else origin)
            if link_faults is None:
                ready.append(datagram)
            else:
                self._expose(datagram, link_faults, now, ready)
        return ready

    def due(self, now: Instant) -> list[bytes]:
        """The delayed datagrams whose time has come, in the order of their instants."""
        waiting = self._waiting
        ready = []
        while waiting and waiting[0][0] <= now:
            ready.append(heappop(waiting)[2])
        return ready

    def deadline(self) -> Instant | None:
        """When the next delayed datagram is due."""
        return self._waiting[0][0] if self._waiting else None

    def _expose(self, datagram: bytes, link_faults: LinkFaults, now: Instant, ready: list[bytes]) -> None:
        delays = arrival_delays(link_faults, self._chance)
        self.lost += not delays
        for delay in delays:
            if delay == 0:
                ready.append(datagram)
            elif len(self._waiting) < self._waiting_max:
                self._arrivals += 1
                heappush(self._waiting, (now + delay, self._arrivals, datagram))
            else:
                self.overflowed += 1


def writer_of(datagram: bytes) -> NodeId | None:
    """Whom the header names; None where there is no whole header."""
    return int.from_bytes(datagram[_WRITER]) if len(datagram) >= HEADER.size else None
