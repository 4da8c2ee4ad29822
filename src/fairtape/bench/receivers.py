"""The receiving side of a run: one process for each site, and what it saw.

What is published is what an application sees: the clock is read where the delivery arrives, first of all. What is made
of a delivery beyond that waits for a turn without one, because at the commit instant all sites of the machine want a
processor, and the bookkeeping of one would be the lateness of the next.
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
SAMPLE_PERIOD: Final = 250 * MILLISECOND  # between two looks at memory and at orders
_NANOSECONDS: Final = "q"


@dataclass(slots=True)
class MemoryUse:
    """What a process held, in bytes."""

    at_start: int = 0  # before the first token
    warm: int = 0  # when measuring began
    at_end: int = 0  # when measuring ended
    most: int = 0


@dataclass(slots=True)
class ReceiverTally:
    """What one receiver delivered in the measured time."""

    starts_at: Instant
    ends_at: Instant
    stamped: bool
    messages: int = 0
    late_messages: int = 0
    late_releases: int = 0
    all_messages: int = 0  # measured or not
    errors: "array[int]" = field(default_factory=lambda: array(_NANOSECONDS))  # hand-over - commit_at, of every release
    latencies: "array[int]" = field(default_factory=lambda: array(_NANOSECONDS))  # from publish to hand-over
    memory: MemoryUse = field(default_factory=MemoryUse)

    def take(self, delivery: Deliver, handed_at: Instant) -> None:
        """Count one delivery."""
        release = delivery.release
        if not self.starts_at <= handed_at < self.ends_at:
            return
        self.messages += release.count
        if release.late:
            self.late_messages += release.count
            self.late_releases += 1
        if len(self.errors) < SAMPLES_MAX:
            self.errors.append(handed_at - release.commit_at)
        if self.stamped and len(self.latencies) < SAMPLES_MAX:
            self.latencies.extend(handed_at - stamp for stamp in _stamps(delivery))


def _stamps(delivery: Deliver) -> list[Instant]:
    """When each message of a token was published."""
    return [STAMP.unpack_from(message)[0] for span in delivery.ordered.spans for _, message in messages(span)]


class DeliveryRecorder:
    """The application of one site: notes what it gets, and looks after the run when there is nothing to get."""

    def __init__(self, clock: Clock, tally: ReceiverTally, link: ChildLink, receiver: Receiver) -> None:
        self._clock = clock
        self._tally = tally
        self._link = link
        self._receiver = receiver
        self._noted: list[tuple[Deliver, Instant]] = []
        self._busy = False  # something was delivered in the last turn
        self._sample_at: Instant = 0
        self._published: int | None = None

    def take(self, delivery: Deliver) -> None:
        """The consumer: read the clock, and note it."""
        self._noted.append((delivery, self._clock.now()))
        self._tally.all_messages += delivery.release.count
        self._busy = True

    def done(self) -> bool:
        """Whether all that was published has been delivered, or can no longer be."""
        if self._busy:
            self._busy = False
            return False
        for delivery, handed_at in self._noted:
            self._tally.take(delivery, handed_at)
        self._noted.clear()
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
    """What a receiver says at the end."""

    site: NodeId
    tally: ReceiverTally
    digest: bytes  # of the hash chain over everything it ordered
    requests: int
    dropped: int
    real_time: bool
    failure: str | None


def receiver_process(link: ChildLink, me: NodeId, journal: Path, setting: Setting) -> None:
    """One site: runs until all that was published is delivered, says what it saw, and goes on while others need it."""
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
