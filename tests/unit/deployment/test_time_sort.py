"""The external sort gives what sorting everything at once gives, for any size of runs and blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairtape.deployment.publish.time_sort import by_time
from fairtape.market.trades import Trades, blank_trades


def trades_at(instants: list[int], first_id: int) -> Trades:
    trades = blank_trades(len(instants))
    trades["traded_at"] = instants
    trades["trade_id"] = np.arange(first_id, first_id + len(instants))
    return trades


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=9), max_size=9),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_runs_merge_into_the_stable_order_of_everything(batches: list[list[int]], run_max: int, block_max: int) -> None:
    firsts = np.cumsum([1, *map(len, batches)]).tolist()
    given_batches = [trades_at(instants, first) for instants, first in zip(batches, firsts, strict=False)]
    expected = sorted(
        (int(at), int(number)) for batch in given_batches for at, number in batch[["traded_at", "trade_id"]]
    )
    merged = list(by_time(iter(given_batches), run_max=run_max, block_max=block_max))
    found = [(int(at), int(number)) for batch in merged for at, number in batch[["traded_at", "trade_id"]]]
    assert found == expected
