"""The tables, held against plain loops over the same journals, row by row."""

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.market_values import Market
from pipeline.twin import DAY, Row, Twin

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from deltalake import DeltaTable

from fairtape.core.instants import SECOND
from fairtape.pipeline.jobs import read_table, run_batch, run_stream
from fairtape.pipeline.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(folder: Path, name: str) -> list[Row]:
    """A table as any reader of Delta sees it."""
    found = DeltaTable(folder / name).to_pyarrow_table().to_pylist()
    return [{key: int(x) if isinstance(x, Decimal) else x for key, x in row.items()} for row in found]


def same(found: list[Row], expected: list[Row]) -> None:
    """The same rows in the columns that are expected, in whichever order."""
    columns = expected[0].keys() if expected else []
    shown = [{name: row[name] for name in columns} for row in found]
    assert sorted(shown, key=repr) == sorted(({name: row[name] for name in columns} for row in expected), key=repr)


def moved(tmp_path: Path, seed: int = 1) -> list[Path]:
    """Two stripes at three sites, one of which fails early; a Break; and symbols that change their stripe."""
    first, second = Market(seed), Market(seed + 1, stripe=1)
    first.form((1, 2, 3))
    first.trade_on(12)
    first.form((1, 3), broken=True)
    first.trade_on(12, symbols=("ABC",))
    second.form((3, 1))
    second.token = 9
    second.trade_on(14, symbols=("DEF", "GHI"))
    return [
        *first.write(tmp_path, (1, 2, 3), until={2: 9}),
        *second.write(tmp_path, (1, 3)),
    ]


FIGURES = (
    "spreads", "spread_distribution", "latency", "hold", "lateness", "pairs", "portals", "delays", "clocks", "outages",
    "fairness", "sales", "vwap",
)  # fmt: skip


def check(folder: Path, twin: Twin) -> None:
    for name in FIGURES:
        same(rows(folder, name), getattr(twin, name)())
    for name, period in (("bars_1s", SECOND), ("bars_1m", 60 * SECOND), ("bars_1d", DAY)):
        same(rows(folder, name), twin.bars(period))
    same(rows(folder, "formations"), twin.formations())


def test_every_figure_is_that_of_a_plain_loop_and_a_stream_makes_the_same_rows_as_a_batch(
    spark: "SparkSession", tmp_path: Path
) -> None:
    journals = moved(tmp_path / "journals")
    batch, stream = tmp_path / "batch", tmp_path / "stream"
    outcome = run_batch(spark, journals, batch)
    assert set(outcome.tables) == set(TABLES) - {"deliveries"}
    check(batch, Twin(journals))
    assert run_batch(spark, journals, batch).tables == ()
    run_stream(spark, journals, stream, max_rows=40, available_now=True)
    for name in TABLES:
        same(rows(stream, name), rows(batch, name))


@pytest.mark.parametrize("seed", [11, 12])
def test_figures_of_random_journals_are_those_of_a_plain_loop(spark: "SparkSession", tmp_path: Path, seed: int) -> None:
    market = Market(seed)
    market.form((1, 2))
    journals = market.trade_on(25).write(tmp_path / "journals", (1, 2))
    run_batch(spark, journals, tmp_path / "tables")
    check(tmp_path / "tables", Twin(journals))


def test_an_empty_journal_and_a_single_message_give_sensible_tables(spark: "SparkSession", tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    journals.mkdir()
    tables = tmp_path / "tables"
    assert run_batch(spark, f"{journals}/*", tables).tables == ()
    assert read_table(spark, tables, "bars_1s").count() == 0
    market = Market(3)
    market.trade_on(1)
    market.history = market.history[:1]
    paths = market.write(journals, (7,))
    run_batch(spark, f"{journals}/*", tables)
    twin = Twin(paths)
    same(rows(tables, "lateness"), twin.lateness())
    (line,) = rows(tables, "fairness")
    assert (line["sites"], line["window_0_share"], line["portal_equity"]) == (1, None, None)


def test_duckdb_and_polars_see_the_same_table(spark: "SparkSession", tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    market = Market(5)
    journals = market.trade_on(4).write(tmp_path / "journals", (1,))
    tables = tmp_path / "tables"
    run_batch(spark, journals, tables)
    expected = sorted((row["sequence"], row["price"]) for row in rows(tables, "trades"))
    files = DeltaTable(tables / "trades").file_uris()
    assert sorted(duckdb.read_parquet(files).select("sequence", "price").fetchall()) == expected
    assert sorted(polars.read_parquet(files).select("sequence", "price").rows()) == expected
