"""Market tables: corrected sales, bars, average prices, last sales, volumes.

Periods are computed with integers: `window()` would convert every row to a timestamp, which doubles the cost and loses
three digits. Rows are grouped by the *number* of the period and not by its first nanosecond: multiples of 10⁹ share
their lowest bits, which slows Spark's hash tables. Quantities are summed as two halves of 32 bits, which cannot
overflow and cost little; a sum of decimals takes several times as long.
"""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fairtape.core.instants import SECOND, Duration
from fairtape.pipeline.schemas import TABLES, Arrow

MINUTE: Final = 60 * SECOND
DAY: Final = 86_400 * SECOND

_HALF: Final = 32
_REVISED: Final = "stripe INT, sequence LONG, number LONG, void BOOLEAN, price LONG, quantity LONG, traded_at_ns LONG"


def sales(trades: DataFrame, notices: DataFrame) -> DataFrame:
    """Trades with their corrections, at the place of the original; cancelled trades are left out.

    A notice is valid as it is for the ticker: it comes from the source of the trade, has its venue and symbol, and
    refers to the current number of the trade, which a correction changes. The ticker forgets old trades; this looks
    back as far as the table goes.
    """
    said = notices.where("number IS NOT NULL")
    means = said.select("stripe", F.col("number").alias("sequence")).distinct()
    fields = ("stripe", "sequence", "source", "venue", "symbol", "price", "quantity", "traded_at_ns")
    nothing = F.lit(None)
    first = trades.join(means, ["stripe", "sequence"], "left_semi").select(
        *fields, F.lit("trade").alias("kind"), nothing.cast("long").alias("number")
    )
    revised = (
        first.unionByName(said.select(*fields, "kind", "number")).groupBy("stripe").applyInArrow(_revised, _REVISED)
    )
    changed = {name: F.coalesce(F.col(f"right.{name}"), F.col(f"wrong.{name}")) for name in fields[-3:]}
    right = F.broadcast(revised).alias("right")
    joined = trades.alias("wrong").join(right, ["stripe", "sequence"], "left").where("NOT coalesce(right.void, false)")
    columns = {name: F.col(f"wrong.{name}") for name in trades.columns} | {
        "stripe": F.col("stripe"),
        "sequence": F.col("sequence"),
        **changed,
        "number": F.coalesce(F.col("right.number"), F.col("sequence")),
    }
    return joined.select(*(columns[name].alias(name) for name in TABLES["sales"].columns))


def _revised(table: Arrow) -> Arrow:
    """The trades of one stripe that were cancelled or corrected."""
    known: dict[int, dict[str, Any]] = {}  # by the number under which a trade is known now
    revised: dict[int, dict[str, Any]] = {}  # by its place
    for row in sorted(table.to_pylist(), key=lambda row: row["sequence"]):
        if row["kind"] == "trade":
            known[row["sequence"]] = row | {"place": row["sequence"]}
            continue
        wrong = known.get(row["number"])
        if wrong is None or any(wrong[name] != row[name] for name in ("source", "venue", "symbol")):
            continue
        del known[row["number"]]
        void = row["kind"] == "cancel"
        revised[wrong["place"]] = row | {"number": row["sequence"], "sequence": wrong["place"], "void": void}
        if not void:
            known[row["sequence"]] = row | {"place": wrong["place"]}
    names = [part.split()[0] for part in _REVISED.split(", ")]
    kinds = [pa.int32(), pa.int64(), pa.int64(), pa.bool_(), pa.int64(), pa.int64(), pa.int64()]
    rows = [{name: row[name] for name in names} for row in revised.values()]
    return pa.Table.from_pylist(rows, schema=pa.schema(list(zip(names, kinds, strict=True))))


def bars(trades: DataFrame, *, period: Duration = SECOND, by: tuple[str, ...] = ("symbol",)) -> DataFrame:
    """Open, high, low, close, volume and count of each period of trade times; within a period, numbers give the order.

    `period_at_ns` is the beginning of the period. Grouping by an integer key for the symbol is several times faster
    than by text.
    """
    return _at(trades.groupBy(*by, number_of(period)).agg(*_measures()), period)


def consolidated_bars(sales: DataFrame, *, period: Duration = SECOND) -> DataFrame:
    """Bars of symbols, also of those that moved from one stripe to another, whose orders follow one another in time."""
    opened_at, closed_at = F.min("acknowledged_at_ns"), F.max("acknowledged_at_ns")
    parts = sales.groupBy("stripe", "symbol", number_of(period)).agg(
        *_measures(), opened_at.alias("opened_at"), closed_at.alias("closed_at")
    )
    whole = parts.groupBy("symbol", "period").agg(
        F.min_by("open", F.struct("opened_at", "stripe")).alias("open"),
        F.max("high").alias("high"),
        F.min("low").alias("low"),
        F.max_by("close", F.struct("closed_at", "stripe")).alias("close"),
        F.sum("volume").cast("decimal(38,0)").alias("volume"),
        F.sum("trades").alias("trades"),
    )
    return _at(whole, period)


def _measures() -> list[Column]:
    return [
        F.min_by("price", "sequence").alias("open"),
        F.max("price").alias("high"),
        F.min("price").alias("low"),
        F.max_by("price", "sequence").alias("close"),
        sum_of("quantity").alias("volume"),
        F.count(F.lit(1)).alias("trades"),
    ]


def number_of(period: Duration) -> Column:
    """The number of the period of a trade."""
    return F.call_function("div", F.col("traded_at_ns"), F.lit(period)).alias("period")


def _at(grouped: DataFrame, period: Duration) -> DataFrame:
    """Replace the number of a period by its first nanosecond."""
    begins_at = (F.col("period") * F.lit(period)).alias("period_at_ns")
    return grouped.select(*(begins_at if name == "period" else F.col(name) for name in grouped.columns))


def sum_of(name: str) -> Column:
    """The exact sum of integers ≥ 0; computed with decimals only where it may exceed 64 bits."""
    high, low = F.sum(F.shiftright(name, _HALF)), F.sum(F.col(name).bitwiseAND((1 << _HALF) - 1))
    small = (high < 1 << (_HALF - 2)) & (low < 1 << (2 * _HALF - 2))
    large = high.cast("decimal(27,0)") * F.lit(1 << _HALF).cast("decimal(10,0)") + low.cast("decimal(27,0)")
    return F.when(small, (high * (1 << _HALF) + low).cast("decimal(38,0)")).otherwise(large.cast("decimal(38,0)"))


def vwap(sales: DataFrame, *, period: Duration = DAY) -> DataFrame:
    """The volume-weighted average price: an exact sum of products, divided once and rounded toward zero."""
    paid = F.col("price").cast("decimal(19,0)") * F.col("quantity").cast("decimal(19,0)")
    sums = sales.groupBy("symbol", number_of(period)).agg(
        F.try_sum(paid).cast("decimal(38,0)").alias("notional"),
        sum_of("quantity").alias("volume"),
        F.count(F.lit(1)).alias("trades"),
    )
    return _at(sums, period).withColumn("vwap", F.when(F.col("volume") > 0, F.expr("notional div volume")))


def last_sales(sales: DataFrame) -> DataFrame:
    """The last sale of every symbol over all stripes; a corrected sale keeps its original place."""
    latest = F.max_by(F.struct(*sales.columns), F.struct("acknowledged_at_ns", "stripe", "sequence"))
    return sales.groupBy("symbol").agg(latest.alias("last")).select("last.*")


def volumes(sales: DataFrame, *, period: Duration = DAY) -> DataFrame:
    """The volume of each venue, and (venue *) of all together."""
    each = _at(
        sales.groupBy("symbol", number_of(period), "venue").agg(
            sum_of("quantity").alias("volume"), F.count(F.lit(1)).alias("trades")
        ),
        period,
    )
    together = each.groupBy("symbol", "period_at_ns").agg(
        F.sum("volume").cast("decimal(38,0)").alias("volume"), F.sum("trades").alias("trades")
    )
    return each.unionByName(together.withColumn("venue", F.lit("*")))
