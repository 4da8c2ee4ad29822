"""The receiver: turns, recoveries, replies, and reactions to peers and sources that violate the protocol.

What the papers promise of a receiver is in tests/paper; hostile bytes are in `test_hostile.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairtape.core.effects import Append, Channel, Deliver, Effect, Multicast, Reason, Report, Send
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.nodes.receiver import JoinedTooLate, Receiver
from fairtape.ring.load import LAG_TARGET
from fairtape.wire.blocks import pack_messages
from fairtape.wire.frames import (
    ACK_PARTS_MAX,
    Ack,
    Hole,
    Progress,
    Request,
    TokenAck,
    ack_ranges_max,
    decode_block,
    encode_block_header,
)
from fairtape.wire.seals import Keys
from unit.ring.ring_values import (
    KEYS,
    OTHER_SOURCE,
    SOURCE,
    STARTS_AT,
    TIMING,
    Signer,
    ack,
    apart,
    block,
    controls,
    formation,
    named,
    only,
    receive,
    receiver,
    run_until,
)

LAYOUT = formation()
EVENT_DRIVEN = formation(timed=False)
SOON = STARTS_AT - MILLISECOND
T_R = TIMING.retry_period


def test_a_receiver_must_be_a_member() -> None:
    with pytest.raises(AssertionError):
        receiver(9)


def test_it_acknowledges_everything_at_its_scheduled_turn() -> None:
    site = receiver(1)
    receive(site, block(1, [b"a", b"b"]), SOON)
    assert site.deadline() == STARTS_AT
    effects = [effect for at, effect in run_until(site, STARTS_AT)]
    append, multicast = effects
    assert isinstance(append, Append)
    assert isinstance(multicast, Multicast)
    assert multicast.channel is Channel.CONTROL
    assert append.ordered.acknowledged_at == STARTS_AT
    assert (site.complete_through, site.highest_ack, site.next_sequence, site.released_through) == (1, 1, 3, 0)
    assert site.counts["acks_sent"] == 1


def test_another_site_orders_its_acknowledgment_identically() -> None:
    first, second = receiver(1), receiver(2)
    for site in (first, second):
        receive(site, block(1, [b"a"]), SOON)
        receive(site, block(1, [b"b"], node=OTHER_SOURCE), SOON)
    spoken = [effect for _, effect in run_until(first, STARTS_AT)]
    for datagram in only(Multicast, spoken)[0].datagrams:
        receive(second, datagram, STARTS_AT + 1)
    assert only(Append, spoken) == only(Append, second.drain())


def test_an_acknowledgment_larger_than_a_datagram_is_split() -> None:
    nodes = range(500, 500 + 20)
    keys = Keys.from_secret(b"many sources", LAYOUT.members, nodes)
    site = Receiver(me=1, formation=LAYOUT, keys=keys, born_at=SOON, datagram_max=256)
    peer = Receiver(me=2, formation=LAYOUT, keys=keys, born_at=SOON, datagram_max=256)
    from_keys = {node: _block_under(keys, node) for node in nodes}
    for datagram in from_keys.values():
        receive(site, datagram, SOON)
        receive(peer, datagram, SOON)
    (multicast,) = only(Multicast, [effect for _, effect in run_until(site, STARTS_AT)])
    acks = [message for message in controls([multicast]) if isinstance(message, Ack)]
    assert 1 < len(acks) <= ACK_PARTS_MAX
    assert all(len(datagram) <= 256 for datagram in multicast.datagrams)
    assert [each.sequence for each in acks] == [1 + ack_ranges_max(256) * part for part in range(len(acks))]
    for datagram in reversed(multicast.datagrams):
        receive(peer, datagram, STARTS_AT + 1)
    assert peer.next_sequence == site.next_sequence == 21


def _block_under(keys: Keys, node: int) -> bytes:
    seal = keys.seal(keys.sources[node], stripe=0, source=node, incarnation=1)
    return seal.close(encode_block_header(0, 0, node, 1, 1, 1), 1, pack_messages([b"m"]))


def test_a_missing_acknowledgment_is_overdue_half_a_retry_period_after_its_schedule() -> None:
    site = receiver(3)
    assert site.deadline() == STARTS_AT + T_R // 2
    effects = run_until(site, STARTS_AT + T_R // 2 + TIMING.request_delay)
    assert [at for at, _ in effects] == [STARTS_AT + T_R // 2 + TIMING.request_delay]
    (send,) = only(Send, [effect for _, effect in effects])
    assert (send.to, controls([send])) == (1, [Request(0, LAYOUT.number, 3, (1,), (), sent_at=effects[0][0])])
    assert site.counts["requests_sent"] == 1


def test_several_recoveries_share_one_request() -> None:
    layout = formation((1, 2, 4, 5, 3), timing=replace(TIMING, token_period=MILLISECOND))
    site = receiver(3, layout)
    receive(site, Signer().ack(layout, 4, 1, []), STARTS_AT + 3 * MILLISECOND)
    effects = run_until(site, STARTS_AT + T_R // 2 + TIMING.request_delay + MILLISECOND)
    requests = [message for message in controls([effect for _, effect in effects]) if isinstance(message, Request)]
    assert {token for request in requests for token in request.tokens} == {1, 2, 3}
    assert len(requests) <= 3


def test_a_repair_completes_what_waited_for_it_in_the_same_turn() -> None:
    site = receiver(3)
    receive(site, Signer().ack(LAYOUT, 1, 1, [named(1, 2)]), STARTS_AT)
    receive(site, block(2), STARTS_AT + 1)
    assert site.complete_through == 0
    receive(site, block(1), STARTS_AT + 2)
    assert site.complete_through == 1
    assert [append.ordered.count for append in only(Append, site.drain())] == [2]
    assert run_until(site, STARTS_AT + T_R // 4) == []


def test_a_late_token_site_requests_only_what_it_misses() -> None:
    """Its own turn has passed and it misses Ack(1): it requests Ack(1), never its own Ack(2)."""
    site = receiver(2)
    effects = run_until(site, LAYOUT.scheduled_at(2) + T_R)
    asked = [message for message in controls([effect for _, effect in effects]) if isinstance(message, Request)]
    assert {token for request in asked for token in request.tokens} <= {1, 3}


@pytest.mark.parametrize(("acknowledged", "reason"), [(False, Reason.ACK_SILENT), (True, Reason.MESSAGES_SILENT)])
def test_a_failure_report_names_what_was_missing(acknowledged: bool, reason: Reason) -> None:
    site = receiver(3, formation((1, 2, 3), timing=apart()))
    if acknowledged:
        receive(site, Signer().ack(site.formation, 1, 1, [named(1)]), STARTS_AT)
    reports = only(Report, [effect for _, effect in run_until(site, STARTS_AT + 10 * T_R)])
    assert [(report.suspect, report.token, report.reason) for report in reports] == [(1, 1, reason)]
    assert site.reforming == reports[0]


def test_a_reforming_receiver_commits_what_came_before_and_answers_requests() -> None:
    site, signer = receiver(3, formation((1, 2, 4, 3))), Signer()
    original = block(1)
    receive(site, original, SOON)
    receive(site, signer.ack(site.formation, 1, 1, [named(1)]), STARTS_AT)
    effects = [effect for _, effect in run_until(site, STARTS_AT + 20 * T_R)]
    assert [report.token for report in only(Report, effects)] == [2]
    assert [deliver.ordered.token for deliver in only(Deliver, effects)] == [1]
    receive(site, signer.ack(site.formation, 2, 2), STARTS_AT + 20 * T_R)
    assert site.complete_through == 1
    assert site.deadline() is None
    receive(site, signer.sign(Request(0, LAYOUT.number, 1, (), (named(1),))), STARTS_AT + 20 * T_R)
    assert site.drain() == [Send(1, [original])]


def test_a_reforming_receiver_does_not_take_its_turn() -> None:
    site = receiver(2)
    effects = [effect for _, effect in run_until(site, STARTS_AT + 20 * T_R)]
    assert site.reforming is not None
    assert only(Multicast, effects) == []


@pytest.mark.parametrize(
    "breach",
    [ack(LAYOUT, 1, 5, [named(1)]), ack(LAYOUT, 1, 1, [named(2)])],
    ids=["numbers that do not follow", "messages that do not follow"],
)
def test_a_breach_by_a_token_site_is_reported_and_nothing_of_it_is_taken(breach: Ack) -> None:
    site = receiver(2)
    for number in (1, 2):
        receive(site, block(number), SOON)
    receive(site, Signer().sign(breach), STARTS_AT)
    effects = site.drain()
    assert only(Report, effects) == [Report(1, 1, Reason.BREACH, STARTS_AT)]
    assert only(Append, effects) == []


def test_an_acknowledgment_of_an_ended_incarnation_is_reported_as_a_breach() -> None:
    """A site that acknowledges an earlier incarnation after a later one is reported."""
    layout = formation((2, 3, 4, 1))
    site, signer = receiver(1, layout), Signer()
    receive(site, block(1), STARTS_AT)
    receive(site, block(1, incarnation=2), STARTS_AT)
    receive(site, signer.ack(layout, 2, 2, [named(1, 2)]), STARTS_AT + 1)
    receive(site, signer.ack(layout, 1, 1, [named(1, incarnation=2)]), STARTS_AT + 2)
    receive(site, block(2), STARTS_AT + 3)
    reports = only(Report, [effect for _, effect in run_until(site, STARTS_AT + 20 * T_R)])
    assert [(report.suspect, report.token) for report in reports] == [(3, 2)]
    assert site.complete_through == 1


def test_a_site_that_starts_late_is_refused() -> None:
    """It could send a second, different Ack(e)."""
    with pytest.raises(JoinedTooLate, match="join a later one"):
        Receiver(me=1, formation=LAYOUT, keys=KEYS, born_at=STARTS_AT + 1)


def test_an_event_driven_site_asks_for_holes_only_with_the_token() -> None:
    holder, bystander = receiver(1, EVENT_DRIVEN), receiver(2, EVENT_DRIVEN)
    for site in (holder, bystander):
        receive(site, block(3), SOON)
        site.wake(SOON + TIMING.request_delay)
    assert [type(message) for message in controls(holder.drain())] == [Hole]
    assert bystander.drain() == []


def test_a_late_block_of_an_ended_incarnation_is_not_acknowledged() -> None:
    """A block of an earlier incarnation may arrive at any time, by delay or by attack."""
    site, signer = receiver(1), Signer()
    receive(site, block(1), SOON)
    run_until(site, STARTS_AT)
    now = LAYOUT.scheduled_at(2)
    receive(site, block(1, incarnation=2), now)
    receive(site, signer.ack(LAYOUT, 2, 2, [named(1, incarnation=2)]), now)
    receive(site, block(2), now)
    assert site.counts["malformed"] == 1
    receive(site, signer.ack(LAYOUT, 3, 3), LAYOUT.scheduled_at(3))
    site.drain()
    (multicast,) = only(Multicast, [effect for _, effect in run_until(site, LAYOUT.scheduled_at(4))])
    assert [message.ranges for message in controls([multicast]) if isinstance(message, Ack)] == [()]


def test_a_source_that_skips_numbers_does_no_harm() -> None:
    site = receiver(1)
    receive(site, block(1 << 62), SOON)
    site.wake(SOON + TIMING.request_delay)
    assert isinstance(controls(site.drain())[0], Hole)
    run_until(site, STARTS_AT)
    assert site.complete_through == 1


def test_a_hole_is_asked_for_once_in_a_retry_period() -> None:
    site = receiver(1)
    site.receive(block(3), SOON)
    for delay, asked in ((T_R // 8 - 1, 0), (T_R // 8, 1), (T_R // 4, 1), (T_R, 1), (T_R + T_R // 8, 2)):
        site.wake(SOON + delay)
        assert site.counts["holes_asked"] == asked


def test_a_hole_that_closes_by_itself_is_not_asked_for() -> None:
    """Reordering alone: each hole closes before it has lasted, though there is always one."""
    site = receiver(1)
    for number in range(1, 99, 2):
        at = SOON + number * T_R // 64
        for late, each in enumerate((number + 1, number)):
            site.receive(block(each), at + late)
            site.wake(at + late)
    assert site.counts["holes_asked"] == 0


def test_a_duplicate_is_answered_once_in_a_retry_period_and_only_when_it_is_genuine() -> None:
    site, datagram = receiver(2), block(1)
    receive(site, datagram, SOON)
    receive(site, Signer().ack(LAYOUT, 1, 1, [named(1)]), STARTS_AT)
    site.drain()
    forged = datagram[:-1] + bytes([datagram[-1] ^ 1])
    site.receive(forged, STARTS_AT + 1)
    assert site.drain() == []
    assert site.counts["malformed"] == 1
    for at in (STARTS_AT + 1, STARTS_AT + 2, STARTS_AT + T_R, STARTS_AT + 1 + T_R):
        site.receive(datagram, at)
    messages = controls(site.drain())
    assert messages == [Progress(0, LAYOUT.number, 2, 1, 2, 1, 2)] * 2


def test_a_duplicate_is_not_answered_by_a_site_without_the_token_nor_before_it_is_acknowledged() -> None:
    bystander, holder = receiver(3, formation((1, 2, 4, 3))), receiver(1)
    for site in (bystander, holder):
        receive(site, block(1), SOON)
        receive(site, block(1), SOON)
    receive(bystander, Signer().ack(bystander.formation, 1, 1, [named(1)]), STARTS_AT)
    bystander.drain()
    receive(bystander, block(1), STARTS_AT + 1)
    assert bystander.drain() == []
    assert holder.drain() == []


def test_every_datagram_is_counted_under_one_name() -> None:
    site, signer = receiver(9, formation((1, 2, 3, 4, 5, 6, 7, 9))), Signer()
    said = signer.sign(Request(0, LAYOUT.number, 2, (9,), ()))
    for datagram, name in (
        (b"", "malformed"),
        (block(1), "block"),
        (block(1), "duplicate"),
        (block(4), "ahead"),
        (block(1, stripe=1), "malformed"),
        (signer.ack(LAYOUT, 1, 1, [named(1)]), "ack"),
        (signer.ack(LAYOUT, 1, 1, [named(1)]), "duplicate"),
        (signer.sign(replace(ack(LAYOUT, 1, 1), sender=2)), "out_of_turn"),
        (signer.sign(replace(ack(LAYOUT, 2, 1), formation=8)), "foreign"),
        (signer.sign(replace(ack(LAYOUT, 2, 1), stripe=1)), "malformed"),
        (said, "requests"),
        (said, "replayed"),
        (signer.sign_for_source(SOURCE, Hole(0, LAYOUT.number, 2, named(1))), "forged"),
        (signer.sign(Hole(0, LAYOUT.number, 2, named(1))), "malformed"),
        (signer.sign(Request(0, LAYOUT.number, 9, (1,), ())), "own"),
    ):
        before = site.counts.total()
        site.receive(datagram, STARTS_AT)
        assert site.counts.total() == before + 1
        assert site.counts[name] > 0
    assert len(decode_block(block(1))) == 6


def test_a_block_longer_than_the_limit_is_refused() -> None:
    site = receiver(3, datagram_max=256)
    site.receive(block(1, [bytes(300)]), SOON)
    assert site.counts == {"malformed": 1}


def test_what_all_members_hold_is_forgotten() -> None:
    site, signer = receiver(1), Signer()
    receive(site, block(1), SOON)
    run_until(site, STARTS_AT)
    for token in (2, 3):
        assert site.stable_through == 0
        receive(site, signer.ack(LAYOUT, token, 2), LAYOUT.scheduled_at(token))
    assert site.stable_through == 1
    site.drain()
    receive(site, signer.sign(Request(0, LAYOUT.number, 2, (1,), (named(1),))), LAYOUT.scheduled_at(3))
    assert only(Send, site.drain()) == []


def test_a_lease_that_is_renewed_releases_at_once() -> None:
    site = receiver(3)
    receive(site, block(1), SOON)
    receive(site, Signer().ack(LAYOUT, 1, 1, [named(1)]), STARTS_AT)
    site.renew_lease(LAYOUT.commit_at(1), STARTS_AT)
    assert site.drain() != []
    late = LAYOUT.commit_at(1) + 1
    site.renew_lease(late + SECOND, late)
    assert [deliver.release.released_at for deliver in only(Deliver, site.drain())] == [late]


def test_a_loop_of_one_orders_and_releases_by_itself() -> None:
    site = receiver(1, formation((1,)))
    receive(site, block(1), SOON)
    effects = [effect for _, effect in run_until(site, LAYOUT.commit_at(1))]
    assert [deliver.ordered.token for deliver in only(Deliver, effects)] == [1]
    assert site.complete_through == site.stable_through


def test_a_loop_of_one_without_a_schedule_passes_no_token() -> None:
    site = receiver(1, formation((1,), timed=False))
    receive(site, block(1), SOON)
    effects = site.drain() + [effect for _, effect in run_until(site, SOON + 20 * T_R)]
    assert len(only(Deliver, effects)) == 1
    assert only(Report, effects) == []
    assert only(Send, effects) == []


def test_an_event_driven_token_moves_on_for_commits_that_wait() -> None:
    """K = 1 and no further message: the second site passes the token on, empty, so that the first may commit."""
    site = receiver(2, formation(timed=False, resilience=1))
    receive(site, block(1), SOON)
    receive(site, Signer().ack(site.formation, 1, 1, [named(1)]), STARTS_AT)
    effects = site.drain() + [effect for _, effect in run_until(site, STARTS_AT + T_R // 2)]
    acks = [message for message in controls(only(Multicast, effects)) if isinstance(message, Ack)]
    assert [(each.token, each.ranges) for each in acks] == [(2, ())]
    assert len(only(Deliver, effects)) == 1


def test_a_repeated_pass_is_answered_even_after_the_token_was_passed_on() -> None:
    """With a TokenAck, which is not answered: two sites that answered an Ack with an Ack would never stop."""
    site, signer = receiver(2, EVENT_DRIVEN), Signer()
    passed = signer.ack(EVENT_DRIVEN, 1, 1, [named(1)])
    receive(site, block(1), SOON)
    receive(site, passed, STARTS_AT)
    receive(site, block(2), STARTS_AT + 1)
    assert len(only(Multicast, site.drain())) == 1
    receive(site, passed, STARTS_AT + 2)
    assert controls(site.drain()) == [TokenAck(0, EVENT_DRIVEN.number, 2, 1)]


def test_a_repeated_pass_is_not_answered_by_a_site_that_cannot_take_the_token_yet() -> None:
    site, signer = receiver(2, EVENT_DRIVEN), Signer()
    passed = signer.ack(EVENT_DRIVEN, 1, 1, [named(1)])
    receive(site, passed, STARTS_AT)
    receive(site, passed, STARTS_AT + 1)
    assert controls(site.drain()) == []


def test_a_repeated_pass_is_answered_while_the_token_is_held() -> None:
    site, signer = receiver(2, EVENT_DRIVEN), Signer()
    passed = signer.ack(EVENT_DRIVEN, 1, 1)
    receive(site, passed, STARTS_AT)
    receive(site, passed, STARTS_AT + 1)
    assert controls(site.drain()) == [TokenAck(0, EVENT_DRIVEN.number, 2, 1)] * 2


def test_an_overtaken_acknowledgment_is_asked_for() -> None:
    site, signer = receiver(3, formation((1, 2, 4, 3), timed=False)), Signer()
    receive(site, signer.ack(site.formation, 2, 1), STARTS_AT)
    receive(site, signer.ack(site.formation, 3, 1), STARTS_AT + 1)
    effects = [effect for _, effect in run_until(site, STARTS_AT + TIMING.request_delay)]
    assert [message.tokens for message in controls(effects) if isinstance(message, Request)] == [(1,)]
    receive(site, signer.ack(site.formation, 1, 1), STARTS_AT + T_R // 2)
    assert site.complete_through == 3


def test_a_repeated_pass_to_another_site_is_ignored() -> None:
    site, signer = receiver(3, EVENT_DRIVEN), Signer()
    passed = signer.ack(EVENT_DRIVEN, 1, 1)
    receive(site, passed, STARTS_AT)
    receive(site, passed, STARTS_AT + 1)
    assert site.drain() == []


def test_a_token_acknowledgment_counts_only_from_the_next_site() -> None:
    site, signer = receiver(1, EVENT_DRIVEN), Signer()
    receive(site, block(1), SOON)
    site.drain()
    receive(site, signer.sign(TokenAck(0, EVENT_DRIVEN.number, 3, 1)), SOON + 1)
    assert site.deadline() == SOON + T_R
    receive(site, signer.sign(TokenAck(0, EVENT_DRIVEN.number, 2, 1)), SOON + 2)
    assert site.deadline() is None


def test_a_timed_receiver_ignores_token_acknowledgments() -> None:
    site = receiver(1)
    before = site.deadline()
    receive(site, Signer().sign(TokenAck(0, LAYOUT.number, 2, 1)), SOON)
    assert site.drain() == []
    assert site.deadline() == before


def test_overtaken_acknowledgments_are_not_asked_for_by_a_reforming_receiver() -> None:
    site, signer = receiver(1, EVENT_DRIVEN), Signer()
    receive(site, block(1), SOON)
    run_until(site, SOON + 20 * T_R)
    assert site.reforming is not None
    receive(site, signer.ack(EVENT_DRIVEN, 3, 3, [named(3)]), SOON + 20 * T_R)
    assert site.deadline() is None


def test_its_clock_bound_travels_with_every_acknowledgment_and_release() -> None:
    site = Receiver(me=1, formation=LAYOUT, keys=KEYS, born_at=SOON, clock_bound=lambda: 123)
    receive(site, block(1), SOON)
    effects = [effect for _, effect in run_until(site, STARTS_AT)]
    assert [message.clock_bound for message in controls(effects) if isinstance(message, Ack)] == [123]
    receive(site, Signer().ack(LAYOUT, 2, 2), LAYOUT.scheduled_at(2))
    receive(site, Signer().ack(LAYOUT, 3, 2), LAYOUT.scheduled_at(3))
    effects = site.drain() + [effect for _, effect in run_until(site, LAYOUT.commit_at(1))]
    assert [deliver.release.clock_bound for deliver in only(Deliver, effects)] == [123]


# A step of the driver: `advance`, then what has arrived, then `wake`.


def test_time_in_which_a_site_did_not_run_counts_for_no_wait_whatever_it_reads_first() -> None:
    """Decision 30, Awaited acknowledgment.

    Ack(2) overtook Ack(1), a block is lost, and Ack(1) waits in the socket of a site that sleeps.
    """
    layout = formation((1, 2, 4, 5, 6, 7, 8, 9, 3), timing=replace(TIMING, token_period=5 * MILLISECOND))
    site, signer = receiver(3, layout), Signer()
    late, overtaking = signer.ack(layout, 1, 1, [named(1, 2)]), signer.ack(layout, 2, 3, [])
    site.receive_all([block(2)], STARTS_AT)
    now = layout.scheduled_at(2) + MILLISECOND
    site.receive_all([overtaking], now)
    site.wake(now)
    now += TIMING.reform_delay + 10 * MILLISECOND
    site.advance(now)
    site.receive_all([late], now)
    site.wake(now)
    assert not [effect for effect in site.drain() if isinstance(effect, Report)]


def test_blocks_that_complete_a_token_let_a_site_take_its_turn_before_it_reads_on() -> None:
    site, signer = receiver(2, LAYOUT), Signer()
    site.receive_all([signer.ack(LAYOUT, 1, 1, [named(1, 2)])], STARTS_AT)
    site.drain()
    now = LAYOUT.scheduled_at(2)
    site.receive_all([block(1), block(2)], now)
    site.advance(now)
    assert [type(effect) for effect in site.drain()] == [Append, Multicast]


def test_an_acknowledgment_is_late_by_what_is_left_besides_its_k_tokens() -> None:
    """Decision 48, Flow control by load: the K tokens that a commit waits for are no time for repairs."""
    layout = formation(resilience=2)
    behind = TIMING.commit_delay // 2 - 10 * MILLISECOND  # more than half of the rest, less than half of all
    site = receiver(1, layout)
    site.wake(STARTS_AT + behind)
    (acknowledgment,) = [each for each in controls(site.drain()) if isinstance(each, Ack)]
    spare = TIMING.commit_delay - 2 * TIMING.token_period
    assert acknowledgment.release_lag_us * 1_000 == behind - spare // 2 + LAG_TARGET


def holes_in(effects: Sequence[Effect]) -> list[Hole]:
    return [each for each in controls(effects) if isinstance(each, Hole)]


def test_a_hole_is_not_asked_for_while_blocks_wait_in_the_sockets_of_the_site() -> None:
    """The missing block may be among them; after T_R it is not."""
    backlog = [MILLISECOND]
    site = Receiver(me=1, formation=LAYOUT, keys=KEYS, born_at=STARTS_AT - SECOND, backlog=lambda: backlog[0])
    site.receive_all([block(2), block(3)], SOON)
    site.wake(SOON + TIMING.request_delay)
    assert not holes_in(site.drain())
    backlog[0] = 0
    site.wake(SOON + 2 * TIMING.request_delay)
    assert len(holes_in(site.drain())) == 1


def test_a_hole_that_lasts_is_asked_for_though_blocks_wait() -> None:
    site = Receiver(me=1, formation=LAYOUT, keys=KEYS, born_at=STARTS_AT - SECOND, backlog=lambda: MILLISECOND)
    site.receive_all([block(2), block(3)], SOON)
    found = [at for at, effect in run_until(site, SOON + 3 * T_R) if holes_in([effect])]
    assert found[0] >= SOON + T_R


def test_a_hole_that_lasts_for_ever_does_not_hurry_the_sources_of_others() -> None:
    """A source that is gone, or the hole behind a Break: the others are still given T_R while their blocks wait."""
    site = Receiver(me=1, formation=LAYOUT, keys=KEYS, born_at=STARTS_AT - SECOND, backlog=lambda: MILLISECOND)
    began_at = SOON - 2 * T_R
    site.receive(block(9, node=OTHER_SOURCE), began_at)
    run_until(site, SOON)
    site.receive_all([block(2), block(3)], SOON)
    found = [
        (at, each.to) for at, each in run_until(site, SOON + 3 * T_R) if isinstance(each, Send) and holes_in([each])
    ]
    assert min(at for at, to in found if to != OTHER_SOURCE) >= SOON + T_R
