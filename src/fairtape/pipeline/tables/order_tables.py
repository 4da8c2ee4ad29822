"""Tables from tables: functions from DataFrame to DataFrame, without side effects. Here: the order, and what is in it.

Siblings go on from here: `transforms_market` makes bars and volumes, `transforms_fairness` says how fair it was,
`transforms_floor` replays a trading floor. Time and money are integers throughout (nanoseconds, billionths), so results
are exact and equal on every cluster. `fairtape.pipeline.schemas` says what each column means.
"""

from collections.abc import Callable, Iterator

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.exchange.order_codec import CANCEL_KIND as CANCEL_ORDER_KIND
from fairtape.exchange.order_codec import NEW_ORDER_KIND, REPLACE_KIND
from fairtape.market.notices import CANCEL_KIND, CORRECTION_KIND, STATUS_KIND
from fairtape.market.trades import TRADE_KIND, TRADE_SIZE
from fairtape.pipeline.schemas import MESSAGE, PERCENTILES, TABLES, Arrow
from fairtape.pipeline.source.payload_columns import notices_of, orders_of, trades_of

_ONCE = ("stripe", "sequence", "token", "source", "acknowledged_at_ns", "commit_at_ns")


def one_order(deliveries: DataFrame, part: DataFrame | None = None) -> DataFrame:
    """Every number once, whichever sites delivered it: contents are the same everywhere, as reconciliation proves.

    Of each stripe the journal that begins first tells it to its end, the next one goes on from there, and so on. So a
    site that failed or joined later leaves no hole, and most numbers come from one journal. Of a `part` of the
    deliveries, which has some numbers as all sites delivered them, only these are told.
    """
    extents = deliveries.groupBy("stripe", "site").agg(
        F.min("sequence").alias("first"), F.max("sequence").alias("until")
    )
    earlier = Window.partitionBy("stripe").orderBy("first", "site").rowsBetween(Window.unboundedPreceding, -1)
    told = extents.withColumn("begin", F.greatest("first", F.max("until").over(earlier) + 1))
    tellers = told.where("begin <= until").select("stripe", "site", "begin", "until")
    mine = F.col("sequence").between(F.col("begin"), F.col("until"))
    rows = deliveries if part is None else part
    return rows.join(F.broadcast(tellers), ["stripe", "site"]).where(mine).drop("begin", "until")


def trades(order: DataFrame) -> DataFrame:
    """Messages that are trades."""
    sized = order.where(F.length("payload") == TRADE_SIZE)
    return _decoded(sized, (TRADE_KIND,), trades_of, "trades")


def notices(order: DataFrame) -> DataFrame:
    """What venues say beside their trades."""
    return _decoded(order, (CANCEL_KIND, CORRECTION_KIND, STATUS_KIND), notices_of, "notices")


def orders(order: DataFrame) -> DataFrame:
    """What traders ask of a floor."""
    return _decoded(order, (NEW_ORDER_KIND, CANCEL_ORDER_KIND, REPLACE_KIND), orders_of, "orders")


def _decoded(
    order: DataFrame, kinds: tuple[int, ...], decode: Callable[[Iterator[Arrow]], Iterator[Arrow]], table: str
) -> DataFrame:
    """Only what begins like one of these kinds leaves the JVM."""
    begins = F.substring("payload", 1, 1).isin([bytearray([kind]) for kind in kinds])
    chosen = order.where((F.col("kind") == MESSAGE) & begins).select(*_ONCE, "payload")
    return chosen.mapInArrow(decode, from_arrow_schema(TABLES[table].schema))


def entered(trades: DataFrame, orders: DataFrame) -> DataFrame:
    """When each message was entered, by its own word: a trade when it was made, a request when its gateway took it."""
    place = ("stripe", "sequence", "token", "source", "acknowledged_at_ns")
    traded = trades.select(*place, F.col("traded_at_ns").alias("entered_at_ns"))
    return traded.unionByName(orders.select(*place, "entered_at_ns"))


def distribution(frame: DataFrame, keys: tuple[str, ...], value: Column, weight: Column | None = None) -> DataFrame:
    """Count, least, percentiles and most of a value by these keys, each value counted as often as its weight says.

    The nearest rank is exact: of n values, p99 is the least that at least 99 of each 100 are not above.
    """
    rows = frame.select(
        *keys, value.alias("value"), (F.lit(1) if weight is None else weight).cast("long").alias("weight")
    )
    up_to = Window.partitionBy(*keys).orderBy("value").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = rows.withColumn("rank", F.sum("weight").over(up_to)).withColumn(
        "total", F.sum("weight").over(Window.partitionBy(*keys))
    )
    shares = [
        F.min(F.when(F.col("rank") * 10_000 >= F.col("total") * share, F.col("value"))).alias(name)
        for name, share in PERCENTILES.items()
    ]
    bounds = F.sum("weight").alias("count"), F.min("value").alias("least")
    return ranked.groupBy(*keys).agg(*bounds, *shares, F.max("value").alias("most"))
