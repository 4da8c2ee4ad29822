"""`fairtape plan loops`: the table, the junctions, the JSON, and mistakes."""

import json

import pytest

from fairtape.cli import run


def test_the_plan_for_100_sites_is_a_table_and_its_junctions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "loops", "100"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "level    loops  sites per loop  token passes to detect a failure"
    assert [line.split() for line in shown[1:3]] == [["1", "1", "10", "10"], ["2", "10", "10", "10"]]
    assert "A failure anywhere is detected within 10 token passes" in shown[4]
    assert shown[6] == "loop 1, primary: sites 1, 11, 21, 31, 41, 51, 61, 71, 81, 91"
    assert shown[7] == "loop 2, level 2: sites 1-10; junction 1 with loop 1"
    assert shown[-1] == "loop 11, level 2: sites 91-100; junction 91 with loop 1"


def test_the_plan_for_a_few_sites_is_one_loop(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "loops", "5"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:3]] == [["1", "1", "5", "5"], []]


def test_the_json_names_every_loop_and_where_it_is_joined(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "loops", "9", "--levels", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "sites": 9,
        "levels": 2,
        "token_passes_max": 3,
        "loops": [
            {"loop": 1, "level": 1, "members": [1, 4, 7], "parent": None, "junction": None},
            {"loop": 2, "level": 2, "members": [1, 2, 3], "parent": 1, "junction": 1},
            {"loop": 3, "level": 2, "members": [4, 5, 6], "parent": 1, "junction": 4},
            {"loop": 4, "level": 2, "members": [7, 8, 9], "parent": 1, "junction": 7},
        ],
    }


@pytest.mark.parametrize("arguments", [["0"], ["-5"], ["many"], ["10", "--levels", "9"], ["10000", "--levels", "2"]])
def test_a_mistake_is_one_sentence_with_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "loops", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
