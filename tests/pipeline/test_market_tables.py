"""Sales, last sales and volumes by Spark are those of the tape, whatever is canceled or corrected."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.market.prices import ONE
from fairtape.pipeline.schemas import TABLES
from fairtape.pipeline.tables.market_tables import last_sales, sales, volumes
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.sales import Sales
from unit.tape.sales_twin import SYMBOLS, Action, tokens
from unit.tape.ticker_values import NOON, VENUE_OF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
Known = tuple[tuple[object, ...] | None, int, int]  # last sale, volume, trades
ORDERS = 100
KINDS = {"sell": "trade", "cancel": "cancel", "correct": "correction"}
LAST = ("number", "source", "venue", "price", "quantity", "traded_at_ns")


def row_of(stripe: int, number: int, action: Action) -> Row:
    """The columns of the tables `trades` and `notices` together. Each stripe has symbols of its own."""
    is_sale = action.kind == "sell"
    return {
        "stripe": stripe,
        "sequence": number,
        "token": number,
        "source": action.source,
        "acknowledged_at_ns": NOON + number,
        "commit_at_ns": NOON + number,
        "venue": VENUE_OF[action.source],
        "symbol": f"{action.symbol}{stripe}",
        "price": None if action.kind == "cancel" else action.price * ONE,
        "quantity": None if action.kind == "cancel" else action.quantity * ONE,
        "trade_id": 0,
        "trade_flags": 0,
        "traded_at_ns": None if action.kind == "cancel" else NOON,
        "kind": KINDS[action.kind],
        "number": None if is_sale else action.target,
        "noticed_at_ns": NOON,
    }


def frame(spark: "SparkSession", name: str, rows: Sequence[Row]) -> "DataFrame":
    schema = TABLES[name].schema
    return spark.createDataFrame(
        pa.Table.from_pylist([{each: row[each] for each in schema.names} for row in rows], schema)
    )


def on_the_tape(stripe: int, actions: Sequence[Action]) -> dict[str, Known]:
    """The last sale, the volume and the trades of each symbol."""
    tape, decoder = Sales(), EntryDecoder(1)
    for token in tokens(actions, [3]):
        for delivery in decoder.decode_release(token):
            tape.apply(delivery)
    found: dict[str, Known] = {}
    for symbol in tape.symbols():
        each = tape.of(symbol)
        assert each is not None
        last = each.last
        facts = last and (last.number, last.source, last.venue, last.price, last.quantity, last.traded_at)
        found[f"{symbol}{stripe}"] = (facts, each.volume.quantity, each.volume.trades)
    return found


def random_order(chance: Random) -> list[Action]:
    """Trades and revisions; most revisions are of the source and symbol of the message whose number they name."""
    actions: list[Action] = []
    for number in range(1, chance.randrange(40)):
        kind = chance.choice(["sell", "sell", "cancel", "correct", "correct", "other"])
        target = chance.randrange(max(1, number - 12), number + 1)
        meant = actions[target - 1] if target < number and chance.random() < 0.8 else None
        symbol = meant.symbol if meant else chance.choice(SYMBOLS)
        source = meant.source if meant else chance.choice(list(VENUE_OF))
        actions.append(Action(kind, target, symbol, chance.randrange(1, 9), chance.randrange(9), source))
    return actions


@pytest.mark.parametrize("seed", range(2))
def test_spark_and_the_tape_agree_on_random_orders(spark: "SparkSession", seed: int) -> None:
    chance = Random(seed)
    orders = [random_order(chance) for _ in range(ORDERS)]
    rows = [
        row_of(stripe, number, action)
        for stripe, actions in enumerate(orders)
        for number, action in enumerate(actions, 1)
        if action.kind in KINDS
    ]
    trades = frame(spark, "trades", [row for row in rows if row["kind"] == "trade"])
    notices = frame(spark, "notices", [row for row in rows if row["kind"] != "trade"])
    made = sales(trades, notices).cache()
    last = {row["symbol"]: tuple(row[name] for name in LAST) for row in last_sales(made).collect()}
    totals = {
        row["symbol"]: (int(row["volume"]), row["trades"]) for row in volumes(made).where("venue = '*'").collect()
    }
    made.unpersist()
    found = {symbol: (last[symbol], *totals[symbol]) for symbol in last}
    expected: dict[str, Known] = {}
    for stripe, actions in enumerate(orders):
        expected |= on_the_tape(stripe, actions)
    assert found == {symbol: known for symbol, known in expected.items() if known[0] is not None}
    assert all(known[1:] == (0, 0) for known in expected.values() if known[0] is None)
