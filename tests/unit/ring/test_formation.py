"""Formations: whose turn it is, when, and what cannot be a loop."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import SECOND
from fairtape.core.timing import PROFILES
from fairtape.ring.membership.formation import MEMBERS_MAX, BadFormation, Formation
from fairtape.wire.frames import FORMATION_MAX, NODE_MAX, NUMBER_MAX

RING = Formation(number=1, members=(5, 3, 8), timing=PROFILES["lan"], starts_at=10 * SECOND)

formations = st.builds(
    Formation,
    number=st.integers(0, FORMATION_MAX),
    members=st.lists(st.integers(0, NODE_MAX), min_size=1, max_size=9, unique=True).map(tuple),
    timing=st.sampled_from(list(PROFILES.values())),
    starts_at=st.integers(0, 1 << 62),
    first_token=st.integers(1, 1 << 40),
    first_sequence=st.integers(1, NUMBER_MAX),
    timed=st.booleans(),
)
laps = st.integers(0, 1 << 20)


@given(formations, laps)
def test_the_token_visits_the_members_in_their_order_for_ever(formation: Formation, lap: int) -> None:
    size = len(formation.members)
    start = formation.first_token + lap * size
    assert tuple(map(formation.holder, range(start, start + size))) == formation.members


@given(formations, laps)
def test_acknowledgments_are_scheduled_one_token_period_apart(formation: Formation, ahead: int) -> None:
    token = formation.first_token + ahead
    assert formation.scheduled_at(formation.first_token) == formation.starts_at
    assert formation.scheduled_at(token + 1) - formation.scheduled_at(token) == formation.timing.token_period


@given(formations, laps)
def test_every_token_commits_one_commit_delay_after_its_scheduled_time(formation: Formation, ahead: int) -> None:
    token = formation.first_token + ahead
    assert formation.commit_at(token) - formation.scheduled_at(token) == formation.timing.commit_delay


@given(formations, laps, st.data())
def test_a_token_is_current_from_its_time_until_just_before_the_next(
    formation: Formation, ahead: int, data: st.DataObject
) -> None:
    token = formation.first_token + ahead
    since = data.draw(st.integers(0, formation.timing.token_period - 1))
    assert formation.current(formation.scheduled_at(token) + since) == token


@given(formations, st.integers(1, 1 << 62))
def test_before_the_start_no_token_of_the_formation_is_current(formation: Formation, early: int) -> None:
    assert formation.current(formation.starts_at - early) < formation.first_token


def test_a_loop_may_be_as_small_as_one_site_and_as_large_as_the_limit() -> None:
    assert replace(RING, members=(7,)).holder(123) == 7
    assert replace(RING, members=tuple(range(MEMBERS_MAX))).holder(MEMBERS_MAX) == MEMBERS_MAX - 1


def test_all_but_one_site_may_fail_at_the_highest_resilience() -> None:
    assert replace(RING, resilience=2).resilience == 2


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"members": ()}, f"members has 0 sites; a loop takes 1 to {MEMBERS_MAX}"),
        ({"members": tuple(range(MEMBERS_MAX + 1))}, f"members has {MEMBERS_MAX + 1} sites"),
        ({"members": (1, 2, 1)}, "names a site twice"),
        ({"members": (1, -1)}, f"must be node numbers from 0 to {NODE_MAX}"),
        ({"members": (1, NODE_MAX + 1)}, f"must be node numbers from 0 to {NODE_MAX}"),
        ({"resilience": -1}, "resilience is -1; it must be from 0 to 2"),
        ({"resilience": 3}, "resilience is 3; it must be from 0 to 2"),
        ({"number": -1}, "number is -1; it must be from 0 to"),
        ({"number": FORMATION_MAX + 1}, f"number is {FORMATION_MAX + 1}; it must be from 0 to"),
        ({"first_token": 0}, "first_token is 0; it must be"),
        ({"first_token": NUMBER_MAX + 1}, f"first_token is {NUMBER_MAX + 1}; it must be"),
        ({"first_sequence": -1}, "first_sequence is -1; it must be"),
        ({"first_sequence": NUMBER_MAX + 1}, f"first_sequence is {NUMBER_MAX + 1}; it must be"),
    ],
    ids=str,
)
def test_an_invalid_formation_is_refused_by_field_and_value(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadFormation) as refusal:
        replace(RING, **wrong)
    assert sentence in str(refusal.value)
