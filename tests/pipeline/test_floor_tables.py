"""Orders, their events and committed trades: what a floor says when it is replayed from the table."""

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.core.effects import Ordered
from fairtape.core.instants import MILLISECOND
from fairtape.exchange.floor import Floor
from fairtape.exchange.outputs import Committed, Rejected, Sequenced
from pipeline.shared_tables import FLOOR, rows

if TYPE_CHECKING:
    from pipeline.shared_tables import Made


def test_events_and_committed_trades_are_those_of_the_floor(made: "Made") -> None:
    floor = Floor(commit_passes=0)
    history = made.floor.history
    outputs = [each for entry in history if isinstance(entry, Ordered) for each in floor.apply(entry)]
    committed = [each.trade for each in outputs if isinstance(each, Committed)]
    assert len(committed) == 2
    found = sorted(rows(made.tables, "executions"), key=lambda row: row["trade_id"])
    assert {row["stripe"] for row in found} == {FLOOR}
    names = ("trade_id", "token", "symbol", "price", "quantity", "buy_order", "sell_order", "buyer", "seller")
    assert [tuple(row[name] for name in names) for row in found] == [
        tuple(getattr(trade, name) for name in names) for trade in committed
    ]
    events = rows(made.tables, "order_events")
    for kind, name in ((Sequenced, "sequenced"), (Rejected, "rejected")):
        sequences = sorted(row["sequence"] for row in events if row["event"] == name)
        assert sequences == sorted(each.number for each in outputs if isinstance(each, kind))
    bobs = [
        row["event"] for row in sorted(events, key=lambda row: (row["token"], row["step"])) if row["order_number"] == 4
    ]
    assert bobs == ["sequenced", "filled", "committed", "filled", "committed", "cancelled"]
    orders = sorted(rows(made.tables, "orders"), key=lambda row: row["sequence"])
    assert [(row["kind"], row["client_id"], row["side"], row["entered_at_ns"]) for row in orders[:2]] == [
        ("new", "b1", "sell", 77 * MILLISECOND),
        ("new", "a1", "buy", 77 * MILLISECOND),
    ]
