"""The two commands of the simulator, as a person types them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fairtape.cli import run
from fairtape.cli.check import check
from fairtape.cli.trace import trace


def test_check_says_in_one_json_object_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--seeds", "3", "--jobs", "1", "--json"], check) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failures"]) == (3, [])
    assert found["datagrams_per_s"] > 0


def test_check_tells_a_person_which_world_it_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--seed", "7"], check) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed 7: 3 sites")
    assert "every guarantee held" in told


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "0"], "--seeds is 0; give at least 1"),
        (["--seed", "-1"], "--seed is -1; give 0 or more"),
        (["--jobs", "0"], "--jobs is 0; give at least 1"),
        (["--loss", "2"], "--loss is 2; give a share from 0 to 0.5"),
    ],
)
def test_check_refuses_nonsense_in_one_sentence(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, check) == 2
    assert complaint in capsys.readouterr().err


def test_trace_draws_a_picture_that_is_well_formed(tmp_path: Path) -> None:
    picture = tmp_path / "12.svg"
    assert run(["12", "--svg", str(picture)], trace) == 0
    drawing = ElementTree.fromstring(picture.read_text())  # noqa: S314 - our own picture
    space = "{http://www.w3.org/2000/svg}"
    texts = {"".join(text.itertext()) for text in drawing.iter(f"{space}text")}
    assert {"site 1", "source 101", "request", "release"} <= texts
    assert len(list(drawing.iter(f"{space}circle"))) > 4


def test_trace_prints_the_stretch_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["12", "--from", "0.5", "--to", "0.6"], trace) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "everything was released everywhere"
    assert lines
    assert all(0.5 <= float(line.split()[0]) <= 0.6 for line in lines)


def test_trace_refuses_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["12", "--svg", str(tmp_path / "nowhere" / "x.svg")], trace) == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err
