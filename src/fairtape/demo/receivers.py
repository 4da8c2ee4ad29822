"""A receiver as a process: a site of the ring, and the remulticast of its releases to the customers."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.demo.world import REFORMER, REGIONS, EdgePlan, WorldPlan
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.process.release_log import ReleaseLog
from fairtape.deployment.process.site_traces import SiteTraces
from fairtape.deployment.process.temporary_site import Rounds, site_news
from fairtape.deployment.ring_runtime import faults_at, gather_period, ring_transport
from fairtape.edge.protocol.effects import SendMulticast
from fairtape.edge.protocol.feed_assignment import feeds_of
from fairtape.edge.protocol.remulticast import Remulticaster, RemulticastOptions
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.journal import History, JournalWriter
from fairtape.market.prices import Quantity
from fairtape.net.clock import Clock, SharedClock
from fairtape.net.driver import Driver, run_in_real_time, tune_gc
from fairtape.net.node_runtime import NodeRuntime
from fairtape.net.transports import LOOPBACK, Interface
from fairtape.net.udp import UdpSocket, bind
from fairtape.nodes.site import Site, SiteConfig
from fairtape.ring.receiver.tracing import Tracer
from fairtape.tape.sales import Sale
from fairtape.tape.ticker import Ticker
from fairtape.wire.frames import NUMBER_MAX, NodeId

SALES_MAX: Final = 16  # in one `TickerNews`: the busiest symbols
# Heartbeats are sparse: on this one machine, every one of them is processed by dozens of customers.
REMULTICAST_OPTIONS: Final = RemulticastOptions(heartbeat_delay=300 * MILLISECOND, heartbeat_period=600 * MILLISECOND)
# A small machine cannot release at nine sites and remulticast to all regions at the same instant. So all sites release
# first; sites with a feed publish together shortly after, and the others update their position later still.
PUBLISH_DELAY: Final = 10 * MILLISECOND
STANDBY_DELAY: Final = 50 * MILLISECOND


@dataclass(frozen=True, slots=True)
class TickerNews:
    """The last sales and the volumes of the busiest symbols."""

    symbols: int
    sales: tuple[tuple[Sale, Quantity], ...]


def run_receiver(link: ChildLink, me: NodeId, journal: Path, shows: bool = False) -> None:
    """Entry point of the process. With `shows` it reports the ticker as well."""
    link.tell(Ready())
    plan = link.expect(WorldPlan)
    if plan is None:
        return
    clock = SharedClock()
    log = ReleaseLog(keeps_messages=shows)
    publisher = RegionPublisher(plan.edge, log.delivered)
    screen = TickerScreen() if shows else None
    traces = SiteTraces(journal, stripe=plan.ring.stripe, site=me, note=lambda _text: None)
    site, runtime = _open_site(plan, me, journal, clock, publisher, traces.tracer)
    runtime.reporter = log.reported
    if screen is not None:
        publisher.add_screen(screen)
    driver = Driver([runtime], clock, gather_period=gather_period(plan.ring.formation.timing))
    rounds = Rounds(plan.ring.formation, turn=0, turns=1)

    def stopped() -> bool:
        nonlocal rounds
        now = clock.now()
        formation = site.formation
        if formation is not None and formation.number != publisher.formation:
            publisher.assign(formation.number, feeds_of(me, REGIONS, formation.members), now)
            turn = formation.members.index(me) if me in formation.members else 0
            rounds = Rounds(formation, turn=turn, turns=len(formation.members))
        if rounds.come(now):
            traces.write(now)
            for _ in link.orders():
                pass
            if screen is not None:
                link.offer(screen.news())
            lost = runtime.link_faults.lost if runtime.link_faults else 0
            if site.receiver is not None and link.offer(site_news(log, site.receiver, lost=lost)):
                log.clear_recent()
        return link.stopped

    try:
        tune_gc()
        run_in_real_time()  # where permitted, as in a deployment
        driver.run(stopped)
    finally:
        driver.close()
        publisher.close()
        traces.close(clock.now())


def _open_site(
    plan: WorldPlan, me: NodeId, journal: Path, clock: Clock, publisher: "RegionPublisher", tracer: Tracer | None
) -> tuple[Site, NodeRuntime]:
    """Create the site with its sockets and its journal."""
    ring = plan.ring
    writer = JournalWriter.open(journal, stripe=ring.stripe, site=me)
    site = Site(
        SiteConfig(me=me, reformers=(REFORMER,), timing=ring.formation.timing, stripe=ring.stripe),
        keys=ring.keys,
        born_at=clock.now(),
        recovered=writer.truncate_after(NUMBER_MAX),
        clock_bound=clock.bound,
        tracer=tracer,
    )
    runtime = NodeRuntime(
        site,
        ring_transport(ring, me),
        link_faults=faults_at(ring, me),
        journal=writer,
        history=History(journal),
        producer=publisher,
        consumer=publisher.delivered,
        on_formation=publisher.turned,
    )
    return site, runtime


class RegionPublisher:
    """Remulticasts the releases of a receiver over real sockets. Consumer and producer of its runtime."""

    def __init__(self, plan: EdgePlan, consumer: Callable[[Deliver], None]) -> None:
        self.formation = 0  # the formation whose feed assignment applies
        self._routes = plan.routes
        self._consumers = [consumer]
        self._formation_listeners: list[Callable[[FormationChange], None]] = []
        edition = Edition(plan.settings.tag, plan.stripes, plan.settings.core)
        self._remulticaster = Remulticaster(StripePosition.fresh(edition), feeds=(), options=REMULTICAST_OPTIONS)
        self._delay: Duration = STANDBY_DELAY
        self._waiting: deque[tuple[Instant, Deliver]] = deque()  # released and not yet published
        sender = bind(LOOPBACK, 0)
        if plan.multicast:
            Interface.named(LOOPBACK).configure_sender(sender, ttl=plan.settings.ttl)
        self._socket = UdpSocket(sender)

    def add_screen(self, screen: "TickerScreen") -> None:
        """Pass deliveries and formation changes to the screen as well."""
        self._consumers.append(screen.delivered)
        self._formation_listeners.append(screen.turned)

    def assign(self, formation: int, feeds: tuple[str, ...], now: Instant) -> None:
        """Publish on the feeds that the formation assigns to this receiver."""
        self._delay = PUBLISH_DELAY if feeds else STANDBY_DELAY
        self._remulticaster.set_feeds(feeds, now)
        if not self.formation:
            self._remulticaster.start(now)
        self.formation = formation

    def delivered(self, delivery: Deliver) -> None:
        """Queue a delivery for publication, and pass it on."""
        self._waiting.append((delivery.release.commit_at + self._delay, delivery))
        for consumer in self._consumers:
            consumer(delivery)

    def turned(self, change: FormationChange) -> None:
        """A new formation takes over at a future position of the order."""
        self._remulticaster.on_formation(change)
        for on_formation in self._formation_listeners:
            on_formation(change)

    def deadline(self) -> Instant | None:
        due_at = self._remulticaster.deadline()
        if not self._waiting:
            return due_at
        return self._waiting[0][0] if due_at is None else min(due_at, self._waiting[0][0])

    def wake(self, now: Instant) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            self._remulticaster.deliver(self._waiting.popleft()[1], now)
        self._remulticaster.wake(now)
        self._carry_out()

    def close(self) -> None:
        self._socket.close()

    def _carry_out(self) -> None:
        for effect in self._remulticaster.drain():
            if isinstance(effect, SendMulticast):
                self._socket.send(effect.datagrams, self._routes[effect.to])


class TickerScreen:
    """The unified ticker of one site, for the live view. It is updated between releases, to keep them punctual."""

    def __init__(self) -> None:
        self._ticker = Ticker()
        self._waiting: list[Deliver | FormationChange] = []  # since the last news

    def delivered(self, delivery: Deliver) -> None:
        self._waiting.append(delivery)

    def turned(self, change: FormationChange) -> None:
        self._waiting.append(change)

    def news(self) -> TickerNews:
        """Apply what is queued, and return the state of the ticker."""
        for each in self._waiting:
            if isinstance(each, Deliver):
                self._ticker.apply(each)
            else:
                self._ticker.on_formation(each)
        self._waiting.clear()
        busiest = [(each.last, each.volume.quantity) for each in self._ticker.sales.busiest(SALES_MAX)]
        sales = tuple((last, quantity) for last, quantity in busiest if last is not None)
        return TickerNews(len(self._ticker.sales), sales)
