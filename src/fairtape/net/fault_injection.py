"""Injected link faults: loss, delay and duplication on the receive path of one node.

Ordinary machines cannot shape traffic, so faults are applied where datagrams arrive. The sender of a datagram selects
the faults of its link, the random generator decides, and a delayed datagram waits here until it is due. The simulator
uses the same description (`fairtape.core.link_faults`).

The sender of a datagram is not always its author: a repair is the original datagram, whose header names the source or
the old token site. So the network address selects the link, and the header only where the address is not known or
several sources share it.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.core.link_faults import NO_FAULTS, Chance, LinkFaults, arrival_delays
from fairtape.wire.frames import HEADER, NODE_MAX, NodeId

WAITING_MAX: Final = 1 << 16
_AUTHOR: Final = slice(HEADER.size - 4, HEADER.size)  # the author's node number in the header


class FaultInjector:
    """The faults on every link to one node. Deterministic: the same seed and arrivals give the same faults."""

    __slots__ = ("_arrivals", "_chance", "_links", "_waiting", "_waiting_max", "lost", "overflowed")

    def __init__(self, links: Mapping[NodeId, LinkFaults], chance: Chance, *, waiting_max: int = WAITING_MAX) -> None:
        """`links` gives the faults from each sender to this node; a sender that is not named has none."""
        if waiting_max < 1:
            raise UserError(f"waiting_max is {waiting_max}; at least one delayed datagram must fit")
        for sender in links:
            if not 0 <= sender <= NODE_MAX:
                raise UserError(f"link faults name the sender {sender}; node numbers go from 0 to {NODE_MAX}")
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
        """Apply the faults to datagrams that arrived, each with its sender where that is known.

        Returns those that pass at once. The others are delayed or lost.
        """
        ready: list[bytes] = []
        for datagram, origin in zip(datagrams, origins, strict=True):
            link_faults = self._links.get(_author_of(datagram) if origin is None else origin)
            if link_faults is None:
                ready.append(datagram)
            else:
                self._apply(datagram, link_faults, now, ready)
        return ready

    def due(self, now: Instant) -> list[bytes]:
        """The delayed datagrams that are due, earliest first."""
        waiting = self._waiting
        ready = []
        while waiting and waiting[0][0] <= now:
            ready.append(heappop(waiting)[2])
        return ready

    def deadline(self) -> Instant | None:
        return self._waiting[0][0] if self._waiting else None

    def _apply(self, datagram: bytes, link_faults: LinkFaults, now: Instant, ready: list[bytes]) -> None:
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


def seeded_injector(links: Mapping[NodeId, LinkFaults], node: NodeId, *, seed: int) -> FaultInjector | None:
    """The faults of the links to one node, by sender, drawn from a seed; None where there are none."""
    return FaultInjector(links, Random(f"{seed}/{node}")) if links else None  # noqa: S311 - injected faults, no secrets


def _author_of(datagram: bytes) -> NodeId | None:
    """The node that the header names; None where the header is incomplete."""
    return int.from_bytes(datagram[_AUTHOR]) if len(datagram) >= HEADER.size else None
