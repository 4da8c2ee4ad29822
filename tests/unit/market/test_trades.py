"""Trades and their records of 64 bytes, one by one and in bulk."""

import string
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairtape.market.prices import FIXED_MAX, FIXED_MIN
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NAME_MAX, VENUE_NUMBERS, VENUES
from fairtape.market.trades import (
    FEW_MAX,
    FLAGS_ALLOWED,
    TRADE_DTYPE,
    TRADE_ID_MAX,
    TRADE_KIND,
    TRADE_SIZE,
    TRADE_VERSION,
    BadTrade,
    PublishedTrade,
    TradeFlag,
    blank_trades,
    decode,
    encode,
    fields,
    records,
)

INK = string.ascii_letters + string.digits + string.punctuation
positive = st.integers(0, FIXED_MAX)
anything: dict[str, st.SearchStrategy[Any]] = {
    "symbol": st.text(INK, min_size=1, max_size=SYMBOL_MAX),
    "price": st.integers(FIXED_MIN, FIXED_MAX),
    "quantity": positive,
    "traded_at": positive,
    "trade_id": st.integers(0, TRADE_ID_MAX),
    "flags": st.integers(0, FLAGS_ALLOWED),
}
others = st.text(INK, max_size=VENUE_NAME_MAX).filter(lambda name: name not in VENUE_NUMBERS)
trades = st.builds(PublishedTrade, venue=st.integers(0, len(VENUES)), **anything) | st.builds(
    PublishedTrade, venue=st.just(0), other_venue=others, **anything
)

TRADE = PublishedTrade(
    7, "BRK.B", 61_804_800_000_000, 4_000_000_000, 1_723_161_256_419_684_465, 849_714_402, TradeFlag.SOLD
)


@given(trades)
def test_a_trade_survives_its_encoding(trade: PublishedTrade) -> None:
    payload = encode(trade)
    assert len(payload) == TRADE_SIZE
    assert decode(payload) == trade


def test_the_layout_is_the_one_in_journals() -> None:
    names = b"XASX" + bytes(8) + b"BRK.B" + bytes(11)
    head = bytes([TRADE_KIND, TRADE_VERSION]) + struct.pack("<H", TradeFlag.SOLD) + names
    tail = struct.pack("<qqqQ", TRADE.price, TRADE.quantity, TRADE.traded_at, TRADE.trade_id)
    assert encode(TRADE) == head + tail


def test_a_venue_is_known_by_its_name_for_every_publisher() -> None:
    assert decode(encode(TRADE)).venue_name == "XASX"
    elsewhere = replace(TRADE, venue=0, other_venue="BINANCE_SPOT")
    assert decode(encode(elsewhere)) == elsewhere
    assert elsewhere.venue_name == "BINANCE_SPOT"
    assert replace(TRADE, venue=0).venue_name == ""


@given(st.lists(trades, max_size=20))
def test_a_body_of_trades_is_an_array_of_the_same_values(many: list[PublishedTrade]) -> None:
    found = records(b"".join(map(encode, many)))
    assert found.dtype == TRADE_DTYPE
    assert [
        (venue.decode(), symbol.decode(), price, quantity, traded_at, trade_id, flags)
        for _, _, flags, venue, symbol, price, quantity, traded_at, trade_id in found.tolist()
    ] == [(t.venue_name, t.symbol, t.price, t.quantity, t.traded_at, t.trade_id, t.flags) for t in many]


def test_records_are_not_copied() -> None:
    body = bytearray(encode(TRADE))
    found = records(body)
    body[32:40] = (5).to_bytes(8, "little")
    assert found["price"].tolist() == [5]


@given(trades, st.integers(0, TRADE_SIZE - 1), st.integers(0, 255))
@example(TRADE, 16 + 2, 0)  # a NUL within the symbol
@example(TRADE, 16, 0)  # a symbol that begins with NUL
@example(TRADE, 4 + 1, 0)  # a NUL within the venue
@example(TRADE, 39, 0x80)  # a negative price, which is one
@example(TRADE, 47, 0x80)  # a negative quantity
def test_a_batch_refuses_exactly_what_a_single_trade_refuses(trade: PublishedTrade, position: int, value: int) -> None:
    payload = bytearray(encode(trade))
    payload[position] = value

    def refused(check: Callable[[bytes], object], octets: bytes) -> bool:
        try:
            check(octets)
        except BadTrade:
            return True
        return False

    alone = refused(decode, bytes(payload))
    assert refused(records, encode(TRADE) + payload) == alone
    assert refused(records, encode(TRADE) * FEW_MAX + payload) == alone
    (one,) = fields(payload)
    assert one.is_trade != alone


@given(st.binary(max_size=2 * TRADE_SIZE))
def test_hostile_bytes_raise_nothing_but_bad_trade(payload: bytes) -> None:
    for read in (decode, records):
        try:
            read(payload)
        except BadTrade:
            continue


@pytest.mark.parametrize(
    ("field", "position", "value"),
    [
        ("kind", 0, 0),
        ("version", 1, 9),
        ("flags", 2, 4),
        ("venue", 4, 0xE9),
        ("venue", 5, 0x20),
        ("symbol", 16, 0xE9),
        ("symbol", 17, 0x20),
        ("quantity", 47, 0xFF),
        ("traded_at", 55, 0xFF),
    ],
)
def test_a_refusal_names_the_field(field: str, position: int, value: int) -> None:
    payload = bytearray(encode(TRADE))
    payload[position] = value
    with pytest.raises(BadTrade, match=f"^{field} is "):
        decode(bytes(payload))
    with pytest.raises(BadTrade, match=f"^{field} of record 1 is "):
        records(encode(TRADE) + payload)


@pytest.mark.parametrize("size", [0, 1, 63, 65, 128])
def test_a_message_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(BadTrade, match=f"^size is {size} bytes"):
        decode(bytes(size))


def test_a_body_that_ends_within_a_record_is_refused() -> None:
    with pytest.raises(BadTrade, match="multiple of 64"):
        records(encode(TRADE)[:-1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("venue", -1),
        ("venue", len(VENUES) + 1),
        ("other_venue", "XLON"),
        ("other_venue", "beside a number"),
        ("symbol", ""),
        ("symbol", "É"),
        ("price", FIXED_MIN - 1),
        ("price", FIXED_MAX + 1),
        ("quantity", -1),
        ("traded_at", -1),
        ("trade_id", TRADE_ID_MAX + 1),
        ("flags", 4),
    ],
)
def test_a_trade_with_a_bad_field_is_refused(field: str, value: int | str) -> None:
    with pytest.raises(BadTrade, match=f"^{field} is "):
        replace(TRADE, **{field: value})  # type: ignore[arg-type]  # that is what is tried


def test_blank_trades_need_only_a_symbol_to_be_trades() -> None:
    blank = blank_trades(3)
    blank["symbol"] = b"A"
    assert np.array_equal(records(blank.tobytes()), blank)
