"""One set of tables for all tests that only read: five markets, each a stripe of its own, made by one job."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from fairtape.core.instants import MILLISECOND
from fairtape.exchange.orders import CASH, Cancel, FloorMessage, Funding, NewOrder, OpenMarket, Side, encode
from fairtape.exchange.rules import Continuous
from fairtape.market.prices import ONE
from fairtape.pipeline.tables.jobs import JobOutcome, run_batch
from pipeline.market_values import Market
from pipeline.reference_tables import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATEWAY = 101
RANDOM = (11, 12)  # seeds
FLOOR = 9  # the stripe of the trading floor


@dataclass(frozen=True)
class Made:
    """Journals, the tables of them, and what the job that made them said."""

    journals: list[Path]
    tables: Path
    outcome: JobOutcome
    floor: Market


def make(spark: "SparkSession", folder: Path) -> Made:
    """All tables of all markets."""
    floor = trading_floor()
    journals = [
        *moved(folder / "journals"),
        *(path for place, seed in enumerate(RANDOM, 2) for path in drawn(folder / "journals", seed, stripe=place)),
        *floor.write(folder / "journals", (1, 2)),
    ]
    return Made(journals, folder / "tables", run_batch(spark, journals, folder / "tables"), floor)


def rows(folder: Path, name: str) -> list[Row]:
    """A table as any reader of Delta sees it."""
    found = DeltaTable(folder / name).to_pyarrow_table().to_pylist()
    return [{key: int(x) if isinstance(x, Decimal) else x for key, x in row.items()} for row in found]


def moved(folder: Path, seed: int = 1) -> list[Path]:
    """Two stripes at three sites, one of which fails early; a Break; and symbols that change their stripe."""
    first, second = Market(seed), Market(seed + 1, stripe=1)
    first.form((1, 2, 3))
    first.trade_on(12)
    first.form((1, 3), broken=True)
    first.trade_on(12, symbols=("ABC",))
    second.form((3, 1))
    second.token = 9
    second.trade_on(14, symbols=("DEF", "GHI"))
    return [
        *first.write(folder, (1, 2, 3), until={2: 9}),
        *second.write(folder, (1, 3)),
    ]


def drawn(folder: Path, seed: int, *, stripe: int = 0) -> list[Path]:
    """A random market at two sites."""
    market = Market(seed, stripe=stripe)
    market.form((1, 2))
    return market.trade_on(25).write(folder, (1, 2))


def trading_floor() -> Market:
    """A market of requests, and some trades of venues behind them."""
    market = Market(1, stripe=FLOOR)
    market.form((1, 2, 3))
    for messages in requests():
        market.add([(GATEWAY, encode(message)) for message in messages])
    return market.trade_on(4)


def requests() -> list[list[FloorMessage]]:
    """A market, two accounts, orders that meet, one that is cancelled and one without funds."""
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
