"""Figures 2 and 3 as tables: how a receiver processes acknowledgment e.

The tests quote the papers' text. All three tables share their states. In RMP (Figure 2) a later Ack shows that Ack(e)
is missing; in TRMP (Figure 3) the clock does. Figure 3 exists twice: the 2001 version counts the requests for Ack(e)
and for Msg(e) separately, T-RMP §4 limits their sum. The tables differ only in those guards and that event.

Decision 2, Retry guard: request again while *fewer than* `retries_max` requests have been made.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from fairtape.core.state_table import Edge, StateTable

if TYPE_CHECKING:
    from fairtape.ring.receiver.recovery import Recovery

Guard: TypeAlias = "Callable[[Recovery], bool]"


class State(IntEnum):
    """Numbered as in Figure 3."""

    AWAIT_ACK = 1  # wait: Ack(e) is due at t_e
    TEST_ACK_RETRIES = 2  # test: left in the step that enters it
    AWAIT_REQUESTED_ACK = 3  # wait: at most T_R
    TEST_MESSAGES = 4  # test: do we hold all of Msg(e)?
    TEST_MESSAGE_RETRIES = 5  # test
    AWAIT_REQUESTED_MESSAGES = 6  # wait: at most T_R
    REFORM = 7  # end: the token site has failed
    COMPLETE = 8  # end: all of Msg(e) is held


(
    AWAIT_ACK,
    TEST_ACK_RETRIES,
    AWAIT_REQUESTED_ACK,
    TEST_MESSAGES,
    TEST_MESSAGE_RETRIES,
    AWAIT_REQUESTED_MESSAGES,
    REFORM,
    COMPLETE,
) = State


class Event(IntEnum):
    """What can happen to a recovery."""

    ALWAYS = 0  # nothing: the way out of a test
    ACK = 1  # all parts of Ack(e) were received
    MESSAGES = 2  # all of Msg(e) is held
    TIMEOUT = 3  # the wait is over
    LATER_ACK = 4  # an acknowledgment above e has arrived and Ack(e) has not


def always(_: "Recovery") -> bool:
    """The guard of an arrow without a condition."""
    return True


def has_all(recovery: "Recovery") -> bool:
    """The messages that are acknowledged by Ack(e) have been received."""
    return recovery.holds_messages()


def lacks_some(recovery: "Recovery") -> bool:
    """At least one of them has not been received."""
    return not recovery.holds_messages()


def ack_retry_left(recovery: "Recovery") -> bool:
    """Separate count, states 2 and 3."""
    return recovery.ack_retries < recovery.retries_max


def message_retry_left(recovery: "Recovery") -> bool:
    """Separate count, states 5 and 6."""
    return recovery.message_retries < recovery.retries_max


def retry_left(recovery: "Recovery") -> bool:
    """Merged count: the sum of the retries is limited. T-RMP §4."""
    return recovery.ack_retries + recovery.message_retries < recovery.retries_max


def count_ack(recovery: "Recovery") -> None:
    """* n_r + 1."""
    recovery.ack_retries += 1


def count_more(recovery: "Recovery") -> None:
    """* n_r + 1."""
    recovery.message_retries += 1


def ask(recovery: "Recovery") -> None:
    """* request what is missing, wait T_R."""
    recovery.ask()


def declare_failure(recovery: "Recovery") -> None:
    """* the token site has failed."""
    recovery.declare_failure()


def _negation(guard: Guard) -> Guard:
    return lambda recovery: not guard(recovery)


def _figure(overdue: Event, ack_left: Guard, message_left: Guard) -> "StateTable[Recovery]":
    no_ack_left, no_message_left = _negation(ack_left), _negation(message_left)
    # fmt: off
    edges: tuple[Edge[Recovery], ...] = (
        #    at                        on              guard            to                        * actions
        Edge(AWAIT_ACK,                Event.ACK,      always,          TEST_MESSAGES),
        Edge(AWAIT_ACK,                overdue,        always,          TEST_ACK_RETRIES),
        Edge(TEST_ACK_RETRIES,         Event.ALWAYS,   ack_left,        AWAIT_REQUESTED_ACK,      (count_ack, ask)),
        Edge(TEST_ACK_RETRIES,         Event.ALWAYS,   no_ack_left,     REFORM,                   (declare_failure,)),
        Edge(AWAIT_REQUESTED_ACK,      Event.ACK,      always,          TEST_MESSAGES),
        Edge(AWAIT_REQUESTED_ACK,      Event.TIMEOUT,  always,          TEST_ACK_RETRIES),
        Edge(TEST_MESSAGES,            Event.ALWAYS,   has_all,         COMPLETE),
        Edge(TEST_MESSAGES,            Event.ALWAYS,   lacks_some,      TEST_MESSAGE_RETRIES),
        Edge(TEST_MESSAGE_RETRIES,     Event.ALWAYS,   message_left,    AWAIT_REQUESTED_MESSAGES, (count_more, ask)),
        Edge(TEST_MESSAGE_RETRIES,     Event.ALWAYS,   no_message_left, REFORM,                   (declare_failure,)),
        Edge(AWAIT_REQUESTED_MESSAGES, Event.MESSAGES, has_all,         COMPLETE),
        Edge(AWAIT_REQUESTED_MESSAGES, Event.TIMEOUT,  always,          TEST_MESSAGE_RETRIES),
    )
    # fmt: on
    return StateTable(edges, always=Event.ALWAYS, holds={COMPLETE: has_all})


FIGURE_2: Final = _figure(Event.LATER_ACK, ack_retry_left, message_retry_left)
FIGURE_3_SEPARATE: Final = _figure(Event.TIMEOUT, ack_retry_left, message_retry_left)
FIGURE_3_MERGED: Final = _figure(Event.TIMEOUT, retry_left, retry_left)
