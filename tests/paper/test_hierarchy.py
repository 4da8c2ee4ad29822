"""Loops of loops: the paper's counts, and a balanced tree for any number of sites.  TRMP 2001 §4.1."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.ring.membership.formation import MEMBERS_MAX
from fairtape.ring.membership.hierarchy import LOOP_MIN, SITES_MAX, BadHierarchy, Hierarchy, loop_size, plan


def test_a_group_of_100_receivers_in_one_loop_takes_100_token_passes() -> None:
    """If we have a group of 100 receivers L_1 = 100.  TRMP 2001 §4.1."""
    assert plan(100, levels=1, loop_max=100).passes_max == 100


def test_100_receivers_in_10_groups_of_10_take_10_token_passes() -> None:
    """Each secondary group requires 10 token passes; the primary group also has 10 members: L_2 = 10.  2001 §4.1."""
    hierarchy = plan(100)
    (primary,) = hierarchy.level(1)
    secondary = hierarchy.level(2)
    assert hierarchy.levels == 2
    assert [len(loop.members) for loop in secondary] == [10] * 10
    assert len(primary.members) == 10
    assert hierarchy.passes_max == 10


def test_10_000_receivers_take_100_token_passes_in_two_layers() -> None:
    """If we have 10,000 receivers, L_1 = 10,000 and L_2 = 100.  TRMP 2001 §4.1."""
    hierarchy = plan(10_000, levels=2, loop_max=100)
    assert [len(loop.members) for loop in hierarchy.loops] == [100] * 101
    assert hierarchy.passes_max == 100


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [2, 3, 10])
def test_i_layers_take_the_ith_root_of_the_passes_of_one(layers: int, size: int) -> None:
    """With i layers, L_i is the i-th root of L_1.  TRMP 2001 §4.1."""
    assert loop_size(size**layers, layers) == size
    if size**layers <= SITES_MAX and (layers, size) != (1, 2):
        hierarchy = plan(size**layers, layers, loop_max=MEMBERS_MAX)
        assert {len(loop.members) for loop in hierarchy.loops} == {size}


def test_each_secondary_ring_includes_a_receiver_of_the_primary_ring() -> None:
    """Each secondary token ring includes an R_P on the primary token ring.  TRMP 2001 §4.1."""
    hierarchy = plan(100)
    primary, *secondary = hierarchy.loops
    assert [loop.junction for loop in secondary] == list(primary.members)
    assert all(set(loop.members) & set(primary.members) == {loop.junction} for loop in secondary)


def test_two_layers_limit_the_rings_of_900_receivers_to_a_few_tens() -> None:
    """Two layers should be more than sufficient to limit our token rings to a few tens of receivers.  2001 §4.1."""
    assert plan(900).levels == 2
    assert plan(901).levels == 3


@st.composite
def hierarchies(draw: st.DrawFn) -> Hierarchy:
    sites = draw(st.integers(1, 3_000))
    levels = draw(st.none() | st.integers(1, max(1, sites.bit_length() - 1)))
    least = 2 if levels is None else loop_size(sites, levels)
    if least > MEMBERS_MAX:
        levels, least = None, 2
    return plan(sites, levels, draw(st.integers(max(least, LOOP_MIN), MEMBERS_MAX)))


@given(hierarchies())
def test_every_site_has_exactly_one_loop_of_its_own(hierarchy: Hierarchy) -> None:
    own = Counter(site for loop in hierarchy.level(hierarchy.levels) for site in loop.members)
    assert own == Counter(range(hierarchy.sites))


@given(hierarchies())
def test_the_loops_of_a_level_differ_by_one_site_at_most(hierarchy: Hierarchy) -> None:
    for level in range(1, hierarchy.levels + 1):
        sizes = {len(loop.members) for loop in hierarchy.level(level)}
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 2 or hierarchy.sites == 1


@given(hierarchies())
def test_no_loop_is_longer_than_the_root(hierarchy: Hierarchy) -> None:
    """L_i = ⌈L_1^(1/i)⌉, exactly: no division has a shorter longest loop, and this one reaches it."""
    assert hierarchy.passes_max == loop_size(hierarchy.sites, hierarchy.levels)


@given(hierarchies())
def test_loops_are_a_tree_that_is_joined_at_the_junctions(hierarchy: Hierarchy) -> None:
    primary, *others = hierarchy.loops
    assert primary.parent is None
    assert primary.junction is None
    for index, loop in enumerate(others, 1):
        assert loop.parent is not None
        assert loop.parent < index
        parent = hierarchy.loops[loop.parent]
        assert parent.level == loop.level - 1
        assert set(loop.members) & set(parent.members) == {loop.junction} == {loop.members[0]}
    for level in range(2, hierarchy.levels + 1):
        above = [site for loop in hierarchy.level(level - 1) for site in loop.members]
        assert sorted(above) == sorted(loop.members[0] for loop in hierarchy.level(level))


@given(st.integers(1, SITES_MAX), st.integers(LOOP_MIN, MEMBERS_MAX))
def test_the_fewest_levels_are_chosen(sites: int, loop_max: int) -> None:
    least = next(levels for levels in range(1, 64) if loop_max**levels >= sites)
    assert loop_size(sites, least) <= loop_max
    if sites <= 3_000:
        assert plan(sites, loop_max=loop_max).levels == least


@pytest.mark.parametrize(
    ("sites", "levels", "loop_max", "named"),
    [
        (0, None, 30, "sites is 0; give 1 to 1,000,000"),
        (SITES_MAX + 1, None, 30, "sites is 1,000,001"),
        (100, 0, 30, "levels is 0; give 1 to 6"),
        (100, 7, 30, "levels is 7; give 1 to 6"),
        (3, 2, 30, "levels is 2; give 1 to 1"),
        (100, 10**12, 30, "levels is 1000000000000"),
        (100, None, 2, f"loop_max is 2; give 3 to {MEMBERS_MAX}"),
        (100, None, MEMBERS_MAX + 1, f"loop_max is {MEMBERS_MAX + 1}"),
        (10_000, 2, 30, "levels is 2, which makes loops of 100 where loop_max is 30; give 3 levels"),
    ],
)
def test_an_impossible_hierarchy_is_refused_in_one_sentence(
    sites: int, levels: int | None, loop_max: int, named: str
) -> None:
    with pytest.raises(BadHierarchy) as refusal:
        plan(sites, levels, loop_max)
    assert named in str(refusal.value)
