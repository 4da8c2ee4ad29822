"""`fairtape pipeline …` as a person types it, on the Spark of these tests."""

import json
from pathlib import Path

import pytest

from pipeline.market_values import Market

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.cli import run as fairtape


@pytest.mark.usefixtures("spark")
def test_tables_are_made_kept_and_proved_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    market = Market(4)
    market.form((1, 2))
    journals, tables = tmp_path / "journals", tmp_path / "tables"
    market.trade_on(6).write(journals, (1, 2), until={2: 5})
    assert fairtape(["pipeline", "run", str(journals), "--out", str(tables), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert set(output["last_sequences"]) == {"0/1", "0/2"}
    assert output["last_sequences"]["0/1"] == market.sequence - 1
    assert "fairness" in output["tables"]
    assert fairtape(["pipeline", "compact", str(tables)]) == 0
    assert fairtape(["pipeline", "vacuum", str(tables), "--hours", "1", "--rehearse"]) == 0
    assert fairtape(["pipeline", "run", str(journals), "--out", str(tables), "--json"]) == 0
    capsys.readouterr()
    assert fairtape(["pipeline", "reconcile", str(journals)]) == 3
    assert "SHORTER" in capsys.readouterr().out
    assert fairtape(["pipeline", "reconcile", str(journals / "0-1"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nowhere", "--out", "tables"], "'nowhere' is not a directory"),
        (["run", ".", "--out", "tables"], "'.' holds no journal"),
        (["run", "journal", "--out", "t#h"], "names with '#'; choose a folder without that character"),
        (["run", "journal", "--out", "t[x]"], "names with '['"),
        (["run", "journal", "--out", "file"], "cannot be made (File exists)"),
        (["run", "journal", "--out", "file/below"], "cannot be made (Not a directory)"),
        (["compact", "nowhere"], "'nowhere' holds no tables"),
        (["vacuum", ".", "--hours", "0"], "--hours is 0"),
        (["run", ".", "--out", "tables", "--checkpoint", "x"], "--checkpoint is given without --stream"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "journal" in arguments:
        Market(4).trade_on(1).write(tmp_path / "journal", (1,))
        (tmp_path / "file").touch()
    assert fairtape(["pipeline", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("spark")
def test_a_history_that_is_no_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.parquet").write_text("no parquet at all")
    (tmp_path / "time.csv").write_text("symbol,time,price,quantity\nABC,yesterday,1,1\n")
    for name, sentence in (("bad.parquet", "is not a Parquet file or a Delta table"), ("time.csv", "cannot be read")):
        history, plan = str(tmp_path / name), str(tmp_path / "plan.toml")
        assert fairtape(["pipeline", "stripes", "--from", history, "--out", plan]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert "Traceback" not in error
