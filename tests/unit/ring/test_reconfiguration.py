"""Reconfiguration, sentence by sentence. TRMP 2001 §5.3, §8."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import SECOND
from fairtape.ring.membership.formation import BadFormation, Formation
from fairtape.ring.membership.reconfiguration import (
    begin_with,
    bypass,
    exchange,
    follow,
    insert,
    insert_in_order,
    reorder,
    retime,
    retire,
    take_over,
    with_members,
)
from unit.ring.loop_values import TIMING, formation_of

members = st.lists(st.integers(1, 50), min_size=1, max_size=12, unique=True)


def test_a_failed_site_is_bypassed() -> None:
    """(r - 1) mod m passes the token to (r + 1) mod m.  TRMP 2001 §5.3."""
    assert bypass(formation_of(1, 2, 3, 4), [3]).members == (1, 2, 4)
    assert bypass(formation_of(1, 2, 3, 4), [4, 1]).members == (2, 3)


def test_a_loop_without_members_is_refused() -> None:
    with pytest.raises(BadFormation, match="members is empty"):
        bypass(formation_of(1, 2), [1, 2])


def test_a_new_site_is_inserted_after_the_named_one() -> None:
    assert insert(formation_of(1, 2, 3), 9, after=2).members == (1, 2, 9, 3)
    with pytest.raises(BadFormation, match="site 7 is not a member"):
        insert(formation_of(1, 2, 3), 9, after=7)


@given(members, st.data())
def test_a_returning_site_gets_its_position_in_the_tour(tour: list[int], data: st.DataObject) -> None:
    """In whatever order sites join, the loop becomes the tour."""
    first, *others = data.draw(st.permutations(tour))
    loop = formation_of(first)
    for site in others:
        loop = insert_in_order(loop, site, tour)
    assert list(loop.members) == tour


def test_a_site_that_is_no_member_cannot_retire() -> None:
    assert retire(formation_of(1, 2, 3), 2).members == (1, 3)
    with pytest.raises(BadFormation, match="site 4 is not a member"):
        retire(formation_of(1, 2, 3), 4)


def test_a_nearby_site_takes_the_place_of_a_failed_one() -> None:
    """Instead of bridging the distance.  TRMP 2001 §8."""
    assert exchange(formation_of(1, 2, 3), 2, 9).members == (1, 9, 3)


def test_another_tour_has_the_same_sites() -> None:
    assert reorder(formation_of(1, 2, 3), [3, 1, 2]).members == (3, 1, 2)
    with pytest.raises(BadFormation, match="not those of the formation"):
        reorder(formation_of(1, 2, 3), [1, 2])


def test_another_timing_changes_nothing_else() -> None:
    faster = retime(formation_of(1, 2), TIMING)
    assert faster == formation_of(1, 2)


def test_a_smaller_loop_survives_fewer_failures() -> None:
    assert with_members(formation_of(1, 2, 3, resilience=2), [1, 2]).resilience == 1


def test_the_roll_rotates_with_the_members() -> None:
    turned = begin_with(formation_of(1, 2, 3, roll=(11, 12, 13)), 2)
    assert (turned.members, turned.roll) == ((2, 3, 1), (12, 13, 11))


def test_a_formation_follows_after_the_last_token_that_a_survivor_holds() -> None:
    """The survivor that holds it takes the first turn: it alone is known to miss nothing."""
    following = follow(
        formation_of(1, 2, 3), number=4, after=27, sequence=300, keeper=2, starts_at=9 * SECOND, broken=True
    )
    assert (following.number, following.first_token, following.first_sequence) == (4, 28, 300)
    assert following.holder(28) == following.keeper == 2
    assert following.broken


@given(members, members, st.integers(11, 400))
def test_a_formation_takes_over_without_a_stop(before: list[int], after: list[int], at_token: int) -> None:
    """The schedule continues, and the token passes to the next member that stays."""
    present = formation_of(*before)
    at_token = max(at_token, present.first_token + 1)
    relief = take_over(formation_of(*after), number=4, present=present, at_token=at_token)
    assert relief.scheduled_at(at_token) == present.scheduled_at(at_token)
    assert relief.first_sequence == 0
    assert relief.resilience_before == present.resilience
    assert set(relief.leaving) == set(before) - set(after)
    following = [present.holder(at_token + step) for step in range(len(before))]
    staying = [member for member in following if member in after]
    assert relief.holder(at_token) == (staying[0] if staying else relief.members[0])


def test_leaving_sites_are_relevant_until_the_formation_has_taken_over() -> None:
    relief: Formation = formation_of(1, 2, leaving=(3,), first_sequence=0, resilience=1, resilience_before=0)
    assert relief.relevant_sites(complete_through=9) == (1, 2, 3)
    assert relief.relevant_sites(complete_through=10) == (1, 2)
