"""MoldUDP64 1.00: numbered messages in datagrams, and requests for lost messages.

A downstream packet has the session and the number of its first message, then the messages, each with a length prefix.
Without messages it is a heartbeat or the end of the session; its number is then that of the next message. A request has
the same twenty bytes and names the messages to send again. The first message of a session has the number 1.

`framing` and `itch.columns.to_arrow` read the message blocks, which follow the header.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fairtape.core.errors import FormatError
from fairtape.formats.fixed_layout import Text
from fairtape.formats.framing import PREFIX_SIZE

HEADER: Final = struct.Struct(">10sQH")
HEADER_SIZE: Final = HEADER.size
SESSION: Final = Text(10)
NUMBER_MAX: Final = (1 << 64) - 1
COUNT_MAX: Final = 0xFFFE  # messages of one packet; 0xFFFF is END_OF_SESSION
END_OF_SESSION: Final = 0xFFFF
REQUEST_MAX: Final = 0xFFFF  # messages that one request can ask for
DATAGRAM_MAX: Final = 1_400  # default: fits a path MTU of 1,500 bytes, with space for tunnels
_PREFIX: Final = struct.Struct(">H")


class BadMold(FormatError):
    """A datagram that is no MoldUDP64 packet, or values that cannot be encoded."""


@dataclass(frozen=True, slots=True)
class MoldHeader:
    """The first twenty bytes of a downstream packet."""

    session: str
    number: int  # of the first message
    count: int  # of the messages; END_OF_SESSION at the end of the session


@dataclass(frozen=True, slots=True)
class Packet:
    """A downstream packet: messages, a heartbeat, or the end of the session."""

    session: str
    number: int  # of the first message; without messages, of the next one
    messages: tuple[bytes, ...] = ()
    ended: bool = False  # the session is over; its last message was `number - 1`

    def __post_init__(self) -> None:
        _check(self.session, self.number)
        if len(self.messages) > COUNT_MAX:
            raise BadMold(f"count is {len(self.messages)}; a packet has at most {COUNT_MAX} messages")
        if self.ended and self.messages:
            raise BadMold(f"count is {len(self.messages)}; the end of a session carries no messages")
        if self.following > NUMBER_MAX + 1:
            raise BadMold(f"number is {self.number}; that of the last message must be at most {NUMBER_MAX}")

    @property
    def following(self) -> int:
        """The number of the message after this packet."""
        return self.number + len(self.messages)


@dataclass(frozen=True, slots=True)
class MoldRequest:
    """A request to send messages again."""

    session: str
    number: int  # of the first message wanted
    count: int

    def __post_init__(self) -> None:
        _check(self.session, self.number)
        if not 1 <= self.count <= REQUEST_MAX:
            raise BadMold(f"count is {self.count}; a request is for 1 to {REQUEST_MAX} messages")
        if self.number + self.count - 1 > NUMBER_MAX:
            raise BadMold(f"number is {self.number}; that of the last message must be at most {NUMBER_MAX}")


def _check(session: str, number: int) -> None:
    if not SESSION.takes(session):
        raise BadMold(f"session is {session!r}; it must be {SESSION.wanted}")
    if not 1 <= number <= NUMBER_MAX:
        raise BadMold(f"number is {number}; it must be from 1 to {NUMBER_MAX}")


def encode(packet: Packet) -> bytes:
    """The datagram of a packet, of any size."""
    count = END_OF_SESSION if packet.ended else len(packet.messages)
    parts = [HEADER.pack(SESSION.write(packet.session), packet.number, count)]
    for message in packet.messages:
        parts += (_PREFIX.pack(len(message)), message)
    return b"".join(parts)


def pack(session: str, number: int, messages: Iterable[bytes], *, datagram_max: int = DATAGRAM_MAX) -> Iterator[bytes]:
    """As few datagrams as possible for these messages in order, starting with this number."""
    batch: list[bytes] = []
    size = HEADER_SIZE
    for message in messages:
        added = PREFIX_SIZE + len(message)
        if HEADER_SIZE + added > datagram_max:
            most = datagram_max - HEADER_SIZE - PREFIX_SIZE
            raise BadMold(f"message {number + len(batch)} has {len(message)} bytes; a datagram can hold {most}")
        if size + added > datagram_max or len(batch) == COUNT_MAX:
            yield encode(Packet(session, number, tuple(batch)))
            number += len(batch)
            batch, size = [], HEADER_SIZE
        batch.append(message)
        size += added
    if batch:
        yield encode(Packet(session, number, tuple(batch)))


def decode_header(datagram: bytes) -> MoldHeader:
    """The header of a downstream packet. Its message blocks are `datagram[HEADER_SIZE:]`, and are not checked."""
    if len(datagram) < HEADER_SIZE:
        raise BadMold(f"size is {len(datagram)} bytes; a packet has at least {HEADER_SIZE}")
    session, number, count = HEADER.unpack_from(datagram)
    header = MoldHeader(SESSION.read(session), number, count)
    _check(header.session, header.number)
    return header


def decode(datagram: bytes) -> Packet:
    """The downstream packet in a datagram. Raises `BadMold` for anything that `encode` would not have made."""
    header = decode_header(datagram)
    ended = header.count == END_OF_SESSION
    wanted = 0 if ended else header.count
    messages: list[bytes] = []
    at, size = HEADER_SIZE, len(datagram)
    while len(messages) < wanted:
        start = at + PREFIX_SIZE
        at = start + (_PREFIX.unpack_from(datagram, at)[0] if start <= size else 0)
        if at > size:
            raise BadMold(f"message {header.number + len(messages)} ends at byte {at}; the packet has {size}")
        messages.append(datagram[start:at])
    if at != size:
        raise BadMold(f"size is {size} bytes; {len(messages)} messages end at byte {at}")
    return Packet(header.session, header.number, tuple(messages), ended)


def encode_request(request: MoldRequest) -> bytes:
    """The datagram of a request."""
    return HEADER.pack(SESSION.write(request.session), request.number, request.count)


def decode_request(datagram: bytes) -> MoldRequest:
    """The request in a datagram. Raises `BadMold` for anything that `encode_request` would not have made."""
    if len(datagram) != HEADER_SIZE:
        raise BadMold(f"size is {len(datagram)} bytes; a request has {HEADER_SIZE}")
    session, number, count = HEADER.unpack(datagram)
    return MoldRequest(SESSION.read(session), number, count)


def packets(
    session: bytes, first: int, framed: bytes, size: int, *, datagram_max: int = DATAGRAM_MAX
) -> Iterator[tuple[bytes, int]]:
    """Split framed messages, numbered from `first` on, into (datagram, number of messages).

    All messages have this `size`, which allows slices of equal length; 0 where sizes differ.
    """
    space = datagram_max - HEADER_SIZE
    step = PREFIX_SIZE + size
    if size and step <= space:
        each = min(space // step, COUNT_MAX)
        for start in range(0, len(framed), each * step):
            piece = framed[start : start + each * step]
            count = len(piece) // step
            yield HEADER.pack(session, first, count) + piece, count
            first += count
        return
    start = at = count = 0
    while at < len(framed):
        end = at + PREFIX_SIZE + (framed[at] << 8 | framed[at + 1])
        if count and (end - start > space or count == COUNT_MAX):
            yield HEADER.pack(session, first, count) + framed[start:at], count
            first, start, count = first + count, at, 0
        at, count = end, count + 1
    if count:
        yield HEADER.pack(session, first, count) + framed[start:], count


def bare(session: bytes, number: int, *, ended: bool) -> bytes:
    """A heartbeat, or the end of a session; the number is that of the next message."""
    return HEADER.pack(session, number, END_OF_SESSION if ended else 0)


def session_field(name: str) -> bytes:
    """A session's name as encoded in packets."""
    return SESSION.write(name)
