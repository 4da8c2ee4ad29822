"""The source: publishes, repeats, believes only what its own key proves, and counts every datagram once."""

from collections import Counter
from dataclasses import replace

import pytest

from fairtape.core.effects import Channel, Multicast
from fairtape.core.instants import SECOND
from fairtape.nodes import source as room
from fairtape.nodes.source import Source
from fairtape.wire.frames import Control, Hole, Progress, Request, decode_block
from unit.hostile_values import snapshot
from unit.ring_values import (
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


def published(*messages: bytes, resilience: int = 0) -> tuple[Source, list[bytes]]:
    node = source(resilience=resilience)
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


def test_an_acknowledgment_of_an_earlier_formation_says_nothing_any_more() -> None:
    """Somebody who kept one must not be able to make a source believe it."""
    node, _ = published(b"a", b"b", b"c")
    voice = Voice()
    former = voice.ack(formation(number=6), 1, 1, [named(1)])
    for at, datagram in ((NOW, former), (NOW + 1, voice.ack(LAYOUT, 2, 2, [named(2)]))):
        node.receive(datagram, at)
    before = snapshot(node)
    node.receive(former, NOW + 10**12)
    assert snapshot(node) == before
    assert node.counts["outdated"] == 1


@pytest.mark.parametrize("change", [{"token": 2}, {"sequence": 2}, {"formation": 8}, {"behind": True}])
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


def test_an_acknowledgment_that_does_not_name_this_source_is_not_even_read() -> None:
    """Where there are many sources, nearly all are like this."""
    node, _ = published(b"a")
    other = Voice().ack(LAYOUT, 1, 1, [named(1, node=OTHER_SOURCE)])
    node.receive(other[:-30], NOW)
    node.receive(other[:3] + b"\xff" + other[4:], NOW)
    assert node.counts == Counter(blocks=1, acks_of_others=1, malformed=1)


def test_progress_ends_the_flight_and_lets_more_leave() -> None:
    node = source(window_max=2_000)
    node.publish([bytes(1_300)] * 3, NOW)
    assert node.in_flight == 1
    node.drain()
    told(node, Progress(0, 7, 1, 1, 2, 1, 2))
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
    told(node, Progress(0, 7, 1, 2, 2, 1, 2), voice)
    told(node, Hole(0, 7, 1, named(1, incarnation=2)), voice)
    told(node, Hole(0, 7, 1, named(1, node=OTHER_SOURCE)), voice)
    assert node.drain() == []
    assert node.in_flight == 1
    assert node.counts["other_incarnation"] == 3


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


def in_flight_after_some_tokens(*, drift: int = 0, step: int = 0, behind: bool = False) -> int:
    """How many blocks are under way when a busy source has heard eight acknowledgments, the last four perhaps late."""
    node, now = source(), NOW
    node.publish([bytes(1_300)] * 12_000, now)
    for token in range(1, 9):
        now += TIMING.token_period + drift + (step if token == 5 else 0)
        first = node.acked_through + 1
        everything = named(first, node.next_number - first)
        node.receive(Voice().say(ack(LAYOUT, token, first, [everything], behind=behind and token > 4)), now)
        let_pass(node, now)
    return node.in_flight


def test_a_late_token_closes_the_window() -> None:
    assert in_flight_after_some_tokens(behind=True) < in_flight_after_some_tokens() // 2


def test_what_the_clock_of_a_source_shows_does_not() -> None:
    """Only the token site knows whether it is late: a source's clock may drift and be set as it likes."""
    steady = in_flight_after_some_tokens()
    assert in_flight_after_some_tokens(drift=TIMING.retry_period) == steady
    assert in_flight_after_some_tokens(drift=-TIMING.token_period // 2) == steady
    assert in_flight_after_some_tokens(step=3_600 * SECOND) == steady


def test_nothing_is_forgotten_before_k_further_sites_hold_it() -> None:
    node, _ = published(b"a", b"b", resilience=1)
    voice = Voice()
    node.receive(voice.ack(LAYOUT, 1, 1, [named(1)]), NOW)
    assert (node.acked_through, node.in_flight, node.kept) == (1, 1, 1)
    node.receive(voice.ack(LAYOUT, 2, 2, [named(2)]), NOW)
    assert (node.acked_through, node.in_flight, node.kept, node.idle) == (2, 0, 1, False)
    told(node, Progress(0, 7, 1, 1, 3, 3, 3), voice)
    assert node.idle
    assert node.deadline() is None


def test_acknowledgments_of_others_settle_nothing() -> None:
    """They are not proved to this source."""
    node, _ = published(b"a", resilience=1)
    voice = Voice()
    node.receive(voice.ack(LAYOUT, 1, 1, [named(1)]), NOW)
    node.receive(voice.ack(LAYOUT, 5, 2, [named(1, node=OTHER_SOURCE)]), NOW)
    assert node.kept == 1


def test_a_source_that_falls_silent_asks_until_a_site_knows_that_all_is_settled() -> None:
    node, sent = published(b"a", b"b", resilience=1)
    voice = Voice()
    node.receive(voice.ack(LAYOUT, 1, 1, [named(1, 2)]), NOW)
    effects = let_pass(node, NOW + TIMING.resend_delay)
    assert [effect for _, effect in effects] == [Multicast(Channel.DATA, sent[1:])]
    assert node.counts["probes"] == 1
    told(node, Progress(0, 7, 2, 1, 3, 1, 2), voice)
    assert (node.kept, node.idle) == (1, False)
    told(node, Progress(0, 7, 2, 1, 3, 2, 3), voice)
    assert node.idle


def test_progress_says_when_a_block_was_acknowledged_at_the_latest() -> None:
    """Its token may be the last of an earlier formation: K + 1 sites are those of the tokens after it."""
    node, _ = published(b"a", b"b", resilience=1)
    voice = Voice()
    told(node, Progress(0, 7, 1, 1, 2, 4, 1), voice)
    assert (node.acked_through, node.kept) == (1, 1)
    node.receive(voice.ack(LAYOUT, 5, 9, [named(2)]), NOW)
    assert node.kept == 2
    node.publish([b"c"], NOW)
    node.receive(voice.ack(LAYOUT, 6, 10, [named(3)]), NOW)
    assert node.kept == 1


@pytest.mark.parametrize("news", ["ack", "progress", "hole"])
def test_the_first_word_of_a_later_formation_puts_what_was_kept_under_way_again(news: str) -> None:
    node, sent = published(b"a", b"b", b"c", resilience=2)
    voice, later = Voice(), formation(number=8, first_token=9)
    node.receive(voice.ack(LAYOUT, 1, 1, [named(1, 2)]), NOW)
    assert (node.kept, node.in_flight) == (2, 1)
    match news:
        case "ack":
            node.receive(voice.ack(later, 9, 1, [named(1)]), NOW)  # it begins before Ack(1)
            expected = 1, 2, 1
        case "progress":
            told(node, Progress(0, 8, 1, 1, 1, 8, 1), voice)
            expected = 0, 3, 0
        case _:
            told(node, Hole(0, 8, 1, named(1)), voice)
            assert only(Multicast, node.drain()) == [Multicast(Channel.DATA, sent[:1])]
            expected = 0, 3, 0
    assert (node.kept, node.in_flight, node.acked_through) == expected
    assert node.deadline() == NOW + TIMING.resend_delay
    node.receive(voice.ack(LAYOUT, 2, 3, [named(3)]), NOW)
    assert node.counts["outdated"] == 1
    assert (node.kept, node.in_flight, node.acked_through) == expected


def test_an_idle_source_wants_no_timer() -> None:
    assert source().deadline() is None


def test_a_pace_is_kept_by_the_timer() -> None:
    node = source(bytes_per_s_max=1_000_000)
    node.publish([bytes(1_300)] * 200, NOW)
    node.receive(Voice().ack(LAYOUT, 1, 1, [named(1, node.next_number - 1)]), NOW)  # the window is open again
    node.drain()
    assert node.queued > 0
    deadline = node.deadline()
    assert deadline is not None
    assert NOW < deadline < NOW + TIMING.resend_delay
    assert len(only(Multicast, [effect for _, effect in let_pass(node, deadline)])) == 1
