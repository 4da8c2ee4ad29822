"""How fast and how exact a ring is on this machine: throughput, release error, and latency under loss.

Every figure comes from separate processes on loopback multicast, sealed, with journals on. The yardstick runs first,
in the same run, with packets of the same size.
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
from threading import Event, Thread
from typing import Final

from fairtape.bench.receivers import MemoryUse, ReceiverReport, receiver_process
from fairtape.bench.results import Processors
from fairtape.bench.senders import Published, sender_process
from fairtape.bench.setting import END_PERIOD_MAX, WARM_PERIOD, Setting
from fairtape.core.addresses import Address
from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.percentiles import percentile
from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready
from fairtape.deployment.ring_plan import RingPlan
from fairtape.journal.format import SUFFIX
from fairtape.net.clock import SharedClock
from fairtape.net.driver import run_in_real_time
from fairtape.net.loopback import free_ports, loopback_book, loopback_groups
from fairtape.net.transports import LOOPBACK
from fairtape.ring.membership.formation import Formation
from fairtape.wire.blocks import records_max
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.seals import SEAL_OVERHEAD, Keys

# Journals of a bounded size: a flood fills a segment a second at every site, and nobody will read them.
#
# What the benchmark proves about the order it proves by the end of each hash chain, which covers what was removed too.

SEGMENTS_KEPT: Final = 3  # of each journal; the last one is being written
LOOK_SECONDS: Final = 0.5


def trim(journal: Path) -> None:
    """Remove all but the last segments. Names sort as numbers do."""
    for segment in sorted(journal.glob(f"*{SUFFIX}"))[:-SEGMENTS_KEPT]:
        segment.unlink()


@contextmanager
def trimming(journals: Sequence[Path]) -> Iterator[None]:
    """While it lasts, these journals are trimmed, by a thread of this process: no site waits for the disk to forget."""
    over = Event()

    def work() -> None:
        while not over.wait(LOOK_SECONDS):
            for journal in journals:
                trim(journal)

    thread = Thread(target=work, name="journal-trim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# The yardsticks: bare Python programs that do one thing and nothing else.
#
# A sender and receivers move the same packets one by one; sleepers wake at the same instants, as often as a ring has
# tokens. Whatever a machine does not give to these, it cannot give to a ring.

WARM_S = 0.5
BETWEEN_LOOKS = 64  # packets between two looks at the clock


def bare_receiver(link: ChildLink, group: Address, seconds: float) -> None:
    """Count what arrives between the warm-up and the end."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind(group)
    joined = struct.pack("4s4s", socket.inet_aton(group[0]), socket.inet_aton(LOOPBACK))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    # A time-out of the kernel: one of Python's would cost a second system call for every packet.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200_000))
    link.tell(Ready())
    starts_at = (link.expect(float) or 0.0) + WARM_S
    _count_until(sock, starts_at)
    link.tell(_count_until(sock, starts_at + seconds))
    sock.close()
    link.rest()


def _count_until(sock: socket.socket, ends_at: float) -> int:
    """How many packets arrive until then. The clock is looked at seldom: receiving is all that counts."""
    count = 0
    receive = sock.recv
    while time.time() < ends_at:
        try:
            for _ in range(BETWEEN_LOOKS):
                receive(2_048)
                count += 1
        except BlockingIOError:
            continue
    return count


def bare_sender(link: ChildLink, group: Address, size: int, seconds: float) -> None:
    """Send packets of one size as fast as one call after the other allows."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    link.tell(Ready())
    ends_at = (link.expect(float) or 0.0) + WARM_S + seconds
    packet = bytes(size)
    send = sock.sendto
    while time.time() < ends_at:
        for _ in range(BETWEEN_LOOKS):
            send(packet, group)
    sock.close()
    link.rest()


def bare_sleeper(link: ChildLink, period: Duration, window: Duration) -> None:
    """Sleep until the same instants as all others, and say how much later each sleep ended."""
    run_in_real_time()
    link.tell(Ready())
    instant: Instant = link.expect(int) or 0
    ends_at = instant + window
    late = array("q")
    while instant < ends_at:
        left = instant - time.time_ns()
        if left > 0:
            time.sleep(left / SECOND)
        late.append(time.time_ns() - instant)
        instant += period
    link.tell(late)
    link.rest()


START_DELAY: Final = 200 * MILLISECOND
NODE_DELAY: Final = 50 * MILLISECOND  # added for each node that has to be there before the first token
SENDERS: Final = "sources"


def plan_for(setting: Setting) -> RingPlan:
    """A ring of this size on free ports that starts as soon as everyone can be there."""
    sites = range(1, setting.receivers + 1)
    sources = setting.sources
    groups = loopback_groups(mesh=False)
    if groups is None:
        raise UserError("IP multicast does not work on the loopback interface of this machine, and the bench needs it")
    book = loopback_book(sites, sources)
    starts_at = SharedClock().now() + START_DELAY + NODE_DELAY * len(book)
    loss = LinkFaults(loss=setting.loss)
    return RingPlan(
        formation=Formation(number=1, members=tuple(sites), timing=setting.timing, starts_at=starts_at),
        keys=replace(Keys.from_secret(secrets.token_bytes(32), sites, sources), seal=setting.seal),
        book=book,
        groups=groups,
        link_faults={1: {node: loss for node in book if node != 1}} if setting.loss else {},
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fairtape-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOutcome:
    """What one run of one ring showed. Late releases are in every figure."""

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


def run_ring(setting: Setting) -> RingOutcome:
    """Run one ring and gather what its processes say."""
    sites = {f"site {site}": site for site in range(1, setting.receivers + 1)}
    with _scratch() as folder, ChildProcesses(imports=[__name__]) as children:
        for name, site in sites.items():
            children.start(name, receiver_process, site, folder / name, setting)
        children.start(SENDERS, sender_process, setting)
        children.await_ready({*sites, SENDERS})
        before = Processors.read()
        with trimming([folder / name for name in sites]):
            children.tell_all(plan_for(setting))
            published, reports = _gather(children, setting)
        stolen_fraction = Processors.read().stolen_since(before)
    return _outcome(setting, published, reports, stolen_fraction)


def _gather(children: ChildProcesses, setting: Setting) -> tuple[int | None, list[ReceiverReport]]:
    """Until every site has given its account: how much was published, and the accounts.

    A ring that failed publishes no more, so nobody waits for the end of its time.
    """
    published: int | None = None
    reports: list[ReceiverReport] = []
    give_up_at = time.monotonic_ns() + setting.window + WARM_PERIOD + 3 * END_PERIOD_MAX
    while len(reports) < setting.receivers:
        left = give_up_at - time.monotonic_ns()
        if left <= 0:
            raise UserError("the ring did not come to its end in time; try again when the machine is less busy")
        for _, message in children.hear(left):
            if isinstance(message, Published):
                published = message.count
                children.tell_all(message)
            elif isinstance(message, ReceiverReport):
                reports.append(message)
                if message.failure is not None:
                    children.tell_all(Published(0))
    return published, reports


def _outcome(
    setting: Setting, published: int | None, reports: list[ReceiverReport], stolen_fraction: float
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


def run_bare(*, receivers: int, size: int, seconds: float) -> float:
    """Packets per second that each bare receiver gets, on the average."""
    group = "239.195.7.3", free_ports(1)[0]
    names = {f"receiver {number}" for number in range(receivers)}
    with ChildProcesses(imports=[__name__]) as children:
        for name in names:
            children.start(name, bare_receiver, group, seconds)
        children.start("sender", bare_sender, group, size, seconds)
        children.await_ready({*names, "sender"})
        children.tell_all(time.time() + 0.2)
        counts = children.collect(int, names, int(seconds * SECOND) + END_PERIOD_MAX)
    return sum(counts.values()) / receivers / seconds


def run_sleepers(*, sleepers: int, period: Duration, seconds: float) -> "array[int]":
    """How much too late, in nanoseconds, bare programs wake that all sleep until the same instants."""
    names = {f"sleeper {number}" for number in range(sleepers)}
    window = int(seconds * SECOND)
    with ChildProcesses(imports=[__name__]) as children:
        for name in names:
            children.start(name, bare_sleeper, period, window)
        children.await_ready(names)
        children.tell_all(time.time_ns() + START_DELAY)
        reports = children.collect(array, names, window + END_PERIOD_MAX)
    late = array("q")
    for report in reports.values():
        late.extend(report)
    return late


def messages_per_packet(size: int) -> int:
    """How many messages of one size fill a datagram."""
    return max(records_max(DATAGRAM_MAX - SEAL_OVERHEAD, size), 1)
