"""The processes of one run of a ring: one with all sources, and one for each site. All get the same `RingSetting`.

The sources flood the ring or publish at a fixed rate. Release times are those that an application sees: the clock is
read first when a delivery arrives. All other work on a delivery waits for a turn of the loop without deliveries. At the
commit instant all sites of the machine need a processor, and bookkeeping at one site would delay the next.
"""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairtape.bench.results import resident_bytes
from fairtape.core.effects import Deliver
from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.spans import messages
from fairtape.core.timing import Timing
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.publish.source_runtime import SourceConfig, source_of, source_runtime
from fairtape.journal import JournalWriter
from fairtape.net.clock import Clock, SharedClock
from fairtape.net.driver import Driver, gather_period, run_in_real_time, tune_gc
from fairtape.net.fault_injection import seeded_injector
from fairtape.net.node_runtime import NodeRuntime
from fairtape.net.transports import AddressBook, Groups, IpMulticast
from fairtape.nodes.receiver import JoinedTooLate, Receiver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import Keys, Seal

WARM_PERIOD: Final = 500 * MILLISECOND
END_PERIOD_MAX: Final = 30 * SECOND  # allowed after the end of a run
SOURCE_FIRST: Final = 101

BULK: Final = Timing(
    retry_period=30 * MILLISECOND, retries_max=33, token_period=10 * MILLISECOND, commit_delay=80 * MILLISECOND
)
"""For throughput: tokens of about a hundred blocks, and time-outs that suit two busy cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSetting:
    """One run of one ring."""

    receivers: int = 3
    senders: int = 1
    size: int = 64
    seconds: float = 5.0
    timing: Timing = BULK
    rate: int | None = None  # messages per second of each sender; None floods
    loss: float = 0.0  # into the first receiver
    seal: type[Seal] = Seal
    real_time: bool = False  # request real-time scheduling for the processes of the ring

    @property
    def sources(self) -> range:
        """The numbers of the sources. They share one process, as the gateways of one participant do."""
        return range(SOURCE_FIRST, SOURCE_FIRST + self.senders)

    @property
    def window(self) -> Duration:
        """The measured time."""
        return int(self.seconds * SECOND)

    def window_of(self, formation: Formation) -> tuple[Instant, Instant]:
        """When the measurement begins and ends."""
        starts_at = formation.starts_at + WARM_PERIOD
        return starts_at, starts_at + self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """Membership, keys, addresses, and the losses to inject: what all processes of one ring must agree on."""

    formation: Formation
    keys: Keys
    address_book: AddressBook
    groups: Groups
    link_faults: Mapping[NodeId, Mapping[NodeId, LinkFaults]]  # at a node, by sender

    def source(self, me: NodeId) -> SourceConfig:
        return SourceConfig(
            me=me,
            keys=self.keys.for_source(me),
            timing=self.formation.timing,
            resilience=self.formation.resilience,
            address_book=self.address_book,
            groups=self.groups,
            link_faults=self.link_faults.get(me, {}),
        )


# Sources.

CHUNK_RECORDS: Final = 2_048  # published at once by a flooding producer
POLL_PERIOD: Final = 250 * MILLISECOND  # between two polls for commands
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
class PublishedCount:
    """The number of messages that the senders published. A receiver ends when it has delivered as many."""

    count: int


def sender_process(link: ChildLink, setting: RingSetting) -> None:
    """All sources: publish for the time of the run, then run until everything is acknowledged."""
    clock = SharedClock()
    if setting.real_time:
        run_in_real_time()
    link.send(Ready())
    plan = link.wait_for(RingPlan)
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
    link.send(PublishedCount(sum(producer.published for producer in producers)))
    link.wait_until_stopped()


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
            for _ in self._link.commands():
                pass
        done = all(each.over for each in self._producers) and all(each.idle for each in self._sources)
        return done or self._link.stopped or now > self._give_up_at


def _producer(source: Source, setting: RingSetting, plan: RingPlan) -> Flood | PacedSender:
    starts_at, ends_at = plan.formation.starts_at, setting.window_of(plan.formation)[1]
    if setting.rate is None:
        return Flood(source, setting.size, starts_at, ends_at)
    return PacedSender(source, setting.size, setting.rate, starts_at + source.me * 337 % 1000 * MICROSECOND, ends_at)


# Sites.

SAMPLES_MAX: Final = 2_000_000
SAMPLE_PERIOD: Final = 250 * MILLISECOND  # between two reads of memory use and of commands
_NANOSECONDS: Final = "q"


@dataclass(slots=True)
class MemoryUse:
    """Resident memory of a process, in bytes."""

    at_start: int = 0  # before the first token
    warm: int = 0  # when the measurement began
    at_end: int = 0  # when the measurement ended
    most: int = 0


@dataclass(slots=True)
class ReceiverTally:
    """Counts and samples of one receiver in the measured time."""

    starts_at: Instant
    ends_at: Instant
    stamped: bool
    messages: int = 0
    late_messages: int = 0
    late_releases: int = 0
    all_messages: int = 0  # measured or not
    errors: "array[int]" = field(
        default_factory=lambda: array(_NANOSECONDS)
    )  # delivered_at - commit_at, of every release
    latencies: "array[int]" = field(default_factory=lambda: array(_NANOSECONDS))  # from publish to delivery
    memory: MemoryUse = field(default_factory=MemoryUse)

    def take(self, delivery: Deliver, delivered_at: Instant) -> None:
        release = delivery.release
        if not self.starts_at <= delivered_at < self.ends_at:
            return
        self.messages += release.count
        if release.late:
            self.late_messages += release.count
            self.late_releases += 1
        if len(self.errors) < SAMPLES_MAX:
            self.errors.append(delivered_at - release.commit_at)
        if self.stamped and len(self.latencies) < SAMPLES_MAX:
            self.latencies.extend(delivered_at - stamp for stamp in _stamps(delivery))


def _stamps(delivery: Deliver) -> list[Instant]:
    """When each message of a token was due at its sender."""
    return [STAMP.unpack_from(message)[0] for span in delivery.ordered.spans for _, message in messages(span)]


class DeliveryRecorder:
    """The application of one site: records deliveries, and processes them when none arrive."""

    def __init__(self, clock: Clock, tally: ReceiverTally, link: ChildLink, receiver: Receiver) -> None:
        self._clock = clock
        self._tally = tally
        self._link = link
        self._receiver = receiver
        self._recorded: list[tuple[Deliver, Instant]] = []
        self._busy = False  # a delivery arrived since the last call of `done`
        self._sample_at: Instant = 0
        self._published: int | None = None

    def take(self, delivery: Deliver) -> None:
        self._recorded.append((delivery, self._clock.now()))
        self._tally.all_messages += delivery.release.count
        self._busy = True

    def done(self) -> bool:
        """Whether all published messages are delivered, or cannot be any more."""
        if self._busy:
            self._busy = False
            return False
        for delivery, delivered_at in self._recorded:
            self._tally.take(delivery, delivered_at)
        self._recorded.clear()
        if self._clock.now() >= self._sample_at:
            self._sample()
        if self._receiver.reforming is not None or self._link.stopped:
            return True
        return self._published is not None and self._tally.all_messages >= self._published

    def _sample(self) -> None:
        now = self._clock.now()
        self._sample_at = now + SAMPLE_PERIOD
        memory, held = self._tally.memory, resident_bytes()
        memory.at_start = memory.at_start or held
        memory.most = max(memory.most, held)
        if now >= self._tally.starts_at:
            memory.warm = memory.warm or held
        if now >= self._tally.ends_at:
            memory.at_end = memory.at_end or held
        for command in self._link.commands():
            if isinstance(command, PublishedCount):
                self._published = command.count


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverReport:
    """The results of one receiver."""

    site: NodeId
    tally: ReceiverTally
    digest: bytes  # the end of its hash chain: equal at all sites of one order
    requests: int
    dropped: int
    real_time: bool
    failure: str | None


def _site_runtime(plan: RingPlan, me: NodeId, clock: Clock, journal: Path) -> tuple[Receiver, NodeRuntime]:
    """A receiver and its runtime, with sockets bound and journal open."""
    try:
        receiver = Receiver(
            me=me,
            formation=plan.formation,
            keys=plan.keys,
            born_at=clock.now(),
            clock_bound=clock.bound,
            backlog=lambda: runtime.backlog(),
        )
    except JoinedTooLate as late:
        raise UserError(str(late)) from None
    runtime = NodeRuntime(
        receiver,
        IpMulticast(me, plan.address_book, plan.groups),
        link_faults=seeded_injector(plan.link_faults.get(me, {}), me, seed=0),
        journal=JournalWriter.open(journal, stripe=0, site=me),
    )
    return receiver, runtime


def receiver_process(link: ChildLink, me: NodeId, journal: Path, setting: RingSetting) -> None:
    """One site: runs until everything is delivered, reports, and goes on for the other sites until it is stopped."""
    clock = SharedClock()
    real_time = setting.real_time and run_in_real_time()
    link.send(Ready())
    plan = link.wait_for(RingPlan)
    if plan is None:
        return
    tally = ReceiverTally(*setting.window_of(plan.formation), stamped=setting.rate is not None)
    receiver, runtime = _site_runtime(plan, me, clock, journal)
    recorder = DeliveryRecorder(clock, tally, link, receiver)
    runtime.consumer = recorder.take
    driver = Driver([runtime], clock, gather_period=gather_period(plan.formation.timing))
    tune_gc()
    driver.run(until=recorder.done)
    link.send(_report(me, tally, receiver, runtime, real_time=real_time))
    driver.run(until=lambda: _is_stopped(link))
    driver.close()


def _report(
    me: NodeId, tally: ReceiverTally, receiver: Receiver, runtime: NodeRuntime, *, real_time: bool
) -> ReceiverReport:
    assert isinstance(runtime.journal, JournalWriter)
    tip, traffic = runtime.journal.tip, runtime.transport.traffic()
    return ReceiverReport(
        site=me,
        tally=tally,
        digest=b"" if tip is None else tip.digest,
        requests=receiver.counts["requests_sent"],
        dropped=traffic.overflowed + traffic.dropped,
        real_time=real_time,
        failure=None if receiver.reforming is None else receiver.reforming.reason.value,
    )


def _is_stopped(link: ChildLink) -> bool:
    for _ in link.commands():
        pass
    return link.stopped
