"""Rates of symbols from a history, on Spark: messages of each in every window, and which symbols move together.

There are two kinds of history. *Trades* have a time and a symbol: they are counted per second and per 10 ms, and
windows are chosen from these counts. *Days* have a date, a symbol and a volume: Spark computes messages per day, and
`fairtape.pipeline.stripes.burst_model` models the seconds of such a day.

Spark counts and ranks. What the driver receives is bounded: at most `windows_max` windows, and the peers of symbols.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StringType, StructField, StructType

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration
from fairtape.market.stripes import DAY
from fairtape.market.symbols import SYMBOL_MAX
from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.spark.spark_session import escaped_path, read_parquet
from fairtape.pipeline.stripes.overrun_risk import BadHistory, Indices, Shares, Windows
from fairtape.pipeline.stripes.packing import Likeness
from fairtape.storage.trade_files import COLUMN_NAMES

WINDOWS_MAX: Final = 3_000
PEERS_MAX: Final = 40  # of one symbol
LIKENESS_MIN: Final = 0.25  # a correlation below this is chance
MARKET_MIN: Final = 30  # symbols: the mean of fewer is dominated by one or two of them
BLOCK: Final = 512  # symbols whose peers one task finds
DAYS_MIN: Final = 2  # of a history, to hold some back
NAMES: Final = ("symbol", "venue")  # columns that are text, though they may look like numbers
RETURN_MAX: Final = 0.2  # of a day; more is a split or an error, and would dominate the correlation


@dataclass(frozen=True, eq=False)
class Days:
    """Messages and price moves: rows are symbols, columns are days."""

    symbols: tuple[str, ...]
    dates: tuple[str, ...]
    messages: npt.NDArray[np.float32]
    moves: npt.NDArray[np.float32]  # the price's change since the day before

    def split(self, share: float) -> tuple["Days", "Days"]:
        """The earlier days, and the last ones that are held back."""
        if len(self.dates) < DAYS_MIN:
            raise BadHistory(f"the history has {len(self.dates)} day; to hold some back it must have {DAYS_MIN}")
        at = max(1, min(len(self.dates) - 1, round(len(self.dates) * (1.0 - share))))
        return self._between(0, at), self._between(at, len(self.dates))

    def _between(self, first: int, end: int) -> "Days":
        return Days(self.symbols, self.dates[first:end], self.messages[:, first:end], self.moves[:, first:end])


def read_history(spark: SparkSession, place: Path) -> DataFrame:
    """The history in a CSV or Parquet file, a folder of Parquet files, or a Delta table."""
    if not place.exists():
        raise UserError(f"--from is {str(place)!r}, which does not exist; name a file or a table of history")
    try:
        if (place / "_delta_log").is_dir():
            return _read_delta(spark, place)
        if place.suffix.lower() == ".csv":
            return _read_csv(spark, place)
        return read_parquet(spark, [place])
    except AnalysisException as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"--from is {str(place)!r}, which is not a Parquet file, a CSV file or a Delta table ({reason})"
        ) from None
    except (Py4JJavaError, PySparkException):
        raise UserError(
            f"--from is {str(place)!r}, which is not a Parquet file or a Delta table, and not called .csv; name a file "
            "or a table of history"
        ) from None


def _read_delta(spark: SparkSession, place: Path) -> DataFrame:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    from fairtape.pipeline.spark.delta import checked_folder, paths_of

    try:
        files = paths_of(DeltaTable(checked_folder(place)))
    except DeltaError as error:
        raise UserError(f"--from is {str(place)!r}, a Delta table that cannot be read: {error}") from None
    if not files:
        raise UserError(f"--from is {str(place)!r}, a Delta table without rows; name one that has some")
    return read_parquet(spark, files)


def is_daily(history: DataFrame) -> bool:
    """Whether rows are days of symbols, and not trades. Refuses a table that is neither."""
    names = {name.lower() for name in history.columns}
    if "symbol" not in names:
        has = f"has the columns {', '.join(sorted(names))}" if names else "has no columns"
        raise UserError(f"history {has}; it lacks symbol, and date and volume or a time")
    if any(name in names for name in COLUMN_NAMES["traded_at"]):
        return False
    if {"date", "volume"} <= names:
        return True
    wanted = ", ".join(COLUMN_NAMES["traded_at"])
    raise UserError(f"history has neither date and volume nor a time ({wanted}); rename a column")


def counts(trades: DataFrame, period: Duration) -> DataFrame:
    """symbol, window (the number of the period since 1970), messages."""
    window = F.floor(_time(trades) / F.lit(period)).alias("window")
    return trades.groupBy(F.col("symbol"), window).agg(F.count(F.lit(1)).alias("messages"))


def _time(trades: DataFrame) -> Column:
    """The time of a trade in nanoseconds."""
    names = {name.lower(): name for name in trades.columns}
    name = next(names[each] for each in COLUMN_NAMES["traded_at"] if each in names)
    if dict(trades.dtypes)[name].startswith("timestamp"):
        return F.unix_micros(F.col(name).cast("timestamp")) * F.lit(1_000)
    return F.col(name).cast("long")


def _read_csv(spark: SparkSession, place: Path) -> DataFrame:
    guessed = spark.read.csv(escaped_path(place), header=True, inferSchema=True).schema
    kept = [StructField(each.name, StringType()) if each.name.lower() in NAMES else each for each in guessed]
    return spark.read.csv(escaped_path(place), header=True, schema=StructType(kept))


def split_trades(trades: DataFrame, share: float) -> tuple[DataFrame, DataFrame]:
    """The earlier part of the time, and the last part, which is held back: whole days where there are several."""
    time = _time(trades)
    bounds = trades.agg(F.min(time).alias("first"), F.max(time).alias("last")).first()
    if bounds is None or bounds["first"] is None:
        raise BadHistory("there are no trades in the history; give a longer one")
    first, last = int(bounds["first"]), int(bounds["last"])
    cut = last - int((last - first) * share)
    if last // DAY > first // DAY and (whole := -(-cut // DAY) * DAY) <= last:
        cut = whole
    return trades.where(time < F.lit(cut)), trades.where(time >= F.lit(cut))


def joint_windows(
    trades: DataFrame, symbols: Sequence[str], period: Duration, windows_max: int = WINDOWS_MAX
) -> Windows:
    """Counted windows, each with the part of the time that it stands for.

    They are the windows with the most messages, those with the most messages of one symbol, and a sample of the others
    that depends on their numbers only. A window in which one symbol overloads a narrow stripe, or all symbols a wide
    one, is of the first two kinds, and stands for itself alone.
    """
    counted = counts(trades, period).where(F.col("symbol").isin(list(symbols))).cache()
    try:
        totals = counted.groupBy("window").agg(
            F.sum("messages").alias("total"), F.max("messages").alias("peak"), F.xxhash64("window").alias("lot")
        )
        duration = _windows_in(totals, period)
        third = max(windows_max // 3, 1)
        busiest = totals.orderBy(F.desc("total"), "window").limit(third)
        peaks = totals.orderBy(F.desc("peak"), "window").limit(third)
        whole = busiest.union(peaks).select("window").distinct()
        rest = totals.join(whole, "window", "left_anti")
        drawn = rest.orderBy("lot").limit(third).select("window")
        first = _numbers(whole)
        others, others_stand_for = _numbers(drawn), rest.count()
        return _windows(counted, symbols, first, others, others_stand_for, duration, period)
    finally:
        counted.unpersist()


def _windows_in(totals: DataFrame, period: Duration) -> int:
    """The number of windows from the first to the last of each day, with empty ones."""
    day = F.floor(F.col("window") / F.lit(DAY // period))
    spans = totals.groupBy(day).agg((F.max("window") - F.min("window") + 1).alias("windows"))
    found = spans.agg(F.sum("windows")).first()
    if found is None or found[0] is None:
        raise BadHistory("there are no trades of the chosen symbols in the history; give a longer one")
    return int(found[0])


def _numbers(windows: DataFrame) -> list[int]:
    return sorted(int(row["window"]) for row in windows.select("window").collect())


def _windows(
    counted: DataFrame,
    symbols: Sequence[str],
    whole: Sequence[int],
    drawn: Sequence[int],
    drawn_stand_for: int,
    duration: int,
    period: Duration,
) -> Windows:
    columns = {window: column for column, window in enumerate([*whole, *drawn])}
    rows = {symbol: row for row, symbol in enumerate(symbols)}
    found = np.zeros((len(symbols), len(columns)), np.float32)
    chosen = counted.where(F.col("window").isin(list(columns)))
    for row in chosen.collect():
        found[rows[row["symbol"]], columns[int(row["window"])]] = row["messages"]
    each = drawn_stand_for / max(len(drawn), 1) / duration
    weights = np.concatenate([np.full(len(whole), 1.0 / duration), np.full(len(drawn), each)])
    return Windows.counted(period, found, weights)


def trade_symbols(trades: DataFrame) -> tuple[str, ...]:
    """The symbols of a history that are short enough for a plan."""
    named = trades.where(F.length("symbol").between(1, SYMBOL_MAX)).select("symbol").distinct()
    return tuple(sorted(row["symbol"] for row in named.collect()))


def trade_venues(trades: DataFrame) -> tuple[str, ...]:
    """The venues of a history; none where it has no such column."""
    if "venue" not in trades.columns:
        return ()
    named = trades.where(F.col("venue").isNotNull()).select("venue").distinct()
    return tuple(sorted(row["venue"] for row in named.collect()))


def read_days(history: DataFrame, shares_per_message: float) -> Days:
    """Messages and moves per symbol and day. Days on which fewer than half of the symbols traded are left out."""
    names = {name.lower(): F.col(name) for name in history.columns}
    price = names.get("close", F.lit(None)).cast("double")
    rows = history.select(
        names["symbol"].alias("symbol"),
        names["date"].cast("string").alias("date"),
        (names["volume"].cast("double") / F.lit(shares_per_message)).alias("messages"),
        price.alias("price"),
    ).where((F.col("messages") > 0) & (F.length("symbol") <= SYMBOL_MAX))
    by_day = rows.groupBy("date").agg(F.countDistinct("symbol").alias("symbols"))
    most = by_day.agg(F.max("symbols")).first()
    if most is None or most[0] is None:
        raise BadHistory("no volume is above zero in the history; give days with trades")
    days = by_day.where(F.col("symbols") * 2 > F.lit(int(most[0]))).select("date")
    return _days(rows.join(F.broadcast(days), "date").toArrow())


def _days(table: Arrow) -> Days:
    symbols, rows = np.unique(table["symbol"].to_numpy(), return_inverse=True)
    dates, columns = np.unique(table["date"].to_numpy(), return_inverse=True)
    messages = np.zeros((len(symbols), len(dates)), np.float32)
    messages[rows, columns] = table["messages"].to_numpy()
    prices = np.full(messages.shape, np.nan)
    prices[rows, columns] = table["price"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.diff(np.log(prices), axis=1, prepend=np.nan)
    moves = np.clip(np.nan_to_num(moves), -RETURN_MAX, RETURN_MAX).astype(np.float32)
    return Days(tuple(map(str, symbols)), tuple(map(str, dates)), messages, moves)


def likeness(
    spark: SparkSession, series: npt.NDArray[Any], *, among: Indices | None = None, least: float = LIKENESS_MIN
) -> Likeness:
    """Which symbols move together: the peers with the highest correlation, without the common movement of all.

    Rows of `series` are symbols. Each task finds the peers of a block of symbols, among all symbols or some.
    """
    own = _standard(series)
    candidates = np.arange(len(own)) if among is None else among
    finder = _peer_finder(own, candidates, least)
    blocks = -(-len(own) // BLOCK)
    table = spark.range(0, blocks, 1, min(blocks, 64)).mapInArrow(finder, "one INT, other INT, weight DOUBLE").toArrow()
    pairs = zip(*(table[name].to_pylist() for name in ("one", "other", "weight")), strict=True)
    return Likeness.of(len(own), {(one, other): weight for one, other, weight in sorted(pairs)})


def _standard(series: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Rows with mean 0 and length 1, without the mean of all rows: a move of the whole market relates no symbols."""
    centred = _scaled(np.asarray(series, np.float64))
    market = centred.mean(axis=0) if len(centred) >= MARKET_MIN else 0.0
    return _scaled(centred - market).astype(np.float32)


def _scaled(series: Shares) -> Shares:
    centred = series - series.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(length > 0, length, 1.0), np.float64)


def _peer_finder(own: npt.NDArray[np.float32], among: Indices, least: float) -> Callable[[Any], Iterator[Arrow]]:
    """A function for `mapInArrow`, from the numbers of blocks to pairs."""
    peers_max, block = PEERS_MAX, BLOCK

    def find(batches: Iterator[Arrow]) -> Iterator[Arrow]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = np.arange(number * block, min((number + 1) * block, len(own)))
                alike = own[rows] @ own[among].T
                alike[rows[:, None] == among[None, :]] = 0.0
                best = np.argsort(-alike, axis=1, kind="stable")[:, :peers_max]
                weights = np.take_along_axis(alike, best, axis=1)
                kept = weights > least
                ones = np.broadcast_to(rows[:, None], best.shape)[kept]
                arrays = [ones.astype(np.int32), among[best[kept]].astype(np.int32), weights[kept].astype(np.float64)]
                yield pa.RecordBatch.from_arrays([pa.array(each) for each in arrays], ["one", "other", "weight"])

    return find


def window_series(windows: Windows) -> npt.NDArray[Any]:
    """The series for likeness of trades: square roots of counts, so that no single burst dominates."""
    assert windows.period >= SECOND
    return np.sqrt(windows.counts)
