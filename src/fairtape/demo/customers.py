"""The customers of one region as a process: many machines that hear the same two feeds, each with losses of its own.

A datagram enters this process once and is read once for all customers, as on a network that carries multicast to their
doors; behind the door each customer loses its own. What a customer misses on both feeds it asks a retransmit server
for, from a socket of its own.

A customer here is guaranteed its service, so it may wait but never misses. It keeps no message: how many it heard of
each stripe, and a digest of all their bytes in order, are enough to prove against any site's journal that it heard
exactly what was released.
"""

import select
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any, Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.demo.priority import give_way
from fairtape.demo.reformers import Rhythm
from fairtape.demo.world import REGIONS, EdgePlan, WorldPlan
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.process.temporary_site import Rounds
from fairtape.edge.protocol.customer import Customer, CustomerOptions
from fairtape.edge.protocol.customer_records import Delivered, Gap, Heard, Record, Silent
from fairtape.edge.protocol.effects import SendUnicast
from fairtape.formats.itch.messages import ItchTrade
from fairtape.formats.itch.ticker import WIDE
from fairtape.formats.moldudp64 import BadMold, Packet, decode
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK, Interface
from fairtape.net.udp import UdpSocket, bind

DATAGRAMS_MAX: Final = 4_096  # that are read from one socket in one turn
TRADES: Final = (ItchTrade.LETTER.encode("ascii"), WIDE.encode("ascii"))
PATIENT: Final = CustomerOptions(
    patience=None, ask_delay=60 * MILLISECOND, retry_period=250 * MILLISECOND, stale_delay=1_500 * MILLISECOND
)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The order to give a full account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNews:
    """How the customers of a region fare."""

    region: int
    customers: int
    told_at: Instant
    trades: int  # that all of them together have heard
    trades_min: int  # that every one of them has heard
    gaps: int  # messages that somebody missed for good
    requests: int
    lost: int  # datagrams that the injected weather took
    silent: tuple[tuple[str, int], ...]  # feeds, and how many customers do not hear them

    @property
    def deaf(self) -> int:
        """How many customers do not hear all feeds, at least."""
        return max((count for _, count in self.silent), default=0)


@dataclass(frozen=True, slots=True)
class CustomerReport:
    """What one customer heard of each stripe: how many messages, and the digest of their bytes."""

    heard: Mapping[int, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class RegionAccounts:
    """The answer to an inquiry."""

    region: int
    accounts: tuple[CustomerReport, ...]


def run_customers(link: ChildLink, region: int, count: int, loss: float, seed: int) -> None:
    """The whole life of the process."""
    give_way()
    link.tell(Ready())
    plan = link.expect(WorldPlan)
    if plan is None:
        return
    clock = SharedClock()
    with ExitStack() as closing:
        town = CustomerRegion(plan.edge, region, count, loss=loss, chance=Random(f"{seed}/{region}"))  # noqa: S311
        closing.callback(town.close)
        town.follow(plan.edge, clock.now())
        rounds = Rounds(plan.ring.formation, turn=region, turns=len(REGIONS))
        while not link.stopped:
            for order in link.orders():
                if isinstance(order, Inquiry):
                    link.tell(town.accounts())
                elif isinstance(order, Rhythm):
                    rounds = Rounds(order.formation, turn=region, turns=len(REGIONS))
            town.rest(rounds.due_at - clock.now())
            if rounds.come(clock.now()):
                now = clock.now()
                town.turn(now)
                link.offer(town.news(now))


@dataclass(slots=True)
class _Ear:
    """One customer, and what it heard."""

    customer: Customer
    repairs: UdpSocket
    trades: int = 0
    gaps: int = 0
    silent: set[tuple[int, str]] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    digests: dict[int, Any] = field(default_factory=dict)

    def note(self, record: Record) -> None:
        match record:
            case Delivered(stripe, _, _, messages):
                self.trades += sum(message[:1] in TRADES for message in messages)
                self.counts[stripe] = self.counts.get(stripe, 0) + len(messages)
                self.digests.setdefault(stripe, blake2b()).update(b"".join(messages))
            case Gap():
                self.gaps += record.count
            case Silent(stripe, feed, _):
                self.silent.add((stripe, feed))
            case Heard(stripe, feed):
                self.silent.discard((stripe, feed))


def _packets(datagrams: Iterable[bytes]) -> Iterator[Packet]:
    """Those that are packets: whoever is on this machine can send to a group."""
    for datagram in datagrams:
        with suppress(BadMold):
            yield decode(datagram)


class CustomerRegion:
    """All customers of one region."""

    def __init__(self, plan: EdgePlan, region: int, count: int, *, loss: float, chance: Random) -> None:
        self._region = region
        self._loss = loss
        self._chance = chance
        self._lost = 0
        self._feeds: dict[int, tuple[UdpSocket, str]] = {}
        feeds, servers = REGIONS[region].feeds, plan.servers_of(REGIONS[region])
        interface = Interface.named(LOOPBACK)
        for stripe in plan.stripes.edge:
            for feed in feeds:
                route = plan.routes[stripe.endpoint(feed)]
                heard = UdpSocket(interface.join(route) if plan.multicast else bind(*route))
                self._feeds[heard.fd] = heard, feed
        self._ears = [
            _Ear(
                Customer(
                    plan.settings.tag,
                    feeds=feeds,
                    servers=servers[place % len(servers) :] + servers[: place % len(servers)],
                    options=PATIENT,
                ),
                UdpSocket(bind(LOOPBACK, 0)),
            )
            for place in range(count)
        ]
        self._by_repairs = {ear.repairs.fd: ear for ear in self._ears}

    def follow(self, plan: EdgePlan, now: Instant) -> None:
        """Hear all stripes, from their first message on."""
        for ear in self._ears:
            ear.customer.follow(plan.stripes, plan.stripes.stripes, now, starts=dict.fromkeys(plan.stripes.stripes, 1))

    def turn(self, now: Instant) -> None:
        """Hear what has come since the last turn."""
        for heard, feed in self._feeds.values():
            for packet in _packets(heard.receive(DATAGRAMS_MAX)):
                for ear in self._ears:
                    if not self._loses():
                        ear.customer.receive_packet(packet, now, feed=feed)
        self._hear_repairs(now)
        for ear in self._ears:
            ear.customer.wake(now)
            for effect in ear.customer.drain():
                if isinstance(effect, SendUnicast):
                    ear.repairs.send(effect.datagrams, effect.to)
                else:
                    ear.note(effect)

    def _hear_repairs(self, now: Instant) -> None:
        ready, _, _ = select.select(list(self._by_repairs), (), (), 0)
        for fd in ready:
            ear = self._by_repairs[fd]
            for datagram in ear.repairs.receive(DATAGRAMS_MAX):
                if not self._loses():
                    ear.customer.receive(datagram, now)

    def rest(self, period: Duration) -> None:
        """Do nothing for so long: whatever comes waits in the sockets, and no release is disturbed."""
        select.select((), (), (), max(period, 0) / SECOND)

    def news(self, now: Instant) -> RegionNews:
        """How they fare."""
        ears = self._ears
        silent = [
            (feed, sum(any(each == feed for _, each in ear.silent) for ear in ears))
            for feed in REGIONS[self._region].feeds
        ]
        return RegionNews(
            region=self._region,
            customers=len(ears),
            told_at=now,
            trades=sum(ear.trades for ear in ears),
            trades_min=min((ear.trades for ear in ears), default=0),
            gaps=sum(ear.gaps for ear in ears),
            requests=sum(ear.customer.counts.requests for ear in ears),
            lost=self._lost,
            silent=tuple(silent),
        )

    def accounts(self) -> RegionAccounts:
        """What each of them heard."""
        return RegionAccounts(
            self._region,
            tuple(
                CustomerReport({stripe: (count, ear.digests[stripe].digest()) for stripe, count in ear.counts.items()})
                for ear in self._ears
            ),
        )

    def close(self) -> None:
        """Leave all groups."""
        for heard, _ in self._feeds.values():
            heard.close()
        for ear in self._ears:
            ear.repairs.close()

    def _loses(self) -> bool:
        """Whether a datagram is lost on the way to one customer."""
        lost = self._loss > 0 and self._chance.random() < self._loss
        self._lost += lost
        return lost
