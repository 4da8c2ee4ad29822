"""The rate at which a node works through what arrives."""

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.net.read_rate import RATE_ASSUMED, SAMPLE_MIN, ReadRate

MIB = 1 << 20


def test_before_anything_is_measured_a_rate_is_assumed() -> None:
    assert ReadRate().period_for(RATE_ASSUMED) == pytest.approx(SECOND, rel=1e-6)


def test_the_rate_follows_what_is_measured() -> None:
    rate = ReadRate()
    for size, period in ((MIB, 10 * MILLISECOND), (MIB // 4, 10 * MILLISECOND)):
        for _ in range(100):
            rate.note(size, period)
        assert rate.period_for(size) == pytest.approx(period, rel=0.01)


def test_small_and_empty_reads_tell_nothing() -> None:
    rate = ReadRate()
    before = rate.period_for(MIB)
    for size, period in ((SAMPLE_MIN - 1, SECOND), (MIB, 0), (MIB, -1)):
        rate.note(size, period)
    assert rate.period_for(MIB) == before
    assert rate.period_for(0) == 0


def test_what_counts_for_more_while_it_waits_is_read_at_a_higher_rate() -> None:
    rate = ReadRate()
    for _ in range(100):
        rate.note(MIB, 10 * MILLISECOND, overhead=7 * MIB)
    assert rate.period_for(8 * MIB) == pytest.approx(10 * MILLISECOND, rel=0.01)
