"""A receiver as a process: a site of the ring that obeys the reformation server, and its outlet to the customers."""

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

SALES_MAX: Final = 16  # of one piece of news: the busiest symbols
# Heartbeats only where a token brings nothing: on a machine that is a whole world, dozens of customers hear each.
SPEECH: Final = RemulticastOptions(heartbeat_delay=300 * MILLISECOND, heartbeat_period=600 * MILLISECOND)
# Two cores cannot release at nine sites and speak to all regions in one instant. So all sites release first, and those
# who speak do so at the same instant as one another, a moment later; those who do not, when it disturbs nobody.
SPEECH_DELAY: Final = 10 * MILLISECOND
SILENT_DELAY: Final = 50 * MILLISECOND


@dataclass(frozen=True, slots=True)
class TickerNews:
    """The last sales of the busiest symbols, with their volumes."""

    symbols: int
    sales: tuple[tuple[Sale, Quantity], ...]


def run_receiver(link: ChildLink, me: NodeId, journal: Path, shows: bool = False) -> None:
    """The whole life of a receiver's process. With `shows` its news tell of the ticker as well."""
    link.tell(Ready())
    plan = link.expect(WorldPlan)
    if plan is None:
        return
    clock = SharedClock()
    log = ReleaseLog(keeps_messages=shows)
    speaker = Speaker(plan.edge, log.delivered)
    screen = TickerScreen() if shows else None
    traces = SiteTraces(journal, stripe=plan.ring.stripe, site=me, note=lambda _text: None)
    site, seat = _seat(plan, me, journal, clock, speaker, traces.tracer)
    seat.reporter = log.reported
    if screen is not None:
        speaker.also(screen)
    driver = Driver([seat], clock, gather_period=gather_period(plan.ring.formation.timing))
    rounds = Rounds(plan.ring.formation, turn=0, turns=1)

    def ended() -> bool:
        nonlocal rounds
        now = clock.now()
        formation = site.formation
        if formation is not None and formation.number != speaker.formation:
            speaker.assign(formation.number, feeds_of(me, REGIONS, formation.members), now)
            turn = formation.members.index(me) if me in formation.members else 0
            rounds = Rounds(formation, turn=turn, turns=len(formation.members))
        if rounds.come(now):
            traces.write(now)
            for _ in link.orders():
                pass
            if screen is not None:
                link.offer(screen.news())
            lost = seat.link_faults.lost if seat.link_faults else 0
            if site.receiver is not None and link.offer(site_news(log, site.receiver, lost=lost)):
                log.clear_recent()
        return link.stopped

    try:
        tune_gc()
        run_in_real_time()  # where it is granted, as in a deployment
        driver.run(ended)
    finally:
        driver.close()
        speaker.close()
        traces.close(clock.now())


def _seat(
    plan: WorldPlan, me: NodeId, journal: Path, clock: Clock, speaker: "Speaker", tracer: Tracer | None
) -> tuple[Site, NodeRuntime]:
    """The site with its sockets and its journal."""
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
    seat = NodeRuntime(
        site,
        ring_transport(ring, me),
        link_faults=faults_at(ring, me),
        journal=writer,
        history=History(journal),
        producer=speaker,
        consumer=speaker.delivered,
        on_formation=speaker.turned,
    )
    return site, seat


class Speaker:
    """The outlet of a receiver on real sockets: a consumer, a herald and a producer of its seat."""

    def __init__(self, plan: EdgePlan, consumer: Callable[[Deliver], None]) -> None:
        self.formation = 0  # whose assignment it follows
        self._routes = plan.routes
        self._consumers = [consumer]
        self._heralds: list[Callable[[FormationChange], None]] = []
        edition = Edition(plan.settings.tag, plan.stripes, plan.settings.core)
        self._outlet = Remulticaster(StripePosition.fresh(edition), feeds=(), options=SPEECH)
        self._delay: Duration = SILENT_DELAY
        self._waiting: deque[tuple[Instant, Deliver]] = deque()  # what was released and is not said yet
        own = bind(LOOPBACK, 0)
        if plan.multicast:
            Interface.named(LOOPBACK).configure_sender(own, ttl=plan.settings.ttl)
        self._socket = UdpSocket(own)

    def also(self, screen: "TickerScreen") -> None:
        """Somebody else who hears what is released."""
        self._consumers.append(screen.delivered)
        self._heralds.append(screen.turned)

    def assign(self, formation: int, feeds: tuple[str, ...], now: Instant) -> None:
        """Speak on the feeds that a formation leaves to this receiver."""
        self._delay = SPEECH_DELAY if feeds else SILENT_DELAY
        self._outlet.set_feeds(feeds, now)
        if not self.formation:
            self._outlet.start(now)
        self.formation = formation

    def delivered(self, delivery: Deliver) -> None:
        """Say it soon."""
        self._waiting.append((delivery.release.commit_at + self._delay, delivery))
        for consumer in self._consumers:
            consumer(delivery)

    def turned(self, change: FormationChange) -> None:
        """A formation takes over at a place of the order to come."""
        self._outlet.turn(change)
        for on_formation in self._heralds:
            on_formation(change)

    def deadline(self) -> Instant | None:
        """When there is something to say."""
        due_at = self._outlet.deadline()
        if not self._waiting:
            return due_at
        return self._waiting[0][0] if due_at is None else min(due_at, self._waiting[0][0])

    def wake(self, now: Instant) -> None:
        """Say what is due."""
        while self._waiting and self._waiting[0][0] <= now:
            self._outlet.deliver(self._waiting.popleft()[1], now)
        self._outlet.wake(now)
        self._carry_out()

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _carry_out(self) -> None:
        for effect in self._outlet.drain():
            if isinstance(effect, SendMulticast):
                self._socket.send(effect.datagrams, self._routes[effect.to])


class TickerScreen:
    """The unified ticker of one site, for a screen: it is applied between the releases, not when they are due."""

    def __init__(self) -> None:
        self._ticker = Ticker()
        self._waiting: list[Deliver | FormationChange] = []  # since the last news, of which there are ten a second

    def delivered(self, delivery: Deliver) -> None:
        """Only note it."""
        self._waiting.append(delivery)

    def turned(self, change: FormationChange) -> None:
        """Only note it."""
        self._waiting.append(change)

    def news(self) -> TickerNews:
        """Apply what was noted, and say how the ticker stands."""
        for each in self._waiting:
            if isinstance(each, Deliver):
                self._ticker.apply(each)
            else:
                self._ticker.turn(each)
        self._waiting.clear()
        busiest = [(each.last, each.volume.quantity) for each in self._ticker.sales.busiest(SALES_MAX)]
        sales = tuple((last, quantity) for last, quantity in busiest if last is not None)
        return TickerNews(len(self._ticker.sales), sales)
