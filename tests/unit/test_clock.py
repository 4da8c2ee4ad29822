"""The clock that machines see: never back, and honest about its error."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.runtime.clock import READING_BOUND, UNSYNCHRONISED_BOUND, SharedClock, SystemClock, kernel_bound
from fairtape.runtime.complaints import Complaint

READINGS = st.lists(st.integers(0, 1 << 62), min_size=2)


def shared(readings: Iterable[int]) -> SharedClock:
    return SharedClock(read=iter(readings).__next__)


@given(READINGS)
def test_now_never_goes_back_and_is_never_behind_its_reading(readings: list[int]) -> None:
    clock = shared(readings)
    answers = [clock.now() for _ in readings[1:]]
    assert answers == sorted(answers)
    assert all(answer >= reading for answer, reading in zip(answers, readings[1:], strict=True))


@given(READINGS)
def test_every_backward_step_is_counted(readings: list[int]) -> None:
    clock = shared(readings)
    for _ in readings[1:]:
        clock.now()
    assert clock.steps == sum(later < earlier for earlier, later in pairwise(readings))


def test_a_held_reading_stands_still_until_the_clock_has_caught_up() -> None:
    clock = shared([100, 200, 150, 199, 201])
    assert [clock.now() for _ in range(4)] == [200, 200, 200, 201]
    assert clock.steps == 1


def test_while_a_reading_is_held_the_distance_is_part_of_the_bound() -> None:
    clock = shared([1_000, 400, 1_001])
    clock.now()
    assert clock.bound() == READING_BOUND + 600
    clock.now()
    assert clock.bound() == READING_BOUND


def test_the_system_clock_reads_the_present_time_and_knows_a_bound() -> None:
    clock = SystemClock()
    assert clock.now() <= clock.now()
    assert clock.bound() > 0


@pytest.mark.skipif(kernel_bound() is not None, reason="the kernel of this machine keeps a bound")
def test_an_unsynchronised_clock_has_the_declared_bound_or_a_pessimistic_one() -> None:
    assert SystemClock(declared_bound=3 * MILLISECOND).bound() == 3 * MILLISECOND
    assert SystemClock().bound() == UNSYNCHRONISED_BOUND


@pytest.mark.skipif(kernel_bound() is None, reason="the clock of this machine is not synchronised")
def test_a_synchronised_clock_has_the_bound_that_the_kernel_keeps() -> None:
    assert SystemClock(declared_bound=SECOND).bound() < UNSYNCHRONISED_BOUND


def test_sites_on_one_host_differ_only_by_the_reading() -> None:
    assert SharedClock().bound() == READING_BOUND


@pytest.mark.parametrize("bound", [0, -1])
def test_a_declared_bound_that_is_not_positive_is_refused(bound: int) -> None:
    with pytest.raises(Complaint, match=f"clock bound is {bound} ns; declare a positive"):
        SystemClock(declared_bound=bound)
