"""The tables, compared with a reference implementation over the same journals, row by row."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.market_values import Market
from pipeline.reference_links import ReferenceLinks
from pipeline.reference_tables import DAY, ReferenceTables, Row

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from deltalake import DeltaTable

from fairtape.core.instants import SECOND
from fairtape.pipeline.schemas import TABLES
from fairtape.pipeline.spark.snapshots import read_table
from fairtape.pipeline.tables.jobs import run_batch, run_stream
from pipeline.shared_tables import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.shared_tables import Made


def same(found: list[Row], expected: list[Row]) -> None:
    """The same rows in the columns that are expected, in whichever order."""
    columns = expected[0].keys() if expected else []
    shown = [{name: row[name] for name in columns} for row in found]
    assert sorted(shown, key=repr) == sorted(({name: row[name] for name in columns} for row in expected), key=repr)


MEASURES = (
    "spreads", "spread_distribution", "latency", "hold", "lateness", "pairs", "portals", "delays", "clocks", "outages",
    "fairness", "sales", "vwap",
)  # fmt: skip


def check(folder: Path, reference: ReferenceTables) -> None:
    for name in MEASURES:
        same(rows(folder, name), getattr(reference, name)())
    for name, period in (("bars_1s", SECOND), ("bars_1m", 60 * SECOND), ("bars_1d", DAY)):
        same(rows(folder, name), reference.bars(period))
    same(rows(folder, "formations"), reference.formations())


LINKS = ("links", "source_links", "token_losses", "retries", "requests")


def check_links(folder: Path, reference: ReferenceLinks) -> None:
    assert len(rows(folder, "traces")) == len(reference.records) > 0
    for name in LINKS:
        same(rows(folder, name), getattr(reference, name)())


def test_every_table_equals_its_reference_implementation(spark: "SparkSession", made: "Made") -> None:
    assert set(made.outcome.tables) == set(TABLES) - {"deliveries"}
    check(made.tables, ReferenceTables(made.journals))
    check_links(made.tables, ReferenceLinks(made.journals))
    assert run_batch(spark, made.journals, made.tables).tables == ()


def test_a_stream_makes_the_same_rows_as_a_batch_also_where_sites_come_later(
    spark: "SparkSession", made: "Made", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incremental tables get numbers after those of a site that failed, numbers that they have, and a new stripe."""
    monkeypatch.setattr("fairtape.pipeline.tables.jobs.FILES_MAX", 1)  # compact incremental tables at once
    known = [path for path in made.journals if path.name not in ("0-1", "0-3", "3-2", "9-1", "9-2")]
    run_batch(spark, known, tmp_path)
    run_stream(spark, made.journals, tmp_path, max_rows=200, available_now=True)
    for name in TABLES:
        same(rows(tmp_path, name), rows(made.tables, name))


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
    reference = ReferenceTables(paths)
    same(rows(tables, "lateness"), reference.lateness())
    (line,) = rows(tables, "fairness")
    assert (line["sites"], line["window_0_share"], line["portal_equity"]) == (1, None, None)


def test_duckdb_and_polars_see_the_same_table(made: "Made") -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    expected = sorted((row["sequence"], row["price"]) for row in rows(made.tables, "trades"))
    files = DeltaTable(made.tables / "trades").file_uris()
    assert sorted(duckdb.read_parquet(files).select("sequence", "price").fetchall()) == expected
    assert sorted(polars.read_parquet(files).select("sequence", "price").rows()) == expected
