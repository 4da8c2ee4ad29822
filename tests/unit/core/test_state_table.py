"""The interpreter of state tables: one event, one arrow, and no stop in a test state."""

from dataclasses import dataclass, field
from enum import IntEnum

import pytest

from fairtape.core.state_table import STEPS_MAX, Edge, StateTable


class Light(IntEnum):
    RED = 1
    TEST = 2
    GREEN = 3
    BROKEN = 4


class Push(IntEnum):
    NOTHING = 0
    BUTTON = 1
    KICK = 2


@dataclass
class Crossing:
    state: IntEnum = Light.RED
    clear: bool = True
    done: list[str] = field(default_factory=list)


def always(_: Crossing) -> bool:
    return True


def is_clear(crossing: Crossing) -> bool:
    return crossing.clear


def is_not_clear(crossing: Crossing) -> bool:
    return not crossing.clear


def note_push(crossing: Crossing) -> None:
    crossing.done.append("push")


def note_wait(crossing: Crossing) -> None:
    crossing.done.append("wait")


def note_go(crossing: Crossing) -> None:
    crossing.done.append(f"go from {crossing.state.name}")


EDGES = (
    Edge(Light.RED, Push.BUTTON, always, Light.TEST, (note_push, note_wait)),
    Edge(Light.TEST, Push.NOTHING, is_clear, Light.GREEN, (note_go,)),
    Edge(Light.TEST, Push.NOTHING, is_not_clear, Light.RED),
)
TABLE: StateTable[Crossing] = StateTable(EDGES, always=Push.NOTHING, holds={Light.GREEN: is_clear})


def test_an_event_is_followed_through_test_states_to_a_wait_or_an_end() -> None:
    crossing = Crossing()
    assert TABLE.fire(crossing, Push.BUTTON)
    assert crossing.state is Light.GREEN


def test_actions_happen_in_their_order_and_before_the_state_changes() -> None:
    crossing = Crossing()
    TABLE.fire(crossing, Push.BUTTON)
    assert crossing.done == ["push", "wait", "go from TEST"]


def test_guards_choose_between_the_arrows_of_one_event() -> None:
    crossing = Crossing(clear=False)
    assert TABLE.fire(crossing, Push.BUTTON)
    assert crossing.state is Light.RED


def test_an_event_without_an_arrow_is_ignored() -> None:
    crossing = Crossing()
    assert not TABLE.fire(crossing, Push.KICK)
    assert crossing == Crossing()


def test_an_event_whose_guards_all_refuse_is_ignored() -> None:
    table: StateTable[Crossing] = StateTable(
        [Edge(Light.RED, Push.BUTTON, is_clear, Light.GREEN)], always=Push.NOTHING, holds={}
    )
    crossing = Crossing(clear=False)
    assert not table.fire(crossing, Push.BUTTON)
    assert crossing.state is Light.RED


def test_a_state_is_never_entered_without_its_invariant() -> None:
    table: StateTable[Crossing] = StateTable(
        [Edge(Light.RED, Push.BUTTON, always, Light.GREEN)], always=Push.NOTHING, holds={Light.GREEN: is_clear}
    )
    with pytest.raises(AssertionError, match="GREEN"):
        table.fire(Crossing(clear=False), Push.BUTTON)


def test_a_table_with_a_cycle_of_test_states_is_a_bug() -> None:
    table: StateTable[Crossing] = StateTable(
        [
            Edge(Light.RED, Push.BUTTON, always, Light.TEST),
            Edge(Light.TEST, Push.NOTHING, always, Light.RED),
            Edge(Light.RED, Push.NOTHING, always, Light.TEST),
        ],
        always=Push.NOTHING,
        holds={},
    )
    with pytest.raises(AssertionError, match="did not reach"):
        table.fire(Crossing(), Push.BUTTON)
    assert 2 * len(Light) <= STEPS_MAX


def test_a_table_shows_its_arrows_in_the_order_in_which_they_were_drawn() -> None:
    assert TABLE.edges == EDGES
