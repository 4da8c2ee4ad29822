"""The trading floors as one process: six sources, each publishing the trades of its venue as they happen."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.demo.world import FLOORS, BackgroundTimer
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.publish.source_runtime import SourceConfig, source_of, source_runtime
from fairtape.deployment.publish.target import publish_target
from fairtape.market.flow import Flow, batches, by_venue
from fairtape.market.trades import TRADE_SIZE, Trades, blank_trades
from fairtape.net.clock import Clock, SharedClock
from fairtape.net.driver import Driver
from fairtape.net.node_runtime import NodeRuntime
from fairtape.nodes.source import Source

SYMBOLS: Final = 2_000
SLICE_PERIOD: Final = 100 * MILLISECOND
GATHER_PERIOD: Final = 2 * MILLISECOND  # so that the trades of a burst share a datagram


@dataclass(frozen=True, slots=True)
class Opening:
    """The command to start trading at this instant. Sent when the ring has formed."""

    opens_at: Instant
    commit_at: Instant  # of some token


@dataclass(frozen=True, slots=True)
class Close:
    """The command to stop trading and wait until everything is acknowledged."""


@dataclass(frozen=True, slots=True)
class FloorNews:
    """Progress of the floors."""

    published: int
    closed: bool  # the session is over and everything is acknowledged


def run_floors(link: ChildLink, folder: Path, *, seconds: float, rate: float, seed: int) -> None:
    """Entry point of the process."""
    target = publish_target(folder)
    link.send(Ready())
    opening = link.wait_for(Opening)
    if opening is None:
        return
    clock = SharedClock()
    session = TradingSession(
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
    driver = Driver([session.runtime(target.source_config(floor), clock) for floor in FLOORS], clock)
    timer = BackgroundTimer(opening.commit_at, turn=0, turns=1)

    def stopped() -> bool:
        if timer.is_due(clock.now()):
            for command in link.commands():
                if isinstance(command, Close):
                    session.close()
            link.try_send(FloorNews(session.published, session.closed))
        return link.stopped

    try:
        driver.run(stopped)
    finally:
        driver.close()


class TradingSession:
    """One trading session of all floors: generates the flow slice by slice and passes each floor its trades."""

    def __init__(self, flow: Flow, seed: int) -> None:
        self._slices: Iterator[Trades] = batches(flow, np.random.default_rng(seed))
        self._period = flow.slice_period
        self.next_slice_at: Instant | None = flow.starts_at
        self._floors: dict[int, TradingFloorSource] = {}

    def runtime(self, config: SourceConfig, clock: Clock) -> NodeRuntime:
        source = source_of(config, clock)
        floor = self._floors[FLOORS[config.me].number] = TradingFloorSource(self, source)
        return source_runtime(config, source, producer=floor)

    @property
    def published(self) -> int:
        """Messages published by all floors."""
        return sum(floor.published for floor in self._floors.values())

    @property
    def closed(self) -> bool:
        """Whether nothing is left to publish and everything published is acknowledged."""
        return self.next_slice_at is None and all(floor.idle for floor in self._floors.values())

    def close(self) -> None:
        """Stop trading and drop the trades that are not published yet."""
        self.next_slice_at = None
        for floor in self._floors.values():
            floor.take(blank_trades(0))

    def advance(self, now: Instant) -> None:
        """Generate the slices that have begun."""
        while self.next_slice_at is not None and self.next_slice_at <= now:
            trades = next(self._slices, None)
            if trades is None:
                self.next_slice_at = None
                return
            self.next_slice_at += self._period
            for venue, own in by_venue(trades).items():
                self._floors[venue].add(own)


class TradingFloorSource:
    """One venue: a producer that publishes trades when they are due."""

    def __init__(self, session: TradingSession, source: Source) -> None:
        self._session = session
        self._source = source
        self._trades = blank_trades(0)
        self.published = 0

    def add(self, trades: Trades) -> None:
        """Queue more trades, all later than those already queued."""
        self.take(np.concatenate([self._trades, trades]))

    def take(self, trades: Trades) -> None:
        """Replace the queued trades."""
        self._trades = trades

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and everything published is acknowledged."""
        return not len(self._trades) and self._source.idle

    def deadline(self) -> Instant | None:
        """When the first queued trade is due or the next slice begins."""
        next_slice_at = self._session.next_slice_at
        if not len(self._trades):
            return next_slice_at
        leaves_at = int(self._trades["traded_at"][0]) + GATHER_PERIOD
        return leaves_at if next_slice_at is None else min(leaves_at, next_slice_at)

    def wake(self, now: Instant) -> None:
        """Publish the trades that are due."""
        self._session.advance(now)
        due = int(np.searchsorted(self._trades["traded_at"], now, side="right"))
        if due:
            taken = self._source.publish_records(self._trades[:due].tobytes(), TRADE_SIZE, now)
            self.published += taken
            self._trades = self._trades[taken:]
