"""The token ring of the papers, guarantee by guarantee: TRMP 2001 §2 and T-RMP §2 and §3."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import Append, Channel, Multicast, Ordered, Reason, Release, Report, Send
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.resilience import Resilience
from fairtape.simulation.world import Observer
from fairtape.wire.frames import Ack, Hole, NodeId, Progress, Request, TokenAck, decode_control, is_block
from unit.ring.ring_values import (
    SOURCE,
    STARTS_AT,
    TIMING,
    Ring,
    Signer,
    block,
    controls,
    formation,
    named,
    only,
    receive,
    receiver,
    run_until,
    source,
)

LAYOUT = formation()
EVENT_DRIVEN = formation(timed=False)
RINGS = pytest.mark.parametrize("layout", [LAYOUT, EVENT_DRIVEN], ids=["TRMP", "RMP"])
SOON = STARTS_AT - MILLISECOND
T_R = TIMING.retry_period


def acks(effects: list[Multicast]) -> list[Ack]:
    return [message for message in controls(effects) if isinstance(message, Ack)]


def test_the_token_site_assigns_s_to_s_plus_k_minus_1_in_one_acknowledgment() -> None:
    """The k messages are assigned sequence numbers s to s + k - 1.  TRMP 2001 §5."""
    site = receiver(1)
    receive(site, block(1, [b"a", b"b"]), SOON)
    receive(site, block(3, [b"c"]), SOON)
    effects = [effect for _, effect in run_until(site, LAYOUT.scheduled_at(1))]
    (ack,) = acks(only(Multicast, effects))
    assert (ack.token, ack.sequence, ack.ranges) == (1, 1, (named(1, 3),))
    assert site.next_sequence == 4


def test_the_acknowledgment_goes_out_at_its_scheduled_time_and_not_before() -> None:
    """Acknowledgments are transmitted by the token site at scheduled times separated by τ_t seconds.  T-RMP §3."""
    site = receiver(1)
    receive(site, block(1), SOON)
    assert site.deadline() == LAYOUT.scheduled_at(1)
    site.wake(LAYOUT.scheduled_at(1) - 1)
    assert only(Multicast, site.drain()) == []
    site.wake(LAYOUT.scheduled_at(1))
    assert len(only(Multicast, site.drain())) == 1


@RINGS
def test_a_site_that_passed_the_token_acknowledges_nothing_more(layout: Formation) -> None:
    """As soon as r sends acknowledgment t it gives up the right to acknowledge new source messages.  TRMP 2001 §2."""
    site = receiver(1, layout)
    receive(site, block(1), SOON)
    run_until(site, layout.scheduled_at(1))
    assert site.complete_through == 1
    site.drain()
    receive(site, block(2), layout.scheduled_at(1) + 1)
    later = [effect for _, effect in run_until(site, layout.scheduled_at(4))]
    assert acks(only(Multicast, later)) == []


class Assigners(Observer):
    """An observer of which site assigned which sequence numbers."""

    def __init__(self) -> None:
        self.by_token: dict[int, set[tuple[NodeId, int]]] = {}

    def sent(self, node: NodeId, to: NodeId | Channel, datagram: bytes, _at: Instant, /) -> None:
        if to is Channel.CONTROL and not is_block(datagram) and isinstance(ack := decode_control(datagram), Ack):
            self.by_token.setdefault(ack.token, set()).add((node, ack.sequence))

    def appended(self, _node: NodeId, _ordered: Ordered, _now: Instant, /) -> None:
        pass

    def delivered(self, _node: NodeId, _ordered: Ordered, _release: Release, _now: Instant, /) -> None:
        pass

    def reported(self, _node: NodeId, _report: Report, _now: Instant, /) -> None:
        pass

    def fault_event(self, _node: NodeId, _what: str, _now: Instant, /) -> None:
        pass


@pytest.mark.parametrize("timed", [True, False], ids=["TRMP", "RMP"])
def test_at_most_one_receiver_assigns_sequence_numbers(timed: bool) -> None:
    """This guarantees that at most one receiver assigns sequence numbers to source messages.  TRMP 2001 §2."""
    ring = Ring(4, timed=timed, resilience=1)
    assigners = Assigners()
    ring.world.observers.append(assigners)
    for number in range(30):
        ring.publish(SOURCE, [b"%d" % number], ring.layout.starts_at + number * 20 * MILLISECOND)
    ring.run(3_000 * MILLISECOND)
    assert ring.sources[SOURCE].idle
    for token, assigned in assigners.by_token.items():
        assert {node for node, _ in assigned} == {ring.layout.holder(token)}
        assert len(assigned) == 1


@RINGS
def test_the_next_receiver_does_not_accept_the_token_without_the_messages(layout: Formation) -> None:
    """r + 1 does not accept the token until it has everything acknowledged up to and including t.  TRMP 2001 §2."""
    site, signer = receiver(2, layout), Signer()
    receive(site, signer.ack(layout, 1, 1, [named(1)]), STARTS_AT)
    receive(site, block(2), STARTS_AT)
    early = [effect for _, effect in run_until(site, layout.scheduled_at(2) + T_R)]
    assert acks(only(Multicast, early)) == []
    receive(site, block(1), layout.scheduled_at(2) + T_R)
    (ack,) = acks(only(Multicast, [*site.drain(), *(e for _, e in run_until(site, layout.scheduled_at(2) + T_R))]))
    assert (ack.token, ack.sequence, ack.ranges) == (2, 2, (named(2),))


@RINGS
def test_the_next_receiver_does_not_accept_the_token_without_the_acknowledgments(layout: Formation) -> None:
    """It does not accept the token until it acquires all of the preceding acknowledgments.  T-RMP §2."""
    site, signer = receiver(3, layout), Signer()
    for number in (1, 2, 3):
        receive(site, block(number), STARTS_AT)
    receive(site, signer.ack(layout, 2, 2, [named(2)]), STARTS_AT)
    now = layout.scheduled_at(3)
    early = [effect for _, effect in run_until(site, now)]
    assert acks(only(Multicast, early)) == []
    receive(site, signer.ack(layout, 1, 1, [named(1)]), now)
    (ack,) = acks(only(Multicast, site.drain()))
    assert (ack.token, ack.ranges) == (3, (named(3),))


@RINGS
def test_a_receiver_that_passed_the_token_still_answers_requests(layout: Formation) -> None:
    """It does not stop servicing retransmission requests until the token's passing is acknowledged.  TRMP 2001 §2."""
    site, signer = receiver(1, layout), Signer()
    original = block(1)
    receive(site, original, SOON)
    effects = site.drain() + [effect for _, effect in run_until(site, layout.scheduled_at(1))]
    (sent,) = only(Multicast, effects)
    receive(site, signer.sign(Request(0, layout.number, 2, (1,), (named(1),))), layout.scheduled_at(1) + 1)
    (repair,) = only(Send, site.drain())
    assert repair == Send(2, [original, *sent.datagrams])


def test_a_token_site_repeats_its_acknowledgment_until_the_token_is_taken_up() -> None:
    """Token site r periodically sends acknowledgment t until it receives acknowledgment t + 1.  TRMP 2001 §2."""
    site, signer = receiver(1, EVENT_DRIVEN), Signer()
    receive(site, block(1), SOON)
    (passed,) = only(Multicast, site.drain())
    repeats = run_until(site, SOON + 2 * T_R)
    assert [at for at, _ in repeats] == [SOON + T_R, SOON + 2 * T_R]
    assert [effect for _, effect in repeats] == [Send(2, passed.datagrams)] * 2
    receive(site, signer.ack(EVENT_DRIVEN, 2, 2), SOON + 2 * T_R + 1)
    assert run_until(site, SOON + 100 * T_R) == []


def test_a_token_that_is_never_taken_up_is_a_failure_of_the_next_site() -> None:
    """Not received in a specified number of attempts: r decides that r + 1 is inoperable.  TRMP 2001 §2."""
    site = receiver(1, EVENT_DRIVEN)
    receive(site, block(1), SOON)
    site.drain()
    effects = run_until(site, SOON + 100 * T_R)
    attempts = TIMING.retries_max
    assert len(effects) == attempts + 1
    assert effects[-1] == (SOON + (attempts + 1) * T_R, Report(2, 2, Reason.TOKEN_REFUSED, effects[-1][0]))


def test_a_site_without_messages_sends_a_token_acknowledgment() -> None:
    """r + 1 transmits a token acknowledgment message when there are no source messages.  TRMP 2001 §2."""
    site, signer = receiver(2, EVENT_DRIVEN), Signer()
    receive(site, block(1), SOON)
    receive(site, signer.ack(EVENT_DRIVEN, 1, 1, [named(1)]), STARTS_AT)
    (sent,) = only(Send, site.drain())
    assert sent.to == 1
    assert controls([sent]) == [TokenAck(0, EVENT_DRIVEN.number, 2, 1)]


def test_a_token_acknowledgment_ends_the_repetition() -> None:
    """… or it receives a separate token acknowledgment.  T-RMP §2."""
    site, signer = receiver(1, EVENT_DRIVEN), Signer()
    receive(site, block(1), SOON)
    site.drain()
    receive(site, signer.sign(TokenAck(0, EVENT_DRIVEN.number, 2, 1)), SOON + 1)
    assert run_until(site, SOON + 100 * T_R) == []


def test_a_repeated_pass_is_answered_by_the_site_that_took_the_token() -> None:
    """A previous token site that retransmits failed to receive the token-passing acknowledgment.  TRMP 2001 §2."""
    site, signer = receiver(2, EVENT_DRIVEN), Signer()
    passed = signer.ack(EVENT_DRIVEN, 1, 1, [named(1)])
    receive(site, block(1), SOON)
    receive(site, passed, STARTS_AT)
    site.drain()
    receive(site, passed, STARTS_AT + T_R)
    assert controls(site.drain()) == [TokenAck(0, EVENT_DRIVEN.number, 2, 1)]


def test_an_event_driven_receiver_asks_for_acknowledgments_that_a_later_one_overtook() -> None:
    """A larger number than expected: the receiver requests the missing acknowledgments.  TRMP 2001 §2."""
    site, signer = receiver(1, formation((2, 3, 1, 4), timed=False)), Signer()
    layout = site.formation
    receive(site, signer.ack(layout, 2, 2, [named(2)]), STARTS_AT)
    asked = [m for m in controls([e for _, e in run_until(site, STARTS_AT + T_R // 2)]) if isinstance(m, Request)]
    assert [request.tokens for request in asked] == [(1,)]
    assert [request.ranges for request in asked] == [(named(2),)]


@RINGS
def test_a_receiver_asks_for_a_source_message_that_was_acknowledged_and_not_received(layout: Formation) -> None:
    """An acknowledgment for a message that has not been received: it requests the message.  TRMP 2001 §2."""
    site, signer = receiver(3, layout), Signer()
    receive(site, signer.ack(layout, 1, 1, [named(1, 2)]), STARTS_AT)
    effects = run_until(site, STARTS_AT + TIMING.request_delay)
    (asked,) = only(Send, [effect for _, effect in effects])
    assert asked.to == 1
    assert controls([asked]) == [
        Request(0, layout.number, 3, (), (named(1, 2),), sent_at=STARTS_AT + TIMING.request_delay)
    ]


def test_a_source_repeats_a_message_until_it_is_acknowledged() -> None:
    """Source s transmits message M_s at regular intervals until it receives an acknowledgment.  T-RMP §2."""
    node, signer = source(), Signer()
    node.publish([b"trade"], STARTS_AT)
    (first,) = only(Multicast, node.drain())
    repeats = [effect for _, effect in run_until(node, STARTS_AT + 20 * TIMING.resend_delay)]
    assert len(repeats) >= 4
    assert all(repeat == first for repeat in repeats)
    node.receive(signer.ack(LAYOUT, 1, 1, [named(1)]), STARTS_AT + 20 * TIMING.resend_delay)
    assert node.idle
    assert node.deadline() is None


@RINGS
def test_a_repeated_message_that_is_acknowledged_is_answered(layout: Formation) -> None:
    """If a source retransmits an acknowledged message, it failed to receive the acknowledgment.  TRMP 2001 §2."""
    site, node = receiver(2, layout), source()
    node.publish([b"trade"], SOON)
    (sent,) = only(Multicast, node.drain())
    receive(site, sent.datagrams[0], SOON)
    receive(site, Signer().ack(layout, 1, 1, [named(1)]), STARTS_AT)
    site.drain()
    receive(site, sent.datagrams[0], STARTS_AT + 1)
    (reply,) = only(Send, site.drain())
    assert reply.to == SOURCE
    assert controls([reply]) == [Progress(0, layout.number, 2, 1, 2, 1, 2)]
    node.receive(reply.datagrams[0], STARTS_AT + 2)
    assert node.idle


@RINGS
def test_a_token_site_asks_the_source_for_a_hole_that_lasts(layout: Formation) -> None:
    """A token site asks a source for a hole in its numbers.  TRMP 2001 §2, decision 5, Repeated messages and holes."""
    site = receiver(1, layout)
    receive(site, block(3), SOON)
    assert site.drain() == []
    (asked,) = only(Send, [effect for _, effect in run_until(site, SOON + layout.timing.request_delay)])
    assert asked.to == SOURCE
    assert controls([asked]) == [Hole(0, layout.number, 1, named(1, 2))]


def test_a_site_that_is_far_from_the_token_does_not_ask_the_source() -> None:
    """Only a token site acknowledges, so only one whose turn is near needs the hole closed.  TRMP 2001 §2."""
    site = receiver(9, formation(tuple(range(1, 11))))
    receive(site, block(3), SOON)
    assert site.drain() == []


@settings(max_examples=200)
@given(m=st.integers(1, 40), t=st.integers(1, 400))
def test_what_all_receivers_hold_is_known_after_one_round(m: int, t: int) -> None:
    """All of the receivers have all of the messages up to and including t - m + 1.  TRMP 2001 §2, T-RMP §2.

    Told as the paper tells it: when Ack(t) is transmitted, receiver (r - i) mod m holds everything up to t - i.
    """
    layout = formation(tuple(range(1, m + 1)))
    holds = {}
    for token in range(max(t - m + 1, 1), t + 1):
        holds[layout.holder(token)] = token
    proofs = Resilience(FormationHistory(layout))
    proofs.ack_received(t)
    everyone = min(holds.values()) if len(holds) == m else 0
    assert proofs.stable_through == everyone == max(t - m + 1, 0)


@settings(max_examples=100)
@given(m=st.integers(1, 12), t=st.integers(1, 60))
def test_what_all_receivers_know_that_all_hold_is_known_after_two_rounds(m: int, t: int) -> None:
    """All receivers know that all have everything up to t - 2m + 2.  TRMP 2001 §2.

    The paper prints t - m + 2, which cannot be: it is more than what all *have*. By its own induction receiver
    (r - i) mod m knew, when it sent Ack(t - i), that all have t - i - m + 1; the least over i < m is t - 2m + 2.
    """
    layout = formation(tuple(range(1, m + 1)))
    knows = {}
    for token in range(max(t - m + 1, 1), t + 1):
        speaker = Resilience(FormationHistory(layout))
        speaker.ack_received(token)
        knows[layout.holder(token)] = speaker.stable_through
    proofs = Resilience(FormationHistory(layout))
    proofs.ack_received(t)
    everyone = min(knows.values()) if len(knows) == m else 0
    assert proofs.known_stable_through == max(everyone, 0) == max(t - 2 * m + 2, 0)
    assert proofs.known_stable_through <= proofs.stable_through


@settings(max_examples=100)
@given(m=st.integers(1, 12), t=st.integers(1, 60), data=st.data())
def test_k_plus_1_sites_hold_what_k_further_acknowledgments_followed(m: int, t: int, data: st.DataObject) -> None:
    """Receiver (r - K) mod m has everything up to t - K, and so have the K that came after it.  TRMP 2001 §2."""
    resilience = data.draw(st.integers(0, m - 1))
    layout = formation(tuple(range(1, m + 1)), resilience=resilience)
    proofs = Resilience(FormationHistory(layout))
    proofs.ack_received(t)
    token = proofs.survives_through
    assert token == max(t - resilience, 0)
    assert token == 0 or len({layout.holder(later) for later in range(token, t + 1)}) == resilience + 1


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_message_is_kept_for_repairs_until_every_member_holds_it(size: int) -> None:
    """At least one site can respond to all retransmission requests; what all hold is not requested.  TRMP 2001 §2."""
    layout = formation(tuple(range(1, size + 1)))
    site, signer = receiver(1, layout), Signer()
    original = block(1)
    receive(site, original, SOON)
    run_until(site, layout.scheduled_at(1))
    for token in range(2, size + 1):
        receive(site, signer.sign(Request(0, layout.number, size, (), (named(1),))), layout.scheduled_at(token))
        assert only(Send, site.drain()) == [Send(size, [original])]
        receive(site, signer.ack(layout, token, 2), layout.scheduled_at(token))
    site.drain()
    receive(site, signer.sign(Request(0, layout.number, size, (), (named(1),))), layout.scheduled_at(size))
    assert site.drain() == []


@RINGS
def test_what_a_site_acknowledges_is_in_its_journal_first(layout: Formation) -> None:
    """By sending Ack(t), r claims that it has everything up to t: it is written first.  TRMP 2001 §2."""
    site = receiver(1, layout)
    receive(site, block(1), SOON)
    effects = site.drain() + [effect for _, effect in run_until(site, layout.scheduled_at(1))]
    kinds = [type(effect) for effect in effects if isinstance(effect, Append | Multicast)]
    assert kinds == [Append, Multicast]
