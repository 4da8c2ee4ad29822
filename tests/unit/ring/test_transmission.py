"""Transmission: blocks are packed and sealed once, retransmitted byte for byte, and limited everywhere."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.instants import NEVER, SECOND
from fairtape.ring.load import LAG_TARGET, NO_LOAD, SiteLoad
from fairtape.ring.sender import transmission
from fairtape.ring.sender.transmission import BACKOFF_MAX, BURST_BLOCKS_MAX, QUEUE_MAX, RESEND_MAX, MessageTooLong
from fairtape.ring.sender.window import PACKET_MIN, SendPace, packet_size
from fairtape.wire.blocks import MESSAGE_MAX, Assembler, unpack_messages
from fairtape.wire.frames import Flag, decode_block
from fairtape.wire.seals import SEAL_OVERHEAD, Seal
from unit.ring.ring_values import KEYS, SOURCE, TIMING, named
from unit.ring.sending_values import DELAY, NOW, ROUND_TRIP, WINDOW, acknowledge, open_window, sender


def opened(datagrams: list[bytes]) -> list[bytes]:
    """The messages that receivers would read in these blocks."""
    seal = Seal(KEYS.sources[SOURCE], stripe=0, source=SOURCE, incarnation=1)
    assembler = Assembler()
    messages: list[bytes] = []
    for datagram in datagrams:
        frame = decode_block(datagram)
        body = seal.open(datagram, frame.first)
        if frame.flags & Flag.FRAGMENT:
            whole = assembler.add(body)
            messages += [] if whole is None else [whole]
        else:
            messages += unpack_messages(body, frame.count)
    return messages


def test_small_messages_share_a_block() -> None:
    sending = sender()
    assert sending.offer([b"a", b"bb", b"ccc"]) == 3
    (datagram,) = sending.next_blocks(NOW)
    frame = decode_block(datagram)
    assert (frame.source, frame.incarnation, frame.first, frame.count) == (SOURCE, 1, 1, 3)
    assert opened([datagram]) == [b"a", b"bb", b"ccc"]
    assert (sending.next_number, sending.in_flight, sending.queued) == (4, 1, 0)
    assert not sending.idle


@settings(max_examples=60)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(1_000, 6_000)), min_size=1, max_size=40),
    datagram_max=st.sampled_from([256, 512, 1_400]),
    rounds=st.integers(1, 4),
)
def test_every_message_is_sent_once_and_in_order(sizes: list[int], datagram_max: int, rounds: int) -> None:
    sending, chance = sender(datagram_max=datagram_max), Random(1)
    messages = [chance.randbytes(size) for size in sizes]
    sent: list[bytes] = []
    for number in range(rounds):
        share = messages[number::rounds]
        assert sending.offer(share) == len(share)
        while leaving := sending.next_blocks(NOW):
            sent += leaving
    assert opened(sent) == [message for number in range(rounds) for message in messages[number::rounds]]
    assert all(len(datagram) <= datagram_max for datagram in sent)
    following = 1
    for datagram in sent:
        frame = decode_block(datagram)
        assert frame.first == following
        following += frame.count
    assert sending.next_number == following


def test_records_fill_blocks_without_work_per_record() -> None:
    sending = sender()
    records = bytes(range(256)) * 64
    assert sending.offer_records(records, 64) == 256
    sent = sending.next_blocks(NOW)
    assert b"".join(opened(sent)) == records
    assert len(sent[0]) == SEAL_OVERHEAD + 2 + 21 * 64  # as many as fit 1,400 bytes
    assert sending.queued == 0


def test_what_cannot_be_sent_at_all_is_refused() -> None:
    sending = sender()
    for bad in (b"", bytes(MESSAGE_MAX + 1)):
        with pytest.raises(MessageTooLong, match=str(len(bad))):
            sending.offer([b"fine", bad])
    for records, size in ((b"abc", 2), (b"", 0), (bytes(5_000), 5_000)):
        with pytest.raises(MessageTooLong, match="record_size"):
            sending.offer_records(records, size)
    assert sending.offer_records(b"", 8) == 0
    assert sending.offer([]) == 0
    assert sending.idle


def test_a_full_queue_takes_what_fits_and_no_more() -> None:
    sending = sender(window=open_window(1_000, maximum=1_000))
    message = bytes(MESSAGE_MAX)
    assert sending.offer([message] * 20) == QUEUE_MAX // MESSAGE_MAX
    assert sending.queued == QUEUE_MAX
    assert sending.offer([b"one more"]) == 0
    assert sending.offer_records(bytes(8), 8) == 0


def test_the_window_limits_the_bytes_in_flight() -> None:
    sending = sender(window=open_window(4_000, maximum=4_000))
    sending.offer([bytes(100)] * 200)
    first = sending.next_blocks(NOW) + sending.next_blocks(NOW + SECOND) + sending.next_blocks(NOW + 2 * SECOND)
    assert 3_000 <= sum(map(len, first)) <= 4_000
    assert sending.next_blocks(NOW + 3 * SECOND) == []
    acknowledge(sending, decode_block(first[-1]).first + decode_block(first[-1]).count - 1)
    assert sending.next_blocks(NOW + 4 * SECOND) != []


def test_a_message_larger_than_the_window_goes_alone() -> None:
    sending = sender(window=open_window(600, maximum=600))
    sending.offer([bytes(1_000), bytes(1_000)])
    assert len(sending.next_blocks(NOW)) == 1
    assert sending.next_blocks(NOW) == []
    acknowledge(sending, 1)
    assert len(sending.next_blocks(NOW)) == 1


def test_there_is_a_limit_to_blocks_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transmission, "FLIGHT_BLOCKS_MAX", 3)
    sending = sender()
    sending.offer([bytes(1_300)] * 5)
    assert len(sending.next_blocks(NOW)) == 3


def test_the_pace_holds_blocks_back_and_says_until_when() -> None:
    sending = sender(pace=SendPace(10_000_000))
    sending.offer([bytes(1_300)] * 200)
    left = len(sending.next_blocks(NOW)) + len(sending.next_blocks(NOW))
    assert BURST_BLOCKS_MAX < left < 200
    assert NOW < sending.deadline() < NOW + SECOND
    assert 1 < len(sending.next_blocks(sending.deadline())) < BURST_BLOCKS_MAX  # a train: half a burst


def test_an_unacknowledged_block_is_repeated_byte_for_byte_with_backoff() -> None:
    sending = sender()
    sending.offer([b"again"])
    (datagram,) = sending.next_blocks(NOW)
    assert sending.deadline() == NOW + DELAY
    assert sending.overdue(NOW + DELAY - 1) == []
    at, waits = NOW, []
    for _ in range(6):
        waits.append(sending.deadline() - at)
        at = sending.deadline()
        assert sending.overdue(at) == [datagram]
    assert waits == [DELAY, 2 * DELAY, 4 * DELAY, *[BACKOFF_MAX * DELAY] * 3]


def test_one_timeout_repeats_a_limited_number_of_blocks() -> None:
    sending = sender()
    sending.offer([bytes(1_300)] * (RESEND_MAX + 10))
    sending.next_blocks(NOW)
    assert len(sending.overdue(NOW + DELAY)) == RESEND_MAX


def test_an_acknowledgment_ends_the_flight_of_everything_up_to_it() -> None:
    sending = sender()
    sending.offer([bytes(1_300)] * 4)
    sending.next_blocks(NOW)
    acknowledge(sending, 3)
    assert (sending.in_flight, sending.acked_through) == (1, 3)
    acknowledge(sending, 2)
    assert sending.acked_through == 3
    acknowledge(sending, 4)
    assert sending.idle
    assert sending.deadline() == NEVER


def test_an_acknowledgment_of_what_was_never_sent_is_ignored() -> None:
    sending = sender()
    sending.offer([b"one"])
    sending.next_blocks(NOW)
    acknowledge(sending, 2)
    assert (sending.in_flight, sending.acked_through) == (1, 0)


def test_an_acknowledgment_that_cuts_a_block_ends_no_flight_and_breaks_nothing() -> None:
    """No correct site sends this; a faulty one must not be able to stop a source."""
    sending = sender()
    sending.offer([b"a", b"b", b"c"])
    sending.next_blocks(NOW)
    for through in (1, 2):
        acknowledge(sending, through)
        assert sending.in_flight == 1
    acknowledge(sending, 3)
    assert sending.idle


def test_a_loaded_site_closes_the_window() -> None:
    for load in (NO_LOAD, SiteLoad(release_lag=2 * LAG_TARGET), SiteLoad(backlog=TIMING.token_period)):
        window = open_window(WINDOW // 2)
        sending = sender(window=window)
        sending.offer([b"one"])
        sending.next_blocks(NOW)
        acknowledge(sending, 1, load=load)
        assert (window.size < WINDOW // 2) == (load is not NO_LOAD)


def test_a_long_queue_is_sent_in_bursts_with_acknowledgments_received_between() -> None:
    sending = sender()
    sending.offer([bytes(1_300)] * (BURST_BLOCKS_MAX + 1))
    assert len(sending.next_blocks(NOW)) == BURST_BLOCKS_MAX
    assert sending.deadline() <= NOW
    assert len(sending.next_blocks(NOW)) == 1
    assert sending.deadline() == NOW + DELAY


def test_a_hole_is_filled_with_the_same_bytes_and_closes_the_window() -> None:
    window = open_window()
    sending = sender(window=window)
    sending.offer([bytes(1_300)] * 4)
    sent = sending.next_blocks(NOW)
    assert sending.missing(named(2, 2), NOW) == sent[1:3]
    assert window.size == WINDOW // 2
    assert sending.missing(named(9), NOW + ROUND_TRIP) == []
    assert window.size == WINDOW // 2


def test_a_hole_that_several_sites_name_is_answered_once_in_a_round_trip() -> None:
    """The retransmission is multicast; reports sent before it arrived need nothing more."""
    window = open_window()
    sending = sender(window=window)
    sending.offer([bytes(1_300)] * 4)
    sent = sending.next_blocks(NOW)
    answers = [sending.missing(named(2), NOW + late) for late in (0, 1, ROUND_TRIP - 1, ROUND_TRIP)]
    assert answers == [[sent[1]], [], [], [sent[1]]]
    assert window.size == WINDOW // 4


def test_two_holes_in_one_round_trip_are_both_filled_and_close_the_window_once() -> None:
    window = open_window()
    sending = sender(window=window)
    sending.offer([bytes(1_300)] * 4)
    sent = sending.next_blocks(NOW)
    assert sending.missing(named(1), NOW) == sent[:1]
    assert sending.missing(named(1, 3), NOW + 1) == sent[1:3]
    assert window.size == WINDOW // 2


def test_a_hole_that_a_timeout_has_just_filled_is_not_filled_again() -> None:
    sending = sender()
    sending.offer([bytes(1_300)])
    sent = sending.next_blocks(NOW)
    assert sending.overdue(NOW + DELAY) == sent
    assert sending.missing(named(1), NOW + DELAY + 1) == []
    assert sending.missing(named(1), NOW + DELAY + ROUND_TRIP) == sent


def test_a_huge_hole_is_answered_with_a_limited_number_of_blocks() -> None:
    sending = sender()
    sending.offer([bytes(1_300)] * (RESEND_MAX + 10))
    sending.next_blocks(NOW)
    assert len(sending.missing(named(1, 1_000_000), NOW)) == RESEND_MAX


@settings(max_examples=100)
@given(
    queued=st.integers(1_400, 1 << 20),
    size=st.integers(2_800, WINDOW),
    datagram_max=st.sampled_from([256, 512, 1_400]),
)
def test_the_fast_path_of_the_body_size_equals_the_rule(queued: int, size: int, datagram_max: int) -> None:
    """With a full queue and an open window, Figure 1 gives the largest packet."""
    sending = sender(datagram_max=datagram_max, window=open_window(size, packet_max=datagram_max))
    expected = packet_size(
        offered=queued + SEAL_OVERHEAD, window=size, available=size, packet_min=PACKET_MIN, packet_max=datagram_max
    )
    sending.offer_records(bytes(50) * (queued // 50 + 1), 50)
    (first, *_) = sending.next_blocks(NOW)
    assert expected == datagram_max
    assert datagram_max - 52 <= len(first) <= datagram_max
