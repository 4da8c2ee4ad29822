"""Ctrl-C during long work; numbers, counts and instants on the command line."""

import math
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.cli.terminal import asked_to_stop, check_within, counted, format_instant, parse_instant
from fairtape.core.errors import UserError


def test_the_first_interrupt_is_recorded_and_the_second_raises() -> None:
    before, printed = signal.getsignal(signal.SIGINT), []
    with asked_to_stop(lambda: printed.append("stopping")) as ended:
        assert not ended()
        os.kill(os.getpid(), signal.SIGINT)
        assert ended()
        assert printed == ["stopping"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


@given(st.floats(1.0, 2.0) | st.integers(1, 2) | st.none())
def test_a_number_within_its_bounds_passes(value: float | None) -> None:
    check_within("--rate", value, 1.0, 2.0)


@given(st.floats(max_value=0.999) | st.floats(min_value=2.001) | st.just(math.nan) | st.integers(3))
def test_any_other_number_is_refused_with_the_bounds(value: float) -> None:
    with pytest.raises(UserError, match=r"^--rate is \S+; give from 1 to 2, or none$"):
        check_within("--rate", value, 1.0, 2.0, hint=", or none")


def test_a_very_long_number_is_shortened_in_the_message() -> None:
    with pytest.raises(UserError) as refused:
        check_within("--seed", 10**4_000, 0, 10**18)
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(("count", "output"), [(0, "0 sites"), (1, "1 site"), (2, "2 sites"), (1_000, "1,000 sites")])
def test_a_noun_agrees_with_its_count(count: int, output: str) -> None:
    assert counted(count, "site") == output


def test_a_time_keeps_its_nanoseconds() -> None:
    assert parse_instant("--since", "1970-01-01T00:00:01.123456789Z") == 1_123_456_789
    assert parse_instant("--since", "1970-01-01T01:00:01.1234567+01:00") == 1_123_456_700


def test_instants_are_read_and_written_in_utc() -> None:
    assert parse_instant("--since", "1970-01-01T00:00:01.5") == 1_500_000_000
    assert parse_instant("--since", "1970-01-01T01:00:00+01:00") == 0
    assert parse_instant("--since", "123") == 123
    assert format_instant(1_500_000_001) == "1970-01-01T00:00:01.500000001Z"
    assert format_instant((1 << 63) - 1) == "2262-04-11T23:47:16.854775807Z"


def test_an_instant_with_too_many_digits_is_one_sentence() -> None:
    with pytest.raises(UserError, match="give nanoseconds since 1970"):
        parse_instant("--since", "9" * 5_000)
