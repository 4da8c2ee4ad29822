"""Parallel recoveries: when they request, when they end, and how their requests are collected."""

from dataclasses import replace
from enum import IntEnum

import pytest

from fairtape.core.instants import NEVER
from fairtape.ring.receiver.recovery import RECOVERIES_MAX, Recoveries
from fairtape.ring.receiver.recovery_tables import Event, State
from unit.ring.recovery_values import T_E, T_R, TIMING, HeldTokens

SOON = TIMING.request_delay


def recoveries(held_tokens: HeldTokens | None = None, *, timed: bool = True) -> Recoveries:
    return Recoveries(timing=TIMING, timed=timed, tokens=held_tokens or HeldTokens())


def test_idle_recoveries_request_nothing() -> None:
    idle = recoveries()
    assert len(idle) == 0
    assert idle.deadline() == NEVER
    assert idle.due_requests(T_E) == []


def test_an_acknowledgment_whose_messages_are_held_completes_at_once() -> None:
    working = recoveries(HeldTokens({1}))
    assert working.acknowledged(1, T_E)
    assert len(working) == 0


def test_requests_are_collected_for_a_moment_and_sent_together() -> None:
    """Reordering alone causes no request: what arrives within that moment is not requested."""
    held_tokens = HeldTokens()
    working = recoveries(held_tokens)
    working.overdue(1, T_E, T_E)
    assert not working.acknowledged(2, T_E + SOON // 2)
    assert working.deadline() == T_E + SOON
    assert working.due_requests(T_E + SOON - 1) == []
    assert [recovery.token for recovery in working.due_requests(T_E + SOON)] == [1, 2]
    assert working.due_requests(T_E + SOON) == []
    assert working.deadline() == T_E + T_R


def test_an_acknowledgment_overdue_since_a_future_instant_is_requested_now() -> None:
    """A clock may have been set back since the wait began; otherwise nothing would ever wake the recovery."""
    working = recoveries()
    working.overdue(1, T_E + 10 * T_R, T_E)
    assert working.deadline() == T_E + SOON
    assert [recovery.token for recovery in working.due_requests(T_E + SOON)] == [1]


def test_a_recovery_that_ends_before_its_request_is_sent_requests_nothing() -> None:
    held_tokens = HeldTokens()
    working = recoveries(held_tokens)
    working.acknowledged(1, T_E)
    held_tokens.held.add(1)
    assert working.messages_arrived(T_E + 1) == [1]
    assert working.due_requests(T_E + SOON) == []


def test_messages_end_only_the_recoveries_that_wait_for_them() -> None:
    held_tokens = HeldTokens({1, 2})
    working = recoveries(held_tokens)
    working.overdue(1, T_E, T_E)  # waits for Ack(1), though its messages are held
    held_tokens.held.discard(3)
    working.acknowledged(3, T_E)
    held_tokens.held.add(3)
    assert working.messages_arrived(T_E + 1) == [3]
    assert list(working.running) == [1]
    assert working.acknowledged(1, T_E + 2)


def test_waits_end_when_their_time_is_up_and_not_before() -> None:
    working = recoveries()
    working.overdue(1, T_E, T_E)
    working.overdue(2, T_E + 7, T_E + 7)
    working.due_requests(T_E + SOON)
    working.wake(T_E + T_R - 1)
    assert [recovery.retries for recovery in working.running.values()] == [1, 1]
    working.wake(T_E + T_R)
    assert [recovery.retries for recovery in working.running.values()] == [2, 1]


def test_a_recovery_without_an_answer_fails_and_is_over() -> None:
    working = recoveries()
    working.overdue(1, T_E, T_E)
    for attempt in range(1, TIMING.retries_max + 1):
        assert working.failed == []
        working.wake(T_E + attempt * T_R)
    assert working.failed == [1]
    assert len(working) == 0


@pytest.mark.parametrize(("timed", "moves"), [(True, False), (False, True)])
def test_a_later_acknowledgment_starts_a_recovery_only_without_a_schedule(timed: bool, moves: bool) -> None:
    working = recoveries(timed=timed)
    working.overtaken(1, T_E)
    working.due_requests(T_E + SOON)
    assert (working.deadline() == T_E + T_R) == moves


def test_stopped_recoveries_request_nothing_more() -> None:
    working = recoveries()
    working.overdue(1, T_E, T_E)
    working.stop()
    assert len(working) == 0
    assert working.deadline() == NEVER
    assert working.due_requests(T_E + SOON) == []


def test_there_is_a_limit_to_recoveries_at_once() -> None:
    working = recoveries()
    for token in range(1, RECOVERIES_MAX + 1):
        assert working.has_capacity
        working.overdue(token, T_E, T_E)
    assert not working.has_capacity


def test_the_observer_sees_every_step_with_its_retries() -> None:
    seen: list[tuple[int, IntEnum, IntEnum, IntEnum, int]] = []
    held_tokens = HeldTokens()
    working = Recoveries(
        timing=replace(TIMING, merged=False), timed=True, tokens=held_tokens, observe=lambda *step: seen.append(step)
    )
    working.overdue(4, T_E, T_E)
    working.acknowledged(4, T_E + 1)
    held_tokens.held.add(4)
    working.messages_arrived(T_E + 2)
    assert seen == [
        (4, State.AWAIT_ACK, Event.TIMEOUT, State.AWAIT_REQUESTED_ACK, 1),
        (4, State.AWAIT_REQUESTED_ACK, Event.ACK, State.AWAIT_REQUESTED_MESSAGES, 2),
        (4, State.AWAIT_REQUESTED_MESSAGES, Event.MESSAGES, State.COMPLETE, 2),
    ]


PATIENT = replace(TIMING, retries_max=100)  # suspects long before it declares a failure
UNANSWERED = PATIENT.suspect_retries


def suspected(working: Recoveries) -> int | None:
    return working.suspected_at


def unanswered(working: Recoveries, waits: int) -> None:
    for wait in range(1, waits + 1):
        working.wake(T_E + wait * T_R)


def test_a_site_is_suspected_after_enough_requests_without_an_answer() -> None:
    """Decision 72, Suspicion: long before the last request, and not any more once the acknowledgment comes."""
    working = Recoveries(timing=PATIENT, timed=True, tokens=HeldTokens())
    working.overdue(1, T_E, T_E)
    unanswered(working, UNANSWERED - 1)
    assert suspected(working) is None
    unanswered(working, UNANSWERED)
    assert suspected(working) == 1
    working.acknowledged(1, T_E + UNANSWERED * T_R + 1)
    assert suspected(working) is None


def test_waits_that_passed_before_a_request_was_possible_raise_no_suspicion() -> None:
    """Behind its schedule a ring counts them towards the deadline: no site was asked in them."""
    working = Recoveries(timing=PATIENT, timed=True, tokens=HeldTokens())
    working.overdue(1, T_E - 20 * T_R, T_E)
    assert suspected(working) is None
    unanswered(working, UNANSWERED)
    assert suspected(working) == 1


def test_what_a_stopped_receiver_suspected_stays_and_what_is_in_the_order_does_not() -> None:
    for stops in (True, False):
        working = Recoveries(timing=PATIENT, timed=True, tokens=HeldTokens())
        working.overdue(1, T_E, T_E)
        unanswered(working, UNANSWERED)
        working.stop() if stops else working.forget_through(1)
        assert suspected(working) == (1 if stops else None)
