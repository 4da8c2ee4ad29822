"""The receive buffer: blocks of every source, holes, incarnations, and limits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.ring.receiver import receive_buffer
from fairtape.ring.receiver.receive_buffer import MISSING_RANGES_MAX, STREAMS_MAX, ReceiveBuffer, Stream
from fairtape.wire.frames import RANGE_COUNT_MAX, Malformed, Range, decode_block
from unit.ring.ring_values import KEYS, OTHER_SOURCE, SOURCE, block, named


def accept(held: ReceiveBuffer, datagram: bytes) -> str:
    return held.accept(decode_block(datagram), datagram)


def holding(*datagrams: bytes) -> ReceiveBuffer:
    held = ReceiveBuffer(keys=KEYS, stripe=0)
    for datagram in datagrams:
        assert accept(held, datagram) in ("block", "ahead")
    return held


def stream(held: ReceiveBuffer, node: int = SOURCE, incarnation: int = 1) -> Stream:
    found = held.find((node, incarnation))
    assert found is not None
    return found


def test_blocks_in_order_can_be_acknowledged() -> None:
    held = holding(block(1, [b"a", b"b"]), block(3))
    assert held.has_unacknowledged
    assert held.unacknowledged(10) == [named(1, 3)]
    assert held.first_unacknowledged() == [named(1, 2)]
    assert stream(held).hole() is None


def test_blocks_above_a_hole_wait_until_it_closes() -> None:
    held = ReceiveBuffer(keys=KEYS, stripe=0)
    assert accept(held, block(2)) == "ahead"
    assert not held.has_unacknowledged
    assert held.first_unacknowledged() == []
    assert held.with_holes() == [stream(held)]
    assert stream(held).hole() == named(1)
    assert accept(held, block(1)) == "block"
    assert held.unacknowledged(10) == [named(1, 2)]
    assert held.with_holes() == []


def test_what_is_held_below_a_hole_can_be_acknowledged_meanwhile() -> None:
    held = holding(block(1))
    assert accept(held, block(4)) == "ahead"
    assert accept(held, block(2)) == "ahead"
    assert held.unacknowledged(10) == [named(1, 2)]


@settings(max_examples=100)
@given(st.permutations(list(range(8))))
def test_any_order_of_arrival_gives_the_same_buffer(order: list[int]) -> None:
    held = ReceiveBuffer(keys=KEYS, stripe=0)
    for position in order:
        accept(held, block(1 + 2 * position, [b"a", b"b"]))
    assert held.unacknowledged(10) == [named(1, 16)]
    span = held.take(named(1, 16), 5)
    assert (span.first, span.count, span.sequence, len(span.bodies)) == (1, 16, 5, 8)


def test_blocks_of_several_sources_in_turn_are_one_run() -> None:
    held = holding(block(1, node=OTHER_SOURCE), block(1))
    held.take(named(1, node=OTHER_SOURCE), 1)
    turns = [block(first, node=node) for first in range(2, 6) for node in (SOURCE, OTHER_SOURCE)]
    assert held.accept_run([b"", *turns], 1, 1_400) == len(turns)
    assert held.unacknowledged(10) == [named(1, 5), named(2, 4, node=OTHER_SOURCE)]


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        block(4),  # above a hole
        block(2),  # a duplicate
        block(3, incarnation=2),  # not known yet
        block(3, stripe=1),
        block(3, body=b"\0\5no"),
        block(3)[:-1] + b"\0",
        block(3, [bytes(1_400)]),
    ],
)
def test_a_run_ends_before_the_first_block_that_is_not_the_next_of_its_stream(odd: bytes) -> None:
    held = holding(block(1), block(1, node=OTHER_SOURCE))
    before = [block(2), block(2, node=OTHER_SOURCE)]
    assert held.accept_run([*before, odd, block(3, node=OTHER_SOURCE)], 0, 1_400) == len(before)
    assert (stream(held).next, stream(held, OTHER_SOURCE).next) == (3, 3)


def test_a_run_keeps_the_limit_of_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_buffer, "HELD_BLOCKS_MAX", 3)
    held = holding(block(1), block(1, node=OTHER_SOURCE))
    assert held.accept_run([block(2), block(3), block(2, node=OTHER_SOURCE), block(4)], 0, 1_400) == 3


def test_what_is_held_already_is_a_duplicate() -> None:
    held = holding(block(1), block(3))
    assert accept(held, block(1)) == "duplicate"
    assert accept(held, block(3)) == "duplicate"


@pytest.mark.parametrize(
    "datagram",
    [block(1)[:-1] + b"\0", block(1, body=b"\0\2abc"), block(1, body=b"\0\0\1", fragment=True), block(1, stripe=1)],
    ids=["a wrong seal", "a wrong body", "an empty fragment", "the key of another stripe"],
)
def test_a_malformed_block_changes_nothing(datagram: bytes) -> None:
    held = ReceiveBuffer(keys=KEYS, stripe=0)
    with pytest.raises(Malformed):
        accept(held, datagram)
    assert held.find((SOURCE, 1)) is None
    assert accept(held, block(1)) == "block"


def test_an_unknown_source_is_malformed() -> None:
    held = ReceiveBuffer(keys=KEYS.for_source(OTHER_SOURCE), stripe=0)
    with pytest.raises(Malformed, match="no key of source"):
        accept(held, block(1))
    with pytest.raises(Malformed, match="no key of source"):
        held.note_named(named(1))


def test_fragments_are_remembered_as_such() -> None:
    fragment = block(1, body=b"\0\0\0\2\0\0\0\0a", fragment=True)
    held = holding(fragment, block(2))
    assert held.take(named(1, 2), 1).fragments == (True, False)
    plain = holding(block(1), block(2))
    assert plain.take(named(1, 2), 1).fragments == ()


def test_a_full_stream_refuses_all_but_the_block_that_closes_its_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_buffer, "HELD_BLOCKS_MAX", 3)
    held = holding(block(2), block(3), block(4))
    assert accept(held, block(5)) == "over_limit"
    assert accept(held, block(1)) == "block"
    assert accept(held, block(5)) == "over_limit"
    held.take(named(1, 4), 1)
    assert accept(held, block(5)) == "block"


def test_missing_names_every_hole_of_a_range() -> None:
    held = holding(block(1), block(3), block(4), block(7))
    assert stream(held).missing(1, 10) == [named(2), named(5, 2), named(8, 2)]
    assert stream(held).missing(3, 5) == []
    assert stream(held).missing(1, 2) == []


def test_missing_names_a_limited_number_of_holes() -> None:
    held = holding(*(block(2 * number) for number in range(1, MISSING_RANGES_MAX + 10)))
    assert len(stream(held).missing(1, 1_000)) == MISSING_RANGES_MAX


def test_a_hole_that_an_acknowledgment_has_named_is_not_asked_of_the_source() -> None:
    """The site that acknowledged it holds it and is asked for it."""
    held = holding(block(5))
    held.note_named(named(1, 2))
    assert stream(held).hole() == named(3, 2)
    held.note_named(named(3, 3))
    assert stream(held).hole() is None


def test_a_hole_larger_than_a_range_can_express_is_handled() -> None:
    held = holding(block(1 << 62))
    assert stream(held).hole() == named(1, RANGE_COUNT_MAX)


def test_overlapping_blocks_of_a_source_are_dropped() -> None:
    held = holding(block(3), block(5), block(2))
    accept(held, block(1, [b"a", b"b", b"c"]))
    assert stream(held).next == 4
    assert list(stream(held).beyond) == [5]
    assert stream(held).waiting == 2


def test_find_gives_the_block_that_begins_with_a_number() -> None:
    low, high = block(1, [b"a", b"b"]), block(4)
    held = holding(low, high)
    for first, datagram in ((1, low), (4, high)):
        found = stream(held).find(first)
        assert found is not None
        assert datagram in found
    assert stream(held).find(2) is None


def test_an_acknowledgment_must_continue_and_end_at_the_edge_of_a_block() -> None:
    held = holding(block(1, [b"a", b"b"]), block(3))
    assert held.continues_order(named(1, 2))
    assert held.continues_order(named(1, 3))
    assert not held.continues_order(named(1, 1))
    assert not held.continues_order(named(3, 1))
    held.take(named(1, 2), 1)
    assert not held.continues_order(named(1, 2))
    assert held.continues_order(named(3))


def test_sources_are_acknowledged_in_order_of_arrival_and_within_the_limit() -> None:
    held = holding(block(1, node=OTHER_SOURCE), block(1), block(2, node=OTHER_SOURCE))
    assert held.unacknowledged(10) == [named(1, 2, node=OTHER_SOURCE), named(1)]
    assert held.unacknowledged(1) == [named(1, 2, node=OTHER_SOURCE)]


def test_one_acknowledgment_names_about_a_limited_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are left out come first at the next token."""
    monkeypatch.setattr(receive_buffer, "ACK_BLOCKS_MAX", 2)
    held = holding(block(1), block(2), block(1, incarnation=2), block(1, node=OTHER_SOURCE))
    first = held.unacknowledged(10)
    assert first == [named(1, 2), named(1, incarnation=2)]
    for one in first:
        held.take(one, 1)
    accept(held, block(2, incarnation=2))
    assert held.unacknowledged(10)[0] == named(1, node=OTHER_SOURCE)


def test_a_later_incarnation_comes_after_an_earlier_one() -> None:
    held = holding(block(1), block(1, incarnation=2))
    accept(held, block(2))
    assert held.unacknowledged(10) == [named(1, 2), named(1, incarnation=2)]


def test_once_a_later_incarnation_is_in_the_order_the_earlier_one_has_ended() -> None:
    """Its acknowledged blocks are kept for repairs; the others are dropped, and nothing more is accepted."""
    held = holding(block(1), block(2), block(4), block(1, incarnation=2))
    held.take(named(1), 1)
    held.take(named(1, incarnation=2), 2)
    earlier = stream(held)
    assert (earlier.next, earlier.waiting, list(earlier.blocks), list(earlier.beyond)) == (2, 0, [1], [])
    assert not held.has_unacknowledged
    assert not held.continues_order(named(2))
    with pytest.raises(Malformed, match="earlier incarnation"):
        accept(held, block(2))
    assert accept(held, block(1)) == "duplicate"
    assert not held.has_unacknowledged


def test_an_ended_stream_is_forgotten_with_its_last_block() -> None:
    held = holding(block(1), block(1, incarnation=2))
    held.take(named(1), 1)
    held.take(named(1, incarnation=2), 2)
    held.drop([named(1)])
    assert held.find((SOURCE, 1)) is None
    with pytest.raises(Malformed, match="earlier incarnation"):
        accept(held, block(1))


def test_an_ended_stream_without_blocks_is_forgotten_at_once() -> None:
    held = holding(block(5), block(1, incarnation=2))
    held.take(named(1, incarnation=2), 1)
    assert held.find((SOURCE, 1)) is None


def test_an_ended_stream_that_a_wrong_acknowledgment_still_names_stays() -> None:
    held = holding(block(1), block(1, incarnation=2))
    held.note_named(named(1, 2))
    held.take(named(1, incarnation=2), 1)
    assert held.named(named(1, 2)).next == 1


def test_an_earlier_incarnation_is_refused_in_a_new_block() -> None:
    held = holding(block(1, incarnation=3))
    with pytest.raises(Malformed, match="earlier incarnation"):
        accept(held, block(1, incarnation=2))


def test_an_acknowledgment_may_name_an_earlier_incarnation_than_any_received() -> None:
    """Another site received it in time, acknowledged it, and will repair it."""
    held = holding(block(1, incarnation=2))
    held.note_named(named(1))
    assert held.named(named(1)) is held.named(named(1))
    assert accept(held, block(1)) == "block"
    assert held.unacknowledged(10) == [named(1), named(1, incarnation=2)]


def test_a_source_that_restarts_often_is_never_locked_out() -> None:
    """Of its incarnations that no acknowledgment names, the latest are kept."""
    held = holding(*(block(1, incarnation=number) for number in range(1, STREAMS_MAX + 1)))
    accept(held, block(3, incarnation=STREAMS_MAX))
    for number in range(STREAMS_MAX + 1, 3 * STREAMS_MAX):
        assert accept(held, block(1, incarnation=number)) == "block"
        assert accept(held, block(3, incarnation=number)) == "ahead"
        remembered = [incarnation for incarnation in range(1, number + 1) if held.find((SOURCE, incarnation))]
        assert remembered == list(range(number - STREAMS_MAX + 1, number + 1))
        assert [one.incarnation for one in held.unacknowledged(10)] == remembered
        assert {stream.incarnation for stream in held.with_holes()} <= set(remembered)
    with pytest.raises(Malformed, match="earlier incarnation"):
        accept(held, block(1))


def test_an_incarnation_in_the_order_is_not_evicted_for_a_later_one() -> None:
    held = holding(*(block(1, incarnation=number) for number in range(1, STREAMS_MAX + 1)))
    held.take(named(1), 1)
    held.note_named(named(1, incarnation=2))
    assert accept(held, block(1, incarnation=STREAMS_MAX + 1)) == "block"
    assert held.find((SOURCE, 1)) is not None
    assert held.find((SOURCE, 2)) is not None
    assert held.find((SOURCE, 3)) is None


def test_there_is_a_limit_to_incarnations_at_once() -> None:
    held = holding(*(block(1, incarnation=number) for number in range(1, STREAMS_MAX + 1)))
    for number in range(1, STREAMS_MAX + 1):
        held.note_named(named(1, incarnation=number))
    with pytest.raises(Malformed, match="too many"):
        accept(held, block(1, incarnation=STREAMS_MAX + 1))


def test_a_forged_block_evicts_no_incarnation() -> None:
    held = holding(*(block(1, incarnation=number) for number in range(1, STREAMS_MAX + 1)))
    bent = block(1, incarnation=STREAMS_MAX + 1)[:-1] + b"?"
    with pytest.raises(Malformed, match="seal"):
        accept(held, bent)
    assert held.find((SOURCE, 1)) is not None


def test_dropping_forgets_blocks_and_keeps_numbers() -> None:
    held = holding(block(1), block(2))
    held.take(Range(SOURCE, 1, 1, 2), 1)
    held.drop([named(1)])
    assert list(stream(held).blocks) == [2]
    assert accept(held, block(1)) == "duplicate"


def test_markers_are_made_once() -> None:
    held = ReceiveBuffer(keys=KEYS, stripe=0)
    assert held.marker(SOURCE) is held.marker(SOURCE)
    assert held.marker(SOURCE) is not held.marker(OTHER_SOURCE)


def test_a_stream_knows_its_key() -> None:
    held = holding(block(1))
    assert stream(held).key == (SOURCE, 1)


def test_a_busy_source_does_not_keep_its_place() -> None:
    """Decision 65, Place within a token: the place of a source is that of its first unacknowledged block."""
    held = holding(block(1), block(1, node=OTHER_SOURCE), block(2))
    assert held.unacknowledged(10) == [named(1, 2), named(1, node=OTHER_SOURCE)]
    held.take(named(1), 1)
    assert held.unacknowledged(10) == [named(1, node=OTHER_SOURCE), named(2)]


def test_blocks_of_one_run_arrive_in_its_order() -> None:
    held = holding(block(1), block(1, node=OTHER_SOURCE))
    held.take(named(1), 1)
    held.take(named(1, node=OTHER_SOURCE), 2)
    run = [block(2), block(2, node=OTHER_SOURCE), block(3)]
    assert held.accept_run(run, 0, 1_400) == len(run)
    assert held.unacknowledged(10) == [named(2, 2), named(2, node=OTHER_SOURCE)]
    held.take(named(2), 3)
    assert held.unacknowledged(10) == [named(2, node=OTHER_SOURCE), named(3)]


def test_a_source_whose_hole_closes_is_as_late_as_the_block_that_closed_it() -> None:
    held = holding(block(2), block(1, node=OTHER_SOURCE), block(1))
    assert held.unacknowledged(10) == [named(1, node=OTHER_SOURCE), named(1, 2)]
    held.take(named(1), 1)
    assert held.unacknowledged(10) == [named(2), named(1, node=OTHER_SOURCE)]


def test_the_incarnations_of_a_source_have_the_place_of_the_earliest() -> None:
    held = holding(block(1), block(1, incarnation=2), block(1, node=OTHER_SOURCE), block(2, incarnation=2), block(2))
    names = [named(1, 2), named(1, 2, incarnation=2), named(1, node=OTHER_SOURCE)]
    assert held.unacknowledged(10) == names
    held.take(named(1), 1)
    assert held.unacknowledged(10) == [named(1, node=OTHER_SOURCE), named(2), named(1, 2, incarnation=2)]
