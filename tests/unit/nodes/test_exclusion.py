"""How long a site that fails again and again stays out (decision 57, Exclusion)."""

from fairtape.core.instants import SECOND
from fairtape.nodes.coordinator.exclusion import FIRST_WAIT, FORGIVEN_AFTER, RING_WAIT_MAX, WAIT_MAX, Exclusions

LEASE = SECOND


def waits(exclusions: Exclusions, now: int) -> int:
    """How many leases site 3 is excluded from now on."""
    return next(lease for lease in range(WAIT_MAX + 2) if not exclusions.excludes(3, now + lease * LEASE))


def test_the_first_failure_costs_nothing_and_one_in_a_further_formation_doubles_the_wait() -> None:
    exclusions = Exclusions()
    found = []
    for formation in range(8):
        for _ in range(2):
            exclusions.failed(3, formation, LEASE, SECOND)
        found.append(waits(exclusions, SECOND))
    assert found == [0, 4, 8, 16, 32, 64, 64, 64]
    assert found[1] == FIRST_WAIT
    assert exclusions.among((2, 3), SECOND) == {3}


def test_the_ring_waits_with_a_member_that_may_not_leave_for_a_shorter_time() -> None:
    exclusions, found = Exclusions(), []
    for formation in range(8):
        exclusions.failed(3, formation, LEASE, SECOND)
        now = (SECOND + lease * LEASE for lease in range(WAIT_MAX))
        found.append(sum(exclusions.holds_up(3, LEASE, each) for each in now))
    assert found == [0, 4, 8, 16, 16, 16, 16, 16]
    assert found[-1] == RING_WAIT_MAX


def test_failures_are_forgiven_after_a_quiet_time() -> None:
    exclusions = Exclusions()
    exclusions.failed(3, 1, LEASE, SECOND)
    assert exclusions.failed(3, 2, LEASE, SECOND + FORGIVEN_AFTER) == []
    assert exclusions.failed(3, 3, LEASE, SECOND + FORGIVEN_AFTER + 1) != []


def test_a_clock_that_is_set_back_extends_no_wait() -> None:
    exclusions = Exclusions()
    for formation in range(2):
        exclusions.failed(3, formation, LEASE, 100 * SECOND)
    assert exclusions.excludes(3, 100 * SECOND)
    assert not exclusions.excludes(3, 99 * SECOND)
