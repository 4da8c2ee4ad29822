"""Which formation a token belongs to."""

import pytest

from fairtape.ring.membership.formation_history import FORMATIONS_MAX, FormationHistory
from unit.ring.loop_values import formation_of


def test_a_token_belongs_to_the_last_formation_that_began_before_it() -> None:
    formations = FormationHistory(formation_of(1, 2))
    formations.take_over(formation_of(2, 3, number=4, first_token=31))
    assert [formations.of(token).number for token in (5, 11, 30, 31, 99)] == [3, 3, 3, 4, 4]
    assert formations.latest.number == 4
    assert formations.has(3)
    assert (formations.holder(30), formations.holder(31)) == (2, 2)


def test_formations_that_ended_are_forgotten() -> None:
    formations = FormationHistory(formation_of(1, 2))
    formations.take_over(formation_of(2, 3, number=4, first_token=31))
    formations.forget_before(30)
    assert formations.has(3)
    formations.forget_before(31)
    assert not formations.has(3)
    assert formations.begins_at == 31


def test_a_formation_that_was_fenced_leaves_no_trace() -> None:
    formations = FormationHistory(formation_of(1, 2))
    formations.restart(formation_of(1, number=5, first_token=20))
    assert [formation.number for formation in formations.formations] == [5]


def test_a_formation_cannot_take_over_before_the_one_that_it_replaces() -> None:
    with pytest.raises(AssertionError):
        FormationHistory(formation_of(1, 2)).take_over(formation_of(2, number=4, first_token=11))


def test_only_a_few_formations_are_remembered() -> None:
    formations = FormationHistory(formation_of(1))
    for later in range(1, 20):
        formations.take_over(formation_of(1, number=3 + later, first_token=11 + later))
    assert len(formations.formations) == FORMATIONS_MAX
