"""`fairtape bench ring`: throughput, release error and latency of one ring on this machine, and its baselines.

A ring is separate processes on loopback multicast, sealed, with journals. The baselines are bare Python programs: a
sender and receivers that move packets of the same size one by one, and programs that sleep until the same instants.
They show what the machine allows.

Journals are trimmed during a run, because a flood fills a segment per second at every site. The order is compared by
the end of each hash chain, which also covers removed segments.
"""

import secrets
import shutil
import socket
import struct
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Final

from fairtape.bench.results import Processors, Results, Step
from fairtape.bench.ring_processes import (
    END_PERIOD_MAX,
    WARM_PERIOD,
    MemoryUse,
    PublishedCount,
    ReceiverReport,
    RingPlan,
    RingSetting,
    receiver_process,
    sender_process,
)
from fairtape.core.addresses import Address
from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.percentiles import percentile
from fairtape.core.timing import profile
from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready
from fairtape.deployment.process.idle_guard import keep_processors_awake
from fairtape.journal.format import SUFFIX
from fairtape.net.clock import SharedClock
from fairtape.net.driver import run_in_real_time
from fairtape.net.loopback import free_ports, random_groups
from fairtape.net.transports import LOOPBACK, Peer, Role, multicast_works
from fairtape.ring.membership.formation import Formation
from fairtape.wire.blocks import records_max
from fairtape.wire.frames import BLOCK_HEADER, DATAGRAM_MAX, TAG_SIZE, NodeId
from fairtape.wire.seals import SEAL_OVERHEAD, Keys, Seal

SIDE_SECONDS_MAX: Final = 2.0  # of the baselines, and of the variations
KILOBYTE: Final = 1_000
LOSS: Final = 0.01
RATE: Final = 1_000
LOSSY_TOKEN_PERIOD: Final = 1_500 * MICROSECOND  # leaves time for repairs on two cores
RETRIES: Final = 625  # a second: latency is measured, and a machine that was suspended has not failed
SLOW_RATE: Final = 197  # not a divisor of the token rate, so that messages arrive in every phase of a token
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOutcome:
    """The results of one run of one ring. Late releases are included in all metrics."""

    messages: int  # in the measured time, by the slowest receiver
    messages_per_s: float
    one_order: bool
    releases: int  # in the measured time, over all receivers
    late_releases: int
    late_fraction: float  # of messages
    release_error_p50_us: float
    release_error_p99_us: float
    release_error_max_us: float
    latency_p50_ms: float
    latency_p99_ms: float
    memory: dict[NodeId, MemoryUse]
    recoveries: int
    dropped: int
    real_time: bool  # granted to every receiver
    stolen_fraction: float
    failures: tuple[str, ...]


def measure_ring(*, receivers: int, size: int, seconds: float, rounds: int, only: str, step: Step) -> Results:
    """All results. With several rounds, a metric is their median."""
    results: Results = {"receivers": receivers, "message_bytes": size, "seconds": seconds, "rounds": rounds}
    base = RingSetting(receivers=receivers, size=size, seconds=seconds)
    if only != "latency":
        results |= _throughput(base, rounds, step)
    if only == "all":
        results |= _variations(replace(base, seconds=min(seconds, SIDE_SECONDS_MAX)), step)
    if only != "throughput":
        results |= _latency(base, rounds, step)
    return results | {"problems": problems_of(results)}


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each."""
    found = []
    for name, result in results.items():
        if "one_order" in name and result is False:
            found.append(f"{name} is false: not every receiver delivered all published messages in the same order")
        elif name in ("bare_packets_per_s", "single_releases", "lossy_releases") and result == 0:
            found.append(f"{name} is 0: nothing arrived in the measured time")
        elif name.startswith("messages_per_s") and result == 0:
            found.append(f"{name} is 0: nothing was delivered in the measured time")
        elif name.endswith("failures") and isinstance(result, list):
            found += [f"a failure was declared ({name}), {failure}" for failure in result]
    return found


def _throughput(setting: RingSetting, rounds: int, step: Step) -> Results:
    """The baseline and the ring alternate, so that each ratio compares runs that are close in time."""
    packets, outcomes = [], []
    for number in range(1, rounds + 1):
        step(f"{_round(number, rounds)}bare UDP multicast, packet by packet")
        seconds = min(setting.seconds, SIDE_SECONDS_MAX)
        packets.append(run_bare(receivers=setting.receivers, size=DATAGRAM_MAX, seconds=seconds))
        step(f"{_round(number, rounds)}a sealed ring with journals, messages of {setting.size} bytes")
        outcomes.append(run_ring(setting))
    rates = [each.messages_per_s for each in outcomes]
    bare = [max(each * messages_per_packet(setting.size), 1.0) for each in packets]
    results = _spread("messages_per_s", rates, 0) | _spread("bare_messages_per_s", bare, 0)
    results |= _spread("ratio", [rate / of for rate, of in zip(rates, bare, strict=True)], 3)
    results["ratio"] = round(median(rates) / median(bare), 3)  # consistent with the two printed medians
    results |= _spread("stolen_fraction", [each.stolen_fraction for each in outcomes], 4)
    return results | {
        "one_order": all(each.one_order for each in outcomes),
        "bare_packets_per_s": round(median(packets)),
        "late_fraction": round(median(each.late_fraction for each in outcomes), 6),
        "recovery_requests": sum(each.recoveries for each in outcomes),
        "datagrams_dropped": sum(each.dropped for each in outcomes),
        "memory_mib": _memory(outcomes[-1]),
        "failures": _failures(outcomes),
    }


def _memory(outcome: RingOutcome) -> list[dict[str, float]]:
    """Memory of each receiver in one round."""
    return [
        {
            "receiver": site,
            "at_start": round(memory.at_start / MIB, 1),
            "warm": round(memory.warm / MIB, 1),
            "at_end": round(memory.at_end / MIB, 1),
            "most": round(memory.most / MIB, 1),
        }
        for site, memory in outcome.memory.items()
    ]


def _variations(base: RingSetting, step: Step) -> Results:
    runs = {
        "1kb": ("messages of 1,000 bytes", replace(base, size=KILOBYTE)),
        "1_receiver": ("a ring of 1 receiver", replace(base, receivers=1)),
        "8_receivers": ("a ring of 8 receivers", replace(base, receivers=8)),
        "unsealed": ("a ring without seals", replace(base, seal=OpenSeal)),
    }
    results: Results = {}
    for name, (text, setting) in runs.items():
        step(text)
        outcome = run_ring(setting)
        results[f"messages_per_s_{name}"] = round(outcome.messages_per_s)
        results[f"one_order_{name}"] = outcome.one_order
    return results


def _latency(base: RingSetting, rounds: int, step: Step) -> Results:
    exact = replace(base, timing=profile("lan", retries_max=RETRIES), real_time=True)
    slower = profile("lan", token_period=LOSSY_TOKEN_PERIOD, retries_max=RETRIES)
    singles, losses, sleepers = [], [], []
    with keep_processors_awake():
        for number in range(1, rounds + 1):
            step(f"{_round(number, rounds)}bare programs that sleep until the same instants")
            seconds = min(base.seconds, SIDE_SECONDS_MAX)
            sleepers.append(run_sleepers(sleepers=base.receivers, period=exact.timing.token_period, seconds=seconds))
            step(f"{_round(number, rounds)}one message at a time, a token every millisecond")
            singles.append(run_ring(replace(exact, rate=SLOW_RATE)))
            step(f"{_round(number, rounds)}three senders, 1 % loss into one receiver")
            losses.append(run_ring(replace(exact, senders=3, rate=RATE, loss=LOSS, timing=slower)))
    real_time: Results = {"real_time": all(each.real_time for each in singles + losses)}
    for share in (50, 99):
        late = [percentile(each, share / 100, 0) / MICROSECOND for each in sleepers]
        real_time |= _spread(f"bare_sleep_error_p{share}_us", late, 1)
    return real_time | _errors("single", singles) | _errors("lossy", losses)


def _errors(name: str, outcomes: Sequence[RingOutcome]) -> Results:
    results: Results = {
        f"{name}_releases": sum(each.releases for each in outcomes),
        f"{name}_late_releases": sum(each.late_releases for each in outcomes),
        f"{name}_late_fraction": round(median(each.late_fraction for each in outcomes), 6),
        f"{name}_one_order": all(each.one_order for each in outcomes),
        f"{name}_failures": _failures(outcomes),
    }
    results |= _spread(f"{name}_release_error_p50_us", [each.release_error_p50_us for each in outcomes], 1)
    results |= _spread(f"{name}_release_error_p99_us", [each.release_error_p99_us for each in outcomes], 1)
    results |= _spread(f"{name}_release_error_max_us", [each.release_error_max_us for each in outcomes], 1)
    results |= _spread(f"{name}_latency_p50_ms", [each.latency_p50_ms for each in outcomes], 3)
    results |= _spread(f"{name}_latency_p99_ms", [each.latency_p99_ms for each in outcomes], 3)
    return results | _spread(f"{name}_stolen_fraction", [each.stolen_fraction for each in outcomes], 4)


def _spread(name: str, values: Sequence[float], digits: int) -> Results:
    """The median of the rounds, the minimum and the maximum: the speed of a virtual machine varies."""
    return {
        name: _rounded(median(values), digits),
        f"{name}_min": _rounded(min(values), digits),
        f"{name}_max": _rounded(max(values), digits),
    }


def _rounded(value: float, digits: int) -> float:
    return round(value, digits) if digits else round(value)


def _failures(outcomes: Sequence[RingOutcome]) -> list[str]:
    return [failure for outcome in outcomes for failure in outcome.failures]


def _round(number: int, rounds: int) -> str:
    return f"round {number} of {rounds}: " if rounds > 1 else ""


class OpenSeal(Seal):
    """Leaves the body open, with an empty tag: shows what seals cost. For benchmarks only."""

    __slots__ = ()

    def close(self, header: bytes, first: int, body: bytes) -> bytes:  # noqa: ARG002 - no nonce is needed
        return header + body + bytes(TAG_SIZE)

    def open(self, datagram: bytes, first: int) -> bytes:  # noqa: ARG002 - no nonce is needed
        return datagram[BLOCK_HEADER.size : -TAG_SIZE]


# Rings.

START_DELAY: Final = 200 * MILLISECOND
NODE_DELAY: Final = 50 * MILLISECOND  # added for each node that must start before the first token
SENDERS: Final = "sources"


def plan_for(setting: RingSetting) -> RingPlan:
    """A ring on free ports that starts when all nodes can have started."""
    sites = range(1, setting.receivers + 1)
    sources = setting.sources
    if not multicast_works(LOOPBACK):
        raise UserError("IP multicast does not work on the loopback interface of this machine; the benchmark needs it")
    roles = dict.fromkeys(sites, Role.SITE) | dict.fromkeys(sources, Role.SOURCE)
    ports = free_ports(len(roles))
    book = {node: Peer(LOOPBACK, port, role) for (node, role), port in zip(roles.items(), ports, strict=True)}
    starts_at = SharedClock().now() + START_DELAY + NODE_DELAY * len(book)
    loss = LinkFaults(loss=setting.loss)
    return RingPlan(
        formation=Formation(number=1, members=tuple(sites), timing=setting.timing, starts_at=starts_at),
        keys=replace(Keys.from_secret(secrets.token_bytes(32), sites, sources), seal=setting.seal),
        address_book=book,
        groups=random_groups(),
        link_faults={1: {node: loss for node in book if node != 1}} if setting.loss else {},
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fairtape-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_ring(setting: RingSetting) -> RingOutcome:
    """Run one ring and collect the reports of its processes."""
    sites = {f"site {site}": site for site in range(1, setting.receivers + 1)}
    with _scratch() as folder, ChildProcesses(imports=[__name__]) as children:
        for name, site in sites.items():
            children.start(name, receiver_process, site, folder / name, setting)
        children.start(SENDERS, sender_process, setting)
        children.await_ready({*sites, SENDERS})
        before = Processors.read()
        with trimming([folder / name for name in sites]):
            children.send_all(plan_for(setting))
            published, reports = _gather(children, setting)
        stolen_fraction = Processors.read().stolen_since(before)
    return _outcome(setting, published, reports, stolen_fraction)


def _gather(children: ChildProcesses, setting: RingSetting) -> tuple[int | None, list[ReceiverReport]]:
    """Wait for the reports of all sites. Returns the number of published messages, and the reports.

    After a failure nothing more is published, so the other sites need not wait for the end of the run.
    """
    published: int | None = None
    reports: list[ReceiverReport] = []
    give_up_at = time.monotonic_ns() + setting.window + WARM_PERIOD + 3 * END_PERIOD_MAX
    while len(reports) < setting.receivers:
        left = give_up_at - time.monotonic_ns()
        if left <= 0:
            raise UserError("the ring did not end in time; try again when the machine is less busy")
        for _, message in children.receive(left):
            if isinstance(message, PublishedCount):
                published = message.count
                children.send_all(message)
            elif isinstance(message, ReceiverReport):
                reports.append(message)
                if message.failure is not None:
                    children.send_all(PublishedCount(0))
    return published, reports


def _outcome(
    setting: RingSetting, published: int | None, reports: list[ReceiverReport], stolen_fraction: float
) -> RingOutcome:
    tallies = [report.tally for report in reports]
    errors = [error for tally in tallies for error in tally.errors]
    latencies = [latency for tally in tallies for latency in tally.latencies]
    one_digest = len({report.digest for report in reports}) == 1
    messages = min(tally.messages for tally in tallies)
    return RingOutcome(
        messages=messages,
        messages_per_s=messages / setting.seconds,
        one_order=one_digest and all(tally.all_messages == published for tally in tallies),
        releases=len(errors),
        late_releases=sum(tally.late_releases for tally in tallies),
        late_fraction=sum(tally.late_messages for tally in tallies) / max(sum(tally.messages for tally in tallies), 1),
        release_error_p50_us=percentile(errors, 0.5, 0) / MICROSECOND,
        release_error_p99_us=percentile(errors, 0.99, 0) / MICROSECOND,
        release_error_max_us=max(errors, default=0) / MICROSECOND,
        latency_p50_ms=percentile(latencies, 0.5, 0) / MILLISECOND,
        latency_p99_ms=percentile(latencies, 0.99, 0) / MILLISECOND,
        memory={report.site: report.tally.memory for report in sorted(reports, key=lambda each: each.site)},
        recoveries=sum(report.requests for report in reports),
        dropped=sum(report.dropped for report in reports),
        real_time=all(report.real_time for report in reports),
        stolen_fraction=stolen_fraction,
        failures=tuple(f"site {report.site}: {report.failure}" for report in reports if report.failure),
    )


# Journals.

SEGMENTS_KEPT: Final = 3  # of each journal; the last one is being written
TRIM_SECONDS: Final = 0.5


def trim(journal: Path) -> None:
    """Remove all but the last segments. Segment names sort by number."""
    for segment in sorted(journal.glob(f"*{SUFFIX}"))[:-SEGMENTS_KEPT]:
        segment.unlink()


@contextmanager
def trimming(journals: Sequence[Path]) -> Iterator[None]:
    """Trim these journals from a thread of this process, so that no site waits for a deletion."""
    over = Event()

    def work() -> None:
        while not over.wait(TRIM_SECONDS):
            for journal in journals:
                trim(journal)

    thread = Thread(target=work, name="journal-trim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# Baselines.

WARM_S = 0.5
CLOCK_PACKETS = 64  # packets between two reads of the clock


def bare_receiver(link: ChildLink, group: Address, seconds: float) -> None:
    """Count packets between the warm-up and the end."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind(group)
    joined = struct.pack("4s4s", socket.inet_aton(group[0]), socket.inet_aton(LOOPBACK))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    # A time-out of the kernel: a time-out of Python would add a system call for every packet.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200_000))
    link.send(Ready())
    starts_at = (link.wait_for(float) or 0.0) + WARM_S
    _count_until(sock, starts_at)
    link.send(_count_until(sock, starts_at + seconds))
    sock.close()
    link.wait_until_stopped()


def _count_until(sock: socket.socket, ends_at: float) -> int:
    """The number of packets until then. The clock is read rarely, because receiving is measured."""
    count = 0
    receive = sock.recv
    while time.time() < ends_at:
        try:
            for _ in range(CLOCK_PACKETS):
                receive(2_048)
                count += 1
        except BlockingIOError:
            continue
    return count


def bare_sender(link: ChildLink, group: Address, size: int, seconds: float) -> None:
    """Send packets of one size, one per call, as fast as possible."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    link.send(Ready())
    ends_at = (link.wait_for(float) or 0.0) + WARM_S + seconds
    packet = bytes(size)
    send = sock.sendto
    while time.time() < ends_at:
        for _ in range(CLOCK_PACKETS):
            send(packet, group)
    sock.close()
    link.wait_until_stopped()


def bare_sleeper(link: ChildLink, period: Duration, window: Duration) -> None:
    """Sleep until the same instants as all others, and report how late each sleep ended."""
    run_in_real_time()
    link.send(Ready())
    instant: Instant = link.wait_for(int) or 0
    ends_at = instant + window
    late = array("q")
    while instant < ends_at:
        left = instant - time.time_ns()
        if left > 0:
            time.sleep(left / SECOND)
        late.append(time.time_ns() - instant)
        instant += period
    link.send(late)
    link.wait_until_stopped()


def run_bare(*, receivers: int, size: int, seconds: float) -> float:
    """Packets per second of a bare receiver, on average."""
    group = "239.195.7.3", free_ports(1)[0]
    names = {f"receiver {number}" for number in range(receivers)}
    with ChildProcesses(imports=[__name__]) as children:
        for name in names:
            children.start(name, bare_receiver, group, seconds)
        children.start("sender", bare_sender, group, size, seconds)
        children.await_ready({*names, "sender"})
        children.send_all(time.time() + 0.2)
        counts = children.collect(int, names, int(seconds * SECOND) + END_PERIOD_MAX)
    return sum(counts.values()) / receivers / seconds


def run_sleepers(*, sleepers: int, period: Duration, seconds: float) -> "array[int]":
    """How late bare programs wake that sleep until the same instants, in nanoseconds."""
    names = {f"sleeper {number}" for number in range(sleepers)}
    window = int(seconds * SECOND)
    with ChildProcesses(imports=[__name__]) as children:
        for name in names:
            children.start(name, bare_sleeper, period, window)
        children.await_ready(names)
        children.send_all(time.time_ns() + START_DELAY)
        reports = children.collect(array, names, window + END_PERIOD_MAX)
    late = array("q")
    for report in reports.values():
        late.extend(report)
    return late


def messages_per_packet(size: int) -> int:
    """How many messages of one size fill a datagram."""
    return max(records_max(DATAGRAM_MAX - SEAL_OVERHEAD, size), 1)
