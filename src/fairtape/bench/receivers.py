"""The receiving side of a run: one process for each site.

Release times are those that an application sees: the clock is read first when a delivery arrives. All other work on a
delivery waits for a turn of the loop without deliveries. At the commit instant all sites of the machine need a
processor, and bookkeeping at one site would delay the next.
"""

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairtape.bench.results import resident_bytes
from fairtape.bench.senders import STAMP, Published
from fairtape.bench.setting import Setting
from fairtape.core.effects import Deliver
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.core.spans import messages
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.ring_plan import RingPlan
from fairtape.deployment.ring_runtime import gather_period, site_runtime
from fairtape.journal import JournalWriter
from fairtape.net.clock import Clock, SharedClock
from fairtape.net.driver import Driver, run_in_real_time, tune_gc
from fairtape.net.node_runtime import NodeRuntime
from fairtape.nodes.receiver import Receiver
from fairtape.wire.frames import NodeId

SAMPLES_MAX: Final = 2_000_000
SAMPLE_PERIOD: Final = 250 * MILLISECOND  # between two reads of memory use and of orders
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
        for order in self._link.orders():
            if isinstance(order, Published):
                self._published = order.count


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


def receiver_process(link: ChildLink, me: NodeId, journal: Path, setting: Setting) -> None:
    """One site: runs until everything is delivered, reports, and goes on for the other sites until it is stopped."""
    clock = SharedClock()
    real_time = setting.real_time and run_in_real_time()
    link.tell(Ready())
    plan = link.expect(RingPlan)
    if plan is None:
        return
    tally = ReceiverTally(*setting.window_of(plan.formation), stamped=setting.rate is not None)
    receiver, runtime = site_runtime(plan, me, clock, journal=journal)
    recorder = DeliveryRecorder(clock, tally, link, receiver)
    runtime.consumer = recorder.take
    driver = Driver([runtime], clock, gather_period=gather_period(plan.formation.timing))
    tune_gc()
    driver.run(until=recorder.done)
    link.tell(_report(me, tally, receiver, runtime, real_time=real_time))
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
    for _ in link.orders():
        pass
    return link.stopped
