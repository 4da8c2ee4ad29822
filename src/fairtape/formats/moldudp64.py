"""MoldUDP64 1.00: numbered messages in datagrams, and requests for those that were lost.

A downstream packet names its session and the number of its first message, then carries the messages, each behind its
length. Without messages it is a heartbeat, or says that the session is over; its number is then the one that the next
message would have. A request has the same twenty bytes and names what should be sent again. The first message of a
session has the number 1.

The message blocks are what `framing` and `itch_columns.to_arrow` read: `decode_header` says where they begin.
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
COUNT_MAX: Final = 0xFFFE  # messages of one packet: the count above it has another meaning
END_OF_SESSION: Final = 0xFFFF
REQUEST_MAX: Final = 0xFFFF  # messages that one request can ask for
DATAGRAM_MAX: Final = 1_400  # default: fits a 1,500-byte path with room for tunnels
_PREFIX: Final = struct.Struct(">H")


class BadMold(FormatError):
    """A datagram that is no packet of MoldUDP64, or values that none can carry."""


@dataclass(frozen=True, slots=True)
class MoldHeader:
    """The first twenty bytes of a downstream packet."""

    session: str
    number: int  # of the first message
    count: int  # of the messages; END_OF_SESSION where there are none and there will be none


@dataclass(frozen=True, slots=True)
class Packet:
    """A downstream packet: messages, or the news that there are none."""

    session: str
    number: int  # of the first message, or of the one that would come next
    messages: tuple[bytes, ...] = ()
    ended: bool = False  # the session is over, and `number - 1` was its last message

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
    """Please send these messages again."""

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
    """The datagram of a packet, however long."""
    count = END_OF_SESSION if packet.ended else len(packet.messages)
    parts = [HEADER.pack(SESSION.write(packet.session), packet.number, count)]
    for message in packet.messages:
        parts += (_PREFIX.pack(len(message)), message)
    return b"".join(parts)


def pack(session: str, number: int, messages: Iterable[bytes], *, datagram_max: int = DATAGRAM_MAX) -> Iterator[bytes]:
    """As few datagrams as hold these messages in order, the first of which has this number."""
    batch: list[bytes] = []
    size = HEADER_SIZE
    for message in messages:
        added = PREFIX_SIZE + len(message)
        if HEADER_SIZE + added > datagram_max:
            room = datagram_max - HEADER_SIZE - PREFIX_SIZE
            raise BadMold(f"message {number + len(batch)} has {len(message)} bytes; a datagram has room for {room}")
        if size + added > datagram_max or len(batch) == COUNT_MAX:
            yield encode(Packet(session, number, tuple(batch)))
            number += len(batch)
            batch, size = [], HEADER_SIZE
        batch.append(message)
        size += added
    if batch:
        yield encode(Packet(session, number, tuple(batch)))


def decode_header(datagram: bytes) -> MoldHeader:
    """What a downstream packet says of itself. Its message blocks are `datagram[HEADER_SIZE:]`, and are not checked."""
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


# Framed messages in MoldUDP64 packets: as many as fit, by arithmetic where they have one size.


def packets(
    session: bytes, first: int, framed: bytes, size: int, *, datagram_max: int = DATAGRAM_MAX
) -> Iterator[tuple[bytes, int]]:
    """(datagram, messages) for the messages from this number on, each of this size; 0 where they differ."""
    room = datagram_max - HEADER_SIZE
    step = PREFIX_SIZE + size
    if size and step <= room:
        each = min(room // step, COUNT_MAX)
        for start in range(0, len(framed), each * step):
            piece = framed[start : start + each * step]
            count = len(piece) // step
            yield HEADER.pack(session, first, count) + piece, count
            first += count
        return
    start = at = count = 0
    while at < len(framed):
        end = at + PREFIX_SIZE + (framed[at] << 8 | framed[at + 1])
        if count and (end - start > room or count == COUNT_MAX):
            yield HEADER.pack(session, first, count) + framed[start:at], count
            first, start, count = first + count, at, 0
        at, count = end, count + 1
    if count:
        yield HEADER.pack(session, first, count) + framed[start:], count


def bare(session: bytes, number: int, *, ended: bool) -> bytes:
    """A heartbeat, or the end of a session; the number is that of the next message."""
    return HEADER.pack(session, number, END_OF_SESSION if ended else 0)


def session_field(name: str) -> bytes:
    """A session's name as packets carry it."""
    return SESSION.write(name)
