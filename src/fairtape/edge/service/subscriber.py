"""A customer on real sockets: joins the groups of its stripes on its feeds, and asks for the rest."""

import select
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from fairtape.core.addresses import Address
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.edge.protocol.customer import REPAIR, Customer, CustomerOptions
from fairtape.edge.protocol.customer_records import PlanChange, Record
from fairtape.edge.protocol.effects import SendUnicast
from fairtape.market.stripes import StripePlan
from fairtape.net.clock import Clock
from fairtape.net.transports import Interface
from fairtape.net.udp import UdpSocket, bind

DATAGRAMS_MAX: Final = 512  # that are read from one socket in one turn
LOOK_PERIOD: Final[Duration] = 50 * MILLISECOND  # the longest wait
PLAN_PERIOD: Final[Duration] = 200 * MILLISECOND  # between two looks for a plan that was announced
SOCKETS_MAX: Final = 1_000  # groups that one customer joins


class MulticastSubscriber:
    """One customer, turned by whoever wants its records."""

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
        """`plans` finds a plan by its version, or not yet; `wanted` names stripes, all where it names none."""
        self.customer = Customer(tag, feeds=feeds, servers=servers, options=options)
        self.strangers = 0  # datagrams at the port for repairs that no server sent
        self._servers = {_resolved(server) for server in servers}
        self._feeds = tuple(feeds)
        self._interface = Interface.named(interface)
        self._clock = clock
        self._plans = plans
        self._wanted = frozenset(wanted)
        self._groups: dict[int, list[UdpSocket]] = {}  # by the versions of the plans
        self._feed_of: dict[int, str] = {}
        self._awaited: set[int] = set()  # versions of plans that were announced
        self._plan_at: Instant = 0
        self._repairs = UdpSocket(bind("", 0))
        self._sockets: dict[int, UdpSocket] = {self._repairs.fd: self._repairs}
        self._poll = select.poll()
        self._poll.register(self._repairs.fd, select.POLLIN)

    def follow(self, plan: StripePlan, *, starts: Mapping[int, int] | None = None, breaks: int = 0) -> None:
        """Hear a plan: join its groups, and those of the one before it stay joined until the next."""
        stripes = [stripe for stripe in plan.edge if not self._wanted or stripe.number in self._wanted]
        if len(stripes) * len(self._feeds) + len(self._sockets) > SOCKETS_MAX:
            raise UserError(f"stripes are {len(stripes)}, more than one customer hears; name some with --stripe")
        for version in sorted(self._groups)[:-1]:
            self._leave(version)
        joined = self._groups.setdefault(plan.version, [])
        for stripe in stripes:
            for feed in self._feeds:
                endpoint = stripe.endpoint(feed)
                heard = UdpSocket(self._interface.join((endpoint.address, endpoint.port)))
                joined.append(heard)
                self._sockets[heard.fd] = heard
                self._poll.register(heard.fd, select.POLLIN)
                self._feed_of[heard.fd] = feed
        now = self._clock.now()
        self.customer.follow(plan, [stripe.number for stripe in stripes], now, starts=starts, breaks=breaks)

    def turn(self) -> list[Record]:
        """Wait for a moment at most; the records since the last call."""
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
            self._look_for_plans()
        return self._records()

    def _repaired(self) -> list[bytes]:
        """What the servers answered. Anybody can send to this port, and must not be believed."""
        senders: list[Address] = []
        datagrams = self._repairs.receive(DATAGRAMS_MAX, senders)
        known = [datagram for datagram, sender in zip(datagrams, senders, strict=True) if sender in self._servers]
        self.strangers += len(datagrams) - len(known)
        return known

    def close(self) -> None:
        """Leave all groups."""
        for each in self._sockets.values():
            each.close()

    def _wait_period(self) -> Duration:
        due_at = self.customer.deadline()
        left = LOOK_PERIOD if due_at is None else due_at - self._clock.now()
        return max(min(left, LOOK_PERIOD), 0)

    def _records(self) -> list[Record]:
        records: list[Record] = []
        for effect in self.customer.drain():
            if isinstance(effect, SendUnicast):
                self._repairs.send(effect.datagrams, effect.to)
                continue
            if isinstance(effect, PlanChange):
                self._awaited.add(effect.version)
                self._plan_at = 0
            records.append(effect)
        return records

    def _look_for_plans(self) -> None:
        for version in sorted(self._awaited):
            plan = self._plans(version)
            if plan is not None:
                self._awaited.discard(version)
                self.follow(plan)

    def _leave(self, version: int) -> None:
        for heard in self._groups.pop(version):
            self._poll.unregister(heard.fd)
            del self._sockets[heard.fd]
            del self._feed_of[heard.fd]
            heard.close()


def feeds_of(plan: StripePlan, wanted: Iterable[str]) -> tuple[str, ...]:
    """The feeds that a customer names, which the plan must have; all of them where it names none."""
    names = tuple(wanted) or plan.feeds
    for name in names:
        if name not in plan.feeds:
            raise UserError(f"--feeds names {name!r}; plan {plan.version} has {', '.join(plan.feeds)}")
    return names


def _resolved(server: Address) -> Address:
    """As the kernel names a sender; one that cannot be found now will not answer."""
    host, port = server
    try:
        return socket.gethostbyname(host), port
    except (OSError, UnicodeError):
        return server
