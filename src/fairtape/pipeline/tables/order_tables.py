"""The order and its contents: trades, notices, orders, and the distributions that other tables use.

All modules of tables are functions from DataFrame to DataFrame without side effects. Time and money are integers
throughout (nanoseconds, billionths), so results are exact and equal on every cluster. `fairtape.pipeline.schemas` has
the meaning of each column.
"""

from collections.abc import Callable, Iterator

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.exchange.orders import CANCEL_KIND as CANCEL_ORDER_KIND
from fairtape.exchange.orders import NEW_ORDER_KIND, REPLACE_KIND
from fairtape.market.notices import CANCEL_KIND, CORRECTION_KIND, STATUS_KIND
from fairtape.market.trades import TRADE_KIND, TRADE_SIZE
from fairtape.pipeline.schemas import MESSAGE, PERCENTILES, TABLES, Arrow
from fairtape.pipeline.source.payload_columns import notices_of, orders_of, trades_of

_ONCE = ("stripe", "sequence", "token", "source", "acknowledged_at_ns", "commit_at_ns")


def one_order(deliveries: DataFrame, part: DataFrame | None = None) -> DataFrame:
    """Every number once: contents are the same at all sites, as reconciliation proves.

    For each stripe the journal that begins first is taken to its end, the next one continues from there, and so on. So
    a site that failed or joined later leaves no gap, and most numbers come from one journal. With a `part` of the
    deliveries, only the numbers in it are returned.
    """
    extents = deliveries.groupBy("stripe", "site").agg(
        F.min("sequence").alias("first"), F.max("sequence").alias("until")
    )
    earlier = Window.partitionBy("stripe").orderBy("first", "site").rowsBetween(Window.unboundedPreceding, -1)
    ranges = extents.withColumn("begin", F.greatest("first", F.max("until").over(earlier) + 1))
    chosen = ranges.where("begin <= until").select("stripe", "site", "begin", "until")
    within = F.col("sequence").between(F.col("begin"), F.col("until"))
    rows = deliveries if part is None else part
    return rows.join(F.broadcast(chosen), ["stripe", "site"]).where(within).drop("begin", "until")


def trades(order: DataFrame) -> DataFrame:
    """Messages that are trades."""
    sized = order.where(F.length("payload") == TRADE_SIZE)
    return _decoded(sized, (TRADE_KIND,), trades_of, "trades")


def notices(order: DataFrame) -> DataFrame:
    """Messages that are notices of venues."""
    return _decoded(order, (CANCEL_KIND, CORRECTION_KIND, STATUS_KIND), notices_of, "notices")


def orders(order: DataFrame) -> DataFrame:
    """Messages that are requests to a trading floor."""
    return _decoded(order, (NEW_ORDER_KIND, CANCEL_ORDER_KIND, REPLACE_KIND), orders_of, "orders")


def _decoded(
    order: DataFrame, kinds: tuple[int, ...], decode: Callable[[Iterator[Arrow]], Iterator[Arrow]], table: str
) -> DataFrame:
    """Decode payloads of these kinds; others, known by their first byte, do not leave the JVM."""
    begins = F.substring("payload", 1, 1).isin([bytearray([kind]) for kind in kinds])
    chosen = order.where((F.col("kind") == MESSAGE) & begins).select(*_ONCE, "payload")
    return chosen.mapInArrow(decode, from_arrow_schema(TABLES[table].schema))


def entered(trades: DataFrame, orders: DataFrame) -> DataFrame:
    """The entry time of each message: of a trade when it was made, of a request when its gateway accepted it."""
    place = ("stripe", "sequence", "token", "source", "acknowledged_at_ns")
    traded = trades.select(*place, F.col("traded_at_ns").alias("entered_at_ns"))
    return traded.unionByName(orders.select(*place, "entered_at_ns"))


def distribution(frame: DataFrame, keys: tuple[str, ...], value: Column, weight: Column | None = None) -> DataFrame:
    """Count, minimum, percentiles and maximum of a value by these keys, weighted.

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
