"""What a regulator asks for: who had which time, how long news took, how orders were executed, and every order's way.

The audit trail has a row for everything that happened to an order, from its entry to the commit of its trades, in the
one order of the network; `step` 0 is the entry. Whether anything is missing is counted, not claimed: `untold` has the
orders of which nothing is known but their entry, and `completeness` says that no number of the sequence is missing.

Execution statistics are in the manner of SEC Rule 605 (17 CFR 242.605): by symbol, type and size of the order, how many
were executed and how fast. A floor has no national best quote to compare with, so effective spread and price
improvement, which Rule 605 also asks for, are not in it.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from fairtape.core.instants import SECOND
from fairtape.market.prices import ONE

SIZES: Final = ((100, "below 100"), (500, "100 to 499"), (2_000, "500 to 1,999"), (5_000, "2,000 to 4,999"))
LARGEST: Final = "5,000 and more"
SPEEDS: Final = (("within_10_s", 0, 10), ("within_30_s", 10, 30), ("within_60_s", 30, 60), ("within_300_s", 60, 300))

README: Final = """What is in this folder

clock_log.csv            how wrong each site's clock may have been at most, in every period (ns)
latency_per_source.csv   how long messages of each source took to their release at each site (ns, exact percentiles)
completeness.csv         for every stripe and site: first and last number, missing and repeated ones
execution_statistics.csv orders by symbol, type and size: executed, cancelled, how fast (as Rule 605; see below)
audit_trail.csv          everything that happened to every order, from entry to commit, in the one order
untold.csv               orders of which nothing is known but their entry; empty when the trail has no gap
SHA256SUMS               digests of these files: `sha256sum -c SHA256SUMS`

Times are nanoseconds since 1970 UTC, prices and quantities billionths, all whole numbers. Files that need orders are
there only where a floor was run. Execution statistics lack effective spread and price improvement: a floor has no
national best quote to compare with.
"""


def audit_trail(orders: DataFrame, events: DataFrame, executions: DataFrame, releases: DataFrame) -> DataFrame:
    """All that happened to each order: when, at which place of the one order, and why where there is a reason."""
    entered = orders.select(
        "stripe",
        F.col("sequence").alias("order_number"),
        "sequence",
        F.lit(0).cast("long").alias("step"),
        F.concat(F.lit("entered: "), F.col("kind")).alias("what"),
        "account",
        "client_id",
        "symbol",
        "price",
        "quantity",
        F.lit(None).cast("long").alias("trade_id"),
        F.col("entered_at_ns").alias("at_ns"),
        F.lit(None).cast("string").alias("reason"),
    )
    told = events.where(F.col("order_number").isNotNull()).select(
        "stripe",
        "order_number",
        "sequence",
        (F.col("step") + 1).alias("step"),
        F.col("event").alias("what"),
        *("account", "client_id", "symbol", "price", "quantity", "trade_id", "at_ns", "reason"),
    )
    both = _committed(executions, releases, "buy").unionByName(_committed(executions, releases, "sell"))
    order = ("stripe", "order_number", "at_ns", "sequence", "step")
    return entered.unionByName(told).unionByName(both).orderBy(*order)


def _committed(executions: DataFrame, releases: DataFrame, side: str) -> DataFrame:
    """The commit of a trade, for the order on one side of it: when the token that committed it was due."""
    due = releases.groupBy("stripe", F.col("token").alias("committed_token")).agg(
        F.min("commit_at_ns").alias("at_ns"), F.max("sequence").alias("sequence")
    )
    name = "buyer" if side == "buy" else "seller"
    return executions.join(due, ["stripe", "committed_token"], "left").select(
        "stripe",
        F.col(f"{side}_order").alias("order_number"),
        "sequence",
        F.lit(0).cast("long").alias("step"),
        F.lit("committed").alias("what"),
        F.col(name).alias("account"),
        F.col(f"{side}_client_id").alias("client_id"),
        *("symbol", "price", "quantity", "trade_id", "at_ns"),
        F.lit(None).cast("string").alias("reason"),
    )


def untold(orders: DataFrame, events: DataFrame) -> DataFrame:
    """Orders of which nothing is known but their entry: stripe, sequence, kind, account, client_id, entered_at_ns."""
    known = events.select("stripe", "sequence").distinct()
    kept = orders.join(known, ["stripe", "sequence"], "left_anti")
    return kept.select("stripe", "sequence", "kind", "account", "client_id", "entered_at_ns").orderBy(
        "stripe", "sequence"
    )


def execution_statistics(orders: DataFrame, executions: DataFrame) -> DataFrame:
    """symbol, order_type, size, orders, quantity, executed, executed within spans of time, mean_ns."""
    entered = orders.where(F.col("kind") == "new").select(
        "stripe", F.col("sequence").alias("order_number"), "symbol", "order_type", "quantity", "entered_at_ns"
    )
    sides = (
        executions.select(
            "stripe", F.col(f"{side}_order").alias("order_number"), F.col("quantity").alias("done"), "traded_at_ns"
        )
        for side in ("buy", "sell")
    )
    buys, sells = sides
    fills = entered.join(buys.unionByName(sells), ["stripe", "order_number"], "left")
    took = F.col("traded_at_ns") - F.col("entered_at_ns")
    by_order = fills.groupBy("stripe", "order_number", "symbol", "order_type", "quantity").agg(
        F.sum(F.coalesce("done", F.lit(0))).alias("executed"),
        *(
            F.sum(F.when((took >= first * SECOND) & (took < end * SECOND), F.col("done")).otherwise(F.lit(0))).alias(
                name
            )
            for name, first, end in SPEEDS
        ),
        F.sum(F.coalesce(F.col("done").cast("decimal(38,0)") * took, F.lit(0))).alias("weighed_ns"),
    )
    names = ("quantity", "executed", *(name for name, _, _ in SPEEDS))
    found = by_order.groupBy("symbol", "order_type", _size().alias("size")).agg(
        F.count(F.lit(1)).alias("orders"),
        *(F.sum(F.col(name).cast("decimal(38,0)")).alias(name) for name in names),
        F.sum("weighed_ns").alias("weighed_ns"),
    )
    mean = F.when(F.col("executed") > 0, F.expr("weighed_ns div executed")).alias("mean_ns")
    return found.select("symbol", "order_type", "size", "orders", *names, mean).orderBy("symbol", "order_type", "size")


def _size() -> Column:
    """The class of an order's size, as Rule 605 cuts them."""
    classes = F.lit(LARGEST)
    for most, name in reversed(SIZES):
        classes = F.when(F.col("quantity") < most * ONE, F.lit(name)).otherwise(classes)
    return classes
