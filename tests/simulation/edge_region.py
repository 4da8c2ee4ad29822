"""A region of the edge in virtual time: remulticasters, retransmit servers and customers, and lossy links between them.

Real bytes cross the links. Everything follows from one seed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from fairtape.core.addresses import Address
from fairtape.core.effects import Ordered
from fairtape.core.instants import MICROSECOND, MILLISECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults, arrival_delays
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.customer import Customer, Delivered, StripeGap, StripeRecord
from fairtape.edge.protocol.effects import EdgeEffect, SendMulticast, SendUnicast
from fairtape.edge.protocol.remulticast import Remulticaster, RemulticastOptions
from fairtape.edge.protocol.retransmitter import Retransmitter, RetransmitterOptions
from fairtape.edge.protocol.sessions import MARK, OPAQUE, Edition, StripePosition, decode_opaque
from fairtape.market.stripes import Endpoint, StripePlan
from unit.edge.edge_values import NOON, delivery

FEEDS = ("A", "B")
SERVERS: dict[str, Address] = {name: (f"10.0.0.{host}", 17_000) for host, name in enumerate("ABCD", 1)}


@dataclass
class EdgeSite:
    """The edge of one receiver: its remulticaster and its retransmit server."""

    name: str  # of its home feed; a spare site has another name
    remulticaster: Remulticaster
    server: Retransmitter
    recent: RecentMessages
    alive: bool = True
    mute: bool = False  # the server does not answer


@dataclass
class CustomerNode:
    """A customer and its records."""

    address: Address
    customer: Customer
    joined: dict[Endpoint, str] = field(default_factory=dict)  # the feed of each group
    records: list[StripeRecord] = field(default_factory=list)
    followed: set[int] = field(default_factory=set)

    def delivered(self, stripe: int | None = None) -> list[bytes]:
        return [
            message
            for record in self.records
            if isinstance(record, Delivered) and stripe in (None, record.stripe)
            for message in record.messages
        ]

    def numbers(self) -> list[int]:
        """The sequence numbers of the delivered messages, in the order of delivery."""
        return [number for number in map(sequence_of, self.delivered()) if number is not None]

    def missing(self) -> int:
        return sum(record.count for record in self.records if isinstance(record, StripeGap))

    def all_of(self, kind: type[StripeRecord]) -> list[StripeRecord]:
        return [record for record in self.records if isinstance(record, kind)]


def sequence_of(message: bytes) -> int | None:
    """The global number of a trade or an opaque payload; None for marks and directories."""
    if message[:1] == b"P":
        return int.from_bytes(message[36:44], "big")
    if message[:1] == b"T":
        return int.from_bytes(message[11:19], "big")
    if message[:1] == OPAQUE:
        return decode_opaque(message).sequence
    assert message[:1] in (MARK, b"S", b"R", b"L")
    return None


class SimulatedRegion:
    """Runs all machines in virtual time."""

    def __init__(
        self,
        edition: Edition,
        *,
        seed: int = 1,
        loss: float = 0.0,
        spares: bool = False,
        remulticast_options: RemulticastOptions | None = None,
        server_options: RetransmitterOptions | None = None,
    ) -> None:
        """With `spares` there are receivers without a feed, until one is assigned to them."""
        self.now: Instant = NOON
        self.chance = Random(seed)
        self.link_faults = LinkFaults(delay=300 * MICROSECOND, jitter=50 * MICROSECOND, loss=loss)
        self.repair_faults = self.link_faults
        self.sites: dict[str, EdgeSite] = {}
        self.customers: list[CustomerNode] = []
        self._events: list[tuple[Instant, int, Callable[[], None]]] = []
        self._ticket = count()
        for name in SERVERS if spares else FEEDS:
            recent, at_home = RecentMessages(), name in FEEDS
            remulticaster = Remulticaster(
                StripePosition.fresh(edition),
                feeds=[name] if at_home else [],
                options=remulticast_options,
                recent=recent,
            )
            server = Retransmitter(recent, feed=name if at_home else FEEDS[0], options=server_options)
            server.follow(edition.plan)
            self.sites[name] = EdgeSite(name, remulticaster, server, recent)

    def add_customer(self, customer: Customer) -> CustomerNode:
        node = CustomerNode((f"10.1.0.{len(self.customers) + 1}", 9_000), customer)
        self.customers.append(node)
        return node

    def follow(
        self, node: CustomerNode, plan: StripePlan, stripes: Iterable[int], *, starts: dict[int, int] | None = None
    ) -> None:
        chosen = list(stripes)
        node.joined |= {endpoint: feed for stripe in chosen for feed, endpoint in plan.stripes[stripe].feeds}
        node.customer.follow(plan, chosen, self.now, starts=starts)

    def start(self) -> None:
        for site in self.sites.values():
            site.remulticaster.start(self.now)

    def at(self, when: Instant, act: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._ticket), act))

    def release(
        self, orders: Sequence[Ordered], *, period: Duration = MILLISECOND, first_at: Instant | None = None
    ) -> Instant:
        """Every live receiver releases a token in each period; returns the instant after the last."""
        when = self.now if first_at is None else first_at
        for ordered in orders:
            self.at(when, partial(self._deliver, ordered))
            when += period
        return when

    def run(self, until: Instant) -> None:
        while True:
            due_at = min((at for at in map(_deadline, self._machines()) if at is not None), default=until)
            if self._events:
                due_at = min(due_at, self._events[0][0])
            if due_at > until:
                self.now = until
                return
            self.now = max(self.now, due_at)
            while self._events and self._events[0][0] <= self.now:
                heappop(self._events)[2]()
            self._turn()
            if self.now == until and not self._events:
                return

    def _machines(self) -> Iterable[Remulticaster | Retransmitter | Customer]:
        for site in self.sites.values():
            if site.alive:
                yield site.remulticaster
                yield site.server
        for node in self.customers:
            yield node.customer

    def _deliver(self, ordered: Ordered) -> None:
        for site in self.sites.values():
            if site.alive:
                site.remulticaster.deliver(delivery(ordered), self.now)

    def _turn(self) -> None:
        for site in self.sites.values():
            if site.alive:
                for machine in (site.remulticaster, site.server):
                    machine.wake(self.now)
                    for effect in machine.drain():
                        self._carry(effect)
        for node in self.customers:
            node.customer.wake(self.now)
            for output in node.customer.drain():
                if isinstance(output, SendUnicast):
                    self._ask(node, output)
                else:
                    node.records.append(output)

    def _carry(self, effect: EdgeEffect) -> None:
        match effect:
            case SendMulticast(to, datagrams):
                for node in self.customers:
                    if to in node.joined:
                        for datagram in datagrams:
                            self._cross(self.link_faults, node, datagram, node.joined[to])
            case SendUnicast(to, datagrams):
                for node in self.customers:
                    if node.address == to:
                        for datagram in datagrams:
                            self._cross(self.repair_faults, node, datagram, "repair")

    def _cross(self, link_faults: LinkFaults, node: CustomerNode, datagram: bytes, feed: str) -> None:
        for delay in arrival_delays(link_faults, self.chance):
            self.at(self.now + delay, lambda: node.customer.receive(datagram, self.now, feed=feed))

    def _ask(self, node: CustomerNode, effect: SendUnicast) -> None:
        for site in self.sites.values():
            if SERVERS[site.name] == effect.to and site.alive and not site.mute:
                for datagram in effect.datagrams:
                    for delay in arrival_delays(self.repair_faults, self.chance):
                        self.at(self.now + delay, _received(site.server, datagram, self, node.address))


def _received(server: Retransmitter, datagram: bytes, region: SimulatedRegion, origin: Address) -> Callable[[], None]:
    return lambda: server.receive(datagram, region.now, origin=origin)


def _deadline(machine: Remulticaster | Retransmitter | Customer) -> Instant | None:
    return machine.deadline()
