"""Numbers of the command line are within their bounds, or told in one sentence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.cli.terminal import check_within
from fairtape.core.errors import UserError


@given(st.floats(1.0, 2.0) | st.integers(1, 2) | st.none())
def test_what_is_within_passes(value: float | None) -> None:
    check_within("--rate", value, 1.0, 2.0)


@given(st.floats(max_value=0.999) | st.floats(min_value=2.001) | st.just(math.nan) | st.integers(3))
def test_everything_else_is_named_with_what_to_give(value: float) -> None:
    with pytest.raises(UserError, match=r"^--rate is \S+; give from 1 to 2, or none$"):
        check_within("--rate", value, 1.0, 2.0, hint=", or none")


def test_a_number_without_end_is_cut_short() -> None:
    with pytest.raises(UserError) as refused:
        check_within("--seed", 10**4_000, 0, 10**18)
    assert len(str(refused.value)) < 120
