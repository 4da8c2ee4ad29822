"""The customers of one region as a process: all receive the same two feeds, each with independent loss.

A datagram is received and decoded once for all customers; loss is then drawn per customer. A customer requests messages
that were lost on both feeds from a retransmit server, through its own socket.

These customers have guaranteed service: they wait for retransmissions without limit and never skip a message. A
customer stores no messages. Its message count and digest per stripe are enough to check against any site's journal
that it received exactly what was released.
"""

import select
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.demo.floors import Opening
from fairtape.demo.world import REGIONS, BackgroundTimer, lower_priority, plan_of, region_of
from fairtape.deployment.config.description import Deployment, read_deployment
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.edge.protocol.customer import Customer, CustomerOptions, Delivered, Heard, Silent, StripeGap, StripeRecord
from fairtape.edge.protocol.effects import SendUnicast
from fairtape.formats.itch.messages import ItchTrade
from fairtape.formats.itch.ticker_messages import WIDE
from fairtape.formats.moldudp64 import BadMold, Packet, decode
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK, Interface
from fairtape.net.udp import UdpSocket, bind

DATAGRAMS_MAX: Final = 4_096  # read from one socket in one turn
TRADES: Final = (ItchTrade.LETTER.encode("ascii"), WIDE.encode("ascii"))
CUSTOMER_OPTIONS: Final = CustomerOptions(
    patience=None, ask_delay=60 * MILLISECOND, retry_period=250 * MILLISECOND, stale_delay=1_500 * MILLISECOND
)


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """Asks a region for the reports of its customers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNews:
    """Progress of the customers of a region."""

    region: int
    customers: int
    reported_at: Instant
    trades: int  # received, summed over all customers
    trades_min: int  # received by every customer
    gaps: int  # messages lost for good, summed over all customers
    requests: int
    lost: int  # datagrams dropped by injected loss
    silent: tuple[tuple[str, int], ...]  # per feed: how many customers do not receive it

    @property
    def without_second_feed(self) -> int:
        """Customers that do not receive both feeds: a lower bound."""
        return max((count for _, count in self.silent), default=0)


@dataclass(frozen=True, slots=True)
class CustomerReport:
    """Per stripe: how many messages one customer received, and the digest of their bytes."""

    received: Mapping[int, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class RegionReports:
    """The answer to a `ReportRequest`."""

    region: int
    reports: tuple[CustomerReport, ...]


def run_customers(link: ChildLink, folder: Path, region: int, count: int, loss: float, seed: int) -> None:
    """Entry point of the process."""
    lower_priority()
    clock = SharedClock()
    with ExitStack() as resources:
        random = Random(f"{seed}/{region}")  # noqa: S311 - injected faults
        customers = CustomerRegion(read_deployment(folder), region, count, loss=loss, random=random)
        resources.callback(customers.close)
        customers.follow(clock.now())
        link.send(Ready())
        timer = BackgroundTimer(0, turn=region, turns=len(REGIONS))
        while not link.stopped:
            for command in link.commands():
                if isinstance(command, ReportRequest):
                    link.send(customers.reports())
                elif isinstance(command, Opening):
                    timer = BackgroundTimer(command.commit_at, turn=region, turns=len(REGIONS))
            customers.sleep(timer.remaining(clock.now()))
            if timer.is_due(clock.now()):
                now = clock.now()
                customers.take_turn(now)
                link.try_send(customers.news(now))


@dataclass(slots=True)
class _CustomerState:
    """One customer and what it received."""

    customer: Customer
    repairs: UdpSocket
    trades: int = 0
    gaps: int = 0
    silent: set[tuple[int, str]] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    digests: dict[int, Any] = field(default_factory=dict)

    def apply(self, record: StripeRecord) -> None:
        match record:
            case Delivered(stripe, _, _, messages):
                self.trades += sum(message[:1] in TRADES for message in messages)
                self.counts[stripe] = self.counts.get(stripe, 0) + len(messages)
                self.digests.setdefault(stripe, blake2b()).update(b"".join(messages))
            case StripeGap():
                self.gaps += record.count
            case Silent(stripe, feed, _):
                self.silent.add((stripe, feed))
            case Heard(stripe, feed):
                self.silent.discard((stripe, feed))


def _packets(datagrams: Iterable[bytes]) -> Iterator[Packet]:
    """Decode the datagrams and drop malformed ones: any program on this machine can send to a group."""
    for datagram in datagrams:
        with suppress(BadMold):
            yield decode(datagram)


class CustomerRegion:
    """All customers of one region."""

    def __init__(self, deployment: Deployment, region: int, count: int, *, loss: float, random: Random) -> None:
        settings, place = deployment.edge, region_of(deployment, region)
        assert settings is not None
        self._region = region
        self._names = place.feeds
        self._plan = plan_of(deployment)
        self._loss = loss
        self._random = random
        self._lost = 0
        self._feeds: dict[int, tuple[UdpSocket, str]] = {}
        homes = [deployment.name_of(site) for site in place.receivers[: len(place.feeds)]]
        servers = tuple(settings.publishers[home].requests for home in homes)
        interface = Interface.named(LOOPBACK)
        for stripe in self._plan.edge:
            for feed in place.feeds:
                feed_socket = UdpSocket(interface.join(stripe.endpoint(feed)))
                self._feeds[feed_socket.fd] = feed_socket, feed
        self._states = [
            _CustomerState(
                Customer(
                    settings.tag,
                    feeds=place.feeds,
                    servers=servers[position % len(servers) :] + servers[: position % len(servers)],
                    options=CUSTOMER_OPTIONS,
                ),
                UdpSocket(bind(LOOPBACK, 0)),
            )
            for position in range(count)
        ]
        self._by_repairs = {state.repairs.fd: state for state in self._states}

    def follow(self, now: Instant) -> None:
        """Follow all stripes from their first message on."""
        stripes = self._plan.stripes
        for state in self._states:
            state.customer.follow(self._plan, stripes, now, starts=dict.fromkeys(stripes, 1))

    def take_turn(self, now: Instant) -> None:
        """Process what arrived since the last turn."""
        for feed_socket, feed in self._feeds.values():
            for packet in _packets(feed_socket.receive(DATAGRAMS_MAX)):
                for state in self._states:
                    if not self._loses():
                        state.customer.receive_packet(packet, now, feed=feed)
        self._receive_repairs(now)
        for state in self._states:
            state.customer.wake(now)
            for effect in state.customer.drain():
                if isinstance(effect, SendUnicast):
                    state.repairs.send(effect.datagrams, effect.to)
                else:
                    state.apply(effect)

    def _receive_repairs(self, now: Instant) -> None:
        ready, _, _ = select.select(list(self._by_repairs), (), (), 0)
        for fd in ready:
            state = self._by_repairs[fd]
            for datagram in state.repairs.receive(DATAGRAMS_MAX):
                if not self._loses():
                    state.customer.receive(datagram, now)

    def sleep(self, period: Duration) -> None:
        """Sleep without reading: datagrams wait in the sockets, so that no CPU time is taken from releases."""
        select.select((), (), (), period / SECOND)

    def news(self, now: Instant) -> RegionNews:
        states = self._states
        silent = [
            (feed, sum(any(each == feed for _, each in state.silent) for state in states)) for feed in self._names
        ]
        return RegionNews(
            region=self._region,
            customers=len(states),
            reported_at=now,
            trades=sum(state.trades for state in states),
            trades_min=min((state.trades for state in states), default=0),
            gaps=sum(state.gaps for state in states),
            requests=sum(state.customer.counts.requests for state in states),
            lost=self._lost,
            silent=tuple(silent),
        )

    def reports(self) -> RegionReports:
        return RegionReports(
            self._region,
            tuple(
                CustomerReport(
                    {stripe: (count, state.digests[stripe].digest()) for stripe, count in state.counts.items()}
                )
                for state in self._states
            ),
        )

    def close(self) -> None:
        for feed_socket, _ in self._feeds.values():
            feed_socket.close()
        for state in self._states:
            state.repairs.close()

    def _loses(self) -> bool:
        """Draw whether one customer loses a datagram."""
        lost = self._loss > 0 and self._random.random() < self._loss
        self._lost += lost
        return lost
