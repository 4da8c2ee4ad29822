"""The report: a page that stands alone, its data, and a bundle for a regulator."""

import csv
import hashlib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

import pipeline.report_values as values
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND
from fairtape.market.prices import ONE
from fairtape.pipeline.report.fairness_report import make_report
from fairtape.pipeline.report.html_page import HtmlTable, Page, PageVerdict, Section
from fairtape.pipeline.report.plots import (
    BarPlot,
    LinePlot,
)
from fairtape.pipeline.report.sections import Names, failover_section, volume_section

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def report(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = values.write_tables(tmp_path_factory.mktemp("tables"))
    out = tmp_path_factory.mktemp("report")
    made = make_report(spark, tables, out, names=Names(sites={3: "Tokyo"}, sources={101: "XTKS"}))
    assert all(path.exists() for path in (made.page, *made.files))
    return out


def test_the_page_stands_alone_and_begins_with_the_result(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == [
        "Fairness", "One order", "Completeness", "Failover", "Late releases", "Latency by source", "Clock bounds",
        "Spread over time", "Fairness metrics", "Links between sites", "Volume", "Bars",
    ]  # fmt: skip
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#|data:)', page), "nothing is fetched from anywhere"


def test_findings_have_the_colour_of_their_verdict(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert 'good">Sites released a message within' in page
    assert "has a spread of 60&nbsp;ms at the median" in page
    assert 'good">All 3 sites hold one sequence: 1,200 messages in 240 tokens' in page
    assert 'good">Every number is there exactly once' in page
    assert 'good">The ring was reformed once; the longest pause was 1.25&nbsp;s. No message was lost.' in page
    assert 'attention">5 of 3,600 deliveries were late (0.139&nbsp;%), and each is marked. No release was' in page
    assert 'soft">For 1,150 of 1,200 messages that several sites released (95.8&nbsp;%)' in page
    assert "<dt>guarantees kept</dt><dd>5 of 5</dd>" in page


def test_direct_delivery_is_measured_on_the_arrivals_of_the_same_tokens(report: Path) -> None:
    rows = {row["delivery"]: row for row in pq.read_table(report / "data" / "delivery_spreads.parquet").to_pylist()}
    assert rows["fairtape"]["count"] == rows["direct"]["count"] == (values.TOKENS - 1) * values.PER_TOKEN
    assert rows["late"]["count"] == values.PER_TOKEN
    assert rows["direct"]["p50"] == values.FARTHEST


def test_the_page_calls_sites_and_sources_by_their_names_where_it_has_some(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert "<td>Tokyo</td>" in page
    assert "<td>site 2</td>" in page
    assert "XTKS" in page
    assert "source 102" in page


def test_the_spread_is_measured_over_all_tokens_that_were_on_time(report: Path) -> None:
    (found,) = pq.read_table(report / "data" / "spread_whole.parquet").to_pylist()
    spreads = sorted(row["spread_ns"] for row in values.tables()["spreads"] if not row["late_sites"])
    assert found["tokens"] == len(spreads)
    assert found["max_ns"] == spreads[-1]
    assert found["p99_ns"] == spreads[math.ceil(0.99 * len(spreads)) - 1]


def test_data_beside_the_page_keep_their_integers(report: Path) -> None:
    found = pq.read_table(report / "data" / "spread_over_time.parquet").to_pylist()
    spreads = [row for row in values.tables()["spreads"] if not row["late_sites"]]
    assert sum(row["tokens"] for row in found) == len(spreads)
    assert max(row["max_ns"] for row in found) == max(row["spread_ns"] for row in spreads)
    first = min(row["period_at_ns"] for row in found)
    assert str(first) == rows(report / "data" / "spread_over_time.csv")[0]["period_at_ns"]


def test_the_audit_trail_leads_from_entry_to_commit_and_names_orders_without_outcome(report: Path) -> None:
    trail: dict[str, list[str]] = {}
    for row in rows(report / "regulator" / "audit_trail.csv"):
        trail.setdefault(row["order_number"], []).append(row["what"])
    assert trail == {
        "6": ["entered: new", "sequenced", "filled", "committed"],
        "11": ["entered: new", "sequenced", "filled", "committed"],
        "16": ["entered: new", "sequenced", "cancelled"],
        "21": ["entered: new", "rejected"],
        "26": ["entered: new"],
    }
    assert [row["sequence"] for row in rows(report / "regulator" / "orders_without_outcome.csv")] == ["26"]
    assert [row["sequence"] for row in rows(report / "regulator" / "refused.csv")] == ["31"]


def test_execution_statistics_count_orders_and_what_was_executed(report: Path) -> None:
    (row,) = rows(report / "regulator" / "execution_statistics.csv")
    assert (row["symbol"], row["size"], row["orders"]) == ("ABC", "100 to 499", "5")
    assert int(row["quantity"]) == 1_000 * ONE
    assert int(row["executed"]) == 400 * ONE == int(row["executed_0_to_10_s"])
    assert int(row["cancelled"]) == 200 * ONE == int(row["rejected"])


def test_the_bundle_can_be_checked_by_its_digests(report: Path) -> None:
    sums = (report / "regulator" / "SHA256SUMS").read_text().split()
    for digest, name in zip(sums[::2], sums[1::2], strict=True):
        assert hashlib.sha256((report / "regulator" / name).read_bytes()).hexdigest() == digest


def test_an_empty_folder_gives_a_page_that_says_so(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    made = make_report(spark, tmp_path / "tables", tmp_path / "out")
    assert "no message was released" in made.page.read_text()
    with pytest.raises(UserError, match="is not a folder"):
        make_report(spark, tmp_path / "nowhere", tmp_path / "out")


def test_a_formation_is_shown_with_the_sites_that_left_and_the_first_is_no_change() -> None:
    first = {"stripe": 0, "formation": 1, "broken": False, "first_at_ns": SECOND, "silence_ns": None}
    second = {"stripe": 0, "formation": 2, "broken": False, "first_at_ns": 9 * SECOND, "silence_ns": 3 * SECOND}
    members = [{"stripe": 0, "formation": number, "members": found} for number, found in ((1, [7, 8, 9]), (2, [7, 9]))]
    section = failover_section([first, second], members, [], Names(sites={8: "Tokyo"}))
    assert section.finding == "The ring was reformed once; the longest pause was 3 s."
    assert "00:00:09 formation 2, without Tokyo" in section.html()
    assert "never paused" in failover_section([first], members, [], Names()).finding


def test_a_venue_that_does_not_trade_for_a_while_has_no_volume_then() -> None:
    rows = [{"period_at_ns": at * SECOND, "venue": "XTKS", "trades": 4} for at in (0, 1, 4)]
    plot = volume_section(rows, [], SECOND).plots[0]
    assert isinstance(plot, LinePlot)
    assert [y for _, y in plot.lines[0].points] == [4, 4, 0, 0, 4]


def test_a_number_stays_with_its_unit() -> None:
    section = Section(title="t", verdict=PageVerdict.GOOD, finding="1.5 s and 3 % of 2 sites")
    assert "1.5&nbsp;s and 3&nbsp;% of 2 sites" in section.html()


def test_names_from_outside_cannot_become_markup() -> None:
    section = Section(title="<b>", verdict=PageVerdict.GOOD, finding="<i>", plots=[BarPlot(bars=[("<u>", 1.0)])],
                      table=HtmlTable(("<s>",), [("<p>",)]))  # fmt: skip
    page = Page(title="<title>", opening=(), facts=[("<a>", "<q>")], sections=[section]).html()
    for tag in ("<b>", "<i>", "<u>", "<s>", "<q>", "<title><"):
        assert tag not in page
