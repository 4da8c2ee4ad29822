"""The source: publishes, repeats, believes only what its own key proves, and counts every datagram once."""

from collections import Counter
from dataclasses import replace

import pytest

from fairtape.core.effects import Channel, Multicast
from fairtape.nodes import source as room
from fairtape.nodes.source import Source
from fairtape.wire.frames import Control, Hole, Progress, Request, decode_block
from unit.hostile_values import snapshot
from unit.ring_values import (
    KEYS,
    OTHER_SOURCE,
    SOURCE,
    STARTS_AT,
    TIMING,
    Voice,
    ack,
    block,
    formation,
    let_pass,
    named,
    only,
    source,
)

NOW = STARTS_AT
LAYOUT = formation()


def published(*messages: bytes) -> tuple[Source, list[bytes]]:
    node = source()
    sent: list[bytes] = []
    for message in messages:
        assert node.publish([message], NOW) == 1
        (effect,) = only(Multicast, node.drain())
        assert effect.channel is Channel.DATA
        sent += effect.datagrams
    return node, sent


def told(node: Source, word: Control, voice: Voice | None = None) -> None:
    node.receive((voice or Voice()).tell(SOURCE, word), NOW)


def test_a_message_is_sent_when_it_is_published() -> None:
    node, sent = published(b"a", b"b")
    assert [decode_block(datagram).first for datagram in sent] == [1, 2]
    assert (node.next_number, node.in_flight, node.queued, node.acked_through) == (3, 2, 0, 0)
    assert node.counts == {"blocks": 2}


def test_records_are_published_by_the_block() -> None:
    node = source()
    assert node.publish_records(bytes(64 * 100), 64, NOW) == 100
    (effect,) = only(Multicast, node.drain())
    assert sum(decode_block(datagram).count for datagram in effect.datagrams) == 100


def test_an_acknowledgment_under_its_own_mark_is_believed() -> None:
    node, _ = published(b"a", b"b")
    node.receive(Voice().ack(LAYOUT, 1, 1, [named(1, node=OTHER_SOURCE), named(1, 2)]), NOW)
    assert node.idle
    assert node.counts["acks"] == 1


def test_an_acknowledgment_with_a_wrong_mark_is_not_even_half_believed() -> None:
    node, _ = published(b"a", b"b")
    right = ack(LAYOUT, 1, 1, [named(1), named(2)])
    node.receive(Voice().say(replace(right, marks=(right.marks[0], bytes(8)))), NOW)
    assert node.in_flight == 2
    assert node.counts["forged"] == 1


def test_a_repeated_acknowledgment_says_nothing_about_the_time() -> None:
    """Somebody who kept one of an earlier formation must not be able to confuse the flow control by it."""
    node, _ = published(b"a", b"b", b"c")
    voice = Voice()
    former = voice.ack(formation(number=6), 1, 1, [named(1)])
    for at, datagram in ((NOW, former), (NOW + 1, voice.ack(LAYOUT, 2, 2, [named(2)]))):
        node.receive(datagram, at)
    before = snapshot(node)
    node.receive(former, NOW + 10**12)
    assert snapshot(node) == before


@pytest.mark.parametrize("change", [{"token": 2}, {"sequence": 2}, {"formation": 8}])
def test_a_mark_belongs_to_one_place_in_the_order(change: dict[str, int]) -> None:
    node, _ = published(b"a")
    node.receive(Voice().say(replace(ack(LAYOUT, 1, 1, [named(1)]), **change)), NOW)  # type: ignore[arg-type]
    assert node.in_flight == 1


def test_acknowledgments_of_others_and_of_earlier_incarnations_are_counted_and_nothing_else() -> None:
    node, _ = published(b"a")
    node.receive(Voice().ack(LAYOUT, 1, 1, [named(1, node=OTHER_SOURCE)]), NOW)
    node.receive(Voice().ack(LAYOUT, 1, 1, [named(1, incarnation=2)]), NOW)
    node.receive(Voice().ack(LAYOUT, 1, 1), NOW)
    assert node.in_flight == 1
    assert node.counts["acks_of_others"] == 3


def test_progress_ends_the_flight_and_lets_more_leave() -> None:
    node = Source(me=SOURCE, keys=KEYS.for_source(SOURCE), timing=TIMING, incarnation=1, window_max=2_000)
    node.publish([bytes(1_300)] * 3, NOW)
    assert node.in_flight == 1
    node.drain()
    told(node, Progress(0, 7, 1, 1, 2, 1))
    assert node.acked_through == 1
    assert node.in_flight == 1
    assert len(only(Multicast, node.drain())) == 1
    assert node.counts["progress"] == 1


def test_a_hole_is_filled_with_the_same_bytes() -> None:
    node, sent = published(b"a", b"b", b"c")
    told(node, Hole(0, 7, 1, named(2)))
    assert only(Multicast, node.drain()) == [Multicast(Channel.DATA, [sent[1]])]
    assert (node.counts["holes"], node.counts["resent"]) == (1, 1)


def test_words_about_another_incarnation_are_counted_and_nothing_else() -> None:
    node, _ = published(b"a")
    voice = Voice()
    told(node, Progress(0, 7, 1, 2, 2, 1), voice)
    told(node, Hole(0, 7, 1, named(1, incarnation=2)), voice)
    assert node.drain() == []
    assert node.in_flight == 1
    assert node.counts["other_incarnation"] == 2


def test_a_word_is_believed_once_and_only_under_its_own_key() -> None:
    node, _ = published(b"a")
    voice = Voice()
    word = Hole(0, 7, 1, named(1))
    datagram = voice.tell(SOURCE, word)
    node.receive(datagram, NOW)
    assert len(node.drain()) == 1
    for forged in (datagram, voice.tell(OTHER_SOURCE, word), voice.say(word)):
        node.receive(forged, NOW)
        assert node.drain() == []
    assert (node.counts["replayed"], node.counts["forged"]) == (1, 2)


def test_there_is_a_limit_to_senders_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SENDERS_MAX", 2)
    node, _ = published(b"a")
    voice = Voice()
    for sender in (1, 2, 3):
        told(node, Hole(0, 7, sender, named(1)), voice)
    assert node.counts["over_limit"] == 1
    told(node, Hole(0, 7, 2, named(1)), voice)
    assert node.counts["holes"] == 3


def test_what_is_not_for_a_source_is_malformed() -> None:
    node, _ = published(b"a")
    voice = Voice()
    for datagram in (
        b"",
        b"noise",
        block(1),
        voice.say(Request(0, 7, 1, (1,), ())),
        voice.tell(SOURCE, Hole(1, 7, 1, named(1))),
    ):
        node.receive(datagram, NOW)
    assert node.counts == Counter(blocks=1, malformed=5)


def test_what_is_overdue_is_repeated_and_counted() -> None:
    node, sent = published(b"a")
    assert node.deadline() == NOW + TIMING.resend_delay
    effects = let_pass(node, NOW + TIMING.resend_delay)
    assert [effect for _, effect in effects] == [Multicast(Channel.DATA, sent)]
    assert node.counts["resent"] == 1


def test_an_idle_source_wants_no_timer() -> None:
    assert source().deadline() is None


def test_a_pace_is_kept_by_the_timer() -> None:
    node = Source(me=SOURCE, keys=KEYS.for_source(SOURCE), timing=TIMING, incarnation=1, bytes_per_s_max=1_000_000)
    node.publish([bytes(1_300)] * 200, NOW)
    node.receive(Voice().ack(LAYOUT, 1, 1, [named(1, node.next_number - 1)]), NOW)  # the window is open again
    node.drain()
    assert node.queued > 0
    deadline = node.deadline()
    assert deadline is not None
    assert NOW < deadline < NOW + TIMING.resend_delay
    assert len(only(Multicast, [effect for _, effect in let_pass(node, deadline)])) == 1
