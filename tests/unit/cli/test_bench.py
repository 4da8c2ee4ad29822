"""The commands of `fairtape bench`, as far as they run without sockets."""

import json

import pytest

from fairtape.bench.journal import OPERATIONS
from fairtape.cli import run
from fairtape.cli.bench import JOURNAL_LABELS

SMALL = ["bench", "journal", "--segments", "100", "--rounds", "1", "--only", "costs"]


def test_bench_journal_prints_one_json_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert (results["segments"], results["new_segments"], results["problems"]) == (100, 10, [])
    assert {f"{name}_ratio" for name in OPERATIONS} <= results.keys()
    assert not any(name.startswith("ring_") for name in results)


def test_bench_journal_prints_a_labelled_row_for_each_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(SMALL) == 0
    captured = capsys.readouterr()
    labels = [JOURNAL_LABELS[f"{name}_{each}"] for each in ("ratio", "us") for name in OPERATIONS]
    assert [line for line in captured.out.splitlines()[1:] if not line.startswith(tuple(labels))] == []
    assert len(captured.out.splitlines()) == 1 + len(labels)
    assert "round 1 of 1" in captured.err


@pytest.mark.parametrize("option", ["--segments", "--rounds", "--seconds"])
def test_bench_journal_refuses_sizes_that_make_no_sense(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, option, "0"]) == 2
    assert option in capsys.readouterr().err
