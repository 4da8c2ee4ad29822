"""The source: publishes, retransmits, accepts only what its own key verifies, and counts every datagram once."""

from collections import Counter
from dataclasses import replace

import pytest

from fairtape.core.effects import Channel, Multicast
from fairtape.core.instants import SECOND
from fairtape.nodes import source as source_module
from fairtape.nodes.source import Source
from fairtape.wire.frames import Control, Hole, Progress, Request, decode_block
from unit.nodes.hostile_values import snapshot
from unit.ring.ring_values import (
    OTHER_SOURCE,
    SOURCE,
    STARTS_AT,
    TIMING,
    Signer,
    ack,
    block,
    formation,
    named,
    only,
    run_until,
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


def send_to(node: Source, message: Control, signer: Signer | None = None) -> None:
    node.receive((signer or Signer()).sign_for_source(SOURCE, message), NOW)


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


def test_an_acknowledgment_with_a_correct_mark_is_accepted() -> None:
    node, _ = published(b"a", b"b")
    node.receive(Signer().ack(LAYOUT, 1, 1, [named(1, node=OTHER_SOURCE), named(1, 2)]), NOW)
    assert node.idle
    assert node.counts["acks"] == 1


def test_an_acknowledgment_with_one_wrong_mark_is_refused_as_a_whole() -> None:
    node, _ = published(b"a", b"b")
    right = ack(LAYOUT, 1, 1, [named(1), named(2)])
    node.receive(Signer().sign(replace(right, marks=(right.marks[0], bytes(8)))), NOW)
    assert node.in_flight == 2
    assert node.counts["forged"] == 1


def test_an_acknowledgment_of_an_earlier_formation_is_outdated() -> None:
    """An attacker may have captured it and replay it."""
    node, _ = published(b"a", b"b", b"c")
    signer = Signer()
    former = signer.ack(formation(number=6), 1, 1, [named(1)])
    for at, datagram in ((NOW, former), (NOW + 1, signer.ack(LAYOUT, 2, 2, [named(2)]))):
        node.receive(datagram, at)
    before = snapshot(node)
    node.receive(former, NOW + 10**12)
    assert snapshot(node) == before
    assert node.counts["outdated"] == 1


@pytest.mark.parametrize(
    "change", [{"token": 2}, {"sequence": 2}, {"formation": 8}, {"release_lag_us": 9}, {"backlog_us": 9}]
)
def test_a_mark_belongs_to_one_place_in_the_order(change: dict[str, int]) -> None:
    node, _ = published(b"a")
    node.receive(Signer().sign(replace(ack(LAYOUT, 1, 1, [named(1)]), **change)), NOW)  # type: ignore[arg-type]
    assert node.in_flight == 1


def test_acknowledgments_of_others_and_of_earlier_incarnations_are_only_counted() -> None:
    node, _ = published(b"a")
    node.receive(Signer().ack(LAYOUT, 1, 1, [named(1, node=OTHER_SOURCE)]), NOW)
    node.receive(Signer().ack(LAYOUT, 1, 1, [named(1, incarnation=2)]), NOW)
    node.receive(Signer().ack(LAYOUT, 1, 1), NOW)
    assert node.in_flight == 1
    assert node.counts["acks_of_others"] == 3


def test_an_acknowledgment_that_does_not_name_this_source_is_not_decoded() -> None:
    """If there are many sources, nearly all are like this."""
    node, _ = published(b"a")
    other = Signer().ack(LAYOUT, 1, 1, [named(1, node=OTHER_SOURCE)])
    node.receive(other[:-30], NOW)
    node.receive(other[:3] + b"\xff" + other[4:], NOW)
    assert node.counts == Counter(blocks=1, acks_of_others=1, malformed=1)


def test_progress_ends_the_flight_and_opens_the_window() -> None:
    node = source(window_max=2_000)
    node.publish([bytes(1_300)] * 3, NOW)
    assert node.in_flight == 1
    node.drain()
    send_to(node, Progress(0, 7, 1, 1, 2, 1, 2))
    assert node.acked_through == 1
    assert node.in_flight == 1
    assert len(only(Multicast, node.drain())) == 1
    assert node.counts["progress"] == 1


def test_a_hole_is_filled_with_the_same_bytes() -> None:
    node, sent = published(b"a", b"b", b"c")
    send_to(node, Hole(0, 7, 1, named(2)))
    assert only(Multicast, node.drain()) == [Multicast(Channel.DATA, [sent[1]])]
    assert (node.counts["holes"], node.counts["resent"]) == (1, 1)


def test_datagrams_about_another_incarnation_are_only_counted() -> None:
    node, _ = published(b"a")
    signer = Signer()
    send_to(node, Progress(0, 7, 1, 2, 2, 1, 2), signer)
    send_to(node, Hole(0, 7, 1, named(1, incarnation=2)), signer)
    send_to(node, Hole(0, 7, 1, named(1, node=OTHER_SOURCE)), signer)
    assert node.drain() == []
    assert node.in_flight == 1
    assert node.counts["other_incarnation"] == 3


def test_a_datagram_is_accepted_once_and_only_under_its_own_key() -> None:
    node, _ = published(b"a")
    signer = Signer()
    word = Hole(0, 7, 1, named(1))
    datagram = signer.sign_for_source(SOURCE, word)
    node.receive(datagram, NOW)
    assert len(node.drain()) == 1
    for forged in (datagram, signer.sign_for_source(OTHER_SOURCE, word), signer.sign(word)):
        node.receive(forged, NOW)
        assert node.drain() == []
    assert (node.counts["replayed"], node.counts["forged"]) == (1, 2)


def test_there_is_a_limit_to_senders_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "SENDERS_MAX", 2)
    node, _ = published(b"a")
    signer = Signer()
    for sender in (1, 2, 3):
        send_to(node, Hole(0, 7, sender, named(1)), signer)
    assert node.counts["over_limit"] == 1
    send_to(node, Hole(0, 7, 2, named(1)), signer)
    assert node.counts["holes"] == 3


def test_what_is_not_for_a_source_is_malformed() -> None:
    node, _ = published(b"a")
    signer = Signer()
    for datagram in (
        b"",
        b"noise",
        block(1),
        signer.sign(Request(0, 7, 1, (1,), ())),
        signer.sign_for_source(SOURCE, Hole(1, 7, 1, named(1))),
    ):
        node.receive(datagram, NOW)
    assert node.counts == Counter(blocks=1, malformed=5)


def test_what_is_overdue_is_repeated_and_counted() -> None:
    node, sent = published(b"a")
    assert node.deadline() == NOW + TIMING.resend_delay
    effects = run_until(node, NOW + TIMING.resend_delay)
    assert [effect for _, effect in effects] == [Multicast(Channel.DATA, sent)]
    assert node.counts["resent"] == 1


def sent_in_four_tokens(*, drift: int = 0, step: int = 0, release_lag_us: int = 0) -> int:
    """What a busy source sends after the last four of eight acknowledgments, which have this release lag."""
    node, now, before = source(), NOW, 0
    for token in range(1, 9):
        node.publish([bytes(1_300)] * 12_000, now)
        run_until(node, now + TIMING.token_period + drift)
        now += TIMING.token_period + drift + (step if token == 5 else 0)
        first = node.acked_through + 1
        before = before or (first if token == 5 else 0)
        lag = release_lag_us if token > 4 else 0
        acked = ack(LAYOUT, token, first, [named(first, node.next_number - first)], release_lag_us=lag)
        node.receive(Signer().sign(acked), now)
    return node.next_number - before


def test_a_loaded_site_closes_the_window() -> None:
    assert sent_in_four_tokens(release_lag_us=10_000) < sent_in_four_tokens() // 2


def test_the_clock_of_a_source_does_not_close_the_window() -> None:
    """Only the token site knows whether it is late: a source's clock may drift or step."""
    steady = sent_in_four_tokens()
    assert sent_in_four_tokens(drift=TIMING.retry_period) >= steady
    assert sent_in_four_tokens(step=3_600 * SECOND) >= steady
    assert sent_in_four_tokens(drift=-TIMING.token_period // 4) >= 0.7 * steady  # in three quarters of the time


def test_nothing_is_forgotten_before_k_further_sites_hold_it() -> None:
    node, _ = published(b"a", b"b", resilience=1)
    signer = Signer()
    node.receive(signer.ack(LAYOUT, 1, 1, [named(1)]), NOW)
    assert (node.acked_through, node.in_flight, node.kept) == (1, 1, 1)
    node.receive(signer.ack(LAYOUT, 2, 2, [named(2)]), NOW)
    assert (node.acked_through, node.in_flight, node.kept, node.idle) == (2, 0, 1, False)
    send_to(node, Progress(0, 7, 1, 1, 3, 3, 3), signer)
    assert node.idle
    assert node.deadline() is None


def test_acknowledgments_of_others_settle_nothing() -> None:
    """This source cannot verify them."""
    node, _ = published(b"a", resilience=1)
    signer = Signer()
    node.receive(signer.ack(LAYOUT, 1, 1, [named(1)]), NOW)
    node.receive(signer.ack(LAYOUT, 5, 2, [named(1, node=OTHER_SOURCE)]), NOW)
    assert node.kept == 1


def test_an_idle_source_probes_until_everything_is_settled() -> None:
    node, sent = published(b"a", b"b", resilience=1)
    signer = Signer()
    node.receive(signer.ack(LAYOUT, 1, 1, [named(1, 2)]), NOW)
    effects = run_until(node, NOW + TIMING.resend_delay)
    assert [effect for _, effect in effects] == [Multicast(Channel.DATA, sent[1:])]
    assert node.counts["probes"] == 1
    send_to(node, Progress(0, 7, 2, 1, 3, 1, 2), signer)
    assert (node.kept, node.idle) == (1, False)
    send_to(node, Progress(0, 7, 2, 1, 3, 2, 3), signer)
    assert node.idle


def test_the_token_of_progress_is_the_latest_that_acknowledged_a_block() -> None:
    """Its token may be the last of an earlier formation: K + 1 sites are those of the tokens after it."""
    node, _ = published(b"a", b"b", resilience=1)
    signer = Signer()
    send_to(node, Progress(0, 7, 1, 1, 2, 4, 1), signer)
    assert (node.acked_through, node.kept) == (1, 1)
    node.receive(signer.ack(LAYOUT, 5, 9, [named(2)]), NOW)
    assert node.kept == 2
    node.publish([b"c"], NOW)
    node.receive(signer.ack(LAYOUT, 6, 10, [named(3)]), NOW)
    assert node.kept == 1


@pytest.mark.parametrize("news", ["ack", "progress", "hole"])
def test_the_first_datagram_of_a_later_formation_puts_kept_blocks_in_flight_again(news: str) -> None:
    node, sent = published(b"a", b"b", b"c", resilience=2)
    signer, later = Signer(), formation(number=8, first_token=9)
    node.receive(signer.ack(LAYOUT, 1, 1, [named(1, 2)]), NOW)
    assert (node.kept, node.in_flight) == (2, 1)
    match news:
        case "ack":
            node.receive(signer.ack(later, 9, 1, [named(1)]), NOW)  # it begins before Ack(1)
            expected = 1, 2, 1
        case "progress":
            send_to(node, Progress(0, 8, 1, 1, 1, 8, 1), signer)
            expected = 0, 3, 0
        case _:
            send_to(node, Hole(0, 8, 1, named(1)), signer)
            assert only(Multicast, node.drain()) == [Multicast(Channel.DATA, sent[:1])]
            expected = 0, 3, 0
    assert (node.kept, node.in_flight, node.acked_through) == expected
    assert node.deadline() == NOW + TIMING.resend_delay
    node.receive(signer.ack(LAYOUT, 2, 3, [named(3)]), NOW)
    assert node.counts["outdated"] == 1
    assert (node.kept, node.in_flight, node.acked_through) == expected


def test_an_idle_source_needs_no_timer() -> None:
    assert source().deadline() is None


def test_a_pace_is_kept_by_the_timer() -> None:
    node = source(bytes_per_s_max=1_000_000)
    node.publish([bytes(1_300)] * 200, NOW)
    node.receive(Signer().ack(LAYOUT, 1, 1, [named(1, node.next_number - 1)]), NOW)  # the window is open again
    node.drain()
    assert node.queued > 0
    deadline = node.deadline()
    assert deadline is not None
    assert NOW < deadline < NOW + TIMING.resend_delay
    assert len(only(Multicast, [effect for _, effect in run_until(node, deadline)])) == 1
