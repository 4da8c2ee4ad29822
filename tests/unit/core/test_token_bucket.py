"""The token bucket: its rate, its burst, and its identity with a bucket that counts."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.token_bucket import TokenBucket

START = SECOND


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**5)), max_size=60), st.integers(1, 10**9))
def test_a_bucket_never_grants_more_than_its_rate_and_one_burst(steps: list[tuple[int, int]], rate: int) -> None:
    burst = 10 * MILLISECOND
    bucket = TokenBucket(rate, burst)
    now = START
    taken = largest = 0
    for pause, units in steps:
        now += pause
        if bucket.take(units, now):
            taken += units
            largest = max(largest, units)
    assert taken <= rate * (now - START + burst) / SECOND + largest + len(steps)


@given(
    st.lists(st.integers(0, SECOND), max_size=200),
    st.integers(1, 60),
    st.sampled_from([1, 2, 4, 5, 8, 10, 20, 25, 100]),  # a unit takes whole nanoseconds
)
def test_a_bucket_is_one_that_counts_its_units(pauses: list[int], capacity: int, rate: int) -> None:
    bucket = TokenBucket(rate, (capacity - 1) * SECOND // rate)
    held, now = Fraction(capacity), START
    for pause in pauses:
        now += pause
        held = min(held + Fraction(pause * rate, SECOND), Fraction(capacity))
        granted = held >= 1
        held -= granted
        assert bucket.take(1, now) is granted


def test_a_bucket_that_was_charged_too_much_names_when_it_is_ready() -> None:
    bucket = TokenBucket(10, 0)
    bucket.charge(20, START)
    assert bucket.ready_at == START + 2 * SECOND
    assert not bucket.take(1, bucket.ready_at - 1)
    assert bucket.take(1, bucket.ready_at)
