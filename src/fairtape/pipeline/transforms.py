"""Tables from tables: functions from DataFrame to DataFrame, without side effects.

Time and money are integers throughout (nanoseconds, billionths), so results are exact and equal on every cluster.
Columns are grouped by as they come: a table with an integer key for its symbol is grouped some times faster than one
with text.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from fairtape.core.instants import SECOND, Duration


def bars(trades: DataFrame, *, period: Duration = SECOND, by: tuple[str, ...] = ("symbol",)) -> DataFrame:
    """Open, high, low, close, volume and count of each period, by when trades were made and ordered by number.

    `period_at_ns` is the beginning of the period. Integer arithmetic finds it: `window()` would make a timestamp of
    every row first, which costs as much again as all the rest and loses three digits.
    """
    begins_at = (F.col("traded_at_ns") - F.col("traded_at_ns") % F.lit(period)).alias("period_at_ns")
    return trades.groupBy(*by, begins_at).agg(
        F.min_by("price", "sequence").alias("open"),
        F.max("price").alias("high"),
        F.min("price").alias("low"),
        F.max_by("price", "sequence").alias("close"),
        F.sum("quantity").alias("volume"),
        F.count(F.lit(1)).alias("trades"),
    )
