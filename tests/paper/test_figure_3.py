"""Figure 3 and its prose, sentence by sentence, on the machine that runs: T-RMP §3 and TRMP 2001 §5.1."""

import pytest

from fairtape.core.instants import Instant
from fairtape.ring.receiver.recovery_tables import Event, State
from unit.ring.recovery_values import T_E, T_R, RecoveryRun

HALF = T_R // 2
COUNTS = pytest.mark.parametrize("merged", [True, False], ids=["merged", "separate"])
RETRIES = pytest.mark.parametrize("retries_max", [1, 2, 3, 7])


def overdue(*, merged: bool, retries_max: int = 3) -> RecoveryRun:
    patient = RecoveryRun(merged=merged, retries_max=retries_max)
    patient.silence()
    return patient


@COUNTS
def test_an_acknowledgment_in_time_leads_to_state_4_with_no_retry(merged: bool) -> None:
    """If the acknowledgment is received before t_e + T_R/2, the receiver moves to state 4, with n_r = 0.  T-RMP §3."""
    patient = RecoveryRun(merged=merged)
    patient.held_tokens.held.add(5)
    patient.ack(T_E + HALF - 1)
    assert patient.path() == [(State.AWAIT_ACK, Event.ACK, State.COMPLETE)]
    assert patient.retries == 0


@COUNTS
def test_a_late_acknowledgment_is_requested_at_half_a_retry_period(merged: bool) -> None:
    """At t_e + T_R/2 it requests the missing Ack(e), increments n_r to 1, and moves to state 3.  T-RMP §3."""
    patient = overdue(merged=merged)
    assert patient.state is State.AWAIT_REQUESTED_ACK
    assert patient.retries == 1
    assert patient.asked_at == [T_E + HALF]


@COUNTS
def test_the_first_time_out_is_half_of_the_others(merged: bool) -> None:
    """The time out from state 1 to 2 is half the one between states 2 and 3 or 5 and 6.  T-RMP §3."""
    patient = overdue(merged=merged)
    assert patient.expires_at - (T_E + HALF) == T_R
    patient.ack(T_E + T_R)
    assert patient.state is State.AWAIT_REQUESTED_MESSAGES
    assert patient.expires_at - (T_E + T_R) == T_R


@COUNTS
def test_an_acknowledgment_within_the_retry_period_leads_to_state_4(merged: bool) -> None:
    """If Ack(e) is received within T_R seconds, the receiver moves to state 4.  T-RMP §3, TRMP 2001 §5.1."""
    patient = overdue(merged=merged)
    patient.held_tokens.held.add(5)
    patient.ack(T_E + HALF + T_R - 1)
    assert patient.path()[-1] == (State.AWAIT_REQUESTED_ACK, Event.ACK, State.COMPLETE)


@COUNTS
def test_without_it_the_receiver_returns_to_state_2_and_asks_again(merged: bool) -> None:
    """… otherwise it returns to state 2.  T-RMP §3, TRMP 2001 §5.1."""
    patient = overdue(merged=merged)
    at = patient.wait()
    assert at == T_E + HALF + T_R
    assert patient.state is State.AWAIT_REQUESTED_ACK
    assert patient.retries == 2


@COUNTS
@RETRIES
def test_the_loop_between_states_2_and_3_is_taken_at_most_n_max_times(merged: bool, retries_max: int) -> None:
    """It circulates between 2 and 3 at most n_max times, then enters state 7 at t_e + (n_max + 1/2) T_R.  T-RMP §3."""
    patient = overdue(merged=merged, retries_max=retries_max)
    ended_at = patient.wait_out()
    assert patient.state is State.REFORM
    assert len(patient.asked_at) == retries_max
    assert ended_at == T_E + retries_max * T_R + HALF
    assert patient.recoveries.failed == [5]


@COUNTS
def test_messages_that_are_held_lead_from_state_4_to_state_8(merged: bool) -> None:
    """If the messages that are acknowledged by Ack(e) have been received: from 4 to 8.  TRMP 2001 §5.1."""
    patient = RecoveryRun(merged=merged)
    patient.held_tokens.held.add(5)
    patient.ack(T_E)
    assert patient.state is State.COMPLETE
    assert patient.asked_at == []


@COUNTS
def test_messages_that_are_missing_are_asked_for_at_once(merged: bool) -> None:
    """… otherwise it moves to state 5. The operation of 5 and 6 is the same as 2 and 3.  TRMP 2001 §5.1."""
    patient = RecoveryRun(merged=merged)
    patient.ack(T_E)
    assert patient.asked_at == [T_E]
    patient.messages(T_E + T_R - 1)
    assert patient.path() == [
        (State.AWAIT_ACK, Event.ACK, State.AWAIT_REQUESTED_MESSAGES),
        (State.AWAIT_REQUESTED_MESSAGES, Event.MESSAGES, State.COMPLETE),
    ]


@pytest.mark.parametrize("retries_max", [1, 2, 5])
def test_the_merged_count_on_entering_state_4_is_the_number_of_periods_that_passed(retries_max: int) -> None:
    """If it enters state 4 at t_e + (k - 1/2) T_R ≤ t_4 < t_e + (k + 1/2) T_R, then n_r = k.  T-RMP §3."""
    for k in range(1, retries_max + 1):
        for entered_at in (T_E + k * T_R - HALF, T_E + k * T_R + HALF - 1):
            patient = waited(k, retries_max=retries_max, merged=True)
            assert patient.retries == k
            patient.held_tokens.held.add(5)
            patient.ack(entered_at)
            assert patient.state is State.COMPLETE
            assert patient.retries == k


def test_with_all_retries_spent_on_the_acknowledgment_missing_messages_mean_reformation() -> None:
    """If k = n_max, the receiver moves immediately to state 7.  T-RMP §3."""
    patient = waited(3, retries_max=3, merged=True)
    patient.ack(T_E + 3 * T_R)
    assert patient.state is State.REFORM
    assert patient.steps[-1].at is State.AWAIT_REQUESTED_ACK


@pytest.mark.parametrize("k", [0, 1, 2])
def test_the_merged_count_leaves_n_max_less_k_requests_for_messages(k: int) -> None:
    """Otherwise it follows 5 → 6 → 5 up to n_max - k times, and enters 7 at t_4 + (n_max - k) T_R.  T-RMP §3."""
    patient = waited(k, retries_max=3, merged=True)
    entered_at = T_E + k * T_R + 7
    patient.ack(entered_at)
    ended_at = patient.wait_out()
    assert patient.state is State.REFORM
    assert len(patient.asked_at) == 3
    assert ended_at == entered_at + (3 - k) * T_R < T_E + 3 * T_R + HALF


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_the_separate_count_leaves_n_max_requests_for_messages_whatever_was_spent(k: int) -> None:
    """Within time n_max T_R after entering state 4, a receiver is in state 8 or 7.  TRMP 2001 §5.1."""
    patient = waited(k, retries_max=3, merged=False)
    entered_at = T_E + k * T_R + 7
    patient.ack(entered_at)
    ended_at = patient.wait_out()
    assert patient.state is State.REFORM
    assert len(patient.asked_at) == k + 3
    assert ended_at == entered_at + 3 * T_R < T_E + 2 * 3 * T_R + HALF


@COUNTS
def test_a_receiver_that_is_complete_asks_for_nothing_more(merged: bool) -> None:
    """State 8 is an end: receivers that have everything send no further messages.  T-RMP §1."""
    patient = RecoveryRun(merged=merged)
    patient.ack(T_E)
    patient.messages(T_E + 1)
    assert patient.expires_at > T_E + 1_000_000 * T_R
    assert len(patient.recoveries) == 0


def test_figure_2_leaves_state_1_when_a_later_acknowledgment_arrives() -> None:
    """RMP moves from 1 to 2 when it receives a token with a larger sequence number than expected.  T-RMP §3."""
    patient = RecoveryRun(timed=False)
    patient.recoveries.overtaken(5, T_E)
    assert patient.path() == [(State.AWAIT_ACK, Event.LATER_ACK, State.AWAIT_REQUESTED_ACK)]


def test_figure_2_knows_no_schedule_and_figure_3_no_later_acknowledgment() -> None:
    """T-RMP moves from 1 to 2 when the local clock exceeds the scheduled time, RMP does not.  T-RMP §3."""
    event_driven = RecoveryRun(timed=False)
    event_driven.silence()
    assert event_driven.steps == []
    timed = RecoveryRun()
    timed.recoveries.overtaken(5, T_E)
    assert timed.steps == []


def test_figure_2_counts_its_two_recoveries_apart() -> None:
    """RMP limits each recovery by itself: it requests until it decides the server is inoperable.  T-RMP §2."""
    patient = RecoveryRun(timed=False, retries_max=2)
    patient.recoveries.overtaken(5, T_E)
    patient.wait()
    patient.ack(T_E + 2 * T_R - 1)
    patient.wait_out()
    assert patient.state is State.REFORM
    assert len(patient.asked_at) == 4


def waited(k: int, *, retries_max: int, merged: bool) -> RecoveryRun:
    """A receiver that has asked k times for Ack(e) and still waits."""
    patient = RecoveryRun(retries_max=retries_max, merged=merged)
    if k:
        patient.silence()
    expected: Instant = T_E + HALF
    for _ in range(k - 1):
        expected += T_R
        assert patient.wait() == expected
    return patient
