"""NACK reduction. TRMP 2001 §5.2."""

from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND
from fairtape.ring.receiver.repair import RecentAnswers, hold_back, request_set
from unit.ring.loop_values import TIMING, formation_of


@given(st.integers(1, 40), st.integers(1, 40), st.integers(11, 500))
def test_the_sets_are_those_of_the_paper(members: int, sets: int, token: int) -> None:
    """S_{i,t} = {(r + i + 1 + j k_p) mod m for 0 <= j <= (m - i - 1) / k_p}, i = 0, 1, …, k_p - 1."""
    sets = min(sets, members)
    loop = formation_of(*range(1, members + 1), request_sets=sets)
    r = loop.members.index(loop.holder(token))
    for i in range(sets):
        drawn = {(r + i + 1 + j * sets) % members for j in range((members - i - 1) // sets + 1)}
        assert {place for place in range(members) if request_set(loop, loop.members[place], token) == i} == drawn


@given(st.integers(2, 40), st.integers(2, 40), st.integers(11, 500))
def test_no_receiver_waits_longer_than_the_other_sets_take(members: int, sets: int, token: int) -> None:
    """A recovery takes (k_p - 1) token periods longer at most."""
    loop = formation_of(*range(1, members + 1), request_sets=min(sets, members))
    waits = {hold_back(loop, member, token) for member in loop.members}
    assert max(waits) <= (loop.request_sets - 1) * TIMING.token_period
    assert 0 in waits


def test_request_sets_are_off_by_default() -> None:
    loop = formation_of(1, 2, 3)
    assert {hold_back(loop, member, 12) for member in loop.members} == {0}
    assert hold_back(formation_of(1, 2, 3, request_sets=3), 9, 12) == 0  # not a member


def test_an_answer_is_not_repeated_while_it_is_on_its_way() -> None:
    answers = RecentAnswers()
    assert answers.unsent([b"a", b"b", b"a"], 0, 10 * MILLISECOND) == [b"a", b"b"]
    assert answers.unsent([b"b", b"c"], 9 * MILLISECOND, 10 * MILLISECOND) == [b"c"]
    assert answers.unsent([b"a", b"c"], 10 * MILLISECOND, 10 * MILLISECOND) == [b"a"]
