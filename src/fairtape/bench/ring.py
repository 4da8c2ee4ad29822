"""How fast and how exact a ring is on this machine: throughput, release error, and latency under loss.

Every figure comes from separate processes on loopback multicast, sealed, with journals on. The yardstick runs first,
in the same run, with packets of the same size.
"""

import secrets
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairtape.bench.bare import bare_receiver, bare_sender
from fairtape.bench.figures import percentile, resident_bytes
from fairtape.core.effects import Deliver
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.core.weather import Weather
from fairtape.deployment.loopback import free_ports, loopback_book, loopback_groups
from fairtape.deployment.processes import Crew, Link, Ready
from fairtape.deployment.ring import RingPlan, gather_period, site_seat, source_of, source_seat
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.ring.formation import Formation
from fairtape.runtime.clock import SharedClock
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.driver import Driver, run_in_real_time, spare_the_collector
from fairtape.runtime.journal import Writer
from fairtape.wire.blocks import records_room, unpack_messages
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.seals import SEAL_ROOM, Keys, Seal

WARM_PERIOD = 500 * MILLISECOND
START_DELAY = 200 * MILLISECOND
SOURCE_FIRST = 101
CHUNK_RECORDS = 2_048  # that a flooding producer hands over at once
QUEUED_MIN = 256 << 10  # bytes below which it hands over more
SAMPLES_MAX = 2_000_000
PATIENCE = 30 * SECOND  # beyond the length of a run
_STAMP = struct.Struct(">q")

BULK = Timing(
    retry_period=30 * MILLISECOND, retries_max=33, token_period=10 * MILLISECOND, commit_delay=80 * MILLISECOND
)
"""For throughput: tokens that carry some hundred blocks each, and patience with two busy cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run of one ring."""

    receivers: int = 3
    senders: int = 1
    size: int = 64
    seconds: float = 5.0
    timing: Timing = BULK
    rate: int | None = None  # messages per second of each sender; None floods
    loss: float = 0.0  # into the first receiver
    seal: type[Seal] = Seal
    real_time: bool = False  # ask the kernel to prefer the processes of the ring

    @property
    def sources(self) -> range:
        """The numbers of the sources. They share a process, as the gateways of one house do."""
        return range(SOURCE_FIRST, SOURCE_FIRST + self.senders)

    @property
    def window(self) -> Duration:
        """The measured time."""
        return int(self.seconds * SECOND)


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
        """From the start on, at once while the queue is low."""
        return self._starts_at if self._source.queued < QUEUED_MIN and not self.over else None

    @property
    def over(self) -> bool:
        """Whether it has stopped."""
        return self._ends_at == 0

    def wake(self, now: Instant) -> None:
        """Fill up."""
        if now >= self._ends_at:
            self._ends_at = 0
            return
        self.published += self._source.publish_records(self._chunk, self._size, now)


class Metronome:
    """A producer that publishes one stamped message every so often."""

    def __init__(self, source: Source, size: int, rate: int, starts_at: Instant, ends_at: Instant) -> None:
        self._source = source
        self._filler = bytes(size - _STAMP.size)
        self._period = SECOND // rate
        self._next_at = starts_at
        self._ends_at = ends_at
        self.published = 0

    def deadline(self) -> Instant | None:
        """The next beat."""
        return None if self.over else self._next_at

    @property
    def over(self) -> bool:
        """Whether it has stopped."""
        return self._next_at >= self._ends_at

    def wake(self, now: Instant) -> None:
        """Publish what is due, stamped with the time at which it was due."""
        while self._next_at <= now and not self.over:
            self.published += self._source.publish([_STAMP.pack(self._next_at) + self._filler], now)
            self._next_at += self._period


@dataclass(slots=True)
class Tally:
    """What one receiver delivered in the measured time."""

    starts_at: Instant
    ends_at: Instant
    stamped: bool
    messages: int = 0
    late: int = 0
    all_messages: int = 0
    errors: list[Duration] = field(default_factory=list)  # released_at - commit_at, of those in time
    latencies: list[Duration] = field(default_factory=list)  # from publish to release
    memory: list[int] = field(default_factory=list)

    def take(self, delivery: Deliver) -> None:
        """Count one delivery."""
        release = delivery.release
        self.all_messages += release.count
        if not self.starts_at <= release.released_at < self.ends_at:
            return
        self.messages += release.count
        if release.late:
            self.late += release.count
        elif len(self.errors) < SAMPLES_MAX:
            self.errors.append(release.released_at - release.commit_at)
        if self.stamped and len(self.latencies) < SAMPLES_MAX:
            self._take_latencies(delivery)

    def _take_latencies(self, delivery: Deliver) -> None:
        for span in delivery.ordered.spans:
            for body, count in zip(span.bodies, span.counts, strict=True):
                for message in unpack_messages(body, count):
                    self.latencies.append(delivery.release.released_at - _STAMP.unpack_from(message)[0])


def receiver_process(link: Link, me: NodeId, journal: Path, setting: Setting) -> None:
    """One site: runs until it is told how much was published, and says what it saw."""
    clock = SharedClock()
    if setting.real_time:
        run_in_real_time()
    link.tell(Ready())
    plan = link.expect(RingPlan)
    if plan is None:
        return
    starts_at = plan.formation.starts_at + WARM_PERIOD
    tally = Tally(starts_at, starts_at + setting.window, setting.rate is not None)
    receiver, seat = site_seat(plan, me, clock, journal=journal, consumer=tally.take)
    driver = Driver([seat], clock, gather_period=gather_period(plan))
    spare_the_collector()
    driver.run(until=_Sampler(clock, tally, link, receiver).done)
    assert isinstance(seat.journal, Writer)
    digest = seat.journal.tip.digest if seat.journal.tip else b""
    driver.close()
    traffic = seat.carrier.traffic()
    dropped = traffic.overflowed + traffic.dropped
    requests = receiver.counts["requests_sent"]
    link.tell(
        Account(tally, digest, requests, dropped, None if receiver.reforming is None else str(receiver.reforming))
    )
    link.rest()


@dataclass(frozen=True, slots=True)
class Published:
    """How many messages a sender published; the order to receivers to end when they have released so many."""

    count: int


@dataclass(frozen=True, slots=True)
class Account:
    """What a receiver says at the end."""

    tally: Tally
    digest: bytes
    requests: int
    dropped: int
    failure: str | None


class _Sampler:
    """Looks after a receiver now and then: its memory, and whether everything has been released."""

    def __init__(self, clock: SharedClock, tally: Tally, link: Link, receiver: Receiver) -> None:
        self._clock = clock
        self._tally = tally
        self._link = link
        self._receiver = receiver
        self._next_at = tally.starts_at
        self._period = max((tally.ends_at - tally.starts_at) // 20, SECOND // 4)
        self._last: int | None = None

    def done(self) -> bool:
        """Whether all that was published has been released, or can no longer be."""
        if self._clock.now() >= self._next_at:
            self._next_at += self._period
            self._tally.memory.append(resident_bytes())
            for order in self._link.orders():
                if isinstance(order, Published):
                    self._last = order.count
        if self._last is None:
            return self._link.stopped
        return self._tally.all_messages >= self._last or self._receiver.reforming is not None


def sender_process(link: Link, setting: Setting) -> None:
    """All sources: they publish for the time of the run, then run until all is acknowledged."""
    clock = SharedClock()
    if setting.real_time:
        run_in_real_time()
    link.tell(Ready())
    plan = link.expect(RingPlan)
    if plan is None:
        return
    sources = [source_of(plan, node, clock) for node in setting.sources]
    producers = [_producer(source, setting, plan.formation.starts_at) for source in sources]
    seats = [source_seat(plan, *pair) for pair in zip(sources, producers, strict=True)]
    driver = Driver(seats, clock)
    spare_the_collector()
    give_up_at = plan.formation.starts_at + WARM_PERIOD + setting.window + PATIENCE

    def over() -> bool:
        done = all(producer.over for producer in producers) and all(source.idle for source in sources)
        return done or clock.now() > give_up_at

    driver.run(until=over)
    driver.close()
    link.tell(Published(sum(producer.published for producer in producers)))
    link.rest()


def _producer(source: Source, setting: Setting, starts_at: Instant) -> Flood | Metronome:
    ends_at = starts_at + WARM_PERIOD + setting.window
    if setting.rate is None:
        return Flood(source, setting.size, starts_at, ends_at)
    return Metronome(source, setting.size, setting.rate, starts_at + source.me * 337 % 1000 * MICROSECOND, ends_at)


def plan_for(setting: Setting) -> RingPlan:
    """A ring of this size on free ports that starts as soon as everyone can be there."""
    sites = range(1, setting.receivers + 1)
    sources = setting.sources
    groups = loopback_groups(mesh=False)
    if groups is None:
        raise Complaint("IP multicast does not work on the loopback interface of this machine, and the bench needs it")
    book = loopback_book(sites, sources)
    starts_at = SharedClock().now() + START_DELAY + 50 * MILLISECOND * len(book)
    loss = Weather(loss=setting.loss)
    return RingPlan(
        formation=Formation(number=1, members=tuple(sites), timing=setting.timing, starts_at=starts_at),
        keys=replace(Keys.from_secret(secrets.token_bytes(32), sites, sources), seal=setting.seal),
        book=book,
        groups=groups,
        weather={1: {node: loss for node in book if node != 1}} if setting.loss else {},
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fairtape-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of one ring showed."""

    messages_per_s: float
    one_order: bool
    late_fraction: float
    release_error_p50_us: float
    release_error_p99_us: float
    latency_p50_ms: float
    latency_p99_ms: float
    memory_mib: tuple[float, float]  # of the largest receiver, after the warm-up and at the end
    recoveries: int
    dropped: int
    failures: tuple[str, ...]


def run_ring(setting: Setting) -> Outcome:
    """Run one ring and gather what its processes say."""
    sites = {f"site {site}": site for site in range(1, setting.receivers + 1)}
    with _scratch() as folder, Crew(imports=[__name__]) as crew:
        for name, site in sites.items():
            crew.start(name, receiver_process, site, folder / name, setting)
        crew.start("sources", sender_process, setting)
        crew.await_ready({*sites, "sources"})
        crew.tell_all(plan_for(setting))
        wait_period_max = setting.window + WARM_PERIOD + 3 * PATIENCE
        published = crew.collect(Published, {"sources"}, wait_period_max)["sources"].count
        crew.tell_all(Published(published))
        accounts = crew.collect(Account, set(sites), PATIENCE)
    return _outcome(setting, published, list(accounts.values()))


def _outcome(setting: Setting, published: int, accounts: list[Account]) -> Outcome:
    tallies = [account.tally for account in accounts]
    errors = [error for tally in tallies for error in tally.errors]
    latencies = [latency for tally in tallies for latency in tally.latencies]
    largest = max(tallies, key=lambda tally: tally.memory[-1])
    one_digest = len({account.digest for account in accounts}) == 1
    return Outcome(
        messages_per_s=min(tally.messages for tally in tallies) / setting.seconds,
        one_order=one_digest and min(tally.all_messages for tally in tallies) == published,
        late_fraction=sum(tally.late for tally in tallies) / max(sum(tally.messages for tally in tallies), 1),
        release_error_p50_us=percentile(errors, 0.5) / MICROSECOND,
        release_error_p99_us=percentile(errors, 0.99) / MICROSECOND,
        latency_p50_ms=percentile(latencies, 0.5) / MILLISECOND,
        latency_p99_ms=percentile(latencies, 0.99) / MILLISECOND,
        memory_mib=(largest.memory[0] / (1 << 20), largest.memory[-1] / (1 << 20)),
        recoveries=sum(account.requests for account in accounts),
        dropped=sum(account.dropped for account in accounts),
        failures=tuple(account.failure for account in accounts if account.failure),
    )


def run_bare(*, receivers: int, size: int, seconds: float) -> float:
    """Packets per second that each bare receiver gets, on the average."""
    group = "239.195.7.3", free_ports(1)[0]
    names = {f"receiver {number}" for number in range(receivers)}
    with Crew(imports=[__name__]) as crew:
        for name in names:
            crew.start(name, bare_receiver, group, seconds)
        crew.start("sender", bare_sender, group, size, seconds)
        crew.await_ready({*names, "sender"})
        crew.tell_all(time.time() + 0.2)
        counts = crew.collect(int, names, int(seconds * SECOND) + PATIENCE)
    return sum(counts.values()) / receivers / seconds


def messages_per_packet(size: int) -> int:
    """How many messages of one size fill a datagram."""
    return max(records_room(DATAGRAM_MAX - SEAL_ROOM, size), 1)
