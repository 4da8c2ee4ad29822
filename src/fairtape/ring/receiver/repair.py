"""Repair service: the answer to a request is the original datagrams, byte for byte, to the one who asked.

They need no envelope: a block proves its source and an acknowledgment proves its token site, whoever sends them.
"""

from typing import Final

from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.wire.frames import Range, Request

ANSWER_MAX: Final = 1_024
"""Datagrams in the answer to one request; what is still missing then is asked for again."""


def answer(request: Request, *, ordering: Ordering, buffer: ReceiveBuffer) -> list[bytes]:
    """What this site holds of what is wanted. Messages first: an acknowledgment that finds them needs no request."""
    datagrams: list[bytes] = []
    for wanted in request.ranges:
        datagrams += _blocks(wanted, buffer, ANSWER_MAX - len(datagrams))
    for token in request.tokens:
        datagrams += ordering.datagrams(token)
    return datagrams[:ANSWER_MAX]


def _blocks(wanted: Range, buffer: ReceiveBuffer, room: int) -> list[bytes]:
    stream = buffer.find((wanted.source, wanted.incarnation))
    if stream is None:
        return []
    datagrams: list[bytes] = []
    first = wanted.first
    while first < wanted.end and len(datagrams) < room:
        held = stream.find(first)
        if held is None:
            break
        messages, _, datagram, _ = held
        datagrams.append(datagram)
        first += messages
    return datagrams
