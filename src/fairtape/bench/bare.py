"""The yardsticks: bare Python programs that do one thing and nothing else.

A sender and receivers move the same packets one by one; sleepers wake at the same instants, as often as a ring has
tokens. Whatever a machine does not give to these, it cannot give to a ring.
"""

import socket
import struct
import time
from array import array

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.net.driver import run_in_real_time
from fairtape.net.transports import LOOPBACK
from fairtape.net.udp import Address

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
