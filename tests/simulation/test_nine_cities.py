"""The ring of nine cities: how long a crash stops it, and that losses alone do not make it reform."""

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.simulation.nine_cities import fail_over, false_reformations

STALL_MAX = 1_500 * MILLISECOND


@pytest.mark.parametrize("seed", [1, 4])
def test_a_crash_before_its_turn_stops_the_ring_for_a_second_and_a_half_at_most(seed: int) -> None:
    failover = fail_over(loss=0.01, seed=seed)
    assert failover.declared <= 1_300 * MILLISECOND
    assert failover.entered <= 2 * SECOND
    assert failover.stall <= STALL_MAX


def test_losses_alone_cause_no_reformation() -> None:
    *_, hours = false_reformations(loss=0.05, minutes=6, seed=2)
    assert hours.causes == ()
    assert hours.per_hour == 0
