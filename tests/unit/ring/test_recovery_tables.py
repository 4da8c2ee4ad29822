"""The tables of Figures 2 and 3 as drawings: their states, their arrows and how they differ."""

import pytest

from fairtape.core.state_table import StateTable
from fairtape.ring.receiver.recovery import Recoveries, Recovery
from fairtape.ring.receiver.recovery_tables import FIGURE_2, FIGURE_3_MERGED, FIGURE_3_SEPARATE, Event, State
from unit.ring.recovery_values import TIMING, E, HeldTokens

FIGURES = {"figure 2": FIGURE_2, "separate": FIGURE_3_SEPARATE, "merged": FIGURE_3_MERGED}
EACH = pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
TESTS = {State.TEST_ACK_RETRIES, State.TEST_MESSAGES, State.TEST_MESSAGE_RETRIES}
ENDS = {State.REFORM, State.COMPLETE}


def recovery(*, ack_retries: int = 0, message_retries: int = 0, holds: bool = False) -> Recovery:
    recoveries = Recoveries(timing=TIMING, timed=True, tokens=HeldTokens({E} if holds else set()))
    subject = Recovery(E, recoveries)
    subject.ack_retries, subject.message_retries = ack_retries, message_retries
    return subject


def arrows(figure: StateTable[Recovery]) -> set[tuple[int, int, int]]:
    return {(edge.at, edge.on, edge.to) for edge in figure.edges}


def test_the_states_have_the_numbers_of_the_figure() -> None:
    assert [state.value for state in State] == list(range(1, 9))
    assert (State(7), State(8)) == (State.REFORM, State.COMPLETE)


@EACH
def test_tests_are_left_by_nothing_and_waits_by_events_and_ends_never(figure: StateTable[Recovery]) -> None:
    for edge in figure.edges:
        assert (edge.on is Event.ALWAYS) == (edge.at in TESTS)
        assert edge.at not in ENDS


@EACH
def test_exactly_one_arrow_leads_out_of_a_test(figure: StateTable[Recovery]) -> None:
    """Whatever was counted and whatever is held: the guards of a test state exclude one another and leave no gap."""
    for ack_retries in range(5):
        for message_retries in range(5):
            for holds in (True, False):
                subject = recovery(ack_retries=ack_retries, message_retries=message_retries, holds=holds)
                for state in TESTS:
                    ways = [edge for edge in figure.edges if edge.at is state and edge.guard(subject)]
                    assert len(ways) == 1


@EACH
def test_every_wait_can_end_well_and_every_request_is_counted(figure: StateTable[Recovery]) -> None:
    for edge in figure.edges:
        names = [action.__name__ for action in edge.actions]
        if edge.to in (State.AWAIT_REQUESTED_ACK, State.AWAIT_REQUESTED_MESSAGES):
            assert names == ["count_ack" if edge.to is State.AWAIT_REQUESTED_ACK else "count_more", "ask"]
        else:
            assert names == (["declare_failure"] if edge.to is State.REFORM else [])


def test_the_two_versions_of_figure_3_have_the_same_arrows() -> None:
    assert arrows(FIGURE_3_MERGED) == arrows(FIGURE_3_SEPARATE)


def test_figure_2_differs_from_figure_3_in_one_event() -> None:
    different = arrows(FIGURE_2) ^ arrows(FIGURE_3_SEPARATE)
    assert different == {
        (State.AWAIT_ACK, Event.LATER_ACK, State.TEST_ACK_RETRIES),
        (State.AWAIT_ACK, Event.TIMEOUT, State.TEST_ACK_RETRIES),
    }


@pytest.mark.parametrize(
    ("ack_retries", "message_retries", "separate", "merged"),
    [
        (0, 0, (True, True), (True, True)),
        (2, 0, (True, True), (True, True)),
        (3, 0, (False, True), (False, False)),
        (1, 2, (True, True), (False, False)),
        (0, 3, (True, False), (False, False)),
    ],
)
def test_a_receiver_asks_again_while_it_has_made_fewer_than_n_max_requests(
    ack_retries: int, message_retries: int, separate: tuple[bool, bool], merged: tuple[bool, bool]
) -> None:
    """Decision 2, Retry guard, for both counts."""
    subject = recovery(ack_retries=ack_retries, message_retries=message_retries)
    for figure, expected in ((FIGURE_3_SEPARATE, separate), (FIGURE_3_MERGED, merged)):
        found = tuple(
            any(edge.guard(subject) and edge.to is not State.REFORM for edge in figure.edges if edge.at is state)
            for state in (State.TEST_ACK_RETRIES, State.TEST_MESSAGE_RETRIES)
        )
        assert found == expected


@EACH
def test_complete_is_never_entered_while_something_is_missing(figure: StateTable[Recovery]) -> None:
    subject = recovery(holds=False)
    subject.state = State.AWAIT_REQUESTED_MESSAGES
    assert not figure.fire(subject, Event.MESSAGES)
    assert subject.state == State.AWAIT_REQUESTED_MESSAGES


@EACH
def test_unanswered_requests_lead_through_both_loops_to_reformation(figure: StateTable[Recovery]) -> None:
    subject = recovery()
    figure.fire(subject, Event.LATER_ACK if figure is FIGURE_2 else Event.TIMEOUT)
    figure.fire(subject, Event.ACK)
    while subject.state != State.REFORM:
        assert figure.fire(subject, Event.TIMEOUT)
    assert (subject.ack_retries, subject.message_retries) == ((1, 2) if figure is FIGURE_3_MERGED else (1, 3))
