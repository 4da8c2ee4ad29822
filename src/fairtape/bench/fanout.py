"""The yardstick of a WebSocket server: a bare program that writes the same bytes to as many sockets, in turn.

It follows no journal, knows no subscription and waits for nobody but the kernel. What it writes in a second of its core
is the most that a server in this language can.
"""

import selectors
import socket
import time
from dataclasses import dataclass
from typing import Final

from fairtape.bench.web import CHUNK, NEWS_PERIOD, Open, check_room, take_core
from fairtape.core.instants import SECOND, Instant
from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready
from fairtape.net.transports import LOOPBACK

LOOK_PERIOD: Final = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Begin:
    """The order to begin."""

    ends_at: Instant


@dataclass(frozen=True, slots=True)
class FanoutWritten:
    """What the bare server did."""

    frames: int
    share: float  # of its core


def run_fanout(*, customers: int, size: int, seconds: float) -> float:
    """Frames of one size that a bare program writes in a second of its core."""
    check_room(customers)
    with ChildProcesses(imports=[__name__]) as crew:
        crew.start("writer", writer_process, customers, size)
        port = crew.collect(Open, {"writer"}, NEWS_PERIOD)["writer"].port
        crew.start("readers", readers_process, port, customers)
        crew.await_ready({"writer", "readers"})
        crew.tell_all(Begin(time.time_ns() + round(seconds * SECOND)))
        written = crew.collect(FanoutWritten, {"writer"}, NEWS_PERIOD)["writer"]
    return written.frames / max(written.share * seconds, 1e-9)


def writer_process(link: ChildLink, customers: int, size: int) -> None:
    """Write the same frame to all customers, over and over."""
    take_core(0, real_time=False)
    check_room(customers)
    with socket.create_server((LOOPBACK, 0), backlog=customers) as door:
        link.tell(Open(door.getsockname()[1]))
        lines = [door.accept()[0] for _ in range(customers)]
    link.tell(Ready())
    order = link.expect(Begin)
    if order is None:
        return
    frame, frames = bytes(size), 0
    began, spent = time.monotonic(), time.process_time()
    while time.time_ns() < order.ends_at:
        for line in lines:
            line.sendall(frame)
        frames += len(lines)
    link.tell(FanoutWritten(frames, (time.process_time() - spent) / (time.monotonic() - began)))
    for line in lines:
        line.close()
    link.rest()


def readers_process(link: ChildLink, port: int, customers: int) -> None:
    """Read whatever comes, and throw it away, until the writer has closed every line."""
    take_core(1, real_time=False)
    check_room(customers)
    selector = selectors.EpollSelector()
    for _ in range(customers):
        selector.register(socket.create_connection((LOOPBACK, port)), selectors.EVENT_READ)
    link.tell(Ready())
    link.expect(Begin)
    while selector.get_map():
        for key, _ in selector.select(LOOK_PERIOD):
            line = key.fileobj
            assert isinstance(line, socket.socket)
            if not line.recv(CHUNK):
                selector.unregister(line)
                line.close()
    link.rest()
