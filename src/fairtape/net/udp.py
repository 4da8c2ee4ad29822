"""UDP sockets with segmentation offload.

A system call costs more than the bytes that it moves, so datagrams are sent and received in trains: consecutive
datagrams of one size (the last may be shorter) leave in one call with `UDP_SEGMENT`, and with `UDP_GRO` a whole train
arrives in one call, with its segment size as ancillary data. Where a kernel, a device or a route refuses, datagrams are
sent one by one; the receiver gets the same datagrams in the same order either way.

Losses in the kernel are counted: what it would not send or could not buffer is in `Traffic`.
"""

import errno
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairtape.core.addresses import Address, check_port
from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND

TRAIN_MAX: Final = 64  # segments of one call, in every kernel that has UDP_SEGMENT
# With its Ethernet, IP and UDP headers a train must stay below 64 KiB, or the kernel splits it before the device.
TRAIN_BYTES_MAX: Final = 65_535 - 14 - 20 - 8
REFUSING_MAX: Final = 4_096  # addresses that are remembered to refuse trains
BUFFER_SIZE: Final = 4 << 20  # requested from the kernel for each direction
SEND_WAIT_MAX: Final = 1 * MILLISECOND  # how long one `send` may wait for a full queue
SEND_RETRY_DELAY: Final = 50 * MICROSECOND
KERNEL_OVERHEAD: Final = 768  # bytes that the kernel adds to a datagram, or to a whole train, that waits; at least

_SOL_UDP: Final = socket.IPPROTO_UDP
_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_SO_RXQ_OVFL: Final = 40
_SO_MEMINFO: Final = 55
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_RECEIVE_MAX: Final = 1 << 16
_SEGMENT_SIZE: Final = struct.Struct("=H")
_GRO_SIZE: Final = struct.Struct("=i")
_OVERFLOWS: Final = struct.Struct("=I")
_MEMORY: Final = struct.Struct("=9I")  # SK_MEMINFO_*: the first is what the receive queue takes
_ANCILLARY_MAX: Final = socket.CMSG_SPACE(_GRO_SIZE.size) + socket.CMSG_SPACE(_OVERFLOWS.size)
_FULL: Final = frozenset((errno.EAGAIN, errno.ENOBUFS))
_REFUSES_TRAINS: Final = frozenset((errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EMSGSIZE, errno.EOPNOTSUPP))


@dataclass(slots=True)
class Traffic:
    """Counts of a socket, in datagrams."""

    sent: int = 0
    dropped: int = 0  # the kernel would not send it
    received: int = 0
    overflowed: int = 0  # the receive buffer was full; the kernel counts a whole train once

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.sent + other.sent,
            self.dropped + other.dropped,
            self.received + other.received,
            self.overflowed + other.overflowed,
        )


class UdpSocket:
    """A bound socket that never blocks."""

    __slots__ = (
        "_deaf_to",
        "_refusing",
        "_socket",
        "_trains",
        "address",
        "fd",
        "loops_back",
        "receive_buffer",
        "receive_calls",
        "send_buffer",
        "traffic",
    )

    def __init__(self, bound: socket.socket, *, trains: bool = True, ignored_sender: Address | None = None) -> None:
        """Take over a bound socket. Datagrams from `ignored_sender`, a node's own address, are dropped."""
        bound.settimeout(0)
        self._socket = bound
        self._deaf_to = ignored_sender
        self.loops_back: Final = ignored_sender is not None  # the node's own multicasts arrive here, too
        self._trains = trains and _try_option(bound, _SOL_UDP, _UDP_SEGMENT, 0)
        self._refusing: set[Address] = set()
        if trains:
            _try_option(bound, _SOL_UDP, _UDP_GRO, 1)
        _try_option(bound, socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        self.fd: Final = bound.fileno()
        self.address: Final[Address] = bound.getsockname()
        self.receive_buffer: Final = _set_buffer(bound, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
        self.send_buffer: Final = _set_buffer(bound, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
        self.traffic: Final = Traffic()
        self.receive_calls = 0  # that took a datagram or a train

    def receive(
        self, datagrams_max: int, senders: list[Address] | None = None, *, until_empty: bool = True
    ) -> list[bytes]:
        """The datagrams that have arrived, oldest first. Stops after the train that reaches `datagrams_max`.

        Unless `until_empty`, it also stops after a datagram that came alone: at low rates nothing follows, and a call
        that finds nothing costs as much as one that does. What did follow makes the socket ready again. Appends the
        address of each datagram's sender to `senders`, if given.
        """
        datagrams: list[bytes] = []
        recvmsg, ignored_sender = self._socket.recvmsg, self._deaf_to
        try:
            while len(datagrams) < datagrams_max:
                data, ancillary, _, sender = recvmsg(_RECEIVE_MAX, _ANCILLARY_MAX)
                self.receive_calls += 1
                if sender == ignored_sender:
                    # A loopback copy costs a call as well, and the limit is for calls.
                    datagrams_max = datagrams_max - 1 if until_empty else 0
                    continue
                size = self._segment_size(ancillary) if ancillary else 0
                if size:
                    datagrams += [data[start : start + size] for start in range(0, len(data), size)]
                else:
                    datagrams.append(data)
                    if not until_empty:
                        datagrams_max = 0
                if senders is not None:
                    senders += [sender] * (-(-len(data) // size) if size else 1)
        except BlockingIOError:
            pass
        self.traffic.received += len(datagrams)
        return datagrams

    def send(self, datagrams: Sequence[bytes], *addresses: Address) -> None:
        """Send all datagrams, in this order, to each address.

        Waits for a full queue for at most `SEND_WAIT_MAX` per call; what does not fit then is dropped and counted.
        """
        give_up_at = 0  # of the whole call, however many trains and addresses it has
        for train in trains(datagrams):
            for address in addresses:
                give_up_at = self._send_train(train, address, give_up_at)

    def backlog(self) -> int:
        """The bytes of received and unread datagrams, as the kernel accounts for them; 0 where it does not tell.

        That is `KERNEL_OVERHEAD` more than their size for each datagram or train: for small ones many times their size.
        """
        try:
            memory = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMORY.size)
        except OSError:
            return 0
        queued: int = _MEMORY.unpack(memory)[0] if len(memory) == _MEMORY.size else 0
        return queued

    def close(self) -> None:
        self._socket.close()

    def _send_train(self, train: Sequence[bytes], address: Address, give_up_at: int) -> int:
        if len(train) > 1 and self._trains and address not in self._refusing:
            segments = [(_SOL_UDP, _UDP_SEGMENT, _SEGMENT_SIZE.pack(len(train[0])))]
            failure, give_up_at = self._transmit(train, segments, address, give_up_at)
            if failure not in _REFUSES_TRAINS:
                self._count(len(train), failure)
                return give_up_at
            # The route to this address refuses trains (a device without checksums, a smaller path MTU).
            if len(self._refusing) >= REFUSING_MAX:
                self._refusing.clear()  # unknown clients ask a retransmit server; one more attempt each is cheap
            self._refusing.add(address)
        for datagram in train:
            failure, give_up_at = self._transmit((datagram,), (), address, give_up_at)
            self._count(1, failure)
        return give_up_at

    def _transmit(
        self, buffers: Sequence[bytes], ancillary: Sequence[tuple[int, int, bytes]], address: Address, give_up_at: int
    ) -> tuple[int, int]:
        """Send in one call; retry while the queue is full. Returns (0 or the errno, when to give up)."""
        while True:
            try:
                self._socket.sendmsg(buffers, ancillary, 0, address)
            except OSError as error:
                failure = error.errno or errno.EIO
            else:
                return 0, give_up_at
            if failure not in _FULL:
                return failure, give_up_at
            tried_at = time.monotonic_ns()
            give_up_at = give_up_at or tried_at + SEND_WAIT_MAX
            if tried_at >= give_up_at:
                return failure, give_up_at
            time.sleep(SEND_RETRY_DELAY / SECOND)

    def _count(self, datagrams: int, failure: int) -> None:
        if failure:
            self.traffic.dropped += datagrams
        else:
            self.traffic.sent += datagrams

    def _segment_size(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        size = 0
        for level, kind, value in ancillary:
            if level == _SOL_UDP and kind == _UDP_GRO:
                (size,) = _GRO_SIZE.unpack(value)
            elif level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL:
                (self.traffic.overflowed,) = _OVERFLOWS.unpack(value)
        return size


def trains(datagrams: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split a sequence into trains of equal size; a shorter datagram is the last of its train."""
    start = size = last = space = 0
    for position, datagram in enumerate(datagrams):
        length = len(datagram)
        joins = last == size >= length > 0 and length <= space and position - start < TRAIN_MAX
        if not joins:
            if position:
                yield datagrams[start:position]
            start, size, space = position, length, TRAIN_BYTES_MAX
        last = length
        space -= length
    if datagrams:
        yield datagrams[start:]


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A UDP socket bound to the address; `shared` lets several processes of this machine join one multicast group."""
    check_port("port", port, port_min=0)
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, shared)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise UserError(_bind_error(host, port, error)) from None
    return bound


def _bind_error(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port is {port} on {host}, which another program uses; stop that program or choose another port"
        case errno.EADDRNOTAVAIL:
            return f"host is {host}, which is not an address of this machine; give one that is"
        case errno.EACCES:
            return f"port is {port} on {host}, which needs privileges; choose a port above 1023"
    return f"host is {host} and port {port}, where no socket can be bound: {error.strerror or error}; choose another"


def _try_option(bound: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        bound.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _set_buffer(bound: socket.socket, force: int, option: int) -> int:
    """Ask for a large buffer, past the system's limit where permitted; the granted size (the kernel reports double)."""
    if not _try_option(bound, socket.SOL_SOCKET, force, BUFFER_SIZE):
        _try_option(bound, socket.SOL_SOCKET, option, BUFFER_SIZE)
    return bound.getsockopt(socket.SOL_SOCKET, option) // 2
