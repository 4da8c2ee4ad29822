"""Batches: columns become records and Arrow, exactly."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.market.prices import FIXED_MAX, FIXED_MIN
from fairtape.market.symbols import VENUES
from fairtape.market.trades import PublishedTrade, encode, records
from fairtape.tape.batches import PLACE_DTYPE, SCHEMA, TradeBatch, join_batches, symbol_set
from fairtape.tape.records import ABSENT

symbols = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ./-", min_size=1, max_size=16)
published = st.builds(
    PublishedTrade,
    venue=st.integers(0, len(VENUES)),
    symbol=symbols,
    price=st.integers(FIXED_MIN, FIXED_MAX),
    quantity=st.integers(0, FIXED_MAX),
    traded_at=st.integers(0, FIXED_MAX),
    trade_id=st.integers(0, (1 << 64) - 1),
    flags=st.integers(0, 3),
)
numbers = st.integers(0, FIXED_MAX)
times = st.one_of(st.just(ABSENT), numbers)


@st.composite
def batches(draw: st.DrawFn) -> tuple[TradeBatch, list[PublishedTrade]]:
    trades = draw(st.lists(published, min_size=1, max_size=12))
    places = np.zeros(len(trades), PLACE_DTYPE)
    for row in range(len(trades)):
        places[row] = (*(draw(numbers) for _ in range(6)), *(draw(times) for _ in range(5)), draw(st.booleans()))
    return TradeBatch(records(b"".join(map(encode, trades))), places), trades


@given(drawn=batches())
def test_every_field_reaches_the_record_as_it_was_published(drawn: tuple[TradeBatch, list[PublishedTrade]]) -> None:
    batch, trades = drawn
    for row, (record, trade) in enumerate(zip(batch.records(), trades, strict=True)):
        assert record.symbol == trade.symbol
        assert record.venue == trade.venue_name
        assert (record.price, record.quantity, record.flags) == (trade.price, trade.quantity, trade.flags)
        assert (record.traded_at, record.trade_id) == (trade.traded_at, trade.trade_id)
        assert record.price_decimal == Decimal(trade.price) / 10**9
        for name in PLACE_DTYPE.names or ():
            stored = batch.places[name][row].item()
            assert getattr(record, name) == (None if stored == ABSENT else stored), name


@given(drawn=batches())
def test_arrow_has_the_same_values_as_the_records(drawn: tuple[TradeBatch, list[PublishedTrade]]) -> None:
    batch, _ = drawn
    arrow = batch.to_arrow()
    assert arrow.schema == SCHEMA
    arrow.validate(full=True)
    renamed = {"trade_flags": "flags"}
    for row, record in zip(arrow.to_pylist(), batch.records(), strict=True):
        for name, value in row.items():
            expected: Any = getattr(record, renamed.get(name, name.removesuffix("_ns")))
            assert value == (Decimal(expected).scaleb(-9) if name in ("price", "quantity") else expected), name


@given(drawn=batches(), chosen=st.sets(symbols, min_size=1))
def test_a_choice_of_symbols_is_that_of_the_records(
    drawn: tuple[TradeBatch, list[PublishedTrade]], chosen: set[str]
) -> None:
    batch, trades = drawn
    chosen |= {trades[0].symbol}
    expected = [record for record in batch.records() if record.symbol in chosen]
    assert list(batch.only(symbol_set(tuple(chosen))).records()) == expected


@given(drawn=batches(), again=batches())
def test_the_latest_of_each_symbol_is_the_last_one_of_it(drawn: Any, again: Any) -> None:
    batch = join_batches([drawn[0], again[0]])
    last = {record.symbol: row for row, record in enumerate(batch.records())}
    assert batch.latest().tolist() == sorted(last.values())


@given(drawn=batches(), cut=st.integers(0, 12))
def test_a_batch_that_was_cut_and_joined_is_the_same(drawn: tuple[TradeBatch, list[PublishedTrade]], cut: int) -> None:
    batch, _ = drawn
    whole = join_batches([batch.slice(0, cut), batch.slice(cut)])
    assert list(whole.records()) == list(batch.records())


def test_a_record_never_changes(tmp_path: object) -> None:
    record = next(
        TradeBatch(records(encode(PublishedTrade(1, "ABC", 1_250_000_000, 2, 3))), np.zeros(1, PLACE_DTYPE)).records()
    )
    with pytest.raises(AttributeError):
        record.price = 5  # type: ignore[misc]
    assert str(record) == "0 ABC@XNYS 0.000000002 at 1.25"
