"""The remulticaster: packets, rate limits, heartbeats, ends of sessions, and silence while its position is lost."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.edge.protocol.effects import SendMulticast, SequenceLost
from fairtape.edge.protocol.remulticast import Remulticaster, RemulticastOptions
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.formats import moldudp64
from fairtape.formats.framing import frame
from fairtape.formats.moldudp64 import packets, session_field
from fairtape.market.stripes import UDP_OVERHEAD
from fairtape.market.trades import encode
from unit.edge.edge_values import NOON, delivery, edition, plan, token, tokens, trade


def remulticaster(*, cap: int = 10**9, **options: int) -> Remulticaster:
    made = Remulticaster(StripePosition.fresh(edition(cap=cap)), feeds=["A"], options=RemulticastOptions(**options))
    made.start(NOON)
    return made


def run(machine: Remulticaster, until: int) -> list[tuple[int, moldudp64.Packet, int]]:
    """Everything that is sent up to an instant: when, what, and the number of bits."""
    sent = []
    now = NOON
    while True:
        for effect in machine.drain():
            assert isinstance(effect, SendMulticast)
            sent += [(now, moldudp64.decode(d), 8 * (len(d) + UDP_OVERHEAD)) for d in effect.datagrams]
        deadline = machine.deadline()
        if deadline is None or deadline > until:
            return sent
        now = max(now, deadline)
        machine.wake(now)


@given(st.lists(st.binary(min_size=1, max_size=600), min_size=1, max_size=50), st.integers(650, 1_500))
def test_packets_are_those_of_the_plain_codec(messages: list[bytes], datagram_max: int) -> None:
    plain = list(moldudp64.pack("FT", 7, messages, datagram_max=datagram_max))
    found = list(packets(session_field("FT"), 7, frame(messages), 0, datagram_max=datagram_max))
    assert [datagram for datagram, _ in found] == plain
    assert sum(count for _, count in found) == len(messages)


@given(st.integers(1, 200), st.integers(1, 100), st.integers(250, 1_500))
def test_packets_of_one_size_are_cut_by_arithmetic_to_the_same_bytes(count: int, size: int, datagram_max: int) -> None:
    messages = [bytes([each % 256]) * size for each in range(count)]
    uniform = list(packets(session_field("FT"), 1, frame(messages), size, datagram_max=datagram_max))
    assert uniform == list(packets(session_field("FT"), 1, frame(messages), 0, datagram_max=datagram_max))


def test_every_message_is_sent_once_and_in_order_under_the_cap() -> None:
    cap = 1_000_000
    machine = remulticaster(cap=cap, burst_period=5 * MILLISECOND, overrun_delay=5 * MILLISECOND)
    sent = run(machine, NOON)
    for ordered in tokens(20, 50):
        machine.deliver(delivery(ordered), NOON)
    sent += run(machine, NOON + 2 * SECOND)
    for stripe in (1, 2):
        mine = [(at, packet, bits) for at, packet, bits in sent if packet.session == edition().session(stripe)]
        following = 1
        for _, packet, _ in mine:
            assert packet.number == following
            following = packet.following
        horizon = [at for at, packet, _ in mine if packet.messages]
        total = sum(bits for _, packet, bits in mine if packet.messages)
        assert total <= cap * (max(horizon) - NOON + 5 * MILLISECOND) / SECOND + 8 * 1_428
    assert machine.counts.overruns > 0
    assert machine.counts.dropped == 0


def test_a_full_queue_drops_the_oldest_and_counts_them() -> None:
    machine = remulticaster(cap=10_000, queue_bytes_max=5_000)
    for ordered in tokens(10, 50):
        machine.deliver(delivery(ordered), NOON)
    sent = run(machine, NOON + 20 * SECOND)
    assert machine.counts.dropped > 0
    carried = sum(len(packet.messages) for _, packet, _ in sent)
    assert carried + machine.counts.dropped == machine.counts.messages
    assert max(p.following for _, p, _ in sent if p.session == edition().session(1)) == machine.position.following[0]


def test_heartbeats_come_soon_and_then_less_and_less_often() -> None:
    machine = remulticaster(heartbeat_delay=20 * MILLISECOND)
    run(machine, NOON)
    beats = [at - NOON for at, packet, _ in run(machine, NOON + 5 * SECOND) if packet.session == edition().session(1)]
    assert [at // MILLISECOND for at in beats[:6]] == [20, 40, 80, 160, 320, 640]
    assert max(later - earlier for earlier, later in pairwise(beats)) == SECOND


def test_a_heartbeat_has_the_next_number() -> None:
    machine = remulticaster()
    machine.deliver(delivery(token(1, [encode(trade(1))])), NOON)
    beats = [packet for _, packet, _ in run(machine, NOON + SECOND) if not packet.messages]
    expected = dict(zip(map(edition().session, (1, 2, 3)), machine.position.following, strict=True))
    assert {packet.session: packet.number for packet in beats} == expected


def test_the_end_of_a_session_is_repeated_for_a_while() -> None:
    machine = remulticaster(closing_period=3 * SECOND)
    first, second = tokens(2, 4)
    machine.change_plan(plan(2), at_sequence=second.sequence, at=NOON)
    machine.deliver(delivery(first), NOON)
    machine.deliver(delivery(second), NOON)
    sent = run(machine, NOON + 20 * SECOND)
    for stripe in (1, 2, 3):
        mine = [(at, packet) for at, packet, _ in sent if packet.session == edition().session(stripe)]
        ends = [(at, packet) for at, packet in mine if packet.ended]
        assert len(ends) >= 3
        assert NOON + 2 * SECOND <= ends[-1][0] <= NOON + 4 * SECOND
        assert mine[-1][1].ended
        assert {packet.number for _, packet in ends} == {max(p.following for _, p in mine if p.messages)}
    assert any(packet.session == edition(2).session(1) and packet.messages for _, packet, _ in sent)


def test_the_last_sessions_end_without_a_successor() -> None:
    machine = remulticaster(closing_period=SECOND)
    machine.deliver(delivery(tokens(1, 4)[0]), NOON)
    machine.end(NOON, NOON)
    sent = run(machine, NOON + 10 * SECOND)
    assert {packet.session for _, packet, _ in sent if packet.ended} == set(map(edition().session, (1, 2, 3)))
    assert machine.deadline() is None


def test_a_hole_in_the_order_stops_sending_and_is_reported() -> None:
    machine = remulticaster()
    first, _, third, _ = tokens(4, 2)
    machine.deliver(delivery(first), NOON)
    position = machine.position
    machine.drain()
    machine.deliver(delivery(third), NOON)
    machine.deliver(delivery(third), NOON)
    assert machine.drain() == [SequenceLost(3, 5)]
    assert machine.lost
    assert machine.counts.strayed == 2
    assert not run(machine, NOON + 10 * SECOND)
    machine.resume(position, NOON)
    assert not machine.lost


def test_waking_early_changes_nothing() -> None:
    machine = remulticaster(cap=100_000)
    machine.deliver(delivery(tokens(1, 200)[0]), NOON)
    machine.drain()
    deadline = machine.deadline()
    assert deadline is not None
    machine.wake(deadline - MICROSECOND)
    assert not machine.drain()
    assert machine.deadline() == deadline


def test_another_feed_continues_with_the_same_numbers_at_once() -> None:
    machine = remulticaster()
    first, second = tokens(2, 3)
    stripe = edition().stripes[0]
    machine.deliver(delivery(first), NOON)
    machine.drain()
    machine.set_feeds(["A", "B"], NOON)
    machine.wake(NOON)
    assert {effect.to for effect in machine.drain() if isinstance(effect, SendMulticast)} >= {
        stripe.endpoint("A"),
        stripe.endpoint("B"),
    }
    machine.deliver(delivery(second), NOON)
    casts = [effect for effect in machine.drain() if isinstance(effect, SendMulticast)]
    by_group = {cast.to: cast.datagrams for cast in casts}
    assert by_group[stripe.endpoint("A")] == by_group[stripe.endpoint("B")]
    machine.set_feeds([], NOON)
    machine.wake(NOON + SECOND)
    assert machine.drain() == []
