"""Which receivers send to a region: two different ones while two are left, and none changes without need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.edge.protocol.feed_assignment import BadRegion, Region, feeds_of

EAST = Region(name="east", feeds=("A", "B"), receivers=(1, 2, 3, 4))
WEST = Region(name="west", feeds=("C", "D"), receivers=(5, 6, 1))
MEMBERS = st.sets(st.integers(1, 6))


@given(MEMBERS)
def test_every_feed_has_a_receiver_of_its_own_while_there_are_enough(members: set[int]) -> None:
    """Every customer receives at least two multicasts on different addresses. TRMP 2001 §5.3."""
    for region in (EAST, WEST):
        assigned = region.assignment(members)
        near = members & set(region.receivers)
        assert set(assigned) <= set(region.feeds)
        assert len(set(assigned.values())) == len(assigned) == min(len(near), len(region.feeds))
        assert set(assigned.values()) <= near


@given(MEMBERS, st.integers(1, 6))
def test_a_receiver_keeps_its_feed_when_another_one_fails(members: set[int], fails: int) -> None:
    for region in (EAST, WEST):
        before, after = region.assignment(members), region.assignment(members - {fails})
        for feed, receiver in before.items():
            at_home = receiver == region.receivers[region.feeds.index(feed)]
            if receiver != fails and at_home:
                assert after[feed] == receiver


def test_the_nearest_one_takes_over_and_gives_back() -> None:
    assert EAST.assignment({1, 2, 3, 4}) == {"A": 1, "B": 2}
    assert EAST.assignment({2, 3, 4}) == {"A": 3, "B": 2}
    assert EAST.assignment({3, 4}) == {"A": 3, "B": 4}
    assert EAST.assignment({4}) == {"A": 4}
    assert EAST.assignment(()) == {}


@given(MEMBERS)
def test_all_receivers_together_send_on_each_assigned_feed_once(members: set[int]) -> None:
    spoken = [feed for site in range(1, 7) for feed in feeds_of(site, (EAST, WEST), members)]
    assert sorted(spoken) == sorted([*EAST.assignment(members), *WEST.assignment(members)])


@pytest.mark.parametrize(
    ("feeds", "receivers", "complaint"),
    [
        (("A",), (1, 2), "feeds of region east are A; expected at least 2, none twice"),
        (("A", "A"), (1, 2), "feeds of region east are A, A"),
        (("A", "B"), (1,), "region east has 1 receivers for 2 feeds"),
        (("A", "B"), (1, 1), "none twice"),
    ],
)
def test_a_region_that_cannot_be_served_is_refused(
    feeds: tuple[str, ...], receivers: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(BadRegion, match=complaint):
        Region(name="east", feeds=feeds, receivers=receivers)
