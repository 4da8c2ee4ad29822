"""Plots of a report: what is drawn, what is left out, and how values are written."""

import re

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.pipeline.report.plots import (
    BarPlot,
    Candle,
    CandlePlot,
    LinePlot,
    LogBarPlot,
    PlotLine,
    figure,
    format_duration,
    format_share,
    thinned,
)


def test_no_line_is_drawn_through_what_was_not_measured() -> None:
    points = [(float(at * SECOND), 1.0) for at in (0, 1, 2, 6, 7)]
    assert LinePlot(lines=[PlotLine("", points)], period=SECOND).svg(300).count("<polyline") == 2
    assert LinePlot(lines=[PlotLine("", points)]).svg(300).count("<polyline") == 1


def test_lines_beyond_the_last_colour_come_dashed() -> None:
    lines = [PlotLine(f"site {site}", [(0.0, 1.0), (float(SECOND), 2.0)]) for site in range(9)]
    drawn = re.findall(r'<polyline class="([^"]+)"', LinePlot(lines=lines).svg(800))
    assert len(set(drawn)) == 9


def test_prices_on_an_axis_can_be_distinguished() -> None:
    svg = CandlePlot(candles=[Candle(0.0, 20.31, 20.44, 20.29, 20.4)], period=SECOND).svg(400)
    labels = re.findall(r">([\d.]+)</text>", svg)
    assert len(labels) == len(set(labels)) > 2


def test_names_beside_bars_have_enough_space() -> None:
    svg = BarPlot(bars=[("MWMW", 1.0), ("IL", 2.0)]).svg(800)
    start = float(re.findall(r'<rect class="c0" x="([\d.]+)"', svg)[0])
    assert start > 4 * 11


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


def test_a_single_moment_is_drawn_in_the_middle_of_its_plot() -> None:
    at = 1_700_000_000.0 * SECOND
    svg = LinePlot(lines=[PlotLine("", [(at, 2.0)])]).svg(300)
    assert svg.count("<circle") == 1
    assert "22:13:20" in svg
    assert "<rect" in CandlePlot(candles=[Candle(at, 1e12, 1e12, 1e12, 1e12)], period=SECOND).svg(300)
    assert "<circle" in LinePlot(lines=[PlotLine("", [(0.0, 0.0)])]).svg(300)


def test_equal_ratios_are_equally_far_apart_on_a_logarithmic_scale() -> None:
    values = (("a", 100 * MICROSECOND, 0), ("b", MILLISECOND, 0), ("c", 10 * MILLISECOND, 1))
    svg = LogBarPlot(bars=values, format_value=format_duration).svg(800)
    first, second, third = map(float, re.findall(r'<rect class="c[01]" [^>]*?width="([0-9.]+)"', svg))
    assert first > 1
    assert third - second == pytest.approx(second - first, abs=0.2)
    assert "100 µs" in svg
    assert "nothing to show" in LogBarPlot(bars=[("a", 0, 0)]).svg(800)
