"""Publishing trades into a ring as one of its sources: as fast as possible, at a rate, or at the recorded speed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.deployment.publish.source_runtime import SourceConfig, source_of, source_runtime
from fairtape.market.trades import TRADE_SIZE, Trades, blank_trades
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver
from fairtape.nodes.source import Source
from fairtape.ring.sender.window import Limit

QUEUED_MAX: Final = 1 << 20  # bytes in the source; the rest stays in the file
CHUNK_MAX: Final = 8_192  # trades in one submission
SILENCE_MAX: Final = 5 * SECOND  # without any acknowledgment, before publishing is given up

RATES: Final = (0.001, 10_000_000.0)  # trades per second: from four in an hour to more than any machine can send
SPEEDS: Final = (0.001, 1_000_000.0)  # times the recorded speed: from a thousandth to a day in a tenth of a second

Instants = npt.NDArray[np.int64]


class Ending(Enum):
    """How publishing ended."""

    COMPLETE = "everything is acknowledged"
    INTERRUPTED = "interrupted by the user"
    SILENT = "the ring no longer acknowledges"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPace:
    """When each trade is sent: `rate` per second, or at `speed` times the recorded speed, or at once."""

    rate: float | None = None
    speed: float | None = None

    def period(self, count: int, span: Duration) -> Duration:
        """The least time for `count` trades that were recorded over `span`."""
        if self.rate is not None:
            return round(count * SECOND / self.rate)
        return round(span / self.speed) if self.speed is not None else 0

    def send_delays(self, trades: Trades, *, first: int, opened_at: Instant) -> Instants:
        """The delay of each trade from the start. `first` trades precede these; the first of all was at `opened_at`."""
        if self.rate is not None:
            return ((first + np.arange(len(trades))) * (SECOND / self.rate)).astype(np.int64)
        if self.speed is not None:
            elapsed: Instants = ((trades["traded_at"] - opened_at) / self.speed).astype(np.int64)
            return elapsed
        return np.zeros(len(trades), np.int64)


class TradeFeed:
    """A producer that submits trades batch by batch when the pace and the source's queue allow it."""

    def __init__(self, source: Source, batches: Iterator[Trades], pace: PublishPace) -> None:
        self._source = source
        self._batches = batches
        self._pace = pace
        self._trades = blank_trades(0)
        self._send_at: Instants = np.zeros(0, np.int64)
        self._began_at: Instant | None = None
        self._opened_at: Instant = 0  # time of the first trade
        self._drawn = 0
        self.published = 0
        self.exhausted = False

    def deadline(self) -> Instant | None:
        """When the next trade is due; None while the queue of the source is full."""
        if self.exhausted or self._source.queued >= QUEUED_MAX:
            return None
        return int(self._send_at[0]) if len(self._send_at) else 0

    def wake(self, now: Instant) -> None:
        if not len(self._trades):
            self._draw(now)
        due = min(int(np.searchsorted(self._send_at, now, side="right")), CHUNK_MAX)
        if due:
            taken = self._source.publish_records(self._trades[:due].tobytes(), TRADE_SIZE, now)
            self.published += taken
            self._trades, self._send_at = self._trades[taken:], self._send_at[taken:]

    def _draw(self, now: Instant) -> None:
        trades = next(self._batches, None)
        if trades is None:
            self.exhausted = True
            return
        if self._began_at is None and len(trades):
            self._began_at, self._opened_at = now, int(trades["traded_at"][0])
        began_at = now if self._began_at is None else self._began_at
        self._trades = trades
        self._send_at = began_at + self._pace.send_delays(trades, first=self._drawn, opened_at=self._opened_at)
        self._drawn += len(trades)


@dataclass(frozen=True, slots=True)
class Published:
    """The result of publishing."""

    published: int
    acknowledged: int
    resent: int  # blocks
    period: Duration
    ending: Ending
    held_back_by: Mapping[Limit, float] = field(default_factory=dict)  # shares of the time, the largest first

    @property
    def per_second(self) -> float:
        """Acknowledged messages per second."""
        return self.acknowledged * SECOND / self.period if self.period else 0.0


def publish(
    config: SourceConfig, batches: Iterator[Trades], pace: PublishPace, progress: Callable[[int], None]
) -> Published:
    """Publish until everything is acknowledged, until SIGINT, or until the ring is silent with trades outstanding.

    `progress` is called with the number of acknowledged trades.
    """
    clock = SharedClock()
    source = source_of(config, clock)
    feed = TradeFeed(source, batches, pace)
    driver = Driver([source_runtime(config, source, producer=feed)], clock)
    began_at = heard_at = clock.now()
    acknowledged = 0
    ending = Ending.INTERRUPTED

    def ended() -> bool:
        nonlocal heard_at, acknowledged, ending
        now = clock.now()
        if source.acked_through > acknowledged or source.idle:
            heard_at = now
        if source.acked_through > acknowledged:
            acknowledged = source.acked_through
            progress(acknowledged)
        if feed.exhausted and source.idle:
            ending = Ending.COMPLETE
        elif now - heard_at > SILENCE_MAX:
            ending = Ending.SILENT
        return ending is not Ending.INTERRUPTED

    try:
        driver.run(ended)
    finally:
        driver.close()
    return Published(
        feed.published,
        source.acked_through,
        source.counts["resent"],
        heard_at - began_at,
        ending,
        source.held_back_by,
    )
