"""The trading floors as one process: six sources, each of which publishes the trades of its venue when they happen."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.demo.reformers import Rhythm
from fairtape.demo.world import FLOORS, SITES, WorldPlan
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.process.temporary_site import Rounds
from fairtape.deployment.ring_plan import RingPlan
from fairtape.deployment.ring_runtime import faults_at, source_of, source_runtime
from fairtape.market.flow import Flow, batches, by_venue
from fairtape.market.trades import TRADE_SIZE, Trades, blank_trades
from fairtape.net.clock import Clock, SharedClock
from fairtape.net.driver import Driver
from fairtape.net.node_runtime import NodeRuntime
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation

SYMBOLS: Final = 2_000
SLICE_PERIOD: Final = 100 * MILLISECOND
GATHER_PERIOD: Final = 2 * MILLISECOND  # trades of one burst leave a floor in one datagram


@dataclass(frozen=True, slots=True)
class Opening:
    """The order to trade from this instant on: there is a ring."""

    opens_at: Instant


@dataclass(frozen=True, slots=True)
class Close:
    """The order to trade no more and to see everything acknowledged."""


@dataclass(frozen=True, slots=True)
class FloorNews:
    """How far the floors are."""

    published: int
    closed: bool  # the session is over and everything is acknowledged


def run_floors(link: ChildLink, *, seconds: float, rate: float, seed: int) -> None:
    """The whole life of the floors' process."""
    link.tell(Ready())
    plan = link.expect(WorldPlan)
    opening = link.expect(Opening)
    if plan is None or opening is None:
        return
    clock = SharedClock()
    session = Session(
        Flow(
            rate=rate,
            symbols=SYMBOLS,
            venues=len(FLOORS),
            starts_at=opening.opens_at,
            session_period=int(seconds * SECOND),
            slice_period=min(SLICE_PERIOD, int(seconds * SECOND)),
        ),
        seed,
    )
    driver = Driver([session.seat(plan.ring, floor, clock) for floor in FLOORS], clock)
    rounds = _rounds(plan.ring.formation)

    def ended() -> bool:
        nonlocal rounds
        if rounds.come(clock.now()):
            for order in link.orders():
                if isinstance(order, Close):
                    session.close()
                elif isinstance(order, Rhythm):
                    rounds = _rounds(order.formation)
            link.offer(FloorNews(session.published, session.closed))
        return link.stopped

    try:
        driver.run(ended)
    finally:
        driver.close()


def _rounds(formation: Formation) -> Rounds:
    return Rounds(formation, turn=len(SITES), turns=len(SITES) + 1)


class Session:
    """One trading session of all floors: draws the flow slice by slice and hands each floor its own trades."""

    def __init__(self, flow: Flow, seed: int) -> None:
        self._slices: Iterator[Trades] = batches(flow, np.random.default_rng(seed))
        self._period = flow.slice_period
        self.next_slice_at: Instant | None = flow.starts_at
        self._floors: dict[int, TradingFloorSource] = {}

    def seat(self, plan: RingPlan, node: int, clock: Clock) -> NodeRuntime:
        """The seat of one floor."""
        config = plan.source(node)
        source = source_of(config, clock)
        floor = self._floors[FLOORS[node].number] = TradingFloorSource(self, source)
        return source_runtime(config, source, producer=floor, link_faults=faults_at(plan, node))

    @property
    def published(self) -> int:
        """Messages of all floors."""
        return sum(floor.published for floor in self._floors.values())

    @property
    def closed(self) -> bool:
        """Nothing is left to publish, and everything published has its place in the order."""
        return self.next_slice_at is None and all(floor.idle for floor in self._floors.values())

    def close(self) -> None:
        """Trade no more."""
        self.next_slice_at = None
        for floor in self._floors.values():
            floor.take(blank_trades(0))

    def advance(self, now: Instant) -> None:
        """Draw the slices that have begun."""
        while self.next_slice_at is not None and self.next_slice_at <= now:
            trades = next(self._slices, None)
            if trades is None:
                self.next_slice_at = None
                return
            self.next_slice_at += self._period
            for venue, own in by_venue(trades).items():
                self._floors[venue].add(own)


class TradingFloorSource:
    """One venue: a producer that publishes trades when their time has come."""

    def __init__(self, session: Session, source: Source) -> None:
        self._session = session
        self._source = source
        self._trades = blank_trades(0)
        self.published = 0

    def add(self, trades: Trades) -> None:
        """More trades, later than those that wait."""
        self.take(np.concatenate([self._trades, trades]))

    def take(self, trades: Trades) -> None:
        """These trades instead of those that wait."""
        self._trades = trades

    @property
    def idle(self) -> bool:
        """Nothing waits, and everything published is acknowledged."""
        return not len(self._trades) and self._source.idle

    def deadline(self) -> Instant | None:
        """When the first waiting trade leaves, or the next slice begins."""
        next_slice_at = self._session.next_slice_at
        if not len(self._trades):
            return next_slice_at
        leaves_at = int(self._trades["traded_at"][0]) + GATHER_PERIOD
        return leaves_at if next_slice_at is None else min(leaves_at, next_slice_at)

    def wake(self, now: Instant) -> None:
        """Publish what has been traded."""
        self._session.advance(now)
        due = int(np.searchsorted(self._trades["traded_at"], now, side="right"))
        if due:
            taken = self._source.publish_records(self._trades[:due].tobytes(), TRADE_SIZE, now)
            self.published += taken
            self._trades = self._trades[taken:]
