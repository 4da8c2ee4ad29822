"""The token at one site: when it is due, what it acknowledges, and how its passing is confirmed."""

from fairtape.core.instants import NEVER
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.ring.receiver.token import EventToken, TimedToken, token_for
from fairtape.wire.frames import decode_block
from unit.ring.ring_values import KEYS, OTHER_SOURCE, STARTS_AT, TIMING, block, formation, named

T_R = TIMING.retry_period
TIMED = formation()
EVENT_DRIVEN = formation(timed=False)


def buffer(*datagrams: bytes) -> ReceiveBuffer:
    held = ReceiveBuffer(keys=KEYS, stripe=0)
    for datagram in datagrams:
        assert held.accept(decode_block(datagram), datagram) == "block"
    return held


def timed(*datagrams: bytes) -> TimedToken:
    token = token_for(FormationHistory(TIMED), buffer(*datagrams))
    assert isinstance(token, TimedToken)
    return token


def event_driven(*datagrams: bytes) -> EventToken:
    token = token_for(FormationHistory(EVENT_DRIVEN), buffer(*datagrams))
    assert isinstance(token, EventToken)
    return token


def test_a_timed_token_is_due_at_its_scheduled_time_whenever_it_was_accepted() -> None:
    token = timed()
    assert token.due_at(flush=False) == NEVER
    token.accept(4, STARTS_AT - 1)
    assert (token.held, token.due_at(flush=False)) == (4, TIMED.scheduled_at(4))
    assert token.due_at(flush=True) == TIMED.scheduled_at(4)
    token.passed(STARTS_AT)
    assert (token.held, token.due_at(flush=True)) == (None, NEVER)


def test_a_timed_token_acknowledges_everything_at_once() -> None:
    token = timed(block(1, [b"a", b"b"]), block(3), block(1, node=OTHER_SOURCE))
    assert token.ranges(10) == [named(1, 3), named(1, node=OTHER_SOURCE)]
    assert token.ranges(1) == [named(1, 3)]


def test_an_event_driven_token_waits_for_a_message() -> None:
    token = event_driven()
    assert token.due_at(flush=False) == NEVER
    token.accept(1, STARTS_AT)
    assert token.due_at(flush=False) == NEVER
    assert token.ranges(10) == []


def test_an_event_driven_token_acknowledges_one_block_at_once() -> None:
    token = event_driven(block(1, [b"a", b"b"]), block(3))
    token.accept(1, STARTS_AT)
    assert token.due_at(flush=False) == STARTS_AT
    assert token.ranges(10) == [named(1, 2)]


def test_an_event_driven_token_moves_on_with_nothing_when_commits_wait_for_it() -> None:
    token = event_driven()
    token.accept(1, STARTS_AT)
    assert token.due_at(flush=True) == STARTS_AT + TIMING.one_way_max


def test_accepting_the_token_again_does_not_restart_its_timer() -> None:
    token = event_driven(block(1))
    token.accept(1, STARTS_AT)
    token.accept(1, STARTS_AT + 5)
    assert token.due_at(flush=False) == STARTS_AT


def test_a_passed_token_is_repeated_until_it_is_accepted() -> None:
    token = event_driven()
    token.accept(1, STARTS_AT)
    token.passed(STARTS_AT)
    assert (token.held, token.passing, token.next_site) == (None, 1, 2)
    assert token.repeat_at() == STARTS_AT + T_R
    for attempt in range(1, TIMING.retries_max + 1):
        assert token.repeat(STARTS_AT + attempt * T_R)
    assert not token.repeat(STARTS_AT + 4 * T_R)
    token.give_up()
    assert token.repeat_at() == NEVER


def test_only_a_proof_of_this_token_or_a_later_one_ends_the_repetition() -> None:
    token = event_driven()
    token.confirmed(9)
    token.accept(4, STARTS_AT)
    token.passed(STARTS_AT)
    token.confirmed(3)
    assert (token.passing, token.repeat_at()) == (4, STARTS_AT + T_R)
    token.confirmed(4)
    assert (token.passing, token.repeat_at()) == (None, NEVER)
