"""Framed messages in MoldUDP64 packets: as many as fit, by arithmetic where they have one size."""

from collections.abc import Iterator

from fairtape.formats.framing import PREFIX_SIZE
from fairtape.formats.moldudp64 import COUNT_MAX, DATAGRAM_MAX, END_OF_SESSION, HEADER, HEADER_SIZE, SESSION


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
