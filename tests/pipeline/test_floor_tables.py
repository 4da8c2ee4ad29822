"""Orders, their events and committed trades: what a floor says when it is replayed from the table."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.market_values import Market
from pipeline.test_tables import rows

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.apps.floor import Floor
from fairtape.apps.floor_outputs import Committed, Rejected, Sequenced
from fairtape.core.effects import Ordered
from fairtape.core.instants import MILLISECOND
from fairtape.market.administration import CASH, Funding, OpenMarket
from fairtape.market.order_codec import Message, encode
from fairtape.market.orders import Cancel, NewOrder, Side
from fairtape.market.prices import ONE
from fairtape.market.rules.values import Continuous
from fairtape.pipeline.jobs import run_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATEWAY = 101


def requests() -> list[list[Message]]:
    """A market, two accounts, orders that meet, one that is cancelled and one that nobody can pay."""
    number = iter(range(1, 100))

    def order(account: str, name: str, side: Side, quantity: int, price: int) -> NewOrder:
        return NewOrder(
            GATEWAY, next(number), account, name, "XYZ", side, quantity * ONE, price * ONE, entered_at=77 * MILLISECOND
        )

    return [
        [OpenMarket(GATEWAY, next(number), "XYZ", Continuous(), ONE // 100, ONE)],
        [
            Funding(GATEWAY, next(number), "ann", CASH, 10_000 * ONE),
            Funding(GATEWAY, next(number), "bob", "XYZ", 50 * ONE),
        ],
        [order("bob", "b1", Side.SELL, 20, 101), order("ann", "a1", Side.BUY, 5, 101)],
        [order("ann", "a2", Side.BUY, 4, 99), order("ann", "a3", Side.BUY, 1_000, 99)],
        [Cancel(GATEWAY, next(number), "ann", "a2", 78 * MILLISECOND)],
        [order("ann", "a4", Side.BUY, 3, 102)],
        [Cancel(GATEWAY, next(number), "bob", "b1", 79 * MILLISECOND)],
    ]


def test_events_and_committed_trades_are_those_of_the_floor(spark: "SparkSession", tmp_path: Path) -> None:
    market = Market(1)
    market.form((1, 2, 3))
    for messages in requests():
        market.add([(GATEWAY, encode(message)) for message in messages])
    market.trade_on(4)
    run_batch(spark, market.write(tmp_path / "journals", (1, 2)), tmp_path / "tables")
    floor = Floor(commit_passes=0)
    outputs = [each for entry in market.history if isinstance(entry, Ordered) for each in floor.apply(entry)]
    committed = [each.trade for each in outputs if isinstance(each, Committed)]
    assert len(committed) == 2
    found = sorted(rows(tmp_path / "tables", "executions"), key=lambda row: row["trade_id"])
    names = ("trade_id", "token", "symbol", "price", "quantity", "buy_order", "sell_order", "buyer", "seller")
    assert [tuple(row[name] for name in names) for row in found] == [
        tuple(getattr(trade, name) for name in names) for trade in committed
    ]
    events = rows(tmp_path / "tables", "order_events")
    for kind, name in ((Sequenced, "sequenced"), (Rejected, "rejected")):
        told = sorted(row["sequence"] for row in events if row["event"] == name)
        assert told == sorted(each.number for each in outputs if isinstance(each, kind))
    bobs = [
        row["event"] for row in sorted(events, key=lambda row: (row["token"], row["step"])) if row["order_number"] == 4
    ]
    assert bobs == ["sequenced", "filled", "committed", "filled", "committed", "cancelled"]
    orders = sorted(rows(tmp_path / "tables", "orders"), key=lambda row: row["sequence"])
    assert [(row["kind"], row["client_id"], row["side"], row["entered_at_ns"]) for row in orders[:2]] == [
        ("new", "b1", "sell", 77 * MILLISECOND),
        ("new", "a1", "buy", 77 * MILLISECOND),
    ]
