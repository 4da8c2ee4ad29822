"""`fairtape check` and `fairtape trace`."""

import json
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fairtape.cli import run
from fairtape.cli.check import check, trace
from fairtape.core.errors import UserError
from fairtape.simulation.campaign import CampaignDigest
from fairtape.simulation.campaign_results import CampaignResults
from fairtape.simulation.cluster_run import run_ring


def test_check_prints_its_results_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--seeds", "3", "--jobs", "1", "--json"], check) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failures"]) == (3, [])
    assert found["datagrams_per_s"] > 0
    assert run(["--seeds", "3", "--jobs", "2", "--json"], check) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == found["digest"]


def digest_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments, "--jobs", "1", "--json"], check) == 0
    return str(json.loads(capsys.readouterr().out)["digest"])


def test_a_campaign_that_is_continued_has_the_digest_of_one_in_one_piece(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results"
    whole = digest_of(capsys, "--first", "5", "--seeds", "4")
    digest_of(capsys, "--first", "5", "--seeds", "2", "--results", str(file))
    with file.open("ab") as torn:
        torn.write(b'{"seed": 7, "guar')  # as after a kill
    assert digest_of(capsys, "--first", "5", "--seeds", "4", "--results", str(file)) == whole
    written = file.read_bytes()
    assert [json.loads(line)["seed"] for line in written.splitlines()[1:]] == [5, 6, 7, 8]
    assert digest_of(capsys, "--first", "5", "--seeds", "4", "--results", str(file)) == whole
    assert file.read_bytes() == written  # nothing is run twice


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a page of text\n", "has something else"),
        (
            '{"format": "fairtape check results, version 1", "worlds": "floor"}\n',
            "its worlds is 'floor' and not 'ring'",
        ),
    ],
)
def test_a_file_of_something_else_is_refused_and_not_changed(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results"
    file.write_text(text)
    assert run(["--seeds", "1", "--jobs", "1", "--results", str(file)], check) == 2
    assert expected in capsys.readouterr().err
    assert file.read_text() == text


def test_different_histories_have_different_digests() -> None:
    digests = set()
    for outcomes in ([run_ring(1)], [run_ring(2)], [run_ring(1, loss=0.05)], [run_ring(1), run_ring(2)]):
        digest = CampaignDigest()
        for outcome in outcomes:
            digest.add(outcome)
        digests.add(str(digest))
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {32}


def test_check_describes_the_world_that_it_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--seed", "7"], check) == 0
    output = capsys.readouterr().out
    assert output.startswith("seed 7: 3 sites")
    assert "1 world in " in output
    assert "every guarantee held" in output
    assert output.splitlines()[-1].startswith("  digest ")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--seeds", "0"], "--seeds is 0; give from 1 to 1,000,000,000"),
        (["--seeds", str(10**20)], "--seeds is 100,000,000,000,000,000,000; give from 1"),
        (["--seed", "-1"], "--seed is -1; give from 0 to "),
        (["--jobs", "0"], "--jobs is 0; give from 1 to 256"),
        (["--loss", "2"], "--loss is 2; give from 0 to 0.5, such as 0.05 for 5 %"),
        (["--loss", "nan"], "--loss is nan; give from 0 to 0.5, such as 0.05 for 5 %"),
    ],
)
def test_check_refuses_invalid_options_in_one_sentence(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, check) == 2
    assert error in capsys.readouterr().err


def test_trace_draws_a_diagram_that_is_well_formed(tmp_path: Path) -> None:
    diagram = tmp_path / "12.svg"
    assert run(["12", "--svg", str(diagram)], trace) == 0
    drawing = ElementTree.fromstring(diagram.read_text())  # noqa: S314 - our own diagram
    namespace = "{http://www.w3.org/2000/svg}"
    texts = {"".join(text.itertext()) for text in drawing.iter(f"{namespace}text")}
    assert {"site 1", "source 101", "request", "release"} <= texts
    assert len(list(drawing.iter(f"{namespace}circle"))) > 4


def test_trace_prints_the_window_that_was_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["12", "--from", "0.5", "--to", "0.6"], trace) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "everything was released everywhere"
    assert lines
    assert all(0.5 <= float(line.split()[0]) <= 0.6 for line in lines)


def test_trace_refuses_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["12", "--svg", str(tmp_path / "nowhere" / "x.svg")], trace) == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["12", "--from", "nan"], "--from is nan; give from 0 to 1,000,000"),
        (["12", "--from", "inf"], "--from is inf; give from 0 to 1,000,000"),
        (["12", "--to", "-1"], "--to is -1; give from 1e-06 to 1,000,000"),
        (["12", "--from", "0.5", "--to", "0.5000000001"], "--to is 0.5; give a time after --from, which is 0.5"),
        (["12", "--from", "5000"], "--from is 5000; this world ends after "),
        (["12", "--loss", "inf"], "--loss is inf; give from 0 to 0.5"),
        (["--", "-1"], "SEED is -1; give from 0 to "),
    ],
)
def test_trace_refuses_invalid_options_in_one_sentence(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, trace) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert error in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("bounds", [("--from", "1"), ("--to", "0.1"), ("--from", "0", "--to", "1e6")])
def test_trace_draws_a_window_with_one_bound_or_both(bounds: tuple[str, ...], tmp_path: Path) -> None:
    diagram = tmp_path / "12.svg"
    assert run(["12", "--svg", str(diagram), *bounds], trace) == 0
    ElementTree.fromstring(diagram.read_text())  # noqa: S314 - our own diagram


def test_a_file_of_results_belongs_to_one_campaign_at_a_time(tmp_path: Path) -> None:
    with (
        closing(CampaignResults(tmp_path / "results", "rings", ())),
        pytest.raises(UserError, match="is used by another campaign"),
    ):
        CampaignResults(tmp_path / "results", "rings", ())
