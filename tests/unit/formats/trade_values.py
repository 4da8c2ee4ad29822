"""Strategies for trades, as values and as records."""

import numpy as np
from hypothesis import strategies as st

from fairtape.market.prices import FIXED_MAX, FIXED_MIN, ONE
from fairtape.market.symbols import VENUE_NUMBERS
from fairtape.market.trades import TRADE_ID_MAX, PublishedTrade, Trades, blank_trades, encode, records

INK = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
MIDNIGHT = 1_700_006_400_000_000_000  # 2023-11-15 00:00 UTC


@st.composite
def trades(draw: st.DrawFn, *, plain: bool = False) -> PublishedTrade:
    """Any trade; a plain one fits into DBN."""
    name = draw(st.sampled_from(["", "XNYS", "XLON", "MINE", "ELSEWHERE"]) | st.text(INK, max_size=12))
    venue = VENUE_NUMBERS.get(name, 0)
    whole = st.integers(0, (1 << 32) - 2).map(lambda count: count * ONE)
    return PublishedTrade(
        venue,
        draw(st.sampled_from(["AAPL", "MSFT", "BRK.B"]) | st.text(INK, min_size=1, max_size=16)),
        draw(st.integers(FIXED_MIN, FIXED_MAX - 1) | st.integers(0, 1 << 33).map(lambda price: price * 100_000)),
        draw(whole if plain else whole | st.integers(0, FIXED_MAX)),
        draw(st.integers(MIDNIGHT - 10**12, MIDNIGHT + 10**14) | st.integers(0, FIXED_MAX // 2)),
        draw(st.integers(0, (1 << 32) - 1 if plain else TRADE_ID_MAX)),
        draw(st.integers(0, 3)),
        "" if venue else name,
    )


def as_records(values: list[PublishedTrade]) -> Trades:
    return records(b"".join(map(encode, values))) if values else blank_trades(0)


def same(one: Trades, other: Trades) -> bool:
    return one.tobytes() == np.ascontiguousarray(other).tobytes()
