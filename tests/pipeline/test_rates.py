"""Rates and co-movement, counted by Spark on generated trades and days, equal to plain counting."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.market.stripe_files import from_toml, to_toml
from fairtape.pipeline.stripes.plan_report import stripe_page
from fairtape.pipeline.stripes.rates import (
    counts,
    is_daily,
    joint_windows,
    likeness,
    read_days,
    read_history,
    trade_symbols,
)
from fairtape.pipeline.stripes.study import PlanRequest, propose, study

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS_AT = 1_700_000_000 * SECOND
SYMBOLS = ("AA", "BB", "CC", "DD")


def trades_file(folder: Path, count: int = 4_000) -> Path:
    """Twenty seconds of trades: AA and BB burst in the same seconds, CC and DD in others."""
    chance = np.random.default_rng(1)
    at = chance.integers(0, 20 * SECOND, count)
    first = (at // SECOND) % 4 < 2
    symbol = np.where(first, chance.integers(0, 2, count), chance.integers(2, 4, count))
    table = {
        "traded_at_ns": pa.array(STARTS_AT + np.sort(at)),
        "symbol": pa.array([SYMBOLS[each] for each in symbol[np.argsort(at)]]),
        "venue": pa.array(["NYSE"] * count),
    }
    pq.write_table(pa.table(table), folder / "trades.parquet")
    return folder / "trades.parquet"


def days_file(folder: Path) -> Path:
    """Forty symbols in four sectors over thirty days, and a holiday on which next to nothing was traded."""
    chance = np.random.default_rng(2)
    sectors = np.repeat(np.arange(4), 10)
    moves = chance.normal(0, 0.02, (4, 30))[sectors] + chance.normal(0, 0.005, (40, 30))
    prices = 50 * np.exp(np.cumsum(moves, axis=1))
    rows = [
        {"symbol": f"S{symbol:02}", "date": f"2026-01-{day + 1:02}", "close": float(prices[symbol, day]),
         "volume": 0.0 if day == 6 and symbol else float(1_000_000 * chance.lognormal(0, 0.2) * (1 + symbol % 10))}
        for symbol in range(40)
        for day in range(30)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / "days.parquet")
    return folder / "days.parquet"


def test_counts_per_window_equal_those_of_plain_counting(spark: "SparkSession", tmp_path: Path) -> None:
    file = trades_file(tmp_path)
    rows = pq.read_table(file).to_pylist()
    history = read_history(spark, file)
    assert not is_daily(history)
    for period in (SECOND, 10 * MILLISECOND):
        plain = Counter((row["symbol"], row["traded_at_ns"] // period) for row in rows)
        found = {(row["symbol"], row["window"]): row["messages"] for row in counts(history, period).collect()}
        assert found == plain


@pytest.mark.parametrize("name", ["a history", "Zürich [1]", "a*b{c}#d%e"])
def test_a_history_may_have_any_name(spark: "SparkSession", tmp_path: Path, name: str) -> None:
    trades_file(tmp_path, 9).rename(tmp_path / f"{name}.parquet")
    table = pq.read_table(tmp_path / f"{name}.parquet")
    pacsv.write_csv(table, tmp_path / f"{name}.csv")
    places = [tmp_path / f"{name}.parquet", tmp_path / f"{name}.csv"]
    if name == "a history":  # readers of Delta tables do not agree on the other names
        write_deltalake(tmp_path / name, table)
        places.append(tmp_path / name)
    for place in places:
        assert sorted(row["traded_at_ns"] for row in read_history(spark, place).collect()) == sorted(
            table.column("traded_at_ns").to_pylist()
        )


def test_a_delta_table_without_files_or_with_a_broken_log_is_reported(spark: "SparkSession", tmp_path: Path) -> None:
    write_deltalake(tmp_path / "none", pa.table({"symbol": pa.array([], pa.string())}))
    with pytest.raises(UserError, match="a Delta table without rows"):
        read_history(spark, tmp_path / "none")
    write_deltalake(tmp_path / "some", pa.table({"symbol": ["A"]}))
    (log,) = (tmp_path / "some" / "_delta_log").glob("*.json")
    log.write_text("{")
    with pytest.raises(UserError, match="a Delta table that cannot be read"):
        read_history(spark, tmp_path / "some")


def test_windows_keep_all_messages_when_none_need_be_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    history = read_history(spark, trades_file(tmp_path))
    windows = joint_windows(history, trade_symbols(history), SECOND, windows_max=300)
    assert windows.counts.sum() == 4_000
    assert windows.weights.sum() == pytest.approx(1.0)


def test_symbols_that_burst_together_are_alike(spark: "SparkSession", tmp_path: Path) -> None:
    history = read_history(spark, trades_file(tmp_path))
    windows = joint_windows(history, SYMBOLS, SECOND, windows_max=300)
    alike = likeness(spark, np.sqrt(windows.counts))
    assert [peers.tolist() for peers in alike.peers] == [[1], [0], [3], [2]]


def test_holidays_are_left_out_and_sectors_are_found_by_their_moves(spark: "SparkSession", tmp_path: Path) -> None:
    days = read_days(read_history(spark, days_file(tmp_path)), 200)
    assert days.messages.shape == (40, 29)
    alike = likeness(spark, days.moves, least=0.5)
    for symbol, peers in enumerate(alike.peers):
        assert {peer // 10 for peer in peers.tolist()} == {symbol // 10}


def test_a_history_becomes_a_plan_that_loads_and_a_page_that_tells_it(spark: "SparkSession", tmp_path: Path) -> None:
    request = PlanRequest(edge_bits_per_s=500_000, core_bits_per_s=10**7, hold_back=0.3, windows=200, bound=1e-3)
    studied = study(spark, days_file(tmp_path), request)
    proposal = propose(studied, request)
    assert from_toml(to_toml(proposal.plan)) == proposal.plan
    assert {symbol for stripe in proposal.plan.edge for symbol in stripe.symbols} == set(studied.symbols)
    assert proposal.results[0].name == "this plan"
    again = propose(studied, request, previous=proposal.plan)
    assert (again.moved, again.stayed) == (0, 40)
    assert again.plan.version == proposal.plan.version + 1
    page = stripe_page(studied, request, proposal).html()
    assert "<script" not in page
    assert "Beside other plans" in page


def test_a_history_without_symbols_or_times_is_refused_with_a_sentence(spark: "SparkSession", tmp_path: Path) -> None:
    pq.write_table(pa.table({"symbol": ["A"], "size": [1]}), tmp_path / "odd.parquet")
    with pytest.raises(UserError, match="neither date and volume nor a time"):
        is_daily(read_history(spark, tmp_path / "odd.parquet"))
    with pytest.raises(UserError, match="does not exist"):
        read_history(spark, tmp_path / "nowhere")
