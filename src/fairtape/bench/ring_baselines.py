"""Baselines of `fairtape bench ring`: what this machine allows a ring at most.

Bare Python programs move the same packets, one by one or in trains as the ring does, or sleep until the same instants.
The primitives that no ring can do without, seals, hashes and system calls, are measured alone, and so is the disk.
"""

import hashlib
import os
import secrets
import socket
import struct
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.bench.ring_processes import END_PERIOD_MAX
from fairtape.core.addresses import Address
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.deployment.process.children import ChildLink, ChildProcesses, Ready
from fairtape.net.driver import run_in_real_time
from fairtape.net.loopback import free_ports
from fairtape.net.transports import LOOPBACK
from fairtape.net.udp import TRAIN_BYTES_MAX
from fairtape.wire.blocks import pack_records, records_max
from fairtape.wire.frames import BLOCK_HEADER, DATAGRAM_MAX
from fairtape.wire.seals import KEY_SIZE, SEAL_OVERHEAD, Seal

SLEEP_DELAY: Final = 200 * MILLISECOND  # before the first instant of the programs that sleep

WARM_S = 0.5
CLOCK_PACKETS = 64  # packets between two reads of the clock


def _joined(group: Address) -> socket.socket:
    """A socket that receives the group, and does not wait for a packet for long."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind(group)
    joined = struct.pack("4s4s", socket.inet_aton(group[0]), socket.inet_aton(LOOPBACK))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    # A time-out of the kernel: a time-out of Python would add a system call for every packet.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200_000))
    return sock


def _sending() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    return sock


def bare_receiver(link: ChildLink, group: Address, seconds: float) -> None:
    """Count packets between the warm-up and the end."""
    sock = _joined(group)
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
    sock = _sending()
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
        children.send_all(time.time_ns() + SLEEP_DELAY)
        reports = children.collect(array, names, window + END_PERIOD_MAX)
    late = array("q")
    for report in reports.values():
        late.extend(report)
    return late


def messages_per_packet(size: int) -> int:
    """How many messages of one size fill a datagram."""
    return max(records_max(DATAGRAM_MAX - SEAL_OVERHEAD, size), 1)


# Trains.

_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_SEGMENT_SIZE: Final = struct.Struct("=H")
_RECEIVE_MAX: Final = 1 << 16
CLOCK_TRAINS: Final = 8  # trains between two reads of the clock


@dataclass(frozen=True, slots=True)
class TrainReport:
    """What one program did in the measured time."""

    packets: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """Bare UDP in trains."""

    packets_per_s: float  # of one receiver, on average
    sent_us: float  # processor time of the sender for one packet
    received_us: float  # processor time of a receiver for one packet


def train_receiver(link: ChildLink, group: Address, size: int, seconds: float) -> None:
    """Count the packets of trains between the warm-up and the end, as they come from the kernel."""
    sock = _joined(group)
    sock.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
    link.send(Ready())
    starts_at = (link.wait_for(float) or 0.0) + WARM_S
    _count_trains(sock, size, starts_at)
    began = time.process_time()
    packets = _count_trains(sock, size, starts_at + seconds)
    link.send(TrainReport(packets, time.process_time() - began))
    sock.close()
    link.wait_until_stopped()


def _count_trains(sock: socket.socket, size: int, ends_at: float) -> int:
    octets = 0
    ancillary_max = socket.CMSG_SPACE(4)
    receive = sock.recvmsg
    while time.time() < ends_at:
        try:
            for _ in range(CLOCK_TRAINS):
                octets += len(receive(_RECEIVE_MAX, ancillary_max)[0])
        except BlockingIOError:
            continue
    return octets // size


def train_sender(link: ChildLink, group: Address, size: int, seconds: float) -> None:
    """Send trains of packets of one size, as fast as possible."""
    sock = _sending()
    link.send(Ready())
    starts_at = (link.wait_for(float) or 0.0) + WARM_S
    _send_trains(sock, group, size, starts_at)
    began = time.process_time()
    packets = _send_trains(sock, group, size, starts_at + seconds)
    link.send(TrainReport(packets, time.process_time() - began))
    sock.close()
    link.wait_until_stopped()


def _send_trains(sock: socket.socket, group: Address, size: int, ends_at: float) -> int:
    train = [bytes(size)] * (TRAIN_BYTES_MAX // size)
    segments = [(socket.IPPROTO_UDP, _UDP_SEGMENT, _SEGMENT_SIZE.pack(size))]
    packets = 0
    send = sock.sendmsg
    while time.time() < ends_at:
        for _ in range(CLOCK_TRAINS):
            send(train, segments, 0, group)
            packets += len(train)
    return packets


def run_trains(*, receivers: int, size: int, seconds: float) -> TrainOutcome | None:
    """Packets per second in trains; None where the kernel does not have them."""
    if not trains_work():
        return None
    group = "239.195.7.3", free_ports(1)[0]
    names = {f"receiver {number}" for number in range(receivers)}
    with ChildProcesses(imports=[__name__]) as children:
        for name in names:
            children.start(name, train_receiver, group, size, seconds)
        children.start("sender", train_sender, group, size, seconds)
        children.await_ready({*names, "sender"})
        children.send_all(time.time() + 0.2)
        reports = children.collect(TrainReport, {*names, "sender"}, int(seconds * SECOND) + END_PERIOD_MAX)
    sent = reports.pop("sender")
    received = sum(report.packets for report in reports.values())
    return TrainOutcome(
        packets_per_s=received / receivers / seconds,
        sent_us=sent.cpu_s * 1e6 / max(sent.packets, 1),
        received_us=sum(report.cpu_s for report in reports.values()) * 1e6 / max(received, 1),
    )


def trains_work() -> bool:
    """Whether this kernel has segmentation offload for UDP, in both directions."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, 0)
            sock.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        except OSError:
            return False
    return True


# Primitives.

REPEATS: Final = 2_000  # of a primitive in one measurement
MEASUREMENTS: Final = 5  # the least counts: everything else is a disturbance
WRITTEN_BLOCKS: Final = 100  # by one call, as a journal writes a token


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """Processor time for one full block, in microseconds, of what a ring cannot do without."""

    seal_us: float
    open_us: float
    hash_us: float
    write_us: float  # to a file, without the wait for the disk

    def floor_us(self, trains: TrainOutcome, receivers: int) -> float:
        """One block at its source and at all receivers: seal, open, hash, write, and the kernel's part of UDP."""
        at_receiver = self.open_us + self.hash_us + self.write_us + trains.received_us
        return self.seal_us + trains.sent_us + receivers * at_receiver


def block_costs(folder: Path, size: int) -> BlockCosts:
    """Measure the primitives on blocks that are full of messages of one size."""
    body = pack_records(bytes(size * messages_per_packet(size)), size)
    header = bytes(BLOCK_HEADER.size)
    seal = Seal(secrets.token_bytes(KEY_SIZE), stripe=0, source=1, incarnation=1)
    sealed = seal.close(header, 1, body)
    blocks = [body] * WRITTEN_BLOCKS
    file = os.open(folder / "blocks", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_us = _least_us(lambda: os.pwritev(file, blocks, 0), REPEATS // WRITTEN_BLOCKS) / WRITTEN_BLOCKS
    finally:
        os.close(file)
        (folder / "blocks").unlink()
    return BlockCosts(
        seal_us=_least_us(lambda: seal.close(header, 1, body)),
        open_us=_least_us(lambda: seal.open(sealed, 1)),
        hash_us=_least_us(lambda: hashlib.sha256(body).digest()),
        write_us=write_us,
    )


def _least_us(work: Callable[[], object], repeats: int = REPEATS) -> float:
    took = []
    for _ in range(MEASUREMENTS):
        began = time.thread_time_ns()
        for _ in range(repeats):
            work()
        took.append(time.thread_time_ns() - began)
    return min(took) / repeats / 1e3


# The disk.

DISK_CHUNK: Final = 1 << 20
DISK_BYTES_MAX: Final = 1 << 30  # of one file


def disk_bytes_per_s(folder: Path, *, files: int, seconds: float) -> float:
    """Bytes per second into one of several files that are written sequentially at the same time, and then synced."""
    chunk = secrets.token_bytes(DISK_CHUNK)
    opened = [os.open(folder / f"disk {number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for number in range(files)]
    began, written = time.monotonic(), 0
    try:
        while time.monotonic() < began + seconds and written < DISK_BYTES_MAX:
            for file in opened:
                os.write(file, chunk)
            written += DISK_CHUNK
        for file in opened:
            os.fdatasync(file)
        return written / (time.monotonic() - began)
    finally:
        for number, file in enumerate(opened):
            os.close(file)
            (folder / f"disk {number}").unlink()
