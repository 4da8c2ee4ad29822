"""A town at the edge in virtual time: outlets, retransmit servers and customers, and lines between them that lose.

Real bytes cross the lines. Everything follows from one seed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from fairtape.core.effects import Ordered
from fairtape.core.instants import MICROSECOND, MILLISECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults, arrival_delays
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.customer import Customer
from fairtape.edge.protocol.customer_records import Delivered, Gap, Record
from fairtape.edge.protocol.effects import Address, EdgeEffect, SendMulticast, SendUnicast
from fairtape.edge.protocol.remulticast import Remulticaster, RemulticastOptions
from fairtape.edge.protocol.retransmitter import Retransmitter, RetransmitterOptions
from fairtape.edge.protocol.session_marks import MARK, OPAQUE, decode_opaque
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.market.stripes import Endpoint, StripePlan
from unit.edge.edge_values import NOON, delivery

FEEDS = ("A", "B")
SERVERS: dict[str, Address] = {name: (f"10.0.0.{host}", 17_000) for host, name in enumerate("ABCD", 1)}


@dataclass
class Station:
    """A receiver's side of the edge: its outlet, and the retransmit server beside it."""

    name: str  # of the feed on which it is at home; a spare one has another name
    outlet: Remulticaster
    server: Retransmitter
    shelf: RecentMessages
    alive: bool = True
    mute: bool = False  # the server does not answer


@dataclass
class Household:
    """A customer, and what it was told."""

    address: Address
    customer: Customer
    joined: dict[Endpoint, str] = field(default_factory=dict)  # the feed of each group
    records: list[Record] = field(default_factory=list)
    followed: set[int] = field(default_factory=set)

    def delivered(self, stripe: int | None = None) -> list[bytes]:
        return [
            message
            for record in self.records
            if isinstance(record, Delivered) and stripe in (None, record.stripe)
            for message in record.messages
        ]

    def numbers(self) -> list[int]:
        """The sequence numbers of what was delivered, as it came."""
        return [number for number in map(sequence_of, self.delivered()) if number is not None]

    def missing(self) -> int:
        return sum(record.count for record in self.records if isinstance(record, Gap))

    def all_of(self, kind: type[Record]) -> list[Record]:
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


class Town:
    """Turns all machines in one virtual time."""

    def __init__(
        self,
        edition: Edition,
        *,
        seed: int = 1,
        loss: float = 0.0,
        spares: bool = False,
        outlet_options: RemulticastOptions | None = None,
        server_options: RetransmitterOptions | None = None,
    ) -> None:
        """With `spares` there are receivers who speak on no feed until one is left to them."""
        self.now: Instant = NOON
        self.chance = Random(seed)
        self.link_faults = LinkFaults(delay=300 * MICROSECOND, jitter=50 * MICROSECOND, loss=loss)
        self.repair_weather = self.link_faults
        self.stations: dict[str, Station] = {}
        self.households: list[Household] = []
        self._events: list[tuple[Instant, int, Callable[[], None]]] = []
        self._ticket = count()
        for name in SERVERS if spares else FEEDS:
            shelf, at_home = RecentMessages(), name in FEEDS
            outlet = Remulticaster(
                StripePosition.fresh(edition), feeds=[name] if at_home else [], options=outlet_options, shelf=shelf
            )
            server = Retransmitter(shelf, feed=name if at_home else FEEDS[0], options=server_options)
            server.follow(edition.plan)
            self.stations[name] = Station(name, outlet, server, shelf)

    def household(self, customer: Customer) -> Household:
        home = Household((f"10.1.0.{len(self.households) + 1}", 9_000), customer)
        self.households.append(home)
        return home

    def follow(
        self, home: Household, plan: StripePlan, stripes: Iterable[int], *, starts: dict[int, int] | None = None
    ) -> None:
        chosen = list(stripes)
        home.joined |= {endpoint: feed for stripe in chosen for feed, endpoint in plan.stripes[stripe].feeds}
        home.customer.follow(plan, chosen, self.now, starts=starts)

    def start(self) -> None:
        for station in self.stations.values():
            station.outlet.start(self.now)

    def at(self, when: Instant, act: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._ticket), act))

    def release(
        self, orders: Sequence[Ordered], *, period: Duration = MILLISECOND, first_at: Instant | None = None
    ) -> Instant:
        """Every living receiver releases a token in each period; gives the instant after the last."""
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
        for station in self.stations.values():
            if station.alive:
                yield station.outlet
                yield station.server
        for home in self.households:
            yield home.customer

    def _deliver(self, ordered: Ordered) -> None:
        for station in self.stations.values():
            if station.alive:
                station.outlet.deliver(delivery(ordered), self.now)

    def _turn(self) -> None:
        for station in self.stations.values():
            if station.alive:
                for machine in (station.outlet, station.server):
                    machine.wake(self.now)
                    for effect in machine.drain():
                        self._carry(effect)
        for home in self.households:
            home.customer.wake(self.now)
            for said in home.customer.drain():
                if isinstance(said, SendUnicast):
                    self._ask(home, said)
                else:
                    home.records.append(said)

    def _carry(self, effect: EdgeEffect) -> None:
        match effect:
            case SendMulticast(to, datagrams):
                for home in self.households:
                    if to in home.joined:
                        for datagram in datagrams:
                            self._cross(self.link_faults, home, datagram, home.joined[to])
            case SendUnicast(to, datagrams):
                for home in self.households:
                    if home.address == to:
                        for datagram in datagrams:
                            self._cross(self.repair_weather, home, datagram, "repair")

    def _cross(self, link_faults: LinkFaults, home: Household, datagram: bytes, feed: str) -> None:
        for delay in arrival_delays(link_faults, self.chance):
            self.at(self.now + delay, lambda: home.customer.receive(datagram, self.now, feed=feed))

    def _ask(self, home: Household, effect: SendUnicast) -> None:
        for station in self.stations.values():
            if SERVERS[station.name] == effect.to and station.alive and not station.mute:
                for datagram in effect.datagrams:
                    for delay in arrival_delays(self.repair_weather, self.chance):
                        self.at(self.now + delay, _received(station.server, datagram, self, home.address))


def _received(server: Retransmitter, datagram: bytes, town: Town, origin: Address) -> Callable[[], None]:
    return lambda: server.receive(datagram, town.now, origin=origin)


def _deadline(machine: Remulticaster | Retransmitter | Customer) -> Instant | None:
    return machine.deadline()
