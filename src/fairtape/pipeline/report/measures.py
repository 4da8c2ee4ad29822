"""The measures of a report: functions from tables of the pipeline to one small table each.

Time is cut into about as many periods as a plot has points, so little leaves Spark, whatever the size of the tables.
Everything is counted in integers, and percentiles are exact: each is a value that was measured.

The last measures are for a regulator, and are made of orders. The audit trail has a row for every event of an order,
from its entry to the commit of its trades, in the order of the network: by token, and within it by step, of which 0 is
the entry. Only the audit trail is as long as there are orders. Gaps are counted: `without_outcome` has the orders
without an event after their entry, `refused` the requests that a floor rejected and that are not orders, and
`completeness` the missing numbers of the sequence.

Execution statistics follow SEC Rule 605 (17 CFR 242.605): by symbol, type and size of the order, how much was executed,
how fast, and how much was cancelled or rejected. A floor has no national best quote, so effective spread and price
improvement, which Rule 605 also asks for, are not included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.market.prices import ONE
from fairtape.pipeline.tables.ring_tables import distribution
from fairtape.ring.receiver.release import LATE_AFTER

PERIODS_MAX: Final = 240
PERIODS: Final = tuple(SECOND * each for each in (1, 2, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 14_400, 86_400))
BUSIEST_MAX: Final = 12
SIZES: Final = ((100, "below 100"), (500, "100 to 499"), (2_000, "500 to 1,999"), (5_000, "2,000 to 4,999"))
LARGEST: Final = "5,000 and more"
SPEEDS: Final = (
    (0, "executed_before_entry"),
    (10, "executed_0_to_10_s"),
    (30, "executed_10_to_30_s"),
    (60, "executed_30_to_60_s"),
    (300, "executed_60_to_300_s"),
)
SLOWEST: Final = "executed_from_300_s"
"""Each fill is in the first class whose seconds its time from entry to trade is below."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The time that a report is about, and the period that it is cut into."""

    first_at: Instant
    last_at: Instant

    @property
    def period(self) -> Duration:
        """The shortest round period of which there are at most PERIODS_MAX."""
        lasted = self.last_at - self.first_at
        return next((each for each in PERIODS if lasted // each < PERIODS_MAX), PERIODS[-1])

    def begins(self, instant: str) -> Column:
        """The beginning of the period that an instant is in."""
        return (F.col(instant) - F.col(instant) % F.lit(self.period)).alias("period_at_ns")


def span_of(releases: DataFrame) -> TimeSpan | None:
    """From the first to the last commit; None where nothing was released."""
    found = releases.agg(F.min("commit_at_ns"), F.max("commit_at_ns")).first()
    return None if found is None or found[0] is None else TimeSpan(int(found[0]), int(found[1]))


def totals(releases: DataFrame) -> DataFrame:
    """messages, deliveries, sites: of all stripes."""
    by_token = releases.groupBy("stripe", "token").agg(
        F.max("messages").alias("messages"), F.sum("messages").alias("deliveries")
    )
    sites = releases.agg(F.countDistinct("site").alias("sites"))
    return by_token.agg(F.sum("messages").alias("messages"), F.sum("deliveries").alias("deliveries")).crossJoin(sites)


def delivery_spreads(spreads: DataFrame, traces: DataFrame | None) -> DataFrame:
    """delivery, count, percentiles: the spread over sites, weighted by messages, for each way of delivery.

    `fairtape` is the release of tokens that no site released late, `late` that of the others. `direct` is what the same
    tokens would have had if sites had acted on arrival: the site whose turn it was multicast Ack(e) to all others, and
    their traces say when it arrived. An acknowledgment that had to be requested is left out.
    """
    shared = spreads.where("sites > 1")
    delivery = F.when(F.col("late_sites") > 0, "late").otherwise("fairtape")
    found = shared.select(delivery.alias("delivery"), "messages", "spread_ns")
    if traces is not None:
        token = ["stripe", "formation", "token"]
        arrived = traces.where("kind = 'token' AND came_at_ns IS NOT NULL AND ack_requests = 0")
        first, last = F.min(F.least("sent_at_ns", "came_at_ns")), F.max(F.greatest("sent_at_ns", "came_at_ns"))
        direct = arrived.groupBy(*token).agg((last - first).alias("direct_ns"))
        on_time = shared.where("late_sites = 0").join(direct, token)
        found = found.unionByName(
            on_time.select(F.lit("direct").alias("delivery"), "messages", F.col("direct_ns").alias("spread_ns"))
        )
    return distribution(found, ("delivery",), F.col("spread_ns"), F.col("messages")).orderBy("delivery")


def order_agreement(deliveries: DataFrame) -> DataFrame:
    """stripe, sites, messages, compared_tokens, different_tokens, first_different_token.

    A token is compared where several sites hold it. It differs where they hold other messages under its numbers.
    """
    content = F.xxhash64("sequence", "kind", "source", "incarnation", "source_number", "payload")
    by_site = _numbered(deliveries).groupBy("stripe", "token", "site")
    held = by_site.agg(F.bit_xor(content).alias("digest"), F.count(F.lit(1)).alias("messages"))
    tokens = held.groupBy("stripe", "token").agg(
        F.count(F.lit(1)).alias("sites"),
        F.max("messages").alias("messages"),
        (F.count_distinct("digest", "messages") > 1).alias("differs"),
    )
    sites = _numbered(deliveries).groupBy("stripe").agg(F.count_distinct("site").alias("sites"))
    found = tokens.groupBy("stripe").agg(
        F.sum("messages").alias("messages"),
        F.count_if(F.col("sites") > 1).alias("compared_tokens"),
        F.count_if("differs").alias("different_tokens"),
        F.min(F.when(F.col("differs"), F.col("token"))).alias("first_different_token"),
    )
    return found.join(sites, "stripe").orderBy("stripe")


def completeness(deliveries: DataFrame) -> DataFrame:
    """stripe, site, first, last, messages, missing, repeated: whether every number is there once."""
    counted = (
        _numbered(deliveries)
        .groupBy("stripe", "site")
        .agg(
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.count(F.lit(1)).alias("messages"),
            (F.max("sequence") - F.min("sequence") + 1 - F.countDistinct("sequence")).alias("missing"),
            (F.count(F.lit(1)) - F.countDistinct("sequence")).alias("repeated"),
        )
    )
    return counted.orderBy("stripe", "site")


def _numbered(deliveries: DataFrame) -> DataFrame:
    return deliveries.where(F.col("kind").isin("message", "fragment"))


def release_checks(releases: DataFrame, outages: DataFrame | None) -> DataFrame:
    """deliveries, early, late, unmarked_late, late_in_failover: messages over all sites.

    A late release waited for a new formation where its commit instant is between the last token before a change of
    formation and the first one after it.
    """
    after = F.col("released_at_ns") - F.col("commit_at_ns")
    counts = releases.agg(
        F.sum("messages").alias("deliveries"),
        _messages_where(after < 0).alias("early"),
        _messages_where(F.col("late")).alias("late"),
        _messages_where(~F.col("late") & (after > LATE_AFTER)).alias("unmarked_late"),
    )
    if outages is None:
        return counts.withColumn("late_in_failover", F.lit(0).cast("long"))
    pauses = outages.where("silence_ns IS NOT NULL").select("stripe", "last_at_ns", "first_at_ns")
    within = (
        (F.col("late.stripe") == F.col("pause.stripe"))
        & (F.col("commit_at_ns") >= F.col("last_at_ns"))
        & (F.col("commit_at_ns") <= F.col("first_at_ns"))
    )
    waited = releases.where("late").alias("late").join(F.broadcast(pauses.alias("pause")), within, "left_semi")
    return counts.crossJoin(waited.agg(F.coalesce(F.sum("messages"), F.lit(0)).alias("late_in_failover")))


def _messages_where(condition: Column) -> Column:
    return F.sum(F.when(condition, F.col("messages")).otherwise(F.lit(0)))


def spread_over_time(spreads: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, tokens, p50_ns, p99_ns, max_ns: the spread of tokens that no site released late."""
    return _on_time(spreads).groupBy(span.begins("commit_at_ns")).agg(*_spread_measures()).orderBy("period_at_ns")


def spread_whole(spreads: DataFrame) -> DataFrame:
    """tokens, p50_ns, p99_ns, max_ns: the same over all such tokens."""
    return _on_time(spreads).agg(*_spread_measures()).where("tokens > 0")


def _on_time(spreads: DataFrame) -> DataFrame:
    return spreads.where("sites > 1 AND late_sites = 0")


def _spread_measures() -> list[Column]:
    ranks = (_rank("spread_ns", part).alias(name) for part, name in ((0.5, "p50_ns"), (0.99, "p99_ns")))
    return [F.count(F.lit(1)).alias("tokens"), *ranks, F.max("spread_ns").alias("max_ns")]


def _rank(name: str, part: float) -> Column:
    """The value at this rank: exact, and one that was measured."""
    return F.expr(f"percentile_disc({part}) WITHIN GROUP (ORDER BY {name})")


def late_over_time(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, messages, late."""
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    late = _messages_where(F.col("late")).alias("late")
    return found.agg(F.sum("messages").alias("messages"), late).orderBy("period_at_ns", "site")


def clock_log(releases: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, site, bound_max_ns: the greatest clock bound that a site declared."""
    found = releases.groupBy(span.begins("commit_at_ns"), "site")
    return found.agg(F.max("clock_bound_ns").alias("bound_max_ns")).orderBy("period_at_ns", "site")


def volume_over_time(sales: DataFrame, span: TimeSpan) -> DataFrame:
    """period_at_ns, venue, trades."""
    found = sales.groupBy(span.begins("commit_at_ns"), "venue").agg(F.count(F.lit(1)).alias("trades"))
    return found.orderBy("period_at_ns", "venue")


def busiest(sales: DataFrame) -> DataFrame:
    """symbol, trades: the symbols with most trades."""
    counted = sales.groupBy("symbol").agg(F.count(F.lit(1)).alias("trades"))
    return counted.orderBy(F.desc("trades"), "symbol").limit(BUSIEST_MAX)


def audit_trail(orders: DataFrame, events: DataFrame) -> DataFrame:
    """Every event of each order: time, place in the sequence, and the reason where there is one.

    Commits are among the events. A rejection has no order number, because there is no order: it belongs to its request.
    """
    entered = orders.select(
        "stripe",
        F.col("sequence").alias("order_number"),
        *("sequence", "token"),
        F.lit(0).cast("long").alias("step"),
        F.concat(F.lit("entered: "), F.col("kind")).alias("what"),
        *("account", "client_id", "symbol", "price", "quantity"),
        F.lit(None).cast("long").alias("trade_id"),
        F.col("entered_at_ns").alias("at_ns"),
        F.lit(None).cast("string").alias("reason"),
    )
    rejected = _rejected(events).join(orders, ["stripe", "sequence"], "left_semi")
    known = events.where(F.col("order_number").isNotNull()).unionByName(rejected)
    followed = known.select(
        "stripe",
        F.coalesce("order_number", "sequence").alias("order_number"),
        *("sequence", "token"),
        (F.col("step") + 1).alias("step"),
        F.col("event").alias("what"),
        *("account", "client_id", "symbol", "price", "quantity", "trade_id", "at_ns", "reason"),
    )
    return entered.unionByName(followed).orderBy("stripe", "order_number", "token", "step", "sequence")


def _rejected(events: DataFrame) -> DataFrame:
    return events.where(F.col("event") == "rejected")


def without_outcome(orders: DataFrame, events: DataFrame) -> DataFrame:
    """Orders without an event after their entry: stripe, sequence, kind, account, client_id, entered_at_ns."""
    known = events.select("stripe", "sequence").distinct()
    kept = orders.join(known, ["stripe", "sequence"], "left_anti")
    return kept.select("stripe", "sequence", "kind", "account", "client_id", "entered_at_ns").orderBy(
        "stripe", "sequence"
    )


def refused(orders: DataFrame, events: DataFrame) -> DataFrame:
    """Rejected requests that are not orders: stripe, sequence, token, account, client_id, at_ns, reason."""
    others = _rejected(events).join(orders, ["stripe", "sequence"], "left_anti")
    names = ("stripe", "sequence", "token", "account", "client_id", "at_ns", "reason")
    return others.select(*names).orderBy("stripe", "sequence")


def execution_statistics(orders: DataFrame, events: DataFrame, executions: DataFrame) -> DataFrame:
    """symbol, order_type, size, orders, quantity, executed, cancelled, rejected, executed by speed, mean_ns."""
    place = ["stripe", "order_number"]
    entered = orders.where(F.col("kind") == "new").select(
        "stripe", F.col("sequence").alias("order_number"), "symbol", "order_type", "quantity", "entered_at_ns"
    )
    cancelled = events.where(F.col("event") == "cancelled").groupBy(*place)
    rejections = (
        _rejected(events)
        .groupBy("stripe", F.col("sequence").alias("order_number"))
        .agg(F.count(F.lit(1)).alias("rejections"))
    )
    by_order = (
        entered.join(_executed(entered, executions), place, "left")
        .join(cancelled.agg(_sum("quantity").alias("cancelled")), place, "left")
        .join(rejections, place, "left")
        .withColumn("rejected", F.when(F.col("rejections").isNotNull(), F.col("quantity")))
    )
    names = ("quantity", "executed", "cancelled", "rejected", *_speeds())
    found = by_order.groupBy("symbol", "order_type", _class(F.col("quantity"), SIZES, ONE, LARGEST).alias("size")).agg(
        F.count(F.lit(1)).alias("orders"),
        *(F.coalesce(_sum(name), F.lit(0).cast("decimal(38,0)")).alias(name) for name in names),
        F.sum("weighed_ns").alias("weighed_ns"),
    )
    mean = F.when(F.col("executed") > 0, F.expr("weighed_ns div executed")).alias("mean_ns")
    return found.select("symbol", "order_type", "size", "orders", *names, mean).orderBy("symbol", "order_type", "size")


def _executed(entered: DataFrame, executions: DataFrame) -> DataFrame:
    """By order that traded: its quantity, the same in each class of speed, and the sum of quantity times ns."""
    buys, sells = (
        executions.select("stripe", F.col(f"{side}_order").alias("order_number"), "quantity", "traded_at_ns")
        for side in ("buy", "sell")
    )
    fills = buys.unionByName(sells).join(entered.drop("quantity"), ["stripe", "order_number"])
    took = F.col("traded_at_ns") - F.col("entered_at_ns")
    speed = _class(took, SPEEDS, SECOND, SLOWEST)
    return fills.groupBy("stripe", "order_number").agg(
        _sum("quantity").alias("executed"),
        *(F.sum(F.when(speed == name, _whole("quantity"))).alias(name) for name in _speeds()),
        F.sum(_whole("quantity") * took).alias("weighed_ns"),
    )


def _speeds() -> list[str]:
    return [*(name for _, name in SPEEDS), SLOWEST]


def _whole(name: str) -> Column:
    """A column as a decimal, for sums beyond 64 bits."""
    return F.col(name).cast("decimal(38,0)")


def _sum(name: str) -> Column:
    return F.sum(_whole(name))


def _class(value: Column, bounds: Sequence[tuple[int, str]], unit: int, last: str) -> Column:
    """The first class whose bound a value is below, or the last class: every value has exactly one."""
    found = F.lit(last)
    for most, name in reversed(bounds):
        found = F.when(value < most * unit, F.lit(name)).otherwise(found)
    return found
