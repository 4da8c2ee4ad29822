"""Tables about the ring: releases of all sites compared, formations, clocks, and the links between sites.

Metrics have the names under which they were published. *Outbound unfairness* (CloudEx): the share of messages that some
site released late. *Inbound unfairness* (CloudEx): the share of messages that are in the order after one that was
entered later. *Delivery window* (Jasper): the time between the first and the last release of a message (`spread_ns`);
`window_ns` is what remains of it when every clock errs by its bound, and `window_0_share` the share of messages where
that is 0.
*Pairwise fairness* (DBO): of pairs of messages of different sources, entered one directly after the other, the share
that kept this order. *Portal equity*: the token site is the portal through which sources enter the order, and the token
comes to all sites in turn (2001 §3); the least messages that entered at a site divided by the most.

The entry time of a message is in the message itself (`order_tables.entered`); messages without one are left out of
metrics that need it.

Tables of links are made from the traces of sites. T-RMP §4 and §5 choose the timing from these values. An
acknowledgment that was requested was *late* where at least as many copies came as were requested, because one of them
came without a request; otherwise it was *lost*. (A request that arrived before the acknowledgment was sent does not
count: it is not answered.) It was *absent* where it never came, which counts as lost, too. Delays are those of
acknowledgments that came without a request: a repair may be sent by another site, and is no measure of the link. Answer
times are those of first requests: of several requests it is unknown which one was answered (Karn and Partridge say the
same of round trips in TCP). Delays compare two clocks. Their error is at most the sum of both bounds;
`clock_bound_max_ns` is the greatest sum.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.pipeline.schemas import BREAK, FORMATION, PERCENTILES, TABLES, Arrow
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.frames import Malformed

_REQUESTS = "ack_requests + message_requests"
_CAME = "came_at_ns IS NOT NULL"
_LATE = f"{_CAME} AND ack_requests > 0 AND copies >= ack_requests - premature"
_LOST = f"{_CAME} AND ack_requests - premature > copies"


def releases(deliveries: DataFrame) -> DataFrame:
    """Every token at every site. A site releases all messages of a token together."""
    at = "acknowledged_at_ns", "commit_at_ns", "released_at_ns", "late", "clock_bound_ns"
    tokens = deliveries.where(~F.col("kind").isin(FORMATION, BREAK)).groupBy("stripe", "site", "formation", "token")
    found = tokens.agg(
        F.min("sequence").alias("sequence"),
        F.count(F.lit(1)).alias("messages"),
        *(F.max(name).alias(name) for name in at),
    )
    return found.withColumn("hold_ns", F.col("released_at_ns") - F.col("acknowledged_at_ns"))


def spreads(releases: DataFrame) -> DataFrame:
    """Every token at all sites that released it."""
    earliest = F.min(F.col("released_at_ns") + F.col("clock_bound_ns"))
    latest = F.max(F.col("released_at_ns") - F.col("clock_bound_ns"))
    first, last = F.min("released_at_ns"), F.max("released_at_ns")
    names = ("sequence", "messages", "acknowledged_at_ns", "commit_at_ns")
    return releases.groupBy("stripe", "formation", "token").agg(
        *(F.min(name).alias(name) for name in names),
        F.count(F.lit(1)).alias("sites"),
        first.alias("first_released_at_ns"),
        last.alias("last_released_at_ns"),
        (last - first).alias("spread_ns"),
        F.greatest(latest - earliest, F.lit(0)).cast("long").alias("window_ns"),
        F.count_if("late").alias("late_sites"),
    )


def spread_distribution(spreads: DataFrame) -> DataFrame:
    """Release spread and delivery window over messages."""
    several = spreads.where("sites > 1")
    measures = several.select(
        "stripe", "messages", F.expr("stack(2, 'spread', spread_ns, 'window', window_ns) AS (measure, ns)")
    )
    return distribution(measures, ("stripe", "measure"), F.col("ns"), F.col("messages"))


def latency(entered: DataFrame, releases: DataFrame) -> DataFrame:
    """From the entry of a message to its release, by site and source."""
    at = releases.select("stripe", "site", "token", "released_at_ns")
    joined = entered.join(at, ["stripe", "token"])
    return distribution(joined, ("stripe", "site", "source"), F.col("released_at_ns") - F.col("entered_at_ns"))


def hold(releases: DataFrame) -> DataFrame:
    """From the acknowledgment of a message to its release, by site."""
    return distribution(releases, ("stripe", "site"), F.col("hold_ns"), F.col("messages"))


def lateness(releases: DataFrame) -> DataFrame:
    """The late fraction of each site."""
    late = F.sum(F.when(F.col("late"), F.col("messages")).otherwise(0))
    found = releases.groupBy("stripe", "site").agg(F.sum("messages").alias("deliveries"), late.alias("late"))
    return found.withColumn("late_fraction", _share("late", "deliveries"))


def pairs(entered: DataFrame) -> DataFrame:
    """Pairs of messages that different sources entered one directly after the other, and how many kept this order."""
    by_entry = Window.partitionBy("stripe").orderBy("entered_at_ns", "sequence")
    before = {name: F.lag(name).over(by_entry) for name in ("source", "sequence", "entered_at_ns")}
    followed = entered.select(
        "stripe",
        before["source"].alias("earlier_source"),
        F.col("source").alias("later_source"),
        (before["sequence"] < F.col("sequence")).alias("kept"),
        (before["entered_at_ns"] < F.col("entered_at_ns")).alias("apart"),
    )
    competing = followed.where("apart AND earlier_source <> later_source")
    return competing.groupBy("stripe", "earlier_source", "later_source").agg(
        F.count(F.lit(1)).alias("pairs"), F.count_if("kept").alias("in_order")
    )


def overtaken(entered: DataFrame) -> DataFrame:
    """By stripe: how many messages have an entry time, and how many come after one that was entered later."""
    earlier = Window.partitionBy("stripe").orderBy("sequence").rowsBetween(Window.unboundedPreceding, -1)
    seen = entered.withColumn("latest", F.max("entered_at_ns").over(earlier))
    return seen.groupBy("stripe").agg(
        F.count(F.lit(1)).alias("entered_messages"),
        F.count_if(F.col("entered_at_ns") < F.col("latest")).alias("overtaken_messages"),
    )


def formations(deliveries: DataFrame) -> DataFrame:
    """Every change of formation once, with its members where the layout can be read."""
    noted = deliveries.where(F.col("kind").isin(FORMATION, BREAK))
    once = noted.groupBy("stripe", "formation").agg(
        *(F.min(name).alias(name) for name in ("token", "sequence")),
        F.min("acknowledged_at_ns").alias("installed_at_ns"),
        F.count_distinct("site").alias("sites"),
        F.max(F.col("kind") == BREAK).alias("broken"),
        F.min("payload").alias("payload"),
    )
    return once.mapInArrow(_formations, from_arrow_schema(TABLES["formations"].schema))


def _formations(batches: Iterator[Arrow]) -> Iterator[Arrow]:
    schema = TABLES["formations"].schema
    for batch in batches:
        rows = [row | _layout(row.pop("payload")) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _layout(layout: bytes | None) -> dict[str, Any]:
    try:
        formation = decode_formation(layout or b"")
    except Malformed:
        return {"members": None, "resilience": None, "plan": None}
    return {"members": list(formation.members), "resilience": formation.resilience, "plan": formation.plan}


def token_portals(order: DataFrame, formations: DataFrame) -> DataFrame:
    """The site that assigned each token, and the number of messages of each source in it."""
    counts = (
        order.where(~F.col("kind").isin(FORMATION, BREAK)).groupBy("stripe", "formation", "token", "source").count()
    )
    made = formations.where("members IS NOT NULL").select(
        "stripe", "formation", "members", F.col("token").alias("first")
    )
    turn = F.expr("element_at(members, cast((token - first) % size(members) AS INT) + 1)")
    joined = counts.join(F.broadcast(made), ["stripe", "formation"]).withColumn("portal", turn)
    return joined.select("stripe", "token", "source", "portal", "count")


def portals(token_portals: DataFrame) -> DataFrame:
    """How many messages of each source entered the order at each site."""
    found = token_portals.groupBy("stripe", "portal", "source").agg(
        F.count(F.lit(1)).alias("tokens"), F.sum("count").alias("messages")
    )
    whole = Window.partitionBy("stripe", "source")
    return found.withColumn("source_messages", F.sum("messages").over(whole))


def delays(entered: DataFrame, token_portals: DataFrame) -> DataFrame:
    """From the entry of a message to its acknowledgment, by source and by the site that acknowledged it.

    It includes the wait for the token. Journals hold no other delay between a source and a site.
    """
    at = token_portals.select("stripe", "token", "source", "portal")
    joined = entered.join(at, ["stripe", "token", "source"])
    return distribution(joined, ("stripe", "source", "portal"), F.col("acknowledged_at_ns") - F.col("entered_at_ns"))


def clocks(releases: DataFrame) -> DataFrame:
    """The clock of each site according to its releases: bounds, early releases, and steps back."""
    before = F.lag("released_at_ns").over(Window.partitionBy("stripe", "site").orderBy("sequence", "token"))
    back = F.greatest(before - F.col("released_at_ns"), F.lit(0))
    stepped = (
        releases.withColumn("back", back)
        .groupBy("stripe", "site")
        .agg(
            F.count(F.lit(1)).alias("releases"),
            F.count_if(F.col("released_at_ns") < F.col("commit_at_ns")).alias("early_releases"),
            F.count_if(F.col("back") > 0).alias("steps_back"),
            F.coalesce(F.max("back"), F.lit(0)).cast("long").alias("step_max_ns"),
        )
    )
    bounds = distribution(releases, ("stripe", "site"), F.col("clock_bound_ns"))
    names = {"bound_min_ns": "least", "bound_p50_ns": "p50", "bound_max_ns": "most"}
    named = bounds.select("stripe", "site", *(F.col(found).alias(name) for name, found in names.items()))
    return stepped.join(named, ["stripe", "site"])


def outages(formations: DataFrame, spreads: DataFrame) -> DataFrame:
    """How long the order paused at a change of formation: from the last token before to the first after it."""
    changes = formations.select(
        "stripe", "formation", "broken", "token", F.lit(0).alias("rank"), F.lit(None).cast("long").alias("at")
    )
    tokens = spreads.select(
        "stripe",
        "formation",
        F.lit(None).cast("boolean").alias("broken"),
        "token",
        F.lit(1).alias("rank"),
        F.col("acknowledged_at_ns").alias("at"),
    )
    in_order = Window.partitionBy("stripe").orderBy("token", "rank", "formation")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    after = in_order.rowsBetween(1, Window.unboundedFollowing)
    token = F.when(F.col("rank") == 1, F.col("token"))
    seen = changes.unionByName(tokens).select(
        "stripe",
        "formation",
        "broken",
        "rank",
        F.last(token, ignorenulls=True).over(before).alias("last_token"),
        F.last("at", ignorenulls=True).over(before).alias("last_at_ns"),
        F.first(token, ignorenulls=True).over(after).alias("first_token"),
        F.first("at", ignorenulls=True).over(after).alias("first_at_ns"),
    )
    return seen.where("rank = 0").withColumn("silence_ns", F.col("first_at_ns") - F.col("last_at_ns"))


def fairness(
    spreads: DataFrame, lateness: DataFrame, pairs: DataFrame, entered: DataFrame, portals: DataFrame
) -> DataFrame:
    """The metrics of each stripe, with the counts that shares are made of."""
    several = F.col("sites") > 1
    messages = spreads.groupBy("stripe").agg(
        F.max("sites").alias("sites"),
        F.sum("messages").alias("messages"),
        _messages_where(F.col("late_sites") > 0).alias("unlike_messages"),
        _messages_where(several & (F.col("window_ns") == 0)).alias("window_0_messages"),
        _messages_where(several).alias("shared_messages"),
    )
    late = lateness.groupBy("stripe").agg(
        F.sum("deliveries").alias("deliveries"), F.sum("late").alias("late_deliveries")
    )
    competed = pairs.groupBy("stripe").agg(F.sum("pairs").alias("pairs"), F.sum("in_order").alias("pairs_in_order"))
    entries = portals.groupBy("stripe", "portal").agg(F.sum("messages").alias("entries"))
    equity = entries.groupBy("stripe").agg((F.min("entries") / F.max("entries")).alias("portal_equity"))
    joined = messages
    for other in (late, competed, overtaken(entered), equity):
        joined = joined.join(other, "stripe", "left")
    counts = ("pairs", "pairs_in_order", "entered_messages", "overtaken_messages")
    filled = joined.fillna(0, subset=list(counts))
    return filled.withColumns(
        {
            "late_fraction": _share("late_deliveries", "deliveries"),
            "outbound_unfairness": _share("unlike_messages", "messages"),
            "window_0_share": _share("window_0_messages", "shared_messages"),
            "inbound_unfairness": _share("overtaken_messages", "entered_messages"),
            "pairwise_fairness": _share("pairs_in_order", "pairs"),
        }
    )


def _messages_where(condition: Column) -> Column:
    return F.sum(F.when(condition, F.col("messages")).otherwise(0))


def _share(part: str, whole: str) -> Column:
    """The quotient of two counts; null where the divisor is 0."""
    return F.when(F.col(whole) > 0, F.col(part) / F.col(whole))


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
