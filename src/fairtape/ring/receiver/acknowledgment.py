"""Ack(e) as its token site writes it: ranges in parts that fit a datagram, each range marked for its source."""

from collections.abc import Sequence

from fairtape.core.instants import Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.wire.frames import ACK_PARTS_MAX, Ack, NodeId, Range, ack_ranges_max


def ranges_max(datagram_max: int) -> int:
    """How many ranges one acknowledgment can name."""
    return ack_ranges_max(datagram_max) * ACK_PARTS_MAX


def write_acks(
    token: int,
    ranges: Sequence[Range],
    *,
    formation: Formation,
    stripe: int,
    me: NodeId,
    sequence: int,
    buffer: ReceiveBuffer,
    datagram_max: int,
    clock_bound: Duration,
    now: Instant,
) -> list[Ack]:
    """The parts of Ack(token); one without ranges where there is nothing to acknowledge."""
    room = ack_ranges_max(datagram_max)
    parts = [tuple(ranges[start : start + room]) for start in range(0, len(ranges), room)] or [()]
    number = formation.number
    behind = formation.timed and now - formation.scheduled_at(token) > formation.timing.retry_period
    acks = []
    for position, named in enumerate(parts):
        first, marks = sequence, []
        for one in named:
            marks.append(buffer.marker(one.source).mark(number, token, sequence, one, behind=behind))
            sequence += one.count
        acks.append(
            Ack(
                stripe, number, me, token, first, now, clock_bound, position, len(parts), named, tuple(marks), behind
            )
        )  # fmt: skip
    return acks
