"""Loss, delay and requests of links, from the traces of sites.

T-RMP §4 and §5 choose the timing from these values. An acknowledgment that was requested was *late* where at least as
many copies came as were requested, because one of them came without a request; otherwise it was *lost*. (A request that
arrived before the acknowledgment was sent does not count: it is not answered.) It was *absent* where it never came,
which counts as lost, too. Delays are those of acknowledgments that came without a request: a repair may be sent by
another site, and is no measure of the link. Answer times are those of first requests: of several requests it is unknown
which one was answered (Karn and Partridge say the same of round trips in TCP).

Delays compare two clocks. Their error is at most the sum of both bounds; `clock_bound_max_ns` is the greatest sum.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fairtape.pipeline.tables.order_tables import distribution

_REQUESTS = "ack_requests + message_requests"
_CAME = "came_at_ns IS NOT NULL"
_LATE = f"{_CAME} AND ack_requests > 0 AND copies >= ack_requests - premature"
_LOST = f"{_CAME} AND ack_requests - premature > copies"


def _tokens(traces: DataFrame) -> DataFrame:
    return traces.where("kind = 'token'")


def links(traces: DataFrame) -> DataFrame:
    """Every link between two sites, one way."""
    tokens = _tokens(traces).withColumnsRenamed({"peer": "from_site", "site": "to_site"})
    keys = ("stripe", "from_site", "to_site")
    counts = tokens.groupBy(*keys).agg(
        F.count(F.lit(1)).alias("tokens"),
        F.count_if(F.expr(f"{_CAME} AND ack_requests = 0")).alias("unasked"),
        F.count_if(F.expr(_LOST)).alias("lost"),
        F.count_if(F.expr(_LATE)).alias("late"),
        F.count_if(F.expr(f"NOT ({_CAME})")).alias("absent"),
        F.max("clock_bound_ns").alias("clock_bound_max_ns"),
    )
    delay = F.col("came_at_ns") - F.col("sent_at_ns")
    delays = distribution(tokens.where(f"{_CAME} AND ack_requests = 0"), keys, delay)
    gone = F.col("lost") + F.col("absent")
    return counts.withColumn("loss", gone / F.col("tokens")).join(delays, [*keys], "left")


def source_links(traces: DataFrame) -> DataFrame:
    """Every source at every site: messages that others acknowledged, and how many of them had to be requested."""
    sums = traces.where("kind = 'source'").groupBy("stripe", F.col("peer").alias("source"), "site")
    counts = sums.agg(F.sum("messages").alias("messages"), F.sum("missing").alias("missing"))
    return counts.withColumn("loss", F.when(F.col("messages") > 0, F.col("missing") / F.col("messages")))


def token_losses(traces: DataFrame) -> DataFrame:
    """Every token, according to the sites that waited for it."""
    requests = F.expr(_REQUESTS)
    return (
        _tokens(traces)
        .groupBy("stripe", "formation", "token", F.col("peer").alias("portal"))
        .agg(
            F.count(F.lit(1)).alias("sites"),
            F.count_if(F.expr(f"({_LOST}) OR NOT ({_CAME})")).alias("lost"),
            F.count_if(F.expr(_LATE)).alias("late"),
            F.sum(requests).alias("requests"),
            F.max(requests).alias("requests_max"),
            F.max("messages").alias("messages"),
            F.sum("missing").alias("missing"),
        )
    )


def retries(traces: DataFrame) -> DataFrame:
    """At each site, the number of tokens for each count of requests."""
    counted = _tokens(traces).groupBy("stripe", "site", F.expr(_REQUESTS).alias("requests"))
    return counted.agg(F.count(F.lit(1)).alias("tokens"))


def requests(traces: DataFrame) -> DataFrame:
    """Requests between sites: how many were answered, and after what time."""
    wanted = F.when(F.col("ack_requests") > 0, "acknowledgment").otherwise("messages")
    asked = traces.where("kind = 'request'").withColumnRenamed("peer", "asked").withColumn("wanted", wanted)
    keys = ("stripe", "site", "asked", "wanted")
    counts = asked.groupBy(*keys).agg(F.count(F.lit(1)).alias("requests"), F.count_if(F.expr(_CAME)).alias("answered"))
    first = asked.where(f"{_CAME} AND {_REQUESTS} = 1")
    times = distribution(first, keys, F.col("came_at_ns") - F.col("sent_at_ns"))
    return counts.join(times, [*keys], "left")
