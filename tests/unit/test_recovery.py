"""Recoveries side by side: when they ask, when they end, and how their requests gather."""

from dataclasses import replace
from enum import IntEnum

import pytest

from fairtape.core.instants import NEVER
from fairtape.ring.receiver.recovery import RECOVERIES_MAX, Recoveries
from fairtape.ring.receiver.recovery_tables import Event, State
from unit.recovery_values import T_E, T_R, TIMING, Shelf

SOON = TIMING.request_delay


def recoveries(shelf: Shelf | None = None, *, timed: bool = True) -> Recoveries:
    return Recoveries(timing=TIMING, timed=timed, tokens=shelf or Shelf())


def test_an_idle_desk_wants_nothing() -> None:
    idle = recoveries()
    assert len(idle) == 0
    assert idle.deadline() == NEVER
    assert idle.due_requests(T_E) == []


def test_an_acknowledgment_whose_messages_are_held_completes_at_once() -> None:
    working = recoveries(Shelf({1}))
    assert working.acknowledged(1, T_E)
    assert len(working) == 0


def test_requests_gather_for_a_moment_and_go_out_together() -> None:
    """Reordering alone asks for nothing: what arrives within the moment is not asked for."""
    shelf = Shelf()
    working = recoveries(shelf)
    working.overdue(1, T_E, T_E)
    assert not working.acknowledged(2, T_E + SOON // 2)
    assert working.deadline() == T_E + SOON
    assert working.due_requests(T_E + SOON - 1) == []
    assert [recovery.token for recovery in working.due_requests(T_E + SOON)] == [1, 2]
    assert working.due_requests(T_E + SOON) == []
    assert working.deadline() == T_E + T_R


def test_one_that_is_overdue_since_a_time_to_come_is_asked_for_now() -> None:
    """A clock may have been set back since the wait began; nothing would ever wake the recovery otherwise."""
    working = recoveries()
    working.overdue(1, T_E + 10 * T_R, T_E)
    assert working.deadline() == T_E + SOON
    assert [recovery.token for recovery in working.due_requests(T_E + SOON)] == [1]


def test_what_ends_before_the_request_goes_is_not_asked_for() -> None:
    shelf = Shelf()
    working = recoveries(shelf)
    working.acknowledged(1, T_E)
    shelf.held.add(1)
    assert working.messages_arrived(T_E + 1) == [1]
    assert working.due_requests(T_E + SOON) == []


def test_messages_end_only_the_recoveries_that_wait_for_them() -> None:
    shelf = Shelf({1, 2})
    working = recoveries(shelf)
    working.overdue(1, T_E, T_E)  # waits for Ack(1), though its messages are held
    shelf.held.discard(3)
    working.acknowledged(3, T_E)
    shelf.held.add(3)
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
def test_a_later_acknowledgment_means_something_only_without_a_schedule(timed: bool, moves: bool) -> None:
    working = recoveries(timed=timed)
    working.overtaken(1, T_E)
    working.due_requests(T_E + SOON)
    assert (working.deadline() == T_E + T_R) == moves


def test_a_desk_that_stops_asks_for_nothing_more() -> None:
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
    shelf = Shelf()
    working = Recoveries(
        timing=replace(TIMING, merged=False), timed=True, tokens=shelf, observe=lambda *step: seen.append(step)
    )
    working.overdue(4, T_E, T_E)
    working.acknowledged(4, T_E + 1)
    shelf.held.add(4)
    working.messages_arrived(T_E + 2)
    assert seen == [
        (4, State.AWAIT_ACK, Event.TIMEOUT, State.AWAIT_REQUESTED_ACK, 1),
        (4, State.AWAIT_REQUESTED_ACK, Event.ACK, State.AWAIT_REQUESTED_MESSAGES, 2),
        (4, State.AWAIT_REQUESTED_MESSAGES, Event.MESSAGES, State.COMPLETE, 2),
    ]
