"""What a regulator gets of a real floor: every order's whole way, and fills in classes without a gap."""

from collections import Counter
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

import pipeline.report_values as values
from fairtape.core.instants import SECOND
from fairtape.market.prices import ONE
from fairtape.pipeline.report.fairness_report import REGULATOR_README
from fairtape.pipeline.report.measures import (
    SLOWEST,
    SPEEDS,
    audit_trail,
    execution_statistics,
    refused,
    without_outcome,
)
from fairtape.pipeline.schemas import TABLES
from fairtape.pipeline.spark.snapshots import read_table
from pipeline.shared_tables import rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from pipeline.shared_tables import Made

CLASSES = [*(name for _, name in SPEEDS), SLOWEST]


def frame(spark: "SparkSession", name: str, made: list[values.Row]) -> "DataFrame":
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = TABLES[name].schema
    whole = [tuple(values.whole(row, schema)[column] for column in schema.names) for row in made]
    return spark.createDataFrame(whole, from_arrow_schema(schema))


def of_floor(spark: "SparkSession", tables: "Path") -> "tuple[DataFrame, DataFrame, DataFrame]":
    orders, events, executions = (read_table(spark, tables, name) for name in ("orders", "order_events", "executions"))
    return orders, events, executions


def test_the_trail_of_a_real_floor_has_every_event_of_an_order_once(spark: "SparkSession", made: "Made") -> None:
    orders, events, _ = of_floor(spark, made.tables)
    trail = [row.asDict() for row in audit_trail(orders, events).collect()]
    requests = {row["sequence"] for row in rows(made.tables, "orders")}
    expected = Counter(
        (row["order_number"] or row["sequence"], row["event"], row["token"], row["step"] + 1)
        for row in rows(made.tables, "order_events")
        if row["order_number"] is not None or (row["event"] == "rejected" and row["sequence"] in requests)
    )
    found = Counter((row["order_number"], row["what"], row["token"], row["step"]) for row in trail if row["step"])
    assert found == expected
    assert {row["order_number"] for row in trail if not row["step"]} == requests
    committed = Counter(row["trade_id"] for row in trail if row["what"] == "committed")
    assert set(committed.values()) == {2}, "a trade is committed once for each of its two orders"
    (rejected,) = (row for row in trail if row["what"] == "rejected")
    assert [row["what"] for row in trail if row["order_number"] == rejected["order_number"]] == [
        "entered: new",
        "rejected",
    ]
    assert rejected["reason"]
    assert without_outcome(orders, events).count() == 0
    others = {row["sequence"] for row in rows(made.tables, "order_events") if row["event"] == "rejected"} - requests
    assert {row["sequence"] for row in refused(orders, events).collect()} == others


def test_what_was_entered_was_executed_cancelled_or_rejected(spark: "SparkSession", made: "Made") -> None:
    found = [row.asDict() for row in execution_statistics(*of_floor(spark, made.tables)).collect()]
    totals = {name: sum(int(row[name]) for row in found) // ONE for name in ("executed", "cancelled", "rejected")}
    assert totals == {"executed": 2 * (5 + 3), "cancelled": 4 + 12, "rejected": 1_000}
    assert sum(int(row["quantity"]) for row in found) // ONE == sum(totals.values())
    for row in found:
        assert sum(int(row[name]) for name in CLASSES) == row["executed"]


def test_every_fill_is_in_exactly_one_class_of_speed(spark: "SparkSession") -> None:
    seconds = [-5, 0, 9, 10, 29, 30, 59, 60, 299, 300, 4_000]
    made = values.tables()
    (order, *_), (execution,) = made["orders"], made["executions"]
    executions = [
        execution | {"trade_id": place, "sell_order": 0, "quantity": ONE * 2**place}
        | {"traded_at_ns": order["entered_at_ns"] + after * SECOND}
        for place, after in enumerate(seconds)
    ]  # fmt: skip
    (row,) = execution_statistics(
        frame(spark, "orders", [order]), frame(spark, "order_events", []), frame(spark, "executions", executions)
    ).collect()
    counted = [int(row[name]) // ONE for name in CLASSES]
    assert counted == [0b1, 0b110, 0b11000, 0b1100000, 0b110000000, 0b11000000000]
    assert sum(counted) * ONE == row["executed"]


def test_the_readme_names_the_columns_that_are_there(spark: "SparkSession", made: "Made") -> None:
    names = execution_statistics(*of_floor(spark, made.tables)).columns
    assert [name for name in ("quantity", "executed", "cancelled", "rejected", "mean_ns") if name not in names] == []
    assert "executed, how fast, cancelled, rejected" in REGULATOR_README
    assert set(CLASSES) <= set(names)
