"""Arbitration: whatever two feeds lose, repeat and reorder, the output is one sequence with its gaps named."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairtape.edge.protocol.arbitration import FeedArbitration, Output, Run, SequenceGap
from fairtape.formats.moldudp64 import Packet


def message(number: int) -> bytes:
    return b"message %d" % number


def packet(first: int, count: int) -> Packet:
    return Packet("S", first, tuple(map(message, range(first, first + count))))


@st.composite
def feeds(draw: st.DrawFn) -> list[Packet]:
    """Two feeds with packets of different sizes, losses, copies and packets of other sessions, in any order."""
    last = draw(st.integers(0, 40))
    received: list[Packet] = []
    for _ in range(2):
        at = 1
        while at <= last:
            count = min(draw(st.integers(1, 6)), last + 1 - at)
            received += [packet(at, count)] * draw(st.integers(0, 2))
            at += count
    received += [Packet("S", last + 1, ended=draw(st.booleans()))] * draw(st.integers(0, 2))
    received += [Packet("X", 1, (b"stranger",))] * draw(st.integers(0, 1))
    return draw(st.permutations(received))


def check_sequence(outputs: list[Output], first: int, following: int) -> None:
    """Every number from `first` on, once and in order, delivered or missing, up to `following`."""
    at = first
    for output in outputs:
        assert output.first == at
        match output:
            case Run(_, messages):
                assert messages == tuple(map(message, range(at, at + len(messages))))
                at += len(messages)
            case SequenceGap(_, count):
                assert count > 0
                at += count
    assert at == following


@given(feeds(), st.integers(1, 50), st.integers(0, 300), st.data())
def test_each_number_is_delivered_or_missing_once_and_in_order(
    received: list[Packet], ahead_max: int, held_bytes_max: int, data: st.DataObject
) -> None:
    arbiter = FeedArbitration("S", ahead_max=ahead_max, held_bytes_max=held_bytes_max)
    outputs: list[Output] = []
    for each in received:
        outputs += arbiter.receive(each)
        if data.draw(st.integers(0, 9)) == 0:
            outputs += arbiter.give_up(data.draw(st.integers(0, 50)))
        assert arbiter.next is not None
        check_sequence(outputs, 1, arbiter.next)
        assert arbiter._held_bytes == sum(run.size for run in arbiter._held) <= held_bytes_max
        assert all(arbiter.next < run.first < run.following <= arbiter.next + ahead_max for run in arbiter._held)
        assert all(one.following <= other.first for one, other in pairwise(arbiter._held))
    outputs += arbiter.give_up(arbiter.highest)
    known = [each.following - 1 for each in received if each.session == "S"]
    assert arbiter.highest == max(known, default=0)
    check_sequence(outputs, 1, arbiter.highest + 1)


@given(feeds())
def test_with_enough_memory_only_what_both_feeds_lost_is_missing(received: list[Packet]) -> None:
    arbiter = FeedArbitration("S")
    outputs: list[Output] = []
    for each in received:
        outputs += arbiter.receive(each)
    brought = {each.number + n for each in received if each.session == "S" for n in range(len(each.messages))}
    missing = {gap.first + n for gap in arbiter.missing() for n in range(gap.count)}
    assert missing == set(range(1, arbiter.highest + 1)) - brought
    outputs += arbiter.give_up(arbiter.highest)
    delivered = sum(len(output.messages) for output in outputs if isinstance(output, Run))
    assert delivered == len(brought)
    assert arbiter.complete == any(each.ended for each in received)


@given(feeds())
def test_answered_requests_leave_nothing_missing(received: list[Packet]) -> None:
    arbiter = FeedArbitration("S", ahead_max=8)
    outputs: list[Output] = []
    for each in received:
        outputs += arbiter.receive(each)
    while gaps := list(arbiter.missing()):
        for gap in gaps:
            outputs += arbiter.receive(packet(gap.first, min(gap.count, 3)))
    check_sequence(outputs, 1, arbiter.highest + 1)
    assert not any(isinstance(output, SequenceGap) for output in outputs)


def test_a_heartbeat_reveals_missing_messages() -> None:
    arbiter = FeedArbitration("S")
    assert arbiter.receive(packet(1, 2)) == [Run(1, (message(1), message(2)))]
    assert arbiter.receive(Packet("S", 6)) == []
    assert list(arbiter.missing()) == [SequenceGap(3, 3)]
    assert arbiter.give_up(4) == [SequenceGap(3, 2)]
    assert arbiter.give_up(99) == [SequenceGap(5, 1)]


def test_a_late_joiner_begins_with_the_first_packet() -> None:
    arbiter = FeedArbitration("S", first=None)
    assert not list(arbiter.missing())
    assert arbiter.receive(packet(70, 2)) == [Run(70, (message(70), message(71)))]
    assert arbiter.receive(packet(68, 3)) == []


def test_a_false_end_number_costs_neither_memory_nor_time() -> None:
    arbiter = FeedArbitration("S", ahead_max=1_000)
    arbiter.receive(Packet("S", 1 << 64 - 1))
    assert list(arbiter.missing()) == [SequenceGap(1, 1_000)]
    assert arbiter.give_up(1 << 62) == [SequenceGap(1, 1 << 62)]
