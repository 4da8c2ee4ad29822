"""Ordering: acknowledgments in any order and in parts become one sequence, or a breach."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import TOKENS_AHEAD_MAX, Breach, Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.wire.frames import Ack, Malformed, decode_block
from unit.ring.ring_values import KEYS, OTHER_SOURCE, Signer, ack, block, formation, named

LAYOUT = formation()


class OrderingSetup:
    """An ordering with its receive buffer."""

    def __init__(self, *datagrams: bytes, timed: bool = True) -> None:
        self.buffer = ReceiveBuffer(keys=KEYS, stripe=0)
        self.layout = formation(timed=timed)
        self.ordering = Ordering(
            formations=FormationHistory(self.layout),
            stripe=0,
            buffer=self.buffer,
            after=self.layout.first_token - 1,
            next_sequence=self.layout.first_sequence,
        )
        self._signer = Signer()
        self.hold(*datagrams)

    def hold(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.buffer.accept(decode_block(datagram), datagram)

    def accept(self, message: Ack) -> str:
        return self.ordering.accept(message, self._signer.sign(message))

    def complete(self, message: Ack) -> None:
        assert self.accept(message) == "ack"
        assert self.ordering.holds_messages(message.token)
        self.ordering.completed(message.token)


def test_an_acknowledgment_gives_messages_their_numbers() -> None:
    setup = OrderingSetup(block(1, [b"a", b"b"]), block(1, node=OTHER_SOURCE))
    setup.complete(ack(LAYOUT, 1, 1, [named(1, node=OTHER_SOURCE), named(1, 2)]))
    ordered = setup.ordering.take_next()
    assert ordered is not None
    assert (ordered.token, ordered.sequence, ordered.count) == (1, 1, 3)
    assert [(span.source, span.sequence) for span in ordered.spans] == [(OTHER_SOURCE, 1), (101, 2)]
    assert ordered.acknowledged_at == LAYOUT.scheduled_at(1)
    assert setup.ordering.next_sequence == 4
    assert setup.ordering.take_next() is None


def test_without_a_schedule_the_token_site_sets_the_time() -> None:
    setup = OrderingSetup(timed=False)
    setup.complete(replace(ack(LAYOUT, 1, 1), sent_at=777))
    ordered = setup.ordering.take_next()
    assert ordered is not None
    assert ordered.acknowledged_at == 777


@settings(max_examples=60)
@given(st.permutations([1, 2, 3, 4, 5]))
def test_tokens_enter_the_order_one_after_the_other_however_they_arrive(arrival: list[int]) -> None:
    setup = OrderingSetup(*(block(number) for number in range(1, 6)))
    taken = []
    for token in arrival:
        setup.complete(ack(LAYOUT, token, token, [named(token)]))
        while (ordered := setup.ordering.take_next()) is not None:
            taken.append((ordered.token, ordered.sequence))
    assert taken == [(token, token) for token in range(1, 6)]


def test_an_acknowledgment_is_held_when_all_its_parts_are() -> None:
    setup = OrderingSetup(block(1), block(1, node=OTHER_SOURCE))
    second = ack(LAYOUT, 1, 2, [named(1, node=OTHER_SOURCE)], part=1, parts=2)
    first = ack(LAYOUT, 1, 1, [named(1)], parts=2)
    assert setup.accept(second) == "ack"
    assert not setup.ordering.whole(1)
    assert not setup.ordering.holds_messages(1)
    assert setup.accept(second) == "duplicate"
    setup.complete(first)
    assert setup.ordering.whole(1)
    ordered = setup.ordering.take_next()
    assert ordered is not None
    assert [span.source for span in ordered.spans] == [101, OTHER_SOURCE]
    assert len(setup.ordering.datagrams(1)) == 2


def test_parts_that_do_not_belong_together_are_malformed() -> None:
    setup = OrderingSetup()
    setup.accept(ack(LAYOUT, 1, 1, parts=2))
    for stranger in (
        ack(LAYOUT, 1, 1, part=1, parts=3),
        replace(ack(LAYOUT, 1, 1, part=1, parts=2), sent_at=1),
    ):
        with pytest.raises(Malformed):
            setup.accept(stranger)
    assert not setup.ordering.whole(1)


def test_only_the_token_site_acknowledges_and_only_from_the_first_token_on() -> None:
    setup = OrderingSetup()
    assert setup.accept(replace(ack(LAYOUT, 1, 1), sender=2)) == "out_of_turn"
    late = formation(first_token=4)
    ordering = Ordering(
        formations=FormationHistory(late),
        stripe=0,
        buffer=setup.buffer,
        after=late.first_token - 1,
        next_sequence=late.first_sequence,
    )
    early = replace(ack(LAYOUT, 1, 1), sender=late.holder(1))
    assert ordering.accept(early, b"") == "out_of_turn"


def test_an_acknowledgment_from_the_far_future_is_refused() -> None:
    setup = OrderingSetup()
    assert setup.accept(ack(LAYOUT, TOKENS_AHEAD_MAX, 1)) == "ack"
    assert setup.accept(ack(LAYOUT, TOKENS_AHEAD_MAX + 1, 1)) == "over_limit"


def test_missing_messages_are_named_and_waited_for() -> None:
    setup = OrderingSetup(block(2))
    assert setup.accept(ack(LAYOUT, 1, 1, [named(1, 3)])) == "ack"
    assert not setup.ordering.holds_messages(1)
    assert setup.ordering.missing(1) == [named(1), named(3)]
    assert setup.ordering.take_next() is None
    setup.hold(block(1), block(3))
    assert setup.ordering.holds_messages(1)


@pytest.mark.parametrize(
    "second",
    [ack(LAYOUT, 2, 3, [named(2)]), ack(LAYOUT, 2, 2, [named(1)])],
    ids=["a gap in the numbers", "a message twice"],
)
def test_an_acknowledgment_that_does_not_continue_the_order_is_a_breach(second: Ack) -> None:
    setup = OrderingSetup(block(1), block(2))
    setup.complete(ack(LAYOUT, 1, 1, [named(1)]))
    assert setup.ordering.take_next() is not None
    setup.complete(second)
    with pytest.raises(Breach):
        setup.ordering.take_next()
    assert setup.ordering.complete_through == 1


def test_an_acknowledgment_of_an_ended_incarnation_is_a_breach() -> None:
    setup = OrderingSetup(block(1), block(1, incarnation=2))
    setup.complete(ack(LAYOUT, 1, 1, [named(1, incarnation=2)]))
    assert setup.ordering.take_next() is not None
    assert setup.accept(ack(LAYOUT, 2, 2, [named(1)])) == "ack"
    setup.ordering.completed(2)
    with pytest.raises(Breach):
        setup.ordering.take_next()


def test_what_all_members_hold_is_dropped() -> None:
    setup = OrderingSetup(block(1), block(2))
    for token in (1, 2):
        setup.complete(ack(LAYOUT, token, token, [named(token)]))
        assert setup.ordering.take_next() is not None
    setup.ordering.drop_through(1)
    assert setup.ordering.datagrams(1) == []
    assert len(setup.ordering.datagrams(2)) == 1
    assert setup.ordering.whole(1)
    assert setup.ordering.holds_messages(1)
    assert setup.accept(ack(LAYOUT, 1, 1, [named(1)])) == "duplicate"
    stream = setup.buffer.find((101, 1))
    assert stream is not None
    assert list(stream.blocks) == [2]


def test_an_unknown_token_has_nothing() -> None:
    setup = OrderingSetup()
    assert setup.ordering.datagrams(5) == []
    assert not setup.ordering.whole(5)
    assert not setup.ordering.holds_messages(5)
