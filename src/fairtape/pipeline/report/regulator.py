"""The bundle for a regulator: clock log, latencies, execution statistics, and the audit trail of every order.

The audit trail has a row for every event of an order, from its entry to the commit of its trades, in the order of the
network: by token, and within it by step, of which 0 is the entry. Gaps are counted: `without_outcome` has the orders
without an event after their entry, `refused` the requests that a floor rejected and that are not orders, and
`completeness` the missing numbers of the sequence.

Execution statistics follow SEC Rule 605 (17 CFR 242.605): by symbol, type and size of the order, how much was executed,
how fast, and how much was cancelled or rejected. A floor has no national best quote, so effective spread and price
improvement, which Rule 605 also asks for, are not included.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fairtape.core.instants import SECOND
from fairtape.market.prices import ONE

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

README: Final = """Files of this folder

clock_log.csv              the error bound of each site's clock, as the site declared it, in every period (ns)
latency_per_source.csv     from entry to release of the messages of each source at each site (ns, exact percentiles)
completeness.csv           for every stripe and site: first and last number, missing and repeated ones
execution_statistics.csv   orders by symbol, type and size: executed, how fast, cancelled, rejected (see below)
audit_trail.csv            every event of every order, from entry to commit or rejection, in the order of the network
orders_without_outcome.csv orders without an event after their entry; empty when the trail has no gap
refused.csv                rejected requests that are not orders: unreadable requests, deposits, reports of arbiters
SHA256SUMS                 digests of these files: `sha256sum -c SHA256SUMS`

Times are nanoseconds since 1970 UTC, prices and quantities billionths, all whole numbers. Files that need orders are
there only where a trading floor was run.

Audit trail: order_number is the place of the order in the sequence. A request to cancel or replace, and its rejection,
have the place of the request; the change itself has the number of the order that was changed, and the sequence of the
request. at_ns is the time of the token that caused the event; for an entry it is the time stamped by the gateway.

Execution statistics: quantity is the entered quantity of orders of the kind new; executed, cancelled and rejected are
the parts with that outcome, and the rest was open at the end or was replaced. The columns executed_..._s divide
executed by the time from entry to trade, each from its first bound up to, but not including, its second one.
executed_before_entry is the quantity that was stamped as traded before it was stamped as entered: two clocks disagreed.
mean_ns is the mean of that time over all executed quantity. Effective spread and price improvement are not included: a
floor has no national best quote to compare with.
"""


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
