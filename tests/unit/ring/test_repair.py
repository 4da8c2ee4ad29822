"""Repair: the original datagrams of a request, as far as they are held, up to a limit."""

import pytest

from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver import repair
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.ring.receiver.repair import answer
from fairtape.wire.frames import Range, Request, decode_block
from unit.ring.ring_values import KEYS, OTHER_SOURCE, Signer, ack, block, formation, named

LAYOUT = formation()
BLOCKS = [block(1, [b"a", b"b"]), block(3), block(4), block(6)]
PART_1 = ack(LAYOUT, 1, 1, [named(1, 2)], parts=2)
PART_2 = ack(LAYOUT, 1, 3, [named(3)], part=1, parts=2)
PARTS = [Signer().sign(part) for part in (PART_1, PART_2)]


def answered(tokens: tuple[int, ...] = (), ranges: tuple[Range, ...] = ()) -> list[bytes]:
    buffer = ReceiveBuffer(keys=KEYS, stripe=0)
    ordering = Ordering(formations=FormationHistory(LAYOUT), stripe=0, buffer=buffer, after=0, next_sequence=1)
    for datagram in BLOCKS:
        buffer.accept(decode_block(datagram), datagram)
    for part, datagram in zip((PART_1, PART_2), PARTS, strict=True):
        ordering.accept(part, datagram)
    return answer(Request(0, LAYOUT.number, 2, tokens, ranges), ordering=ordering, buffer=buffer)


def test_an_acknowledgment_is_answered_with_all_its_parts() -> None:
    assert answered(tokens=(1,)) == PARTS


def test_messages_are_answered_with_the_blocks_that_hold_them() -> None:
    assert answered(ranges=(named(1, 3),)) == BLOCKS[:2]
    assert answered(ranges=(named(3), named(6))) == [BLOCKS[1], BLOCKS[3]]


def test_messages_go_before_acknowledgments() -> None:
    """An acknowledgment that arrives after its messages causes no request."""
    assert answered((1,), (named(3),)) == [BLOCKS[1], *PARTS]


def test_an_answer_ends_at_the_first_hole_of_a_range() -> None:
    assert answered(ranges=(named(3, 9),)) == BLOCKS[1:3]


@pytest.mark.parametrize("wanted", [named(2), named(5), named(1, node=OTHER_SOURCE), named(1, incarnation=9)])
def test_what_is_not_held_is_not_answered(wanted: Range) -> None:
    assert answered((7,), (wanted,)) == []


def test_an_answer_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "ANSWER_MAX", 2)
    assert answered((1,), (named(1, 4),)) == BLOCKS[:2]
    assert answered((1,), (named(6), named(1, 4))) == [BLOCKS[3], BLOCKS[0]]
    assert answered((1, 1), (named(6),)) == [BLOCKS[3], PARTS[0]]
