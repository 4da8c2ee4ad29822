"""Percentiles by rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.percentiles import Rank, percentile

VALUES = list(range(100))


def test_a_percentile_is_the_first_value_above_its_share() -> None:
    assert [percentile(VALUES, share, 0) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert percentile([3, 1, 2], 0.5, 0) == 2
    assert percentile([2, 1], 0.5, 0) == 2


def test_no_values_give_the_default() -> None:
    assert percentile([], 0.5, 0.0) == 0.0
    assert percentile([], 0.5, None) is None


@pytest.mark.parametrize("rank", [Rank.LOWER, Rank.HIGHER])
@given(values=st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1), share=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_lower_and_higher_ranks_agree_with_numpy(rank: Rank, values: list[int], share: float) -> None:
    expected = np.quantile(values, share, method=rank.value)  # type: ignore[call-overload]
    assert percentile(values, share, 0, rank=rank) == expected


@pytest.mark.parametrize("last", [100, 700, 2_900, 100_000])
def test_a_rank_is_exact_although_a_share_is_a_float(last: int) -> None:
    assert percentile(range(last + 1), 0.99, 0, rank=Rank.HIGHER) == last * 99 // 100
    assert percentile(range(last), 0.99, 0) == last * 99 // 100
