"""WebSocket customers of one server on one core: how many, and their delay after the release.

One process writes a journal live, as a site does. The server follows it on its own core. The customers are bare sockets
in a third process, which reads the clock when bytes arrive. Customers that lost their connection, missed a number or
got one twice are counted; a server with such customers does not keep up.

The baseline is a bare program that writes the same bytes to as many sockets. It follows no journal and knows no
subscriptions: it shows the most that a Python server can write per second of its core.
"""

import os
import selectors
import socket
import struct
import tempfile
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fairtape.bench.results import Processors
from fairtape.core.effects import Ordered, Release, Span
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.market.flow import Flow, batches
from fairtape.market.trades import TRADE_SIZE
from fairtape.net.driver import allow_files, run_in_real_time, tune_gc
from fairtape.net.transports import LOOPBACK
from fairtape.web.broadcast import BroadcastLimits
from fairtape.web.server import HOST, ServedSite, running
from fairtape.wire.blocks import pack_messages

DELAY_GOAL_MS: Final = 50.0
START_DELAY: Final = 300 * MILLISECOND
WARM_PERIOD: Final = 1 * SECOND  # not measured
END_PERIOD: Final = 500 * MILLISECOND  # for the last messages
REPORT_PERIOD_MAX: Final = 60 * SECOND
HEAD_MAX: Final = 4_096
CHUNK: Final = 1 << 18  # bytes of one read
SOURCE: Final = 101

REQUEST: Final = (
    b"GET /v1/ticker?form=binary&policy=skip&stripes=0 HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_BUNDLE: Final = struct.Struct("<4sI")
_BUNDLE_SIZE: Final = 16
_NUMBER: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSetting:
    """One run."""

    customers: int = 1_000
    rate: int = 1_000  # messages per second
    seconds: float = 5.0
    token_period: Duration = 5 * MILLISECOND
    real_time: bool = True  # request real-time scheduling

    @property
    def per_token(self) -> int:
        """Messages of one token."""
        return max(self.rate * self.token_period // SECOND, 1)


@dataclass(frozen=True, slots=True)
class RunWindow:
    """The command to begin: when the first token is due, and when the run ends."""

    starts_at: Instant
    ends_at: Instant


@dataclass(frozen=True, slots=True)
class Listening:
    """The server accepts connections on this port."""

    port: int


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The load of the server in the measured time."""

    share: float  # of its core
    real_time: bool  # granted by the kernel


@dataclass(frozen=True, slots=True)
class ReleaseTimes:
    """When the site released each token."""

    released_at: bytes


@dataclass(frozen=True, slots=True)
class CustomersReport:
    """All received frames: arrival, first sequence number and number of messages of each."""

    received_at: bytes
    first: bytes
    count: bytes
    faults: int  # customers with a gap, a duplicate, an unexpected notice or a lost connection
    share: float  # of its core
    reported_delayed: bool  # the server announced that it is behind


def measure_websocket(setting: WebSetting | None = None) -> dict[str, Any]:
    """The results of one run."""
    setting = setting or WebSetting()
    check_file_limit(setting.customers)
    processors = Processors.read()
    with tempfile.TemporaryDirectory(prefix="fairtape-web-", ignore_cleanup_errors=True) as scratch:
        journal = Path(scratch) / "journal"
        journal.mkdir()
        customers, server, site, window = _run(setting, journal)
    delays = _delays(setting, site, customers)
    p50, p99 = (round(float(np.percentile(delays, each)), 2) if len(delays) else 0.0 for each in (50, 99))
    expected = setting.customers * int(setting.seconds * SECOND / setting.token_period) * setting.per_token
    kept_up = not customers.faults and len(delays) >= expected and p99 < DELAY_GOAL_MS
    return {
        "websocket_customers": setting.customers,
        "websocket_p50_ms": p50,
        "websocket_p99_ms": p99,
        "websocket_max_ms": round(float(delays.max()), 2) if len(delays) else 0.0,
        "websocket_kept_up": kept_up,
        "websocket_faults": customers.faults,
        "websocket_told_delayed": customers.reported_delayed,
        "websocket_messages_per_s": setting.rate,
        "websocket_deliveries": len(delays),
        "websocket_deliveries_missing": max(expected - len(delays), 0),
        "websocket_frames": len(customers.count) // 4,
        "websocket_frames_per_s": round(len(customers.count) // 4 / (window.ends_at - window.starts_at) * SECOND),
        "websocket_real_time": server.real_time,
        "websocket_server_core_share": round(server.share, 3),
        "websocket_customers_core_share": round(customers.share, 3),
        "websocket_stolen_fraction": round(Processors.read().stolen_since(processors), 3),
    }


def check_file_limit(customers: int) -> None:
    """Raise the limit of open files: every customer is one file on either side."""
    needed = customers + 256
    allowed = allow_files(needed)
    if allowed < needed:
        raise UserError(f"--customers is {customers}; a process may open only {allowed} files: raise ulimit -n")


def _run(setting: WebSetting, journal: Path) -> tuple[CustomersReport, ServerReport, ReleaseTimes, RunWindow]:
    with ChildProcesses(imports=[__name__]) as children:
        children.start("server", server_process, journal, setting)
        port = children.collect(Listening, {"server"}, REPORT_PERIOD_MAX)["server"].port
        children.start("customers", customers_process, port, setting)
        children.start("site", site_process, journal, setting)
        children.await_ready({"customers", "site"})
        starts_at = time.time_ns() + START_DELAY
        window = RunWindow(starts_at, starts_at + WARM_PERIOD + round(setting.seconds * SECOND))
        children.send_all(window)
        found = _reports(children)
    return found[CustomersReport], found[ServerReport], found[ReleaseTimes], window


def _reports(children: ChildProcesses) -> dict[type, Any]:
    """The final report of each process, by its type."""
    found: dict[type, Any] = {}
    ends_at = time.monotonic_ns() + REPORT_PERIOD_MAX
    while len(found) < 3:
        if time.monotonic_ns() > ends_at:
            raise UserError("the benchmark did not end in time; try with fewer customers")
        found |= {type(report): report for _, report in children.receive(100 * MILLISECOND)}
    return found


def _delays(setting: WebSetting, site: ReleaseTimes, customers: CustomersReport) -> Any:
    """Milliseconds from the release to the arrival, of every measured message at every customer."""
    received_at = np.frombuffer(customers.received_at, np.int64)
    first, count = np.frombuffer(customers.first, np.int64), np.frombuffer(customers.count, np.int32)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    numbers = np.repeat(first, count) + within
    tokens = (numbers - 1) // setting.per_token
    delays = np.repeat(received_at, count) - np.frombuffer(site.released_at, np.int64)[tokens]
    return delays[tokens * setting.token_period >= WARM_PERIOD] / MILLISECOND


# Processes.


def server_process(link: ChildLink, journal: Path, setting: WebSetting) -> None:
    """The server, on the first core."""
    real_time = pin_to_core(0, real_time=setting.real_time)
    tune_gc()
    target = ServedSite(directory=journal, title="bench")
    with running(target, limits=BroadcastLimits(customers_max=setting.customers + 10)) as server:
        link.send(Listening(server.port))
        window = link.wait_for(RunWindow)
        if window is not None:
            _sleep_until(window.starts_at + WARM_PERIOD)
            began, spent = time.monotonic(), time.process_time()
            _sleep_until(window.ends_at)
            link.send(ServerReport((time.process_time() - spent) / (time.monotonic() - began), real_time))
        link.wait_until_stopped()


def site_process(link: ChildLink, journal: Path, setting: WebSetting) -> None:
    """Write a journal as a site does: tokens, and their release marks in time."""
    pin_to_core(1, real_time=setting.real_time)
    blocks = _blocks(setting)
    with JournalWriter.open(journal, stripe=0, site=1, sync=SyncPolicy.NEVER) as writer:
        link.send(Ready())
        window = link.wait_for(RunWindow)
        if window is None:
            return
        token, sequence, due_at, released_at = 1, 1, window.starts_at, array("q")
        while due_at < window.ends_at:
            count = setting.per_token
            span = Span(SOURCE, 1, sequence, count, sequence, (next(blocks),), (count,))
            writer.append(Ordered(0, 1, token, sequence, count, due_at, (span,)), due_at)
            _sleep_until(due_at)
            now = time.time_ns()
            released_at.append(now)
            writer.release(Release(token, sequence, count, due_at, now, late=False, clock_bound=0), now)
            token, sequence, due_at = token + 1, sequence + count, due_at + setting.token_period
        link.send(ReleaseTimes(released_at.tobytes()))
        link.wait_until_stopped()


def _blocks(setting: WebSetting) -> Iterator[bytes]:
    """Bodies of one token each, in an endless cycle."""
    trades = next(batches(Flow(rate=setting.rate, session_period=60 * SECOND), np.random.default_rng(1))).tobytes()
    size = setting.per_token * TRADE_SIZE
    bodies = [
        pack_messages([trades[at : at + TRADE_SIZE] for at in range(start, start + size, TRADE_SIZE)])
        for start in range(0, len(trades) - size, size)
    ]
    while True:
        yield from bodies


def customers_process(link: ChildLink, port: int, setting: WebSetting) -> None:
    """All customers, on the second core."""
    pin_to_core(1, real_time=setting.real_time)
    check_file_limit(setting.customers)
    customers = BareCustomers(port, setting.customers)
    tune_gc()
    link.send(Ready())
    window = link.wait_for(RunWindow)
    if window is not None:
        began, spent = time.monotonic(), time.process_time()
        customers.receive(window.ends_at + END_PERIOD)
        link.send(customers.report((time.process_time() - spent) / (time.monotonic() - began)))
    link.wait_until_stopped()


class BareCustomers:
    """Customers that only read the clock and the first number of each frame."""

    def __init__(self, port: int, customers: int) -> None:
        self._selector = selectors.EpollSelector()
        self._rest: dict[int, bytes] = {}  # incomplete frame of each customer, by file descriptor
        self._due: dict[int, int] = {}
        self._faulty: set[int] = set()
        self._reported_delayed = False
        self._received_at, self._first, self._count = array("q"), array("q"), array("i")
        for _ in range(customers):
            connection = socket.create_connection((HOST, port))
            connection.sendall(REQUEST)
            rest = _after_head(connection)
            connection.settimeout(0)
            self._rest[connection.fileno()] = rest
            self._selector.register(connection, selectors.EVENT_READ)

    def receive(self, ends_at: Instant) -> None:
        while (now := time.time_ns()) < ends_at:
            for key, _ in self._selector.select((ends_at - now) / SECOND):
                self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered

    def report(self, share: float) -> CustomersReport:
        received_at, first, count = (each.tobytes() for each in (self._received_at, self._first, self._count))
        return CustomersReport(received_at, first, count, len(self._faulty), share, self._reported_delayed)

    def _read(self, connection: socket.socket) -> None:
        data = connection.recv(CHUNK)
        now, file = time.time_ns(), connection.fileno()
        if not data:
            self._faulty.add(file)
            self._selector.unregister(connection)
            return
        if self._rest[file]:
            data = self._rest[file] + data
        at = 0
        while (head := _frame(data, at)) is not None:
            payload_at, end = head
            if data[at] & 0x0F == 2:  # binary
                self._note(file, data, payload_at, now)
            elif data[payload_at : payload_at + 17] == b'{"kind":"delayed"':
                self._reported_delayed = True
            elif not data[payload_at:end].startswith((b'{"kind":"subscribed"', b'{"kind":"prompt"')):
                self._faulty.add(file)  # no other message is expected
            at = end
        self._rest[file] = data[at:]

    def _note(self, file: int, data: bytes, payload_at: int, now: Instant) -> None:
        _, count = _BUNDLE.unpack_from(data, payload_at)
        (first,) = _NUMBER.unpack_from(data, payload_at + _BUNDLE_SIZE + count * TRADE_SIZE)
        if self._due.get(file, first) != first:
            self._faulty.add(file)
        self._due[file] = first + count
        self._received_at.append(now)
        self._first.append(first)
        self._count.append(count)


def _frame(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the payload of the frame at `at` begins and ends; None while the frame is incomplete."""
    if len(data) < at + 10:
        return None
    size, payload_at = data[at + 1], at + 2
    if size == 126:
        size, payload_at = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
    elif size == 127:
        size, payload_at = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
    return (payload_at, payload_at + size) if payload_at + size <= len(data) else None


def _after_head(connection: socket.socket) -> bytes:
    """Read the response of the handshake; the bytes after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(HEAD_MAX)
        if not more or len(data) > HEAD_MAX:
            raise UserError("the server refused a customer of the benchmark")
        data += more
    return data.partition(b"\r\n\r\n")[2]


def pin_to_core(number: int, *, real_time: bool) -> bool:
    """Run on one core; whether real-time scheduling is granted."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    return real_time and run_in_real_time()


def _sleep_until(instant: Instant) -> None:
    left = instant - time.time_ns()
    if left > 0:
        time.sleep(left / SECOND)


# The baseline.

POLL_PERIOD: Final = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Begin:
    """The command to begin."""

    ends_at: Instant


@dataclass(frozen=True, slots=True)
class WriterReport:
    """The result of the bare server."""

    frames: int
    share: float  # of its core


def run_fanout(*, customers: int, size: int, seconds: float) -> float:
    """Frames of one size that a bare program writes per second of its core."""
    check_file_limit(customers)
    with ChildProcesses(imports=[__name__]) as children:
        children.start("writer", writer_process, customers, size)
        port = children.collect(Listening, {"writer"}, REPORT_PERIOD_MAX)["writer"].port
        children.start("readers", readers_process, port, customers)
        children.await_ready({"writer", "readers"})
        children.send_all(Begin(time.time_ns() + round(seconds * SECOND)))
        written = children.collect(WriterReport, {"writer"}, REPORT_PERIOD_MAX)["writer"]
    return written.frames / max(written.share * seconds, 1e-9)


def writer_process(link: ChildLink, customers: int, size: int) -> None:
    """Write the same frame to all customers in turn until the end."""
    pin_to_core(0, real_time=False)
    check_file_limit(customers)
    with socket.create_server((LOOPBACK, 0), backlog=customers) as listener:
        link.send(Listening(listener.getsockname()[1]))
        connections = [listener.accept()[0] for _ in range(customers)]
    link.send(Ready())
    order = link.wait_for(Begin)
    if order is None:
        return
    frame, frames = bytes(size), 0
    began, spent = time.monotonic(), time.process_time()
    while time.time_ns() < order.ends_at:
        for connection in connections:
            connection.sendall(frame)
        frames += len(connections)
    link.send(WriterReport(frames, (time.process_time() - spent) / (time.monotonic() - began)))
    for connection in connections:
        connection.close()
    link.wait_until_stopped()


def readers_process(link: ChildLink, port: int, customers: int) -> None:
    """Read and discard until the writer has closed every connection."""
    pin_to_core(1, real_time=False)
    check_file_limit(customers)
    selector = selectors.EpollSelector()
    for _ in range(customers):
        selector.register(socket.create_connection((LOOPBACK, port)), selectors.EVENT_READ)
    link.send(Ready())
    link.wait_for(Begin)
    while selector.get_map():
        for key, _ in selector.select(POLL_PERIOD):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if not connection.recv(CHUNK):
                selector.unregister(connection)
                connection.close()
    link.wait_until_stopped()
