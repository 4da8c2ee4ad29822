"""The report: a page that stands alone, data beside it, and a regulator's bundle without a gap."""

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
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.market.prices import ONE
from fairtape.pipeline.report.html_page import HtmlTable, Page, PageVerdict, Section
from fairtape.pipeline.report.plots import (
    BarPlot,
    Candle,
    CandlePlot,
    LinePlot,
    PlotLine,
    figure,
    format_duration,
    format_share,
    thinned,
)
from fairtape.pipeline.report.report import make_report
from fairtape.pipeline.report.sections import Names, outage_section, volume_section

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


def test_the_page_stands_alone_and_has_every_section(report: Path) -> None:
    page = (report / "index.html").read_text()
    for title in ("Fairness", "Latency by source", "Spread over time", "Late messages", "Clock bounds", "Outages",
                  "Volume", "Bars", "Completeness"):  # fmt: skip
        assert f"<h2>{title}</h2>" in page
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?!#|data:)', page), "nothing is fetched from anywhere"


def test_sentences_say_whether_it_is_good(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert 'good">1,150 of 1,200 messages that several sites released (95.8&nbsp;%) were released so close' in page
    assert 'bad">5 of 3,600 deliveries were late' in page
    assert "Every number is there exactly once" in page
    assert "was formed anew once; the longest silence was 1.25&nbsp;s" in page


def test_the_page_calls_sites_and_sources_by_their_names_where_it_has_some(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert "<td>Tokyo</td>" in page
    assert "<td>site 2</td>" in page
    assert "XTKS" in page
    assert "source 102" in page


def test_the_spread_is_told_over_all_tokens(report: Path) -> None:
    (found,) = pq.read_table(report / "data" / "spread_whole.parquet").to_pylist()
    spreads = sorted(row["spread_ns"] for row in values.tables()["spreads"])
    assert found["tokens"] == len(spreads)
    assert found["max_ns"] == spreads[-1]
    assert found["p99_ns"] == spreads[math.ceil(0.99 * len(spreads)) - 1]


def test_data_beside_the_page_keep_their_integers(report: Path) -> None:
    found = pq.read_table(report / "data" / "spread_over_time.parquet").to_pylist()
    spreads = values.tables()["spreads"]
    assert sum(row["tokens"] for row in found) == len(spreads)
    assert max(row["max_ns"] for row in found) == max(row["spread_ns"] for row in spreads)
    first = min(row["period_at_ns"] for row in found)
    told = rows(report / "data" / "spread_over_time.csv")
    assert str(first) == told[0]["period_at_ns"]


def test_the_audit_trail_leads_from_entry_to_commit_and_names_what_is_untold(report: Path) -> None:
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
    assert [row["sequence"] for row in rows(report / "regulator" / "untold.csv")] == ["26"]
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
    with pytest.raises(UserError, match="is no folder"):
        make_report(spark, tmp_path / "nowhere", tmp_path / "out")


def test_a_formation_is_told_by_who_left_it_and_the_first_one_is_no_change() -> None:
    first = {"stripe": 0, "formation": 1, "broken": False, "first_at_ns": SECOND, "silence_ns": None}
    second = {"stripe": 0, "formation": 2, "broken": False, "first_at_ns": 9 * SECOND, "silence_ns": 3 * SECOND}
    members = [{"stripe": 0, "formation": number, "members": found} for number, found in ((1, [7, 8, 9]), (2, [7, 9]))]
    section = outage_section([first, second], members, Names(sites={8: "Tokyo"}))
    assert section.finding == "The ring was formed anew once; the longest silence was 3 s."
    assert "00:00:09 formation 2, without Tokyo" in section.html()
    assert "never stood still" in outage_section([first], members, Names()).finding


def test_a_venue_that_does_not_trade_for_a_while_has_no_volume_then() -> None:
    rows = [{"period_at_ns": at * SECOND, "venue": "XTKS", "trades": 4} for at in (0, 1, 4)]
    plot = volume_section(rows, [], SECOND).plots[0]
    assert isinstance(plot, LinePlot)
    assert [y for _, y in plot.lines[0].points] == [4, 4, 0, 0, 4]


def test_no_line_is_drawn_through_what_was_not_measured() -> None:
    points = [(float(at * SECOND), 1.0) for at in (0, 1, 2, 6, 7)]
    assert LinePlot(lines=[PlotLine("", points)], period=SECOND).svg(300).count("<polyline") == 2
    assert LinePlot(lines=[PlotLine("", points)]).svg(300).count("<polyline") == 1


def test_lines_beyond_the_last_colour_come_dashed() -> None:
    lines = [PlotLine(f"site {site}", [(0.0, 1.0), (float(SECOND), 2.0)]) for site in range(9)]
    drawn = re.findall(r'<polyline class="([^"]+)"', LinePlot(lines=lines).svg(800))
    assert len(set(drawn)) == 9


def test_prices_on_an_axis_can_be_told_apart() -> None:
    svg = CandlePlot(candles=[Candle(0.0, 20.31, 20.44, 20.29, 20.4)], period=SECOND).svg(400)
    told = re.findall(r">([\d.]+)</text>", svg)
    assert len(told) == len(set(told)) > 2


def test_names_beside_bars_have_room() -> None:
    svg = BarPlot(bars=[("MWMW", 1.0), ("IL", 2.0)]).svg(800)
    start = float(re.findall(r'<rect class="c0" x="([\d.]+)"', svg)[0])
    assert start > 4 * 11


def test_a_number_stays_with_its_unit() -> None:
    section = Section(title="t", verdict=PageVerdict.GOOD, finding="1.5 s and 3 % of 2 sites")
    assert "1.5&nbsp;s and 3&nbsp;% of 2 sites" in section.html()


def test_names_from_outside_cannot_become_markup() -> None:
    section = Section(title="<b>", verdict=PageVerdict.GOOD, finding="<i>", plots=[BarPlot(bars=[("<u>", 1.0)])],
                      table=HtmlTable(("<s>",), [("<p>",)]))  # fmt: skip
    page = Page(title="<title>", opening=(), facts=[("<a>", "<q>")], sections=[section]).html()
    for tag in ("<b>", "<i>", "<u>", "<s>", "<q>", "<title><"):
        assert tag not in page


def test_thinning_keeps_the_peaks() -> None:
    points = [(float(at), 1.0) for at in range(20_000)]
    points[12_345] = (12_345.0, 99.0)
    kept = thinned(points)
    assert len(kept) <= 1_600
    assert (12_345.0, 99.0) in kept


def test_durations_have_a_unit_and_shares_enough_decimals() -> None:
    assert format_duration(1_500 * MILLISECOND) == "1.5 s"
    assert [format_duration(seconds * SECOND) for seconds in (60, 1_234, 36_000, 1_750_000_000)] == [
        "1 min", "20.6 min", "10 h", "20,255 days",
    ]  # fmt: skip
    assert (format_duration(0), format_duration(SECOND - 1)) == ("0 ns", "1,000 ms")
    assert [format_share(value) for value in (0.0, 0.000_072, 1e-9, 0.5, 0.999_96, 1.0, 12.5)] == [
        "0 %", "0.0072 %", "0.0000001 %", "50 %", "99.996 %", "100 %", "1,250 %",
    ]  # fmt: skip
    assert "nothing to show" in figure(LinePlot(lines=[PlotLine("", [])]), "empty")
    assert LinePlot(lines=[PlotLine("one", [(float(SECOND), 2.0)])]).svg(300).count("<circle") == 1
