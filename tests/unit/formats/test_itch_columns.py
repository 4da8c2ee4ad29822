"""Whole ITCH 5.0 files: the same values, bytes and errors as message by message; each reported trade once."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.errors import FormatError
from fairtape.formats import moldudp64
from fairtape.formats.dbn import read_dbn, write_dbn
from fairtape.formats.framing import END_MARK, BadFraming, frame, unframe
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.columns import from_arrow, symbols_by_locate, to_arrow, trades_of
from fairtape.formats.itch.messages import BadItch
from fairtape.market.prices import ONE
from fairtape.market.trades import PublishedTrade, Trades, decode, records
from fairtape.storage.trade_files import read_trades
from fairtape.tape.batches import trades_to_arrow
from unit.formats.itch_values import messages, mutated
from unit.formats.trade_values import MIDNIGHT, same, trades
from unit.formats.trade_values import as_records as records_of

FILES = st.lists(messages(), max_size=30)


def file_of(*written: itch.ItchMessage) -> bytes:
    return frame(map(itch.encode, written))


@given(FILES, st.booleans())
def test_a_file_survives_conversion_byte_for_byte(written: list[itch.ItchMessage], ended: bool) -> None:
    octets = file_of(*written) + (END_MARK if ended else b"")
    assert from_arrow(to_arrow(octets), end_mark=ended) == octets


@given(FILES)
def test_columns_have_the_values_of_the_messages(written: list[itch.ItchMessage]) -> None:
    rows = {
        row["index"]: (letter, {name: value for name, value in row.items() if name != "index"})
        for letter, table in to_arrow(file_of(*written)).items()
        for row in table.to_pylist()
    }
    assert sorted(rows) == list(range(len(written)))
    for index, message in enumerate(written):
        letter, values = rows[index]
        assert letter == message.LETTER
        assert type(message)(**values) == message


@given(mutated(FILES.map(lambda written: file_of(*written))) | st.binary(max_size=80))
def test_a_file_is_refused_exactly_when_one_of_its_messages_is(octets: bytes) -> None:
    try:
        for payload in unframe(octets):
            itch.decode(payload)
    except FormatError:
        with pytest.raises(FormatError):
            to_arrow(octets)
    else:
        tables = to_arrow(octets)
        assert sum(table.num_rows for table in tables.values()) == len(list(unframe(octets)))


@given(FILES)
def test_tables_survive_parquet(written: list[itch.ItchMessage]) -> None:
    octets = file_of(*written)
    stored = {}
    for letter, table in to_arrow(octets).items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        stored[letter] = pq.read_table(pa.BufferReader(sink.getvalue()))
    assert from_arrow(stored) == octets


def test_the_message_blocks_of_a_packet_are_a_file_whose_index_is_the_sequence_number() -> None:
    written = [itch.OrderDelete(1, 2, 3, 4), itch.ItchBrokenTrade(1, 2, 3, 9), itch.OrderDelete(1, 2, 3, 5)]
    (datagram,) = moldudp64.pack("S1", 1_001, map(itch.encode, written))
    header = moldudp64.decode_header(datagram)
    tables = to_arrow(memoryview(datagram)[moldudp64.HEADER_SIZE :], first_index=header.number)
    assert tables["D"]["index"].to_pylist() == [1_001, 1_003]
    assert tables["B"]["match_number"].to_pylist() == [9]


def test_a_filtered_file_keeps_its_order() -> None:
    written = [itch.OrderDelete(n, 0, 0, n) for n in range(6)] + [itch.ItchBrokenTrade(6, 0, 0, 6)]
    tables = to_arrow(file_of(*written))
    tables["D"] = tables["D"].filter(pa.array([n % 2 == 1 for n in range(6)]))
    assert from_arrow(tables) == file_of(written[1], written[3], written[5], written[6])


def test_chunked_tables_with_several_dictionaries_are_one() -> None:
    halves = [file_of(itch.RetailInterest(1, 0, 0, name, "B")) for name in ("AAPL", "MSFT")]
    pieces = [to_arrow(half, first_index=n)["N"] for n, half in enumerate(halves)]
    assert from_arrow({"N": pa.concat_tables(pieces)}) == b"".join(halves)


def test_the_directory_maps_locates_to_symbols() -> None:
    assert symbols_by_locate(to_arrow(file_of(listed(1, "AAPL"), listed(2, "MSFT"), listed(1, "AAPL")))) == {
        1: "AAPL",
        2: "MSFT",
    }
    assert symbols_by_locate({}) == {}


@given(FILES, st.integers(0, 30))
def test_a_file_can_be_read_in_pieces(written: list[itch.ItchMessage], cut: int) -> None:
    pieces = file_of(*written[:cut]), file_of(*written[cut:])
    assert b"".join(from_arrow(to_arrow(piece)) for piece in pieces) == file_of(*written)


@pytest.mark.parametrize(
    ("octets", "refusal", "sentence"),
    [
        (b"\0", BadFraming, "size is 1 bytes; the message that begins at byte 0 lacks its end"),
        (frame([b"S" * 12])[:-1], BadFraming, "the message that begins at byte 0 lacks its end"),
        (END_MARK + frame([b"S" + bytes(10) + b"O"]), BadFraming, "message 0 has 0 bytes"),
        (frame([b"S" + bytes(10) + b"O", b"zzz"]), BadItch, "type of message 1 is 'z'; it must be one of"),
        (frame([b"S" + bytes(11) + b"O"]), BadItch, "message 0 of type S has 13 bytes; it must have 12"),
        (frame([b"S" + bytes(10) + b"\xff"]), BadItch, "event_code of message S is 'ÿ'"),
    ],
)
def test_a_refused_file_names_the_message(octets: bytes, refusal: type[FormatError], sentence: str) -> None:
    with pytest.raises(refusal) as raised:
        to_arrow(octets)
    assert sentence in str(raised.value)


def test_tables_that_are_no_messages_are_refused() -> None:
    good = to_arrow(file_of(itch.RetailInterest(1, 0, 0, "AAPL", "B")))["N"]
    for table, sentence in (
        (good.drop_columns(["stock"]), "has no column stock"),
        (good.set_column(1, "stock_locate", pa.array([70_000])), "stock_locate of message N is 70000"),
        (good.set_column(1, "stock_locate", pa.array([-1])), "must hold whole numbers"),
        (good.set_column(1, "stock_locate", pa.array([None], pa.int64())), "has 1 nulls"),
        (good.set_column(4, "stock", pa.array(["ÄÖ"])), "stock of message N is 'ÄÖ'"),
        (good.set_column(4, "stock", pa.array([1])), "it must hold text"),
        (pa.concat_tables([good, good]), "index 0 is in two rows"),
    ):
        with pytest.raises(BadItch, match=sentence):
            from_arrow({"N": table})
    with pytest.raises(BadItch, match="type is '!'"):
        from_arrow({"!": good})


def test_times_are_whole_nanoseconds() -> None:
    tables = to_arrow(file_of(itch.OrderDelete(1, 2, itch.TIMESTAMP_MAX, (1 << 64) - 1)))
    assert tables["D"]["timestamp_ns"].to_numpy().tolist() == [itch.TIMESTAMP_MAX]
    assert tables["D"]["order_reference"].to_numpy().dtype == np.uint64


def listed(locate: int, stock: str) -> itch.StockDirectory:
    return itch.StockDirectory(locate, 0, 0, stock, "Q", "N", 100, "N", "C", "Z", "P", "N", "", "1", "N", 0, "N")


def day(*messages: itch.ItchMessage) -> Trades:
    return trades_of(to_arrow(frame(map(itch.encode, messages))), midnight_at=MIDNIGHT, venue="XNAS")


def values(found: Trades) -> list[PublishedTrade]:
    return [decode(found[place].tobytes()) for place in range(len(found))]


def xnas(symbol: str, price: int, shares: int, since: int, trade_id: int, flags: int = 0) -> PublishedTrade:
    return PublishedTrade(0, symbol, price * 100_000, shares * ONE, MIDNIGHT + since, trade_id, flags, "XNAS")


DAY = (
    listed(1, "AAPL"),
    listed(2, "MSFT"),
    itch.AddOrder(1, 0, 10, 501, "B", 100, "AAPL", 1_895_000),
    itch.AddOrderAttributed(2, 0, 11, 502, "S", 100, "MSFT", 3_701_500, "MPID"),
    itch.OrderReplace(1, 0, 12, 501, 503, 80, 1_895_100),
    itch.OrderReplace(1, 0, 13, 503, 504, 70, 1_895_200),
    itch.OrderExecuted(1, 0, 14, 504, 30, 9_001),
    itch.OrderExecuted(2, 0, 15, 502, 10, 9_002),
    itch.ItchTrade(1, 0, 16, 0, "B", 5, "AAPL", 1_895_050, 9_003),
    itch.OrderExecutedWithPrice(2, 0, 17, 502, 20, 9_004, "Y", 3_701_400),
    itch.OrderExecutedWithPrice(2, 0, 17, 502, 20, 9_005, "N", 3_701_400),
    itch.CrossTrade(1, 0, 18, 1 << 33, "AAPL", 1_895_000, 9_006, "O"),
    itch.CrossTrade(1, 0, 18, 0, "AAPL", 0, 9_007, "C"),
    itch.ItchBrokenTrade(1, 0, 19, 9_003),
)


def test_every_reported_trade_is_found_once() -> None:
    assert values(day(*DAY)) == [
        xnas("AAPL", 1_895_200, 30, 14, 9_001, flags=2),
        xnas("MSFT", 3_701_500, 10, 15, 9_002, flags=1),
        xnas("AAPL", 1_895_050, 5, 16, 9_003),
        xnas("MSFT", 3_701_400, 20, 17, 9_004, flags=1),
        PublishedTrade(0, "AAPL", 1_895_000 * 100_000, (1 << 33) * ONE, MIDNIGHT + 18, 9_006, 0, "XNAS"),
    ]


def test_a_day_without_trades_has_none() -> None:
    assert len(day()) == 0
    assert len(day(listed(1, "AAPL"))) == 0


def test_circular_replacements_have_no_side() -> None:
    circle = (itch.OrderReplace(1, 0, 0, 2, 1, 5, 7), itch.OrderReplace(1, 0, 0, 1, 2, 5, 8))
    assert values(day(listed(1, "AAPL"), *circle, itch.OrderExecuted(1, 0, 1, 2, 5, 3))) == [xnas("AAPL", 8, 5, 1, 3)]


def test_an_incomplete_day_is_refused() -> None:
    with pytest.raises(BadItch, match="order_reference 504 is executed, but no message entered it"):
        day(listed(1, "AAPL"), itch.OrderExecuted(1, 0, 14, 504, 30, 9_001))
    with pytest.raises(BadItch, match="stock_locate 2 trades, but no directory message names it"):
        day(*DAY[2:])


def test_a_day_survives_dbn_with_every_field_and_nanosecond() -> None:
    fitting = day(*DAY)[:4]  # a DBN size has 32 bits, and the cross has more shares than that
    assert same(read_dbn(write_dbn(fitting)).trades, fitting)


def test_a_day_survives_parquet_with_every_field_and_nanosecond(tmp_path: Path) -> None:
    found = day(*DAY)
    pq.write_table(trades_to_arrow(found), tmp_path / "day.parquet")
    assert same(np.concatenate(list(read_trades(tmp_path / "day.parquet"))), found)


@given(st.lists(trades(), max_size=10))
def test_a_table_has_exactly_the_values_of_the_records(written: list[PublishedTrade]) -> None:
    table = trades_to_arrow(records_of(written))
    assert table["traded_at_ns"].to_pylist() == [trade.traded_at for trade in written]
    assert [int(price.scaleb(9)) for price in table["price"].to_pylist()] == [trade.price for trade in written]
    assert [int(count.scaleb(9)) for count in table["quantity"].to_pylist()] == [trade.quantity for trade in written]
    assert table["trade_id"].to_pylist() == [trade.trade_id for trade in written]
    assert table["symbol"].to_pylist() == [trade.symbol for trade in written]


def test_the_records_are_records() -> None:
    found = day(*DAY)
    assert same(records(found.tobytes()), found)
