"""The yardstick: a bare Python sender and bare receivers that move the same packets one by one and do nothing else."""

import socket
import struct
import time
from multiprocessing.connection import Connection

from fairtape.runtime.carriers import LOOPBACK
from fairtape.runtime.udp import Address

WARM_S = 0.5


def bare_receiver(pipe: Connection, group: Address, seconds: float) -> None:
    """Count what arrives between the warm-up and the end."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind(group)
    joined = struct.pack("4s4s", socket.inet_aton(group[0]), socket.inet_aton(LOOPBACK))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
    sock.settimeout(0.2)
    pipe.send("ready")
    starts_at = pipe.recv() + WARM_S
    ends_at = starts_at + seconds
    count = 0
    receive = sock.recv
    clock = time.time
    while clock() < ends_at:
        try:
            receive(2_048)
        except TimeoutError:
            continue
        if clock() >= starts_at:
            count += 1
    pipe.send(count)
    sock.close()


def bare_sender(pipe: Connection, group: Address, size: int, seconds: float) -> None:
    """Send packets of one size as fast as one call after the other allows."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    pipe.send("ready")
    ends_at = pipe.recv() + WARM_S + seconds
    packet = bytes(size)
    send = sock.sendto
    count = 0
    while time.time() < ends_at:
        for _ in range(64):
            send(packet, group)
        count += 64
    pipe.send(count)
    sock.close()
