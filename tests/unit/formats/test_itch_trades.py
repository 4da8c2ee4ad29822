"""The trades of a day of ITCH: each reported trade once, with the price and the side of its order."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.formats.dbn import read_dbn, write_dbn
from fairtape.formats.framing import frame
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.columns import to_arrow
from fairtape.formats.itch.messages import BadItch
from fairtape.formats.itch.trades import trades_of
from fairtape.market.prices import ONE
from fairtape.market.trades import PublishedTrade, Trades, decode, records
from fairtape.storage.trade_files import read_trades
from fairtape.tape.batches import trades_to_arrow
from unit.formats.trade_values import MIDNIGHT, same, trades
from unit.formats.trade_values import as_records as records_of


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
