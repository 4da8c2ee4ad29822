"""Topologies: which ones are valid, and what follows from them."""

import pytest

from fairtape.ring.membership.formation import LOOPS_MAX
from fairtape.ring.membership.topology import BadTopology, Excess, LoopTopology, Topology, lease_margin
from unit.ring.loop_values import TIMING


def loop(number: int, *tour: int, junction: int | None = None, parent: int = 0) -> LoopTopology:
    return LoopTopology(number=number, tour=tour, timing=TIMING, junction=junction, parent=parent)


def test_every_site_has_a_home_loop() -> None:
    topology = Topology(loops=(loop(0, 1, 2), loop(1, 5, 6, junction=2)))
    assert topology.homes() == {1: 0, 2: 0, 5: 1, 6: 1}
    assert topology.primary.tour == (1, 2)


@pytest.mark.parametrize(
    ("wanted", "members", "resilience"),
    [(0, 5, 0), (2, 5, 2), (4, 3, 2), ("majority", 5, 2), ("majority", 4, 2), ("all", 5, 4), ("all", 1, 0)],
)
def test_a_loop_survives_no_more_failures_than_it_has_further_members(
    wanted: int | str, members: int, resilience: int
) -> None:
    assert Topology(loops=(loop(0, 1),), resilience=wanted).resilience_of(range(members)) == resilience


@pytest.mark.parametrize(
    ("loops", "resilience", "complaint"),
    [
        ((), 1, "the first must be 0"),
        (((1, (5,), 1, 0),), 1, "the first must be 0"),
        (((0, (1, 2), None, 0), (0, (3,), 1, 0)), 1, "none twice"),
        (((0, (1, 2), None, 0), (1, (2,), 1, 0)), 1, "site 2 is in two loops"),
        (((0, (1,), None, 0), (1, (2,), 1, 7)), 1, "has parent 7"),
        (((0, (1,), None, 0), (LOOPS_MAX, (2,), 1, 0)), 1, "use numbers below"),
        (((0, (1,), None, 0),), "some", "expected a number"),
        (((0, (1,), None, 0),), -1, "must not be negative"),
    ],
)
def test_a_topology_that_cannot_work_is_refused_in_a_sentence(
    loops: tuple[tuple[int, tuple[int, ...], int | None, int]], resilience: int | str, complaint: str
) -> None:
    with pytest.raises(BadTopology, match=complaint):
        Topology(
            loops=tuple(loop(number, *tour, junction=junction, parent=up) for number, tour, junction, up in loops),
            resilience=resilience,
        )


def test_an_invalid_loop_is_refused_in_a_sentence() -> None:
    with pytest.raises(BadTopology, match="loop 3 has no sites"):
        loop(3, junction=1)
    with pytest.raises(BadTopology, match="loop 3 has no junction"):
        loop(3, 1)
    with pytest.raises(BadTopology, match="takes up to 127"):
        loop(0, *range(128))


def test_the_lease_margin_covers_the_errors_of_two_clocks() -> None:
    assert lease_margin(TIMING) == 4 * TIMING.clock_error_max


@pytest.mark.parametrize(
    ("resilience", "excess", "least", "expected"),
    [
        (1, Excess.CONTINUE, None, 0),
        (1, Excess.HALT, None, 1),
        (5, Excess.HALT, None, 2),
        ("majority", Excess.HALT, None, 0),
        ("all", Excess.HALT, None, 0),
        ("all", Excess.CONTINUE, 1, 1),
        (2, Excess.HALT, 0, 0),
    ],
)
def test_a_number_is_a_promise_where_nothing_may_be_lost(
    resilience: int | str, excess: Excess, least: int | None, expected: int
) -> None:
    """Decision 56, Least resilience."""
    loop = LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING)
    topology = Topology(loops=(loop,), resilience=resilience, excess=excess, resilience_min=least)
    assert topology.least_resilience == expected


def test_a_least_resilience_that_all_sites_together_lack_is_refused() -> None:
    loop = LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING)
    with pytest.raises(BadTopology, match="resilience_min is 2; expected 0 to 1"):
        Topology(loops=(loop,), resilience=1, resilience_min=2)


def test_a_primary_loop_with_more_sites_than_a_formation_can_name_is_refused() -> None:
    with pytest.raises(BadTopology, match="the primary loop takes up to 80"):
        LoopTopology(number=0, tour=tuple(range(1, 82)), timing=TIMING)
