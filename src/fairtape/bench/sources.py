"""`fairtape bench sources`: what a message costs when many sources share a process, in processor time.

Every millisecond the publishing process publishes twenty messages of 64 bytes, into a ring of three metro sites with
journals and K = 1. It does so in two ways. *Blocks*: the sources take turns, and each publishes its twenty messages at
once, so that the number of sources is all that changes from run to run. *Single messages*: twenty sources publish one
message each. Messages of different sources never share a block, so then each message is a block, and a range of an
acknowledgment. The one source of the baseline publishes its messages one by one as well.

Processor time is that of the whole process, of the publisher and of a site, divided by the messages of the measured
time. It includes system calls, waits and acknowledgments.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import mean, median
from typing import Final

from fairtape.bench.results import Results, Step
from fairtape.core.effects import Deliver
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import profile
from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready
from fairtape.deployment.publish.source_runtime import SourceConfig, group_of, source_of, source_runtime
from fairtape.journal import JournalWriter
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver, gather_period, tune_gc
from fairtape.net.loopback import free_ports, random_groups
from fairtape.net.node_runtime import NodeRuntime
from fairtape.net.transports import LOOPBACK, AddressBook, Groups, IpMulticast, Peer, Role, multicast_works
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.wire.blocks import pack_records
from fairtape.wire.frames import NodeId, encode_block_header
from fairtape.wire.seals import Keys, Seal

SITES: Final = (1, 2, 3)
FIRST_SOURCE: Final = 101
RESILIENCE: Final = 1
SIZE: Final = 64  # bytes of a message
SLICE_PERIOD: Final = 1 * MILLISECOND
SLICE_MESSAGES: Final = 20  # 20,000 messages per second in total
START_DELAY: Final = 1 * SECOND  # for a process with a thousand sources to start
WARM_PERIOD: Final = 500 * MILLISECOND
END_PERIOD_MAX: Final = 20 * SECOND
RATIO_GOAL: Final = 2.0  # cost per message of many sources to that of one
RATIO_SOURCES: Final = 400  # the goal holds for as many; the cost of more is only printed

BLOCKS: Final = "blocks"
SINGLES: Final = "single messages"
PREFIXES: Final = {BLOCKS: "", SINGLES: "single_"}  # of the names of results


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesSetting:
    """One run of one ring."""

    count: int  # sources in the publishing process
    pattern: str  # BLOCKS or SINGLES
    seconds: float

    @property
    def sources(self) -> range:
        return range(FIRST_SOURCE, FIRST_SOURCE + self.count)

    def window_of(self, formation: Formation) -> tuple[Instant, Instant]:
        """When the measurement begins and ends."""
        begins_at = formation.starts_at + WARM_PERIOD
        return begins_at, begins_at + int(self.seconds * SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesPlan:
    """What all processes of one run agree on."""

    formation: Formation
    keys: Keys
    address_book: AddressBook
    groups: Groups

    def config_of(self, source: NodeId) -> SourceConfig:
        return SourceConfig(
            me=source,
            keys=self.keys.for_source(source),
            timing=self.formation.timing,
            resilience=RESILIENCE,
            address_book=self.address_book,
            groups=self.groups,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """The processor time of one process in the measured time, and the messages that it published or delivered."""

    processor_time: Duration
    messages: int

    @property
    def us_per_message(self) -> float:
        return self.processor_time / 1_000 / max(self.messages, 1)


@dataclass(frozen=True, slots=True)
class Published:
    """The result of the publisher. A site ends when it has delivered as many messages."""

    usage: Usage
    messages: int  # measured or not
    resent: int  # blocks, and probes


@dataclass(frozen=True, slots=True)
class Delivered:
    """The result of a site."""

    usage: Usage
    messages: int  # measured or not
    late: int
    digest: bytes  # the end of its hash chain: equal at all sites of one order
    failure: str | None


@dataclass(frozen=True, slots=True)
class SourcesOutcome:
    """The results of one run."""

    published: Published
    delivered: tuple[Delivered, ...]

    @property
    def one_order(self) -> bool:
        complete = all(each.messages == self.published.messages for each in self.delivered)
        return complete and len({each.digest for each in self.delivered}) == 1

    @property
    def us_per_message(self) -> float:
        return self.published.usage.us_per_message

    @property
    def site_us_per_message(self) -> float:
        return mean(each.usage.us_per_message for each in self.delivered)


def measure_sources(*, counts: Sequence[int], seconds: float, rounds: int, step: Step) -> Results:
    """All results: of one source, and of each of these numbers of sources. With several rounds, medians."""
    results: Results = {"message_bytes": SIZE, "seconds": seconds, "rounds": rounds}
    outcomes: dict[tuple[str, int], list[SourcesOutcome]] = {}
    for number in range(1, rounds + 1):
        for pattern in PREFIXES:
            for count in (1, *counts):
                step(f"round {number} of {rounds}: {pattern}, {count:,} {'source' if count == 1 else 'sources'}")
                setting = SourcesSetting(count=count, pattern=pattern, seconds=seconds)
                outcomes.setdefault((pattern, count), []).append(run_sources(setting))
    for (pattern, count), found in outcomes.items():
        results |= results_of(pattern, count, found)
    for prefix in PREFIXES.values():
        for count in counts:
            for kind in ("", "site_"):
                ratio = _figure(results, f"{prefix}{kind}cost_us_{count}") / max(
                    _figure(results, f"{prefix}{kind}cost_us_1"), 0.001
                )
                results[f"{prefix}{kind}cost_ratio_{count}"] = round(ratio, 2)
    step("blocks of one source, and of eight in turn, into one receive buffer")
    results |= {f"accept_us_per_block_{count}": round(accept_cost(count), 3) for count in (1, 8)}
    return results | {"problems": problems_of(results), "shortfalls": shortfalls_of(results, counts)}


def _figure(results: Results, name: str) -> float:
    figure = results[name]
    assert isinstance(figure, int | float)
    return figure


def results_of(pattern: str, count: int, outcomes: Sequence[SourcesOutcome]) -> Results:
    """The results of the rounds of one pattern and one number of sources, by their published names."""
    prefix, results = PREFIXES[pattern], Results()
    figures = {
        "cost_us": [each.us_per_message for each in outcomes],
        "site_cost_us": [each.site_us_per_message for each in outcomes],
    }
    for name, found in figures.items():
        key = f"{prefix}{name}_{count}"
        results |= {
            key: round(median(found), 2),
            f"{key}_min": round(min(found), 2),
            f"{key}_max": round(max(found), 2),
        }
    sites = [site for outcome in outcomes for site in outcome.delivered]
    late, messages = sum(site.late for site in sites), sum(site.usage.messages for site in sites)
    results[f"{prefix}late_fraction_{count}"] = round(late / max(messages, 1), 6)
    results[f"{prefix}resent_{count}"] = sum(each.published.resent for each in outcomes)
    results[f"{prefix}one_order_{count}"] = all(each.one_order for each in outcomes)
    results[f"{prefix}failures_{count}"] = [site.failure for site in sites if site.failure is not None]
    return results


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each."""
    found = []
    for name, result in results.items():
        if "one_order" in name and result is False:
            found.append(f"{name} is false: not every site delivered all published messages in the same order")
        elif "failures" in name and isinstance(result, list):
            found += [f"a failure was declared ({name}): {failure}" for failure in result]
    return found


def shortfalls_of(results: Results, counts: Sequence[int]) -> list[str]:
    """Goals that were missed, one sentence each."""
    named = [
        f"{prefix}cost_ratio_{count}" for prefix in PREFIXES.values() for count in counts if count <= RATIO_SOURCES
    ]
    return [
        f"{name} is {results[name]}: a message costs more than {RATIO_GOAL:g} times what it costs with one source"
        for name in named
        if _figure(results, name) > RATIO_GOAL
    ]


# One run.


def run_sources(setting: SourcesSetting) -> SourcesOutcome:
    """Run one ring and collect the reports of its processes."""
    if not multicast_works(LOOPBACK):
        raise UserError("IP multicast does not work on the loopback interface of this machine; the benchmark needs it")
    sites = {f"site {site}": site for site in SITES}
    patience = START_DELAY + WARM_PERIOD + int(setting.seconds * SECOND) + 2 * END_PERIOD_MAX
    with _scratch() as folder, ChildProcesses(imports=[__name__]) as children:
        for name, site in sites.items():
            children.start(name, site_process, site, folder / name, setting)
        children.start("publisher", publisher_process, setting)
        children.await_ready({*sites, "publisher"})
        children.send_all(plan_of(setting))
        published = children.collect(Published, {"publisher"}, patience)["publisher"]
        children.send_all(published)
        delivered = children.collect(Delivered, set(sites), patience)
    return SourcesOutcome(published, tuple(delivered[name] for name in sites))


def plan_of(setting: SourcesSetting) -> SourcesPlan:
    """A ring on free ports, whose sources share one address, that starts when all processes can have started."""
    *site_ports, port = free_ports(len(SITES) + 1)
    book = {site: Peer(LOOPBACK, each, Role.SITE) for site, each in zip(SITES, site_ports, strict=True)}
    book |= dict.fromkeys(setting.sources, Peer(LOOPBACK, port, Role.SOURCE))
    formation = Formation(
        number=1,
        members=SITES,
        timing=profile("metro"),
        starts_at=SharedClock().now() + START_DELAY,
        resilience=RESILIENCE,
    )
    keys = Keys.from_secret(secrets.token_bytes(32), SITES, setting.sources)
    return SourcesPlan(formation=formation, keys=keys, address_book=book, groups=random_groups())


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fairtape-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SourcesInTurn:
    """A producer for all sources of a process: twenty messages every millisecond, by one of them or by twenty."""

    def __init__(self, sources: Sequence[Source], pattern: str, starts_at: Instant, ends_at: Instant) -> None:
        self._turns = cycle(sources)
        self._pattern = pattern
        self._next_at = starts_at
        self._ends_at = ends_at
        self._message = bytes(SIZE)
        self.published = 0

    def deadline(self) -> Instant | None:
        return None if self.over else self._next_at

    @property
    def over(self) -> bool:
        return self._next_at >= self._ends_at

    def wake(self, now: Instant) -> None:
        while self._next_at <= now and not self.over:
            self._next_at += SLICE_PERIOD
            if self._pattern == BLOCKS:
                self.published += next(self._turns).publish([self._message] * SLICE_MESSAGES, now)
            else:
                for source in islice(self._turns, SLICE_MESSAGES):
                    self.published += source.publish([self._message], now)


def publisher_process(link: ChildLink, setting: SourcesSetting) -> None:
    """All sources: publish for the time of the run, then run until everything is settled."""
    clock = SharedClock()
    link.send(Ready())
    plan = link.wait_for(SourcesPlan)
    if plan is None:
        return
    configs = [plan.config_of(source) for source in setting.sources]
    machine = source_of(configs[0], clock) if setting.count == 1 else group_of(configs, clock)
    sources = [machine] if isinstance(machine, Source) else list(machine.sources.values())
    begins_at, ends_at = setting.window_of(plan.formation)
    producer = SourcesInTurn(sources, setting.pattern, plan.formation.starts_at, ends_at)
    driver = Driver([source_runtime(configs[0], machine, producer)], clock)
    tune_gc()
    driver.run(until=lambda: clock.now() >= begins_at)
    before, published = time.process_time_ns(), producer.published
    driver.run(until=lambda: clock.now() >= ends_at)
    usage = Usage(time.process_time_ns() - before, producer.published - published)
    give_up_at = ends_at + END_PERIOD_MAX
    driver.run(until=lambda: (producer.over and machine.idle) or clock.now() > give_up_at)
    driver.close()
    resent = sum(source.counts["resent"] + source.counts["probes"] for source in sources)
    link.send(Published(usage, producer.published, resent))
    link.wait_until_stopped()


class DeliveryCount:
    """The application of one site."""

    def __init__(self) -> None:
        self.messages = 0
        self.late = 0

    def take(self, delivery: Deliver) -> None:
        self.messages += delivery.release.count
        if delivery.release.late:
            self.late += delivery.release.count


def site_process(link: ChildLink, me: NodeId, journal: Path, setting: SourcesSetting) -> None:
    """One site: runs until everything is delivered, reports, and goes on for the other sites until it is stopped."""
    clock = SharedClock()
    link.send(Ready())
    plan = link.wait_for(SourcesPlan)
    if plan is None:
        return
    receiver = Receiver(me=me, formation=plan.formation, keys=plan.keys, born_at=clock.now(), clock_bound=clock.bound)
    count = DeliveryCount()
    writer = JournalWriter.open(journal, stripe=0, site=me)
    runtime = NodeRuntime(
        receiver, IpMulticast(me, plan.address_book, plan.groups), journal=writer, consumer=count.take
    )
    driver = Driver([runtime], clock, gather_period=gather_period(plan.formation.timing))
    tune_gc()
    begins_at, ends_at = setting.window_of(plan.formation)
    driver.run(until=lambda: clock.now() >= begins_at)
    before, messages, late = time.process_time_ns(), count.messages, count.late
    driver.run(until=lambda: clock.now() >= ends_at)
    usage, late = Usage(time.process_time_ns() - before, count.messages - messages), count.late - late
    awaited = _AwaitedEnd(link, count)
    driver.run(until=lambda: awaited.reached(receiver))
    failure = None if receiver.reforming is None else receiver.reforming.reason.value
    link.send(Delivered(usage, count.messages, late, b"" if writer.tip is None else writer.tip.digest, failure))
    driver.run(until=awaited.stopped)
    driver.close()


class _AwaitedEnd:
    """When a site has delivered everything that was published, or cannot any more."""

    def __init__(self, link: ChildLink, count: DeliveryCount) -> None:
        self._link = link
        self._count = count
        self._published: int | None = None

    def reached(self, receiver: Receiver) -> bool:
        if self.stopped() or receiver.reforming is not None:
            return True
        return self._published is not None and self._count.messages >= self._published

    def stopped(self) -> bool:
        for command in self._link.commands():
            if isinstance(command, Published):
                self._published = command.messages
        return self._link.stopped


# One receive buffer.

ACCEPTED_BLOCKS: Final = 4_096
ACCEPTED_BATCH: Final = 64  # datagrams that a site reads at once
ACCEPTED_ROUNDS: Final = 5
RECORDS: Final = 20


def accept_cost(count: int) -> float:
    """Microseconds of a receiver per full block, where this many sources take turns; the best of some rounds."""
    sources = range(FIRST_SOURCE, FIRST_SOURCE + count)
    keys = Keys.from_secret(bytes(32), SITES, sources)
    datagrams = _blocks_in_turn(sources, keys)
    formation = Formation(number=1, members=SITES, timing=profile("metro"), starts_at=SECOND)
    best = float("inf")
    for _ in range(ACCEPTED_ROUNDS):
        receiver = Receiver(me=SITES[0], formation=formation, keys=keys, born_at=0)
        receiver.receive_all(datagrams[:count], 0)  # the first block of a stream takes another path
        began_at = time.process_time_ns()
        for start in range(count, len(datagrams), ACCEPTED_BATCH):
            receiver.receive_all(datagrams[start : start + ACCEPTED_BATCH], 0)
        best = min(best, time.process_time_ns() - began_at)
        assert receiver.counts["block"] == len(datagrams)
    return best / 1_000 / (len(datagrams) - count)


def _blocks_in_turn(sources: Sequence[NodeId], keys: Keys) -> list[bytes]:
    seals = {each: Seal(keys.sources[each], stripe=0, source=each, incarnation=1) for each in sources}
    body = pack_records(bytes(SIZE * RECORDS), SIZE)
    datagrams = []
    for place in range(ACCEPTED_BLOCKS):
        source = sources[place % len(sources)]
        first = 1 + place // len(sources) * RECORDS
        datagrams.append(seals[source].close(encode_block_header(0, 0, source, 1, first, RECORDS), first, body))
    return datagrams
