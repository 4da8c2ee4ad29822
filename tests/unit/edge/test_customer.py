"""The customer alone: every number is delivered or a gap, memory is bounded, and no input raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.edge.protocol.customer import (
    Customer,
    CustomerOptions,
    Delivered,
    Ended,
    Heard,
    PlanChange,
    Silent,
    StripeFresh,
    StripeGap,
    StripeRecord,
    StripeStale,
)
from fairtape.edge.protocol.effects import SendUnicast
from fairtape.formats.moldudp64 import Packet, decode_request, encode
from unit.edge.edge_values import NOON, edition, plan

SESSION, NEXT = edition().session(1), edition(2).session(1)
SERVERS = (("10.0.0.1", 1), ("10.0.0.2", 1))


def listener(*, servers: tuple[tuple[str, int], ...] = (), start: int | None = 1, **options: int | None) -> Customer:
    made = Customer("FT", servers=servers, options=CustomerOptions(**options))  # type: ignore[arg-type]
    made.follow(plan(), [1], NOON, starts={} if start is None else {1: start})
    return made


def packet(first: int, count: int, session: str = SESSION) -> bytes:
    return encode(Packet(session, first, tuple(b"%d" % number for number in range(first, first + count))))


def records(machine: Customer, until: int = NOON) -> list[StripeRecord]:
    found = []
    while (deadline := machine.deadline()) is not None and deadline <= until:
        machine.wake(deadline)
    for effect in machine.drain():
        assert not isinstance(effect, SendUnicast)
        found.append(effect)
    return found


def requests(machine: Customer, until: int) -> list[tuple[str, int, int]]:
    """(server, first, count) of every request."""
    asked = []
    while (deadline := machine.deadline()) is not None and deadline <= until:
        machine.wake(deadline)
    for effect in machine.drain():
        if isinstance(effect, SendUnicast):
            for datagram in effect.datagrams:
                request = decode_request(datagram)
                asked.append((effect.to[0], request.number, request.count))
    return asked


def test_the_first_copy_counts_on_whichever_feed_it_came() -> None:
    machine = listener()
    machine.receive(packet(1, 2), NOON, feed="A")
    machine.receive(packet(1, 3), NOON, feed="B")
    assert records(machine) == [Delivered(1, SESSION, 1, (b"1", b"2")), Delivered(1, SESSION, 3, (b"3",))]


def test_a_hole_becomes_an_exact_gap_when_patience_ends() -> None:
    machine = listener(patience=50 * MILLISECOND)
    machine.receive(packet(1, 2), NOON, feed="A")
    machine.receive(packet(5, 1), NOON, feed="A")
    assert records(machine, NOON + 49 * MILLISECOND) == [Delivered(1, SESSION, 1, (b"1", b"2"))]
    assert records(machine, NOON + 50 * MILLISECOND) == [StripeGap(1, SESSION, 3, 2), Delivered(1, SESSION, 5, (b"5",))]


def test_a_hole_is_requested_after_a_delay_and_from_another_server_when_one_is_silent() -> None:
    machine = listener(servers=SERVERS, patience=None, ask_delay=3 * MILLISECOND, retry_period=30 * MILLISECOND)
    machine.receive(packet(4, 1), NOON, feed="A")
    assert not requests(machine, NOON + 2 * MILLISECOND)
    assert requests(machine, NOON + 3 * MILLISECOND) == [("10.0.0.1", 1, 3)]
    assert requests(machine, NOON + 33 * MILLISECOND) == [("10.0.0.1", 1, 3)]
    assert requests(machine, NOON + 63 * MILLISECOND) == [("10.0.0.2", 1, 3)]
    machine.receive(packet(1, 3), NOON + 70 * MILLISECOND)
    assert not requests(machine, NOON + SECOND)


def test_what_the_other_feed_brings_in_time_is_not_requested() -> None:
    machine = listener(servers=SERVERS, patience=None)
    machine.receive(packet(2, 1), NOON, feed="A")
    machine.receive(packet(1, 1), NOON + MILLISECOND, feed="B")
    assert not requests(machine, NOON + SECOND)


def test_silence_of_one_feed_and_of_all_is_reported_and_so_is_its_end() -> None:
    machine = listener(stale_delay=3 * SECOND)
    machine.receive(packet(1, 1), NOON, feed="A")
    machine.receive(packet(1, 1), NOON + SECOND, feed="B")
    records(machine)
    assert records(machine, NOON + 3 * SECOND) == [Silent(1, "A", NOON)]
    assert records(machine, NOON + 4 * SECOND) == [Silent(1, "B", NOON + SECOND), StripeStale(1, NOON + SECOND)]
    machine.receive(packet(2, 1), NOON + 5 * SECOND, feed="B")
    assert records(machine)[:2] == [StripeFresh(1), Heard(1, "B")]


def test_a_new_plan_waits_for_the_end_of_the_old_one() -> None:
    machine = listener()
    machine.receive(packet(1, 1), NOON, feed="A")
    machine.receive(packet(1, 1, NEXT), NOON, feed="A")
    assert records(machine)[-1] == PlanChange(2, 0)
    machine.follow(plan(2), [1], NOON)
    machine.receive(packet(1, 2, NEXT), NOON, feed="A")
    assert not records(machine)
    machine.receive(packet(2, 1), NOON, feed="A")
    machine.receive(encode(Packet(SESSION, 3, ended=True)), NOON, feed="A")
    assert records(machine) == [
        Delivered(1, SESSION, 2, (b"2",)),
        Ended(1, SESSION, 3, complete=True),
        Delivered(1, NEXT, 1, (b"1", b"2")),
    ]


def test_an_old_session_whose_end_never_comes_is_given_up_and_reported() -> None:
    machine = listener()
    machine.receive(packet(1, 1), NOON, feed="A")
    machine.follow(plan(2), [1], NOON)
    machine.receive(packet(1, 2, NEXT), NOON, feed="A")
    reported = records(machine, NOON + 10 * SECOND)
    assert Ended(1, SESSION, 2, complete=False) in reported
    assert Delivered(1, NEXT, 1, (b"1", b"2")) in reported


def test_a_plan_that_is_known_long_before_changes_nothing() -> None:
    machine = listener()
    machine.receive(packet(1, 1), NOON, feed="A")
    machine.follow(plan(2), [1], NOON)
    reported = records(machine, NOON + 60 * SECOND)
    assert not [record for record in reported if isinstance(record, Ended)]


def test_the_next_edition_is_held_only_within_the_limit() -> None:
    machine = listener(servers=SERVERS, patience=None, held_bytes_max=1_000)
    machine.receive(packet(1, 1), NOON, feed="A")
    machine.follow(plan(2), [1], NOON)
    for first in range(1, 10_000, 10):
        machine.receive(packet(first, 10, NEXT), NOON, feed="A")
    assert machine.counts.postponed > 900
    assert machine._editions[1].waiting_bytes < 1_100
    machine.receive(encode(Packet(SESSION, 2, ended=True)), NOON, feed="A")
    machine.receive(encode(Packet(NEXT, 10_001)), NOON, feed="A")
    assert requests(machine, NOON + 5 * MILLISECOND)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 80), st.integers(0, 4), st.sampled_from("AB"), st.booleans()),
        max_size=60,
    )
)
def test_delivered_and_gaps_are_everything_once_and_in_order(heard: list[tuple[int, int, int, str, bool]]) -> None:
    machine = listener(patience=20 * MILLISECOND, ahead_max=40)
    now = NOON
    reported: list[StripeRecord] = []
    for pause, first, count, feed, ended in heard:
        now += pause * MILLISECOND
        reported += records(machine, now)
        ends = ended and count == 0 and first == 80
        machine.receive(encode(Packet(SESSION, 81, ended=True)) if ends else packet(first, count), now, feed=feed)
    reported += records(machine, now + SECOND)
    following = 1
    for record in reported:
        if isinstance(record, Delivered):
            assert record.first == following
            assert record.messages == tuple(
                b"%d" % number for number in range(following, following + len(record.messages))
            )
            following += len(record.messages)
        elif isinstance(record, StripeGap):
            assert record.first == following
            following += record.count
    known = max((first + count for _, first, count, _, _ in heard), default=1)
    assert following >= known or following == 1


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_no_input_raises_an_exception(noise: list[bytes]) -> None:
    machine = listener()
    for datagram in noise:
        machine.receive(datagram, NOON, feed="A")
        machine.receive(datagram[:10].ljust(10) + bytes(7) + datagram[10:], NOON, feed="A")
    machine.wake(NOON + SECOND)
    assert machine.counts.malformed + machine.counts.strangers == machine.counts.packets


@pytest.mark.parametrize(("field", "value"), [("ask_delay", 0), ("patience", 0), ("request_max", -1)])
def test_options_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        CustomerOptions(**{field: value})


def test_a_server_that_lags_behind_counts_as_silent() -> None:
    """Its receiver was killed: it has nothing of what the feeds brought since, and answers so for ever."""
    machine = listener(servers=SERVERS, patience=None, ask_delay=3 * MILLISECOND, retry_period=30 * MILLISECOND)
    machine.receive(packet(4, 1), NOON, feed="A")
    asked = []
    for step in range(1, 5):
        now = NOON + step * 33 * MILLISECOND
        asked += [server for server, _, _ in requests(machine, now)]
        machine.receive(encode(Packet(SESSION, 1)), now)
    assert "10.0.0.2" in asked
    machine.receive(packet(1, 3), NOON + SECOND)
    assert not requests(machine, NOON + 2 * SECOND)
