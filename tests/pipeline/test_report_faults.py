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
from fairtape.core.instants import SECOND
from fairtape.pipeline.report.plots import Candle, CandlePlot, LinePlot, PlotLine
from fairtape.pipeline.report.report import make_report
from fairtape.pipeline.spark.file_paths import by_letter, read_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ODD = "grün, [1]^a*b?{c,d}#e%20f\\g"


def few() -> dict[str, list[values.Row]]:
    return {"releases": list(values.first_second()["releases"])}


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_moment_that_is_alone_stands_in_the_middle_of_its_plot() -> None:
    at = float(values.STARTS_AT)
    svg = LinePlot(lines=[PlotLine("", [(at, 2.0)])]).svg(300)
    assert svg.count("<circle") == 1
    assert "22:13:20" in svg
    assert "<rect" in CandlePlot(candles=[Candle(at, 1e12, 1e12, 1e12, 1e12)], period=SECOND).svg(300)
    assert "<circle" in LinePlot(lines=[PlotLine("", [(0.0, 0.0)])]).svg(300)


def test_a_session_within_one_second_has_its_page(spark: "SparkSession", tmp_path: Path) -> None:
    tables = values.write_tables(tmp_path / "tables", values.first_second())
    made = make_report(spark, tables, tmp_path / "out")
    assert 'Spread over time</h2><p class="verdict good">99 in 100 tokens' in made.page.read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["data", "index.html", "regulator"]
    assert all(path.exists() for path in made.files)


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
    assert by_letter("/a[b]/c*") == r"/a\[b\]/c\*"
    assert by_letter("/a:b/c") == "/a:b/c"
    with pytest.raises(UserError, match=r"has both : and \*"):
        by_letter("/a:b/c*")


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
def test_a_damaged_table_is_told_in_a_sentence_and_leaves_the_report_of_before(
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


def test_a_table_with_a_broken_log_is_told_and_not_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    tables = values.write_tables(tmp_path / "tables", few())
    (log,) = (tables / "releases" / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(UserError, match="releases cannot be read"):
        make_report(spark, tables, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_floor_on_which_nobody_traded_has_its_audit_trail(spark: "SparkSession", tmp_path: Path) -> None:
    orders = {"orders": values.tables()["orders"][:1]}
    made = make_report(spark, values.write_tables(tmp_path / "tables", few() | orders), tmp_path / "out")
    assert (tmp_path / "out" / "regulator" / "audit_trail.csv") in made.files
    assert len((tmp_path / "out" / "regulator" / "untold.csv").read_text().splitlines()) == 2
