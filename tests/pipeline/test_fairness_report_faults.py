"""A report on what is short, oddly named or damaged: it is made, or one sentence says why not, and nothing is half."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

import pipeline.report_values as values
from fairtape.cli import run as fairtape
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.pipeline.report.fairness_report import make_report
from fairtape.pipeline.spark.spark_session import escaped_path, read_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = "grün, [1]^a*b?{c,d}#e%20f\\g"


def few() -> dict[str, list[values.Row]]:
    return {"releases": list(values.first_second()["releases"])}


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_session_within_one_second_has_its_page(spark: "SparkSession", tmp_path: Path) -> None:
    tables = values.write_tables(tmp_path / "tables", values.first_second())
    made = make_report(spark, tables, tmp_path / "out")
    assert 'Spread over time</h2><p class="verdict soft">99 in 100 tokens' in made.page.read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data", "index.html", "regulator"]
    assert all(path.exists() for path in made.files)


def test_every_broken_guarantee_is_found_in_the_tables(spark: "SparkSession", tmp_path: Path) -> None:
    made = {name: list(rows) for name, rows in values.first_second().items()}
    made["deliveries"][0] |= {"payload": b"other"}  # another content at one site
    made["deliveries"][-1] |= {"sequence": made["deliveries"][-1]["sequence"] + 1}  # a gap
    made["deliveries"].append(dict(made["deliveries"][1]))  # a duplicate
    made["releases"][0] |= {"released_at_ns": made["releases"][0]["commit_at_ns"] - 1}
    made["releases"][1] |= {"released_at_ns": made["releases"][1]["commit_at_ns"] + 6 * MILLISECOND}
    page = make_report(spark, values.write_tables(tmp_path / "tables", made), tmp_path / "out").page.read_text()
    assert "<dt>guarantees kept</dt><dd>0 of 5</dd>" in page
    assert 'failed">Sites hold different sequences: 2 of 4 tokens differ, the first is token 0 of stripe 0.' in page
    assert 'failed">1 numbers are missing and 1 are repeated.' in page
    assert "5 deliveries were early. 5 deliveries were late and are not marked." in page


def test_late_releases_that_waited_for_a_new_formation_are_counted_apart(spark: "SparkSession", tmp_path: Path) -> None:
    made = {name: list(rows) for name, rows in values.tables().items() if name in ("releases", "outages")}
    waited = [row for row in made["releases"] if row["token"] == values.CHANGED_AT - 1]
    for row in waited:
        row["late"] = True
    page = make_report(spark, values.write_tables(tmp_path / "tables", made), tmp_path / "out").page.read_text()
    assert "20 of 3,600 deliveries were late" in page
    assert "15 of them waited for the ring to be reformed" in page


@pytest.mark.parametrize("name", ["a folder", "Zürich, 東京", "a=b:c & 'd'"])
def test_tables_may_lie_in_folders_of_any_usual_name(spark: "SparkSession", tmp_path: Path, name: str) -> None:
    tables = values.write_tables(tmp_path / name, few())
    made = make_report(spark, tables, tmp_path / name / "out")
    assert "<dt>sites</dt><dd>3</dd>" in made.page.read_text()


def test_spark_reads_the_file_that_was_named_and_no_other(spark: "SparkSession", tmp_path: Path) -> None:
    for name in (ODD, "a", "ab"):
        pq.write_table(pa.table({"place": range(len(name))}), tmp_path / name)
    for name in (ODD, "a"):
        assert read_parquet(spark, [tmp_path / name]).count() == len(name)
    assert escaped_path("/a[b]/c*") == r"/a\[b\]/c\*"
    assert escaped_path("/a:b/c") == "/a:b/c"
    with pytest.raises(UserError, match=r"has both : and \*"):
        escaped_path("/a:b/c*")


def damaged(folder: Path) -> Iterator[Path]:
    """The file of a table that is no Parquet, empty, or missing."""
    for place, content in enumerate((b"no Parquet, but as long as one", b"", None)):
        tables = values.write_tables(folder / f"tables {place}", few())
        (file,) = (tables / "releases").glob("*.parquet")
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        yield file


@pytest.mark.usefixtures("spark")
def test_a_damaged_table_is_reported_in_a_sentence_and_leaves_the_report_of_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    tables = values.write_tables(tmp_path / "whole", few())
    assert fairtape(["pipeline", "report", "--tables", str(tables), "--out", str(out)]) == 0
    before = everything(out)
    for file in damaged(tmp_path):
        capsys.readouterr()
        assert fairtape(["pipeline", "report", "--tables", str(file.parents[1]), "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert str(file) in error
        assert "delete its table and make that anew" in error
        assert error.count("\n") == 1
        assert everything(out) == before


def test_a_table_with_a_broken_log_is_reported_and_not_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    tables = values.write_tables(tmp_path / "tables", few())
    (log,) = (tables / "releases" / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(UserError, match="releases cannot be read"):
        make_report(spark, tables, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_floor_without_a_trade_has_its_audit_trail(spark: "SparkSession", tmp_path: Path) -> None:
    orders = {"orders": values.tables()["orders"][:1]}
    made = make_report(spark, values.write_tables(tmp_path / "tables", few() | orders), tmp_path / "out")
    assert (tmp_path / "out" / "regulator" / "audit_trail.csv") in made.files
    assert len((tmp_path / "out" / "regulator" / "orders_without_outcome.csv").read_text().splitlines()) == 2
