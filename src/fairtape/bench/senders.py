"""The sending side of a run: one process with all sources, which flood the ring or publish at a fixed rate."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fairtape.bench.setting import END_PERIOD_MAX, Setting
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Instant
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.ring_plan import RingPlan
from fairtape.deployment.ring_runtime import source_of, source_runtime
from fairtape.net.clock import Clock, SharedClock
from fairtape.net.driver import Driver, run_in_real_time, tune_gc
from fairtape.nodes.source import Source

CHUNK_RECORDS: Final = 2_048  # published at once by a flooding producer
POLL_PERIOD: Final = 250 * MILLISECOND  # between two polls for orders
QUEUED_MIN: Final = 256 << 10  # bytes in the queue of the source, below which more is published
STAMP: Final = struct.Struct(">q")  # the first bytes of a paced message: when it was due


class Flood:
    """A producer that keeps a source's queue full."""

    def __init__(self, source: Source, size: int, starts_at: Instant, ends_at: Instant) -> None:
        self._source = source
        self._size = size
        self._starts_at = starts_at
        self._ends_at = ends_at
        self._chunk = bytes(size) * CHUNK_RECORDS
        self.published = 0

    def deadline(self) -> Instant | None:
        """Immediate while the queue is low."""
        return self._starts_at if self._source.queued < QUEUED_MIN and not self.over else None

    @property
    def over(self) -> bool:
        return self._ends_at == 0

    def wake(self, now: Instant) -> None:
        if now >= self._ends_at:
            self._ends_at = 0
            return
        self.published += self._source.publish_records(self._chunk, self._size, now)


class PacedSender:
    """A producer that publishes stamped messages at a fixed rate."""

    def __init__(self, source: Source, size: int, rate: int, starts_at: Instant, ends_at: Instant) -> None:
        self._source = source
        self._filler = bytes(size - STAMP.size)
        self._period = SECOND // rate
        self._next_at = starts_at
        self._ends_at = ends_at
        self.published = 0

    def deadline(self) -> Instant | None:
        return None if self.over else self._next_at

    @property
    def over(self) -> bool:
        return self._next_at >= self._ends_at

    def wake(self, now: Instant) -> None:
        """Publish what is due, stamped with its due time, so that a delayed sender counts as latency."""
        while self._next_at <= now and not self.over:
            self.published += self._source.publish([STAMP.pack(self._next_at) + self._filler], now)
            self._next_at += self._period


@dataclass(frozen=True, slots=True)
class Published:
    """The number of messages that the senders published. A receiver ends when it has delivered as many."""

    count: int


def sender_process(link: ChildLink, setting: Setting) -> None:
    """All sources: publish for the time of the run, then run until everything is acknowledged."""
    clock = SharedClock()
    if setting.real_time:
        run_in_real_time()
    link.tell(Ready())
    plan = link.expect(RingPlan)
    if plan is None:
        return
    configs = [plan.source(node) for node in setting.sources]
    sources = [source_of(config, clock) for config in configs]
    producers = [_producer(source, setting, plan) for source in sources]
    runtimes = [
        source_runtime(config, source, producer)
        for config, source, producer in zip(configs, sources, producers, strict=True)
    ]
    driver = Driver(runtimes, clock)
    tune_gc()
    driver.run(
        until=_EndCondition(clock, link, sources, producers, setting.window_of(plan.formation)[1] + END_PERIOD_MAX).over
    )
    driver.close()
    link.tell(Published(sum(producer.published for producer in producers)))
    link.rest()


class _EndCondition:
    """The end condition of the senders."""

    def __init__(
        self,
        clock: Clock,
        link: ChildLink,
        sources: Sequence[Source],
        producers: Sequence[Flood | PacedSender],
        give_up_at: Instant,
    ) -> None:
        self._clock = clock
        self._link = link
        self._sources = sources
        self._producers = producers
        self._give_up_at = give_up_at
        self._poll_at: Instant = 0

    def over(self) -> bool:
        """Whether everything is published and acknowledged, the time limit is reached, or the run is stopped."""
        now = self._clock.now()
        if now >= self._poll_at:
            self._poll_at = now + POLL_PERIOD
            for _ in self._link.orders():
                pass
        done = all(each.over for each in self._producers) and all(each.idle for each in self._sources)
        return done or self._link.stopped or now > self._give_up_at


def _producer(source: Source, setting: Setting, plan: RingPlan) -> Flood | PacedSender:
    starts_at, ends_at = plan.formation.starts_at, setting.window_of(plan.formation)[1]
    if setting.rate is None:
        return Flood(source, setting.size, starts_at, ends_at)
    return PacedSender(source, setting.size, setting.rate, starts_at + source.me * 337 % 1000 * MICROSECOND, ends_at)
