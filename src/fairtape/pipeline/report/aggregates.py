"""The figures of a report, each a function from tables of the pipeline to one small table.

Time is cut into about as many periods as a plot has points, so whatever the size of the tables, little leaves Spark.
Everything is counted in integers; percentiles are exact (the value at that rank, never one between two).
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from fairtape.core.instants import SECOND, Duration, Instant

PERIODS_MAX: Final = 240
PERIODS: Final = tuple(SECOND * each for each in (1, 2, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 14_400, 86_400))
BUSIEST_MAX: Final = 12
MINUTE: Final = 60 * SECOND


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time that a report is about, and the period that it is cut into."""

    first_at: Instant
    last_at: Instant

    @property
    def period(self) -> Duration:
        """The shortest round period of which there are not too many."""
        lasted = self.last_at - self.first_at
        return next((each for each in PERIODS if lasted // each < PERIODS_MAX), PERIODS[-1])

    def begins(self, instant: str) -> Column:
        """The beginning of the period that an instant is in."""
        return (F.col(instant) - F.col(instant) % F.lit(self.period)).alias("period_at_ns")


def span_of(releases: DataFrame) -> TimeSpan | None:
    """From the first to the last commit; None where nothing was released."""
    found = releases.agg(F.min("commit_at_ns"), F.max("commit_at_ns")).first()
    return None if found is None or found[0] is None else TimeSpan(int(found[0]), int(found[1]))


def spread_over_time(spreads: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, tokens, p50_ns, p99_ns, max_ns: from the first site that released a token to the last one."""
    found = spreads.where(F.col("sites") > 1).groupBy(span.begins("commit_at_ns"))
    return found.agg(*_spread_measures()).orderBy("period_at_ns")


def spread_whole(spreads: DataFrame) -> DataFrame:
    """tokens, p50_ns, p99_ns, max_ns: the same over all tokens."""
    return spreads.where(F.col("sites") > 1).agg(*_spread_measures()).where("tokens > 0")


def _spread_measures() -> list[Column]:
    ranks = (_rank("spread_ns", part).alias(name) for part, name in ((0.5, "p50_ns"), (0.99, "p99_ns")))
    return [F.count(F.lit(1)).alias("tokens"), *ranks, F.max("spread_ns").alias("max_ns")]


def late_over_time(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, messages, late."""
    late = F.when(F.col("late"), F.col("messages")).otherwise(F.lit(0))
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    return found.agg(F.sum("messages").alias("messages"), F.sum(late).alias("late")).orderBy("period_at_ns", "site")


def clock_log(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, bound_max_ns: how wrong a site's clock may have been at most."""
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    return found.agg(F.max("clock_bound_ns").alias("bound_max_ns")).orderBy("period_at_ns", "site")


def volume_over_time(sales: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, venue, trades."""
    found = sales.groupBy(span.begins("commit_at_ns"), "venue").agg(F.count(F.lit(1)).alias("trades"))
    return found.orderBy("period_at_ns", "venue")


def busiest(sales: DataFrame) -> DataFrame:
    """symbol, trades: those with most, the busiest first."""
    counted = sales.groupBy("symbol").agg(F.count(F.lit(1)).alias("trades"))
    return counted.orderBy(F.desc("trades"), "symbol").limit(BUSIEST_MAX)


def completeness(deliveries: DataFrame) -> DataFrame:
    """stripe, site, first, last, messages, missing, repeated: whether every number is there once."""
    numbered = deliveries.where(F.col("kind").isin("message", "fragment"))
    counted = numbered.groupBy("stripe", "site").agg(
        F.min("sequence").alias("first"),
        F.max("sequence").alias("last"),
        F.count(F.lit(1)).alias("messages"),
        (F.max("sequence") - F.min("sequence") + 1 - F.countDistinct("sequence")).alias("missing"),
        (F.count(F.lit(1)) - F.countDistinct("sequence")).alias("repeated"),
    )
    return counted.orderBy("stripe", "site")


def _rank(name: str, part: float) -> Column:
    """The value at this rank: exact, and one that was measured."""
    return F.expr(f"percentile_disc({part}) WITHIN GROUP (ORDER BY {name})")
