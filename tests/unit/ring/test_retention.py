"""Acknowledged blocks are kept until K + 1 sites hold them, and are in flight again in a later formation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.instants import NEVER
from fairtape.ring.sender import retention
from fairtape.ring.sender.transmission import BACKOFF_MAX
from unit.ring.ring_values import named
from unit.ring.sending_values import DELAY, FORMATION, NOW, WINDOW, acknowledge, kept_and_in_flight, open_window, sender


def test_without_resilience_an_acknowledged_block_is_settled() -> None:
    sending, _ = kept_and_in_flight(1, kept=2)
    assert not sending.idle
    plain = sender(resilience=0)
    plain.offer([b"one"])
    plain.next_blocks(NOW)
    acknowledge(plain, 1)
    assert plain.idle


def test_an_acknowledgment_k_tokens_later_settles_what_was_kept() -> None:
    sending, _ = kept_and_in_flight(2, kept=1, flight=2)
    acknowledge(sending, 2, 2)
    assert sending.kept == 2
    acknowledge(sending, 3, 3)
    assert sending.kept == 2  # Ack(3) settles what Ack(1) named
    sending.ack_received(5, NOW)
    assert sending.idle


def test_a_repeated_acknowledgment_settles_nothing() -> None:
    sending, _ = kept_and_in_flight(1, kept=2)
    for _ in range(3):
        acknowledge(sending, 2, 1)
    assert sending.kept == 2


def test_progress_settles_what_it_names() -> None:
    sending, _ = kept_and_in_flight(2, kept=3)
    sending.settled(3)
    assert sending.kept == 1
    sending.settled(2)
    assert sending.kept == 1
    sending.settled(4)
    assert sending.idle
    assert sending.deadline() == NEVER


def test_a_block_in_flight_stays_in_flight_though_reported_as_settled() -> None:
    """No correct site reports this."""
    sending, _ = kept_and_in_flight(1, kept=1, flight=1)
    sending.settled(3)
    assert (sending.kept, sending.in_flight) == (0, 1)


def test_a_hole_among_the_kept_is_filled_and_closes_no_window() -> None:
    window = open_window()
    sending = sender(resilience=1, window=window)
    sending.offer([bytes(1_300)] * 3)
    sent = sending.next_blocks(NOW)
    acknowledge(sending, 2)
    assert sending.missing(named(1, 2), NOW) == sent[:2]
    assert window.size == WINDOW
    assert sending.missing(named(1, 3), NOW + 1) == sent[2:]
    assert window.size == WINDOW // 2


def test_with_nothing_in_flight_the_last_kept_block_is_a_probe_with_backoff() -> None:
    sending, sent = kept_and_in_flight(1, kept=3)
    assert sending.probe(NOW + DELAY - 1) == []
    at, waits = NOW, []
    for _ in range(6):
        waits.append(sending.deadline() - at)
        at = sending.deadline()
        assert sending.overdue(at) == []
        assert sending.probe(at) == [sent[-1]]
    assert waits == [DELAY, 2 * DELAY, 4 * DELAY, *[BACKOFF_MAX * DELAY] * 3]


def test_while_a_block_is_in_flight_there_is_no_probe() -> None:
    sending, sent = kept_and_in_flight(1, kept=1, flight=1)
    assert sending.probe(NOW + 2 * DELAY) == []
    assert sending.overdue(NOW + DELAY) == sent[1:]


def test_the_backoff_of_probes_restarts_after_every_flight() -> None:
    sending, _ = kept_and_in_flight(1, kept=1)
    for _ in range(3):
        sending.probe(sending.deadline())
    sending.offer([b"more"])
    sending.next_blocks(NOW)
    acknowledge(sending, 2, 5)
    assert sending.deadline() == NOW + DELAY


def test_a_later_formation_may_not_know_what_an_earlier_one_acknowledged() -> None:
    """Kept blocks are in flight again, before the rest, with the initial delay."""
    sending, sent = kept_and_in_flight(2, kept=3, flight=2)
    later = NOW + 10 * DELAY
    assert sending.enter(FORMATION + 1, later)
    assert (sending.kept, sending.in_flight, sending.acked_through) == (0, 5, 0)
    assert sending.overdue(later) == []
    assert sending.deadline() == later + DELAY
    assert sending.overdue(later + DELAY) == sent


def test_what_was_settled_stays_settled_in_a_later_formation() -> None:
    sending, _ = kept_and_in_flight(1, kept=3)
    sending.settled(3)
    sending.enter(FORMATION + 1, NOW)
    assert (sending.kept, sending.in_flight, sending.acked_through) == (0, 1, 2)


def test_the_first_acknowledgment_of_a_later_formation_covers_what_it_knows() -> None:
    sending, _ = kept_and_in_flight(1, kept=3, flight=1)
    sending.enter(FORMATION + 1, NOW)
    acknowledge(sending, 4, 9)
    assert (sending.kept, sending.in_flight) == (4, 0)
    sending.ack_received(10, NOW)
    assert sending.idle


def test_a_datagram_of_an_earlier_formation_is_outdated() -> None:
    sending, _ = kept_and_in_flight(1, kept=1)
    assert not sending.enter(FORMATION - 1, NOW)
    assert sending.enter(FORMATION, NOW)
    assert sending.kept == 1


def test_blocks_in_flight_again_count_against_the_window() -> None:
    window = open_window()
    sending = sender(resilience=1, window=window)
    sending.offer([bytes(1_300)] * 3)
    sent = sending.next_blocks(NOW)
    acknowledge(sending, 3)
    assert window.flight == 0
    sending.enter(FORMATION, NOW)
    assert window.flight == sum(map(len, sent))
    acknowledge(sending, 3, 2)
    assert window.flight == 0


@pytest.mark.parametrize(("limit", "value"), [("KEPT_MAX", 3 * 1_300), ("KEPT_BLOCKS_MAX", 3)])
def test_a_source_that_keeps_too_much_sends_nothing_new_and_forgets_nothing(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, limit, value)
    sending, sent = kept_and_in_flight(1, kept=3)
    sending.offer([bytes(1_300)])
    assert sending.next_blocks(NOW) == []
    assert sending.missing(named(1, 3), NOW) == sent
    assert sending.probe(sending.deadline()) == sent[-1:]  # so that it can send again later
    sending.settled(2)
    assert len(sending.next_blocks(NOW)) == 1


@settings(max_examples=200)
@given(
    resilience=st.integers(0, 3),
    steps=st.lists(st.sampled_from(["send", "ack", "miss", "reform", "probe"]), max_size=40),
)
def test_what_is_not_settled_can_always_be_sent_again(resilience: int, steps: list[str]) -> None:
    """The model remembers which token of which formation acknowledged what."""
    sending, token, number = sender(resilience=resilience), 0, 0
    sending.enter(number, NOW)
    datagrams: list[bytes] = []
    acked_by: dict[int, int] = {}  # by the final formation
    settled = 0
    for step in steps:
        match step:
            case "send":
                sending.offer([bytes(1_300)])
                datagrams += sending.next_blocks(NOW)
            case "ack" if len(datagrams) > len(acked_by) + settled:
                token += 1
                acked_by |= {first: token for first in range(settled + 1, len(datagrams) + 1) if first not in acked_by}
                acknowledge(sending, len(datagrams), token)
                settled = max([first for first, by in acked_by.items() if by + resilience <= token], default=settled)
                acked_by = {first: by for first, by in acked_by.items() if first > settled}
            case "miss":
                token += 1
            case "reform":
                number += 1
                acked_by.clear()
                assert sending.enter(number, NOW)
            case "probe" if acked_by and len(datagrams) == len(acked_by) + settled:
                assert sending.probe(sending.deadline()) == datagrams[-1:]
        assert sending.kept == len(acked_by)
        assert sending.in_flight == len(datagrams) - settled - len(acked_by)
        assert sending.idle == (settled == len(datagrams))
    assert sending.missing(named(1, len(datagrams) + 1), NOW) == datagrams[settled:]
