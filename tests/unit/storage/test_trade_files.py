"""Trades are read from CSV and Parquet exactly, and every error in a file is one sentence."""

import csv
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.market.prices import FIXED_MAX, FIXED_MIN, ONE, BadNumber, format_fixed, parse_fixed
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NAME_MAX, VENUE_NUMBERS
from fairtape.market.trades import FLAGS_ALLOWED, TRADE_ID_MAX, PublishedTrade, Trades, encode
from fairtape.storage.trade_files import ROWS_MAX, ignored_columns, read_trades

SUFFIXES = ("csv", "parquet")
NOW = 1_723_161_600_123_456_789
NOW_TEXT = "2024-08-09T00:00:00.123456789"

positive = st.integers(0, FIXED_MAX)
ink = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
trades = st.builds(
    PublishedTrade,
    venue=st.just(0),
    other_venue=st.text(ink, min_size=1, max_size=VENUE_NAME_MAX).filter(lambda name: name not in VENUE_NUMBERS),
    symbol=st.text(ink, min_size=1, max_size=SYMBOL_MAX),
    price=st.integers(FIXED_MIN, FIXED_MAX),
    quantity=positive,
    traded_at=positive,
    trade_id=st.integers(0, TRADE_ID_MAX),
    flags=st.integers(0, FLAGS_ALLOWED),
)


def read(path: Path, time_unit: str | None = None) -> Trades:
    return np.concatenate(list(read_trades(path, time_unit=time_unit)))


def written(path: Path, many: list[PublishedTrade]) -> Path:
    """Write a file with these trades."""
    columns: dict[str, Any] = {
        "time": [trade.traded_at for trade in many],
        "symbol": [trade.symbol for trade in many],
        "price": [format_fixed(trade.price) for trade in many],
        "quantity": [format_fixed(trade.quantity) for trade in many],
        "venue": [trade.venue_name for trade in many],
        "trade_id": [trade.trade_id for trade in many],
        "trade_flags": [trade.flags for trade in many],
    }
    if path.suffix == ".csv":
        with path.open("w", encoding="ascii", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    else:
        numbers = {name: pa.array(columns[name], pa.uint64()) for name in ("time", "trade_id")}
        prices = {name: pa.array(map(Decimal, columns[name]), pa.decimal128(19, 9)) for name in ("price", "quantity")}
        pq.write_table(pa.table(columns | numbers | prices), path)
    return path


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "trades.csv"
    path.write_text(text, encoding="utf-8")
    return path


def parquet_file(folder: Path, **columns: Any) -> Path:
    path = folder / "trades.parquet"
    table = {"time": pa.array([NOW]), "symbol": ["A"], "price": ["1.5"], "quantity": ["2"]} | columns
    pq.write_table(pa.table(table), path)
    return path


def complaint(reading: Callable[[], object]) -> str:
    with pytest.raises(UserError) as refused:
        reading()
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    return sentence


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(many=st.lists(trades, min_size=1, max_size=10))
@settings(deadline=None, max_examples=50)
def test_trades_survive_a_file_exactly(suffix: str, many: list[PublishedTrade]) -> None:
    with TemporaryDirectory() as folder:
        path = written(Path(folder) / f"trades.{suffix}", many)
        assert read(path, "ns").tobytes() == b"".join(map(encode, many))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_large_file_is_read_in_several_batches(suffix: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"many.{suffix}", [PublishedTrade(1, "A", ONE, ONE, NOW, 1)] * (2 * ROWS_MAX + 1))
    sizes = [len(batch) for batch in read_trades(path)]
    assert len(sizes) >= 3
    assert sum(sizes) == 2 * ROWS_MAX + 1


@pytest.mark.parametrize(
    "header", ["time,symbol,price,quantity", "TS, Symbol ,price,size", "timestamp,symbol,price,qty"]
)
def test_columns_are_found_by_any_of_their_names(header: str, tmp_path: Path) -> None:
    (trade,) = read(csv_file(tmp_path, f"{header}\n{NOW},BRK.B,61804.8,1e-05\n"))
    assert (trade["traded_at"], trade["symbol"]) == (NOW, b"BRK.B")
    assert (trade["price"], trade["quantity"]) == (61_804_800_000_000, 10_000)


def test_other_columns_are_ignored_and_order_does_not_matter(tmp_path: Path) -> None:
    text = f'\ufeffnote,qty,price,symbol,id,venue,time\r\n"a, b",3,2.5,X,9,XLON,{NOW}\r\n'
    (trade,) = read(csv_file(tmp_path, text))
    assert (trade["quantity"], trade["trade_id"], trade["venue"]) == (3 * ONE, 9, b"XLON")


def test_a_recording_of_three_venues_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "recording.parquet"
    table = {
        "venue": pa.array(["SPOT", "FUTURES", "SPOT"], pa.large_string()),
        "symbol": pa.array(["BTCUSDT", "BTCUSD_PERP", "BTCUSDT"], pa.large_string()),
        "recv_ns": [NOW, NOW + 1, NOW + 2],
        "event_ms": [NOW // MILLISECOND] * 3,
        "trade_ms": [NOW // MILLISECOND] * 3,
        "trade_id": [849_714_402, 7, 849_714_403],
        "price": [61_804.8, 61_808.8, 2_673.37],
        "qty": [1e-05, 10_000.0, 0.1],
        "buyer_maker": [True, False, True],
    }
    pq.write_table(pa.table(table), path)
    found = read(path)
    assert found["traded_at"].tolist() == [NOW, NOW + 1, NOW + 2]
    assert found["price"].tolist() == [61_804_800_000_000, 61_808_800_000_000, 2_673_370_000_000]
    assert found["quantity"].tolist() == [10_000, 10_000 * ONE, ONE // 10]
    assert found["trade_id"].tolist() == [849_714_402, 7, 849_714_403]
    assert found["venue"].tolist() == [b"SPOT", b"FUTURES", b"SPOT"]


def test_without_venue_and_number_the_venue_has_no_name_and_rows_are_numbered(tmp_path: Path) -> None:
    found = read(csv_file(tmp_path, f"time,symbol,price,size\n{NOW},A,1,1\n{NOW},B,1,1\n"))
    assert found["venue"].tolist() == [b"", b""]
    assert found["trade_id"].tolist() == [1, 2]


def test_venues_keep_their_names_and_numbers_are_names(tmp_path: Path) -> None:
    names = ("XTKS", "MOON", "42", "BINANCE_SPOT", "MOON")
    rows = "".join(f"{NOW},A,1,1,{venue}\n" for venue in names)
    found = read(csv_file(tmp_path, "time,symbol,price,size,venue\n" + rows))
    assert found["venue"].tolist() == [name.encode() for name in names]
    numbered = read(parquet_file(tmp_path, venue=pa.array([42])))
    assert numbered["venue"].tolist() == [b"42"]


@pytest.mark.parametrize(
    ("unit", "text", "instant"),
    [
        ("s", "1723161600", NOW // SECOND * SECOND),
        ("s", "1723161600.123456789", NOW),
        ("ms", "1723161600123", NOW // MILLISECOND * MILLISECOND),
        ("ms", "1723161600123.456789", NOW),
        ("us", "1723161600123456.789", NOW),
        ("ns", str(NOW), NOW),
        ("ns", "1", 1),
        ("s", f"{NOW_TEXT}Z", NOW),
    ],
)
def test_a_number_counts_the_named_unit(unit: str, text: str, instant: int, tmp_path: Path) -> None:
    path = csv_file(tmp_path, f"time,symbol,price,size\n{text},A,1,1\n")
    assert read(path, unit)["traded_at"].tolist() == [instant]


@pytest.mark.parametrize(("unit", "step"), [("s", SECOND), ("ms", MILLISECOND), ("us", 1_000), ("ns", 1)])
def test_a_column_of_numbers_counts_the_named_unit(unit: str, step: int, tmp_path: Path) -> None:
    path = parquet_file(tmp_path, time=pa.array([NOW // step]))
    assert read(path, unit)["traded_at"].tolist() == [NOW // step * step]


@pytest.mark.parametrize(
    ("time", "remedy"),
    [
        (NOW // SECOND, "if it counts seconds, say --time-unit s"),
        (NOW // MILLISECOND, "if it counts milliseconds, say --time-unit ms"),
        (NOW // 1_000, "if it counts microseconds, say --time-unit us"),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_implausible_time_is_refused_with_its_likely_unit(
    time: int, remedy: str, suffix: str, tmp_path: Path
) -> None:
    path = written(
        tmp_path / f"trades.{suffix}",
        [PublishedTrade(1, "A", ONE, ONE, NOW, 1), PublishedTrade(1, "A", ONE, ONE, time, 2)],
    )
    sentence = complaint(lambda: read(path))
    assert "row 2: time is " in sentence
    assert sentence.endswith(remedy)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        (str(NOW), NOW),
        (f"{NOW_TEXT}Z", NOW),
        (NOW_TEXT, NOW),
        (NOW_TEXT.replace("T", " "), NOW),
        ("2024-08-09T02:00:00.123456789+02:00", NOW),
        ("2024-08-08T19:00:00.123456789-0500", NOW),
        ("2024-08-09T00:00:00Z", NOW // SECOND * SECOND),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_written_time_is_taken_exactly(text: str, instant: int, suffix: str, tmp_path: Path) -> None:
    mixed = [text, str(NOW)]
    if suffix == "csv":
        path = csv_file(tmp_path, "time,symbol,price,size\n" + "".join(f"{t},A,1,1\n" for t in mixed))
    else:
        path = parquet_file(tmp_path, time=mixed, symbol=["A"] * 2, price=["1"] * 2, quantity=["1"] * 2)
    assert read(path)["traded_at"].tolist() == [instant, NOW]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_a_parquet_timestamp_of_any_unit_is_taken_exactly(unit: str, zone: str | None, tmp_path: Path) -> None:
    step = {"s": SECOND, "ms": MILLISECOND, "us": 1_000, "ns": 1}[unit]
    path = parquet_file(tmp_path, time=pa.array([NOW // step]).cast(pa.timestamp(unit, zone)))
    assert read(path)["traded_at"].tolist() == [NOW // step * step]


@pytest.mark.parametrize(
    "price",
    [
        pa.array(["123.456789012"]),
        pa.array(["123.456789012"]).dictionary_encode(),
        pa.array([Decimal("123.456789012")]),
        pa.array([Decimal("123.456789012")], pa.decimal256(60, 20)),
    ],
)
def test_decimals_of_any_kind_are_taken_exactly(price: Any, tmp_path: Path) -> None:
    assert read(parquet_file(tmp_path, price=price))["price"].tolist() == [123_456_789_012]


def test_whole_numbers_are_whole_prices(tmp_path: Path) -> None:
    assert read(parquet_file(tmp_path, price=pa.array([7])))["price"].tolist() == [7 * ONE]


def test_a_narrow_float_has_its_shortest_decimal_value(tmp_path: Path) -> None:
    found = read(parquet_file(tmp_path, price=pa.array([190.1], pa.float32())))["price"].tolist()
    assert found == [190_100_000_000]


@given(numbers=st.lists(st.floats(-9e9, 9e9), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_floats_are_rounded_to_the_nearest_unit(numbers: list[float]) -> None:
    count = len(numbers)
    with TemporaryDirectory() as folder:
        rows = {"time": pa.array([NOW] * count), "symbol": ["A"] * count, "quantity": ["1"] * count}
        found = read(parquet_file(Path(folder), price=pa.array(numbers, pa.float64()), **rows))["price"].tolist()
    for number, fixed in zip(numbers, found, strict=True):
        # A float within 2**-23 of the middle between two units may be rounded to either.
        assert abs(Fraction(number) * ONE - fixed) <= Fraction(1, 2) + Fraction(1, 1 << 23)


@example(text="0e99")
@example(text="0e-99")
@example(text="1e-92")
@example(text="9223372036.854775807")
@example(text="9223372036.854775808")
@example(text="-9223372036.854775808")
@example(text="-9223372036.854775809")
@given(text=st.from_regex(r"-?[0-9]{0,11}(\.[0-9]{0,11})?(e-?[0-9]{1,2})?", fullmatch=True))
@settings(deadline=None, max_examples=60)
def test_a_file_accepts_the_same_numbers_as_the_command_line(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = csv_file(Path(folder), f"time,symbol,size,price\n{NOW},A,1,{text}\n")
        try:
            expected = parse_fixed(text)
        except BadNumber:
            complaint(lambda: read(path))
        else:
            assert read(path)["price"].tolist() == [expected]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time", "yesterday"),
        ("time", "-1"),
        ("time", "1960-01-01T00:00:00Z"),
        ("time", "2024-08-09T00:00:00.1234567891Z"),
        ("time", "99999999999999999999"),
        ("symbol", ""),
        ("symbol", "A B"),
        ("symbol", "É"),
        ("symbol", "X" * 17),
        ("price", ""),
        ("price", "nan"),
        ("price", "1.0000000001"),
        ("price", "9223372037"),
        ("size", "ten"),
        ("size", "-1"),
        ("venue", "BINANCE_FUTURES"),
        ("venue", ""),
        ("id", "0x10"),
        ("id", "-1"),
        ("id", "99999999999999999999"),
        ("trade_flags", "4"),
    ],
)
def test_a_bad_value_is_named_with_its_row(field: str, value: str, tmp_path: Path) -> None:
    good = {"time": str(NOW), "symbol": "A", "price": "1", "size": "1", "venue": "1", "id": "1", "trade_flags": "0"}
    path = tmp_path / "bad.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(good))
        writer.writeheader()
        writer.writerows([good] * 6 + [good | {field: value}] + [good] * 5)
    sentence = complaint(lambda: read(path))
    assert f"row 7: {field} is {value!r}; expected" in sentence


def test_rows_are_counted_through_the_whole_file(tmp_path: Path) -> None:
    rows = 100_000
    text = "time,symbol,price,size\n" + f"{NOW},A,1,1\n" * rows + f"{NOW},A,one,1\n"
    assert f"row {rows + 1}: price is 'one'" in complaint(lambda: read(csv_file(tmp_path, text)))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("price", pa.array([float("nan")])),
        ("price", pa.array([float("inf")])),
        ("quantity", pa.array([-0.5])),
        ("price", pa.array([1e10])),
        ("price", pa.array([None], pa.float64())),
        ("symbol", pa.array([None], pa.string())),
        ("time", pa.array([-5])),
    ],
)
def test_a_bad_value_in_parquet_is_named_with_its_row(column: str, values: Any, tmp_path: Path) -> None:
    assert f"row 1: {column} is " in complaint(lambda: read(parquet_file(tmp_path, **{column: values})))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("price", pa.array([True])),
        ("symbol", pa.array([1])),
        ("time", pa.array([1.5e18])),
        ("quantity", pa.array([1], pa.date32())),
        ("venue", pa.array([1.0])),
        ("id", pa.array([1.0])),
    ],
)
def test_a_column_of_a_wrong_type_is_named_with_its_type(column: str, values: Any, tmp_path: Path) -> None:
    sentence = complaint(lambda: read(parquet_file(tmp_path, **{column: values})))
    assert f"column {column} has the type {values.type}" in sentence


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_file_is_refused_at_once(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"absent.{suffix}"
    assert complaint(lambda: read_trades(path)).endswith("No such file or directory")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_file_is_refused_at_once(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"empty.{suffix}"
    path.touch()
    assert "is empty" in complaint(lambda: read_trades(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_folder_is_no_trade_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"folder.{suffix}"
    path.mkdir()
    assert "cannot be read as" in complaint(lambda: read_trades(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_without_rows_is_refused(suffix: str, tmp_path: Path) -> None:
    path = written(tmp_path / f"none.{suffix}", [])
    assert "has no rows" in complaint(lambda: read(path))


def test_a_missing_column_is_named_with_the_existing_ones(tmp_path: Path) -> None:
    sentence = complaint(lambda: read_trades(csv_file(tmp_path, "time,symbol,price\n1,A,1\n")))
    assert "has no column quantity or size or qty; its columns are time, symbol, price" in sentence


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    sentence = complaint(lambda: read_trades(csv_file(tmp_path, "time,symbol,price,price,size\n1,A,1,1,1\n")))
    assert "2 columns named 'price'" in sentence


def test_a_row_of_another_width_is_named(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "time,symbol,price,size\n1,A,1,1\n1,A,1\n")
    assert "row 2 has 3 values; the header names 4 columns" in complaint(lambda: read(path))


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.parquet"
    path.write_text("time,symbol,price,size\n1,A,1,1\n")
    assert "cannot be read as Parquet" in complaint(lambda: read_trades(path))


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    whole = parquet_file(tmp_path).read_bytes()
    path = tmp_path / "cut.parquet"
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as Parquet" in complaint(lambda: read_trades(path))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"time,symbol,price,size\n1,\xff,1,1\n"])
def test_a_file_that_is_not_text_is_no_csv(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "binary.csv"
    path.write_bytes(content)
    assert "cannot be read as CSV" in complaint(lambda: read(path))


@pytest.mark.parametrize("name", ["trades.txt", "trades", "trades.csv.gz"])
def test_a_file_with_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert ".csv or .parquet" in complaint(lambda: read_trades(path))


@pytest.mark.parametrize(("word", "flags"), [("BUY", 1), ("b", 1), ("sell", 2), ("A", 2), ("", 0), ("N", 0), ("2", 2)])
def test_a_side_names_the_aggressor_of_a_trade(tmp_path: Path, word: str, flags: int) -> None:
    file = tmp_path / "trades.csv"
    file.write_text(f"time,symbol,price,size,side\n{NOW},A,1,1,{word}\n")
    (trades,) = read_trades(file)
    assert trades["flags"].tolist() == [flags]


def test_an_unknown_side_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trades.csv"
    file.write_text(f"time,symbol,price,size,side\n{NOW},A,1,1,up\n")
    with pytest.raises(UserError, match="row 1: side is 'up'; expected buy, sell or nothing"):
        list(read_trades(file))


def test_unused_columns_of_a_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "trades.csv"
    file.write_text(f"time,symbol,price,size,buyer_maker,note\n{NOW},A,1,1,true,x\n")
    assert ignored_columns(file) == ("buyer_maker", "note")
