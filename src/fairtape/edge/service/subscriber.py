"""A customer on sockets: joins the multicast groups of its stripes, and requests what it missed."""

import select
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from fairtape.core.addresses import Address
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.edge.protocol.customer import REPAIR, Customer, CustomerOptions, PlanChange, StripeRecord
from fairtape.edge.protocol.effects import SendUnicast
from fairtape.market.stripes import StripePlan
from fairtape.net.clock import Clock
from fairtape.net.transports import Interface
from fairtape.net.udp import UdpSocket, bind

DATAGRAMS_MAX: Final = 512  # read per socket and iteration
POLL_PERIOD: Final[Duration] = 50 * MILLISECOND  # the longest wait of `run_once`
PLAN_PERIOD: Final[Duration] = 200 * MILLISECOND  # between two searches for an announced plan
SOCKETS_MAX: Final = 1_000  # groups of one customer


class MulticastSubscriber:
    """One customer; the caller runs it with `run_once` and gets its records."""

    def __init__(
        self,
        tag: str,
        *,
        feeds: Sequence[str],
        servers: Sequence[Address],
        interface: str,
        clock: Clock,
        options: CustomerOptions,
        plans: Callable[[int], StripePlan | None],
        wanted: Collection[int] = (),
    ) -> None:
        """`plans` finds a plan by its version, or returns None; without `wanted` stripes all are received."""
        self.customer = Customer(tag, feeds=feeds, servers=servers, options=options)
        self.strangers = 0  # datagrams at the repair port that no known server sent
        self._servers = {_resolved(server) for server in servers}
        self._feeds = tuple(feeds)
        self._interface = Interface.named(interface)
        self._clock = clock
        self._plans = plans
        self._wanted = frozenset(wanted)
        self._groups: dict[int, list[UdpSocket]] = {}  # by plan version
        self._feed_of: dict[int, str] = {}
        self._awaited: set[int] = set()  # versions of announced plans that are missing
        self._plan_at: Instant = 0
        self._repairs = UdpSocket(bind("", 0))
        self._sockets: dict[int, UdpSocket] = {self._repairs.fd: self._repairs}
        self._poll = select.poll()
        self._poll.register(self._repairs.fd, select.POLLIN)

    def follow(self, plan: StripePlan, *, starts: Mapping[int, int] | None = None, breaks: int = 0) -> None:
        """Receive a plan: join its groups. Those of the previous plan stay joined until the next plan."""
        stripes = [stripe for stripe in plan.edge if not self._wanted or stripe.number in self._wanted]
        if len(stripes) * len(self._feeds) + len(self._sockets) > SOCKETS_MAX:
            raise UserError(f"stripes are {len(stripes)}, more than one customer can receive; name some with --stripe")
        for version in sorted(self._groups)[:-1]:
            self._leave(version)
        joined = self._groups.setdefault(plan.version, [])
        for stripe in stripes:
            for feed in self._feeds:
                endpoint = stripe.endpoint(feed)
                joined_socket = UdpSocket(self._interface.join((endpoint.address, endpoint.port)))
                joined.append(joined_socket)
                self._sockets[joined_socket.fd] = joined_socket
                self._poll.register(joined_socket.fd, select.POLLIN)
                self._feed_of[joined_socket.fd] = feed
        now = self._clock.now()
        self.customer.follow(plan, [stripe.number for stripe in stripes], now, starts=starts, breaks=breaks)

    def run_once(self) -> list[StripeRecord]:
        """Wait for at most POLL_PERIOD, and return the records since the last call."""
        wait_period = self._wait_period()
        ready = self._poll.poll(wait_period / MILLISECOND)
        now = self._clock.now()
        for fd, _ in ready:
            feed = self._feed_of.get(fd, REPAIR)
            datagrams = self._repaired() if feed is REPAIR else self._sockets[fd].receive(DATAGRAMS_MAX)
            self.customer.receive_all(datagrams, now, feed=feed)
        self.customer.wake(now)
        if self._awaited and now >= self._plan_at:
            self._plan_at = now + PLAN_PERIOD
            self._find_plans()
        return self._records()

    def _repaired(self) -> list[bytes]:
        """Answers of the servers. Datagrams of other senders are dropped, because any host can send to this port."""
        senders: list[Address] = []
        datagrams = self._repairs.receive(DATAGRAMS_MAX, senders)
        known = [datagram for datagram, sender in zip(datagrams, senders, strict=True) if sender in self._servers]
        self.strangers += len(datagrams) - len(known)
        return known

    def close(self) -> None:
        """Close all sockets."""
        for each in self._sockets.values():
            each.close()

    def _wait_period(self) -> Duration:
        due_at = self.customer.deadline()
        left = POLL_PERIOD if due_at is None else due_at - self._clock.now()
        return max(min(left, POLL_PERIOD), 0)

    def _records(self) -> list[StripeRecord]:
        records: list[StripeRecord] = []
        for effect in self.customer.drain():
            if isinstance(effect, SendUnicast):
                self._repairs.send(effect.datagrams, effect.to)
                continue
            if isinstance(effect, PlanChange):
                self._awaited.add(effect.version)
                self._plan_at = 0
            records.append(effect)
        return records

    def _find_plans(self) -> None:
        for version in sorted(self._awaited):
            plan = self._plans(version)
            if plan is not None:
                self._awaited.discard(version)
                self.follow(plan)

    def _leave(self, version: int) -> None:
        for joined_socket in self._groups.pop(version):
            self._poll.unregister(joined_socket.fd)
            del self._sockets[joined_socket.fd]
            del self._feed_of[joined_socket.fd]
            joined_socket.close()


def chosen_feeds(plan: StripePlan, wanted: Iterable[str]) -> tuple[str, ...]:
    """The feeds that a customer names, which must be in the plan; all of the plan where it names none."""
    names = tuple(wanted) or plan.feeds
    for name in names:
        if name not in plan.feeds:
            raise UserError(f"--feeds names {name!r}; plan {plan.version} has {', '.join(plan.feeds)}")
    return names


def _resolved(server: Address) -> Address:
    """The address as the kernel reports it; unchanged where the host cannot be resolved."""
    host, port = server
    try:
        return socket.gethostbyname(host), port
    except (OSError, UnicodeError):
        return server
