"""The clock of a site: it never goes back and never steps, and its bound covers its error."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.net.clock import (
    ADOPTED_MAX,
    COMPARE_PERIOD,
    READING_BOUND,
    SLEW_SHARE,
    UNSYNCHRONISED_BOUND,
    SharedClock,
    SystemClock,
    kernel_bound,
)


@dataclass
class Machine:
    """A counter, and a system clock that a test can step."""

    counted: Instant = 5 * SECOND
    offset: Duration = 1_700_000_000 * SECOND

    def count(self) -> Instant:
        return self.counted

    def read(self) -> Instant:
        return self.counted + self.offset

    def shared(self) -> SharedClock:
        return SharedClock(read=self.read, count=self.count)


@given(st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(-2 * ADOPTED_MAX, 2 * ADOPTED_MAX)), max_size=20))
def test_now_never_goes_back_and_keeps_its_pace_whatever_the_system_clock_is_set_to(
    history: list[tuple[Duration, Duration]],
) -> None:
    machine = Machine()
    clock = machine.shared()
    last = clock.now()
    for passed, step in history:
        machine.counted += passed
        machine.offset += step
        clock.bound()
        now = clock.now()
        assert abs(now - last - passed) <= passed // SLEW_SHARE + 1
        assert now >= last
        last = now


@given(st.integers(-ADOPTED_MAX, ADOPTED_MAX).filter(lambda step: abs(step) >= MILLISECOND))
def test_a_step_is_in_the_bound_at_once_and_slewed_later(step: Duration) -> None:
    machine = Machine()
    clock = machine.shared()
    before = clock.now()
    machine.offset += step
    assert clock.now() == before
    assert clock.bound() == READING_BOUND + abs(step)
    machine.counted += SLEW_SHARE * abs(step) // 2
    assert abs(clock.bound() - READING_BOUND - abs(step) // 2) <= 1
    machine.counted += SLEW_SHARE * abs(step)
    assert clock.bound() == READING_BOUND
    assert clock.now() == machine.read()
    assert clock.steps == 1


def test_a_step_that_is_too_large_is_never_slewed() -> None:
    machine = Machine()
    clock = machine.shared()
    machine.offset += ADOPTED_MAX + 1
    assert clock.bound() == READING_BOUND + ADOPTED_MAX + 1
    machine.counted += 1_000 * SECOND
    assert clock.bound() == READING_BOUND + ADOPTED_MAX + 1
    assert clock.now() == machine.read() - ADOPTED_MAX - 1


def test_a_clock_that_is_set_back_to_what_it_was_is_trusted_again() -> None:
    machine = Machine()
    clock = machine.shared()
    clock.skew = 50 * MILLISECOND
    assert clock.bound() == READING_BOUND + 50 * MILLISECOND
    machine.counted += SECOND
    assert clock.bound() == READING_BOUND + 40 * MILLISECOND
    clock.skew = 0
    assert clock.bound() == READING_BOUND + 40 * MILLISECOND, "it is looked at once in a while"
    machine.counted += COMPARE_PERIOD
    assert clock.bound() == READING_BOUND + 10 * MILLISECOND + COMPARE_PERIOD // SLEW_SHARE
    machine.counted += 2 * SECOND
    assert clock.bound() == READING_BOUND
    assert clock.now() == machine.read()


def test_an_interrupted_comparison_is_no_step() -> None:
    machine = Machine()
    interrupted = iter((0, 0, 0, 900 * MICROSECOND))

    def count() -> Instant:
        machine.counted += next(interrupted, 100)
        return machine.counted

    clock = SharedClock(read=machine.read, count=count)
    assert clock.bound() == READING_BOUND
    assert clock.steps == 0


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
    with pytest.raises(UserError, match=f"clock bound is {bound} ns; declare a positive"):
        SystemClock(declared_bound=bound)
