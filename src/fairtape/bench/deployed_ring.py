"""A deployment under load: the rate that it releases on time, its cost, its release spread, and what it takes idle.

The deployment is one of `fairtape init` on this machine, with K = 1, run as `fairtape up` runs it. One source, in a
process of its own, publishes records at a rate, or as fast as flow control lets it. Counts are those of the sites: a
status has the totals of one instant, so the difference of two of them is exact. The release spread is read from the
release marks in the journals.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple, Protocol

from fairtape.bench.disturbance import QuietRounds
from fairtape.bench.journal_trim import trim
from fairtape.bench.results import MIB, Results, datagrams_dropped, resident_bytes, spread_of
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.percentiles import percentile
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.capacity import cores_here, sites_max
from fairtape.deployment.config.description import Deployment
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import DrillTarget
from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.deployment.process.resources import clock_of
from fairtape.deployment.publish.source_runtime import source_of, source_runtime
from fairtape.deployment.publish.target import publish_target
from fairtape.deployment.status import SiteStatus
from fairtape.deployment.status_files import cpu_seconds
from fairtape.journal import JournalReader
from fairtape.net.clock import Clock
from fairtape.net.driver import Driver, tune_gc
from fairtape.net.node_runtime import NodeRuntime, Producer
from fairtape.nodes.source import Source

LATE_MAX: Final = 0.01  # of the messages, for a rate to count as on time
CARRIED_MIN: Final = 0.98  # of the rate that was asked for
RATE_STEP: Final = 1.1  # between two rates of the search
STEPS_ABOVE: Final = 4  # that the search may go above the rate of a flood
RATE_LEAST: Final = 1_000

SETTLING_MAX: Final = 60.0  # seconds
CALM_PERIOD: Final = 1 * SECOND  # after the start, before anything is measured
LOAD_PERIOD: Final = 1 * SECOND  # before a measurement: sources are slowed within a second


# The search for a rate.


def ladder(most: float) -> list[int]:
    """Rates up to `most`, in equal ratios, ascending. The same ones in every round, so that rounds can be compared."""
    rates = []
    rate: float = RATE_LEAST
    while rate <= most:
        rates.append(round(rate))
        rate *= RATE_STEP
    return rates


def highest_passing(rates: Sequence[int], passes: Callable[[int], bool], *, guess: int) -> int | None:
    """The highest of these ascending rates that passes where a higher one does not; None where none passes.

    Begins at the rate nearest to `guess`, goes up or down in steps that double, and then halves the interval. No rate
    is tried twice.
    """
    last = len(rates) - 1
    below, above = -1, last + 1  # passes; does not
    at, stride = min(range(len(rates)), key=lambda place: abs(rates[place] - guess), default=0), 1
    while above - below > 1:
        if passes(rates[at]):
            below = at
        else:
            above = at
        if above > last:
            at = min(below + stride, last)
        elif below < 0:
            at = max(above - stride, 0)
        else:
            at = (below + above) // 2
        stride *= 2
    return rates[below] if below >= 0 else None


# Load.

TICK: Final = 1 * MILLISECOND  # between two batches of a paced source
CHUNK_RECORDS: Final = 2_048  # published at once
QUEUED_MAX: Final = 256 << 10  # bytes in the queue of the source, above which nothing is published
COMMANDS_PERIOD: Final = 20 * MILLISECOND


@dataclass(frozen=True, slots=True)
class SetLoad:
    """Publish messages per second; 0: none; None: as many as possible."""

    rate: int | None


@dataclass(frozen=True, slots=True)
class LoadStarted:
    """The process of the source, which now waits for a load."""

    pid: int


class Load(Producer, Protocol):
    """A producer whose rate can be set. The rate is 0 at first."""

    def set_rate(self, rate: int | None, now: Instant) -> None:
        """As in `SetLoad`."""


class RecordLoad:
    """A producer of records. What is late is published as soon as possible; none is left out."""

    def __init__(self, source: Source, size: int) -> None:
        self._source = source
        self._size = size
        self._chunk = bytes(size * CHUNK_RECORDS)
        self._rate: int | None = 0
        self._began_at: Instant = 0
        self.published = 0  # at this rate
        self._next_at: Instant = 0

    def set_rate(self, rate: int | None, now: Instant) -> None:
        self._rate, self._began_at, self.published, self._next_at = rate, now, 0, now

    def deadline(self) -> Instant | None:
        if self._rate == 0 or self._source.queued >= QUEUED_MAX:
            return None
        return self._next_at

    def wake(self, now: Instant) -> None:
        """Publish what is due, a chunk at most."""
        due = CHUNK_RECORDS
        if self._rate is not None:
            due = (now - self._began_at) * self._rate // SECOND - self.published
            self._next_at = now if due > CHUNK_RECORDS else now + TICK
        count = min(due, CHUNK_RECORDS)
        if count > 0:
            records = self._chunk if count == CHUNK_RECORDS else self._chunk[: count * self._size]
            self.published += self._source.publish_records(records, self._size, now)


def record_process(link: ChildLink, folder: Path, size: int) -> None:
    """The last source of the deployment publishes records."""
    target = publish_target(folder)
    clock = clock_of(target.deployment)
    config = target.source_config(max(target.sources))
    source = source_of(config, clock)
    load = RecordLoad(source, size)
    run_load(link, load, source_runtime(config, source, load), clock)


def run_load(link: ChildLink, load: Load, runtime: NodeRuntime, clock: Clock) -> None:
    """Publish at the rate that is set, until this process is stopped."""
    driver = Driver([runtime], clock)
    read_at: Instant = 0

    def stopped() -> bool:
        nonlocal read_at
        now = clock.now()
        if now >= read_at:
            read_at = now + COMMANDS_PERIOD
            for command in link.commands():
                if isinstance(command, SetLoad):
                    load.set_rate(command.rate, now)
        return link.stopped

    tune_gc()
    link.send(Ready())
    link.send(LoadStarted(os.getpid()))
    driver.run(until=stopped)
    driver.close()


# A run.


class LoadRun(NamedTuple):
    """What the sites released in the measured time."""

    messages_per_s: float  # of the slowest site
    late_fraction: float
    requests: int  # for repairs
    datagrams_dropped: int  # by full buffers of sockets, on this machine
    reformations: int
    source_cpu_us: float  # for one message
    site_cpu_us: float  # for one message, at one site, on average
    sites: int

    @property
    def cpu_us(self) -> float:
        """Processor time for one message, at its source and at all sites."""
        return self.source_cpu_us + self.sites * self.site_cpu_us

    def is_on_time(self, rate: int) -> bool:
        """Whether the ring carried this rate, and released on time."""
        carried = self.messages_per_s >= CARRIED_MIN * rate
        return carried and self.late_fraction <= LATE_MAX and self.reformations == 0


class DeployedRing:
    """A deployment that runs."""

    def __init__(self, deployment: Deployment, target: DrillTarget, children: ChildProcesses, source_pid: int) -> None:
        self.deployment = deployment
        self._target = target
        self._children = children
        self._source_pid = source_pid

    def idle_shares(self, seconds: float) -> list[float]:
        """The share of a core that each site takes without load."""
        pids = [site.pid for site in self._target.sites().values()]
        began, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
        self._target.wait(int(seconds * SECOND))
        took = time.monotonic() - began
        return [(cpu_seconds(pid) - earlier) / took for pid, earlier in zip(pids, before, strict=True)]

    def load(self, rate: int | None, seconds: float) -> LoadRun:
        """Publish at this rate, or flood, and measure once the load has lasted for a second."""
        target, dropped_before = self._target, datagrams_dropped()
        self._children.send_all(SetLoad(rate))
        before = self._sites_after(target.now() + LOAD_PERIOD)
        pids = [site.pid for site in before.values()]
        began, cpu_before = time.monotonic(), [cpu_seconds(pid) for pid in (self._source_pid, *pids)]
        after = self._sites_after(max(site.written_at for site in before.values()) + int(seconds * SECOND))
        source_cpu, *site_cpu = (
            (cpu_seconds(pid) - earlier) / (time.monotonic() - began)
            for pid, earlier in zip((self._source_pid, *pids), cpu_before, strict=True)
        )
        self._children.send_all(SetLoad(0))
        target.wait_until(target.unequal, SETTLING_MAX, "equal journals")
        self._trim()
        pairs = [(before[name], site) for name, site in after.items()]
        released = [site.messages - earlier.messages for earlier, site in pairs]
        rate_min = min(
            count * SECOND / (site.written_at - earlier.written_at)
            for count, (earlier, site) in zip(released, pairs, strict=True)
        )
        return LoadRun(
            messages_per_s=rate_min,
            late_fraction=sum(site.late - earlier.late for earlier, site in pairs) / max(sum(released), 1),
            requests=sum(site.requests - earlier.requests for earlier, site in pairs),
            datagrams_dropped=datagrams_dropped() - dropped_before,
            reformations=max(site.formation - earlier.formation for earlier, site in pairs),
            source_cpu_us=source_cpu * 1e6 / max(rate_min, 1.0),
            site_cpu_us=mean(site_cpu) * 1e6 / max(rate_min, 1.0),
            sites=len(pairs),
        )

    def spreads(self, rate: int, seconds: float) -> list[Duration]:
        """Between the first release of a token and the last, for every token of the measured time, late or not."""
        target = self._target
        self._children.send_all(SetLoad(rate))
        target.wait(LOAD_PERIOD)
        since = target.now()
        target.wait(int(seconds * SECOND))
        self._children.send_all(SetLoad(0))
        until = target.now()
        target.wait_until(target.unequal, SETTLING_MAX, "equal journals")
        journals = [self.deployment.journal_of(site) for site in self.deployment.sites]
        released = spreads_of([_released(journal, since, until) for journal in journals])
        self._trim()
        return released

    def memory(self) -> list[int]:
        """Resident bytes of each process of the deployment."""
        processes = (*self._target.sites().values(), *self._target.reformers().values())
        return [resident_bytes(process.pid) for process in processes]

    def _sites_after(self, instant: Instant) -> dict[str, SiteStatus]:
        """The statuses of all sites, each written at this instant or later."""
        target = self._target
        found: dict[str, SiteStatus] = {}

        def missing() -> str:
            found.update((name, site) for name, site in target.sites().items() if site.written_at >= instant)
            absent = [site.name for site in self.deployment.sites if site.name not in found]
            return f"{', '.join(absent)} wrote none" if absent else ""

        left = max(instant - target.now(), 0) / SECOND
        target.wait_until(missing, left + SETTLING_MAX, "statuses of all sites")
        return found

    def _trim(self) -> None:
        for site in self.deployment.sites:
            trim(self.deployment.journal_of(site))


def _released(journal: Path, since: Instant, until: Instant) -> dict[int, Instant]:
    """When this site released each token that was acknowledged then."""
    found = {}
    with JournalReader.open(journal).entries(since=since) as cursor:
        for entry in cursor:
            if entry.ordered.acknowledged_at < until and entry.release is not None:
                found[entry.ordered.token] = entry.release.released_at
    return found


def spreads_of(sites: Sequence[dict[int, Instant]]) -> list[Duration]:
    """Between the first release and the last, of each token that all sites released."""
    tokens = set(sites[0]).intersection(*sites[1:])
    return [max(site[token] for site in sites) - min(site[token] for site in sites) for token in sorted(tokens)]


def new_deployment(folder: Path, *, sites: int, profile: str) -> Deployment:
    """As `fairtape init` makes it, with K = 1. Its pace is fixed: the timing of the profile is measured."""
    return create_deployment(folder, Draft(loops=(sites,), profile=profile, pace="fixed"))


@contextmanager
def running(deployment: Deployment, process: Callable[..., None], *arguments: object) -> Iterator[DeployedRing]:
    """Run a deployment, and the process of its load with these arguments; stop both in the end."""
    target = DrillTarget(deployment)
    with folder_lock(deployment.folder), ExitStack() as closing:
        target.cluster = LocalCluster(deployment)
        closing.callback(target.cluster.stop)
        target.cluster.start()
        target.wait_until(target.unsettled, SETTLING_MAX, "all sites to be members")
        children = closing.enter_context(ChildProcesses(imports=[process.__module__]))
        children.start("source", process, *arguments)
        started = children.collect(LoadStarted, {"source"}, int(SETTLING_MAX * SECOND))["source"]
        target.wait(CALM_PERIOD)
        yield DeployedRing(deployment, target, children, started.pid)


# All of it.

SPREAD_RATE: Final = 2_000  # messages per second: every token has some
SPREAD_SITES: Final = 9  # of the ring with the timing `metro`
RATE_SECONDS_MAX: Final = 2.0  # of one rate, and of an idle ring
SPREAD_SECONDS_MAX: Final = 4.0


class RingKind(NamedTuple):
    """One of the rings that run in each round, and which parts of the benchmark it is for."""

    prefix: str  # of its results
    profile: str
    sites: int
    parts: frozenset[str]

    @property
    def is_carried(self) -> bool:
        """Whether this machine may run it."""
        return self.sites <= sites_max(PROFILES[self.profile], cores_here())


def ring_kinds(receivers: int, parts: Collection[str]) -> list[RingKind]:
    """The rings to run for these parts, without those that the machine cannot run."""
    kinds = (
        RingKind("", "metro", receivers, frozenset(("on-time", "idle"))),
        RingKind("lan_", "lan", receivers, frozenset(("on-time", "idle", "spread"))),
        RingKind("", "metro", SPREAD_SITES, frozenset(("spread",))),
    )
    wanted = [kind._replace(parts=kind.parts & frozenset(parts)) for kind in kinds]
    return [kind for kind in wanted if kind.parts and kind.is_carried]


@dataclass(slots=True)
class RingRounds:
    """What the rounds of one kind of ring have shown."""

    kind: RingKind
    on_time: list[int] = field(default_factory=list)  # the highest rate
    floods: list[LoadRun] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)  # the share of a core, per site
    spreads: list[list[Duration]] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # of the largest process, at the end of the round

    def run(self, folder: Path, name: str, *, size: int, seconds: float, quiet: QuietRounds) -> None:
        """One round: idle, then a small load, then a flood and the search."""
        kind, period = self.kind, min(seconds, RATE_SECONDS_MAX)
        name = f"{name}{kind.sites} {kind.profile} sites"
        quiet.step(f"{name}: start")
        deployment = new_deployment(folder, sites=kind.sites, profile=kind.profile)
        with running(deployment, record_process, folder, size) as ring:
            if "idle" in kind.parts:
                self.idle.append(mean(quiet.run(f"{name}, idle", lambda: ring.idle_shares(period))))
            if "spread" in kind.parts:
                longer = min(seconds, SPREAD_SECONDS_MAX)
                text = f"{name}, {SPREAD_RATE:,} messages/s"
                self.spreads.append(quiet.run(text, lambda: ring.spreads(SPREAD_RATE, longer)))
            if "on-time" in kind.parts:
                flood = quiet.run(f"{name}, flood", lambda: ring.load(None, period))
                self.floods.append(flood)
                self.on_time.append(self._search(ring, name, flood.messages_per_s, period, quiet))
            if "idle" in kind.parts:
                self.memory.append(max(ring.memory()))

    def _search(self, ring: DeployedRing, name: str, most: float, seconds: float, quiet: QuietRounds) -> int:
        """The highest rate on time, up to a little more than what the flood reached, which flow control kept down."""

        def passes(rate: int) -> bool:
            return quiet.run(f"{name}, {rate:,} messages/s", lambda: ring.load(rate, seconds)).is_on_time(rate)

        guess = self.on_time[-1] if self.on_time else round(most)
        return highest_passing(ladder(most * RATE_STEP**STEPS_ABOVE), passes, guess=guess) or 0

    def results(self) -> Results:
        """Medians of the rounds, with minimum and maximum."""
        prefix = self.kind.prefix
        found: Results = {}
        if self.on_time:
            found |= spread_of(f"{prefix}on_time_messages_per_s", self.on_time, 0)
            found |= self._flood_results()
        if self.idle:
            found |= spread_of(f"{prefix}idle_core_share", self.idle, 4)
            found[f"{prefix}process_memory_mib"] = round(max(self.memory) / MIB, 1)
        if self.spreads:
            found[f"{prefix}spread_sites"] = self.kind.sites
            found[f"{prefix}spread_tokens"] = sum(map(len, self.spreads))
            for share in (50, 99):
                values = [percentile(each, share / 100, 0) / MICROSECOND for each in self.spreads]
                found |= spread_of(f"{prefix}spread_p{share}_us", values, 1)
        return found

    def _flood_results(self) -> Results:
        prefix, floods = self.kind.prefix, self.floods
        found = spread_of(f"{prefix}flood_messages_per_s", [each.messages_per_s for each in floods], 0)
        found |= spread_of(f"{prefix}flood_late_fraction", [each.late_fraction for each in floods], 6)
        found |= spread_of(f"{prefix}cpu_us_per_message", [each.cpu_us for each in floods], 3)
        found |= spread_of(f"{prefix}source_cpu_us_per_message", [each.source_cpu_us for each in floods], 3)
        found |= spread_of(f"{prefix}site_cpu_us_per_message", [each.site_cpu_us for each in floods], 3)
        found[f"{prefix}flood_requests"] = sum(each.requests for each in floods)
        found[f"{prefix}flood_datagrams_dropped"] = sum(each.datagrams_dropped for each in floods)
        found[f"{prefix}flood_reformations"] = sum(each.reformations for each in floods)
        return found
