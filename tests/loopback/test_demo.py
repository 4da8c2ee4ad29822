"""The demonstration: one order at nine sites, an honest report, a clean end, and no process left behind."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fairtape.runtime.journal import compare, verify
from loopback.commands import await_line, finish, holder_of, interrupt, run, start

PROMISED = (
    "sites",
    "published",
    "delivered_min",
    "one_order",
    "late_fraction",
    "guaranteed_delay_ms",
    "measured_delay_ms",
    "release_spread_us",
    "clock_bound_us",
    "journals",
)


def demonstrate(*arguments: object) -> dict[str, Any]:
    code, output, errors = run("demo", "--json", *arguments)
    assert code == 0, errors
    report = json.loads(output)
    assert isinstance(report, dict)
    return report


@pytest.mark.alone
def test_all_sites_release_everything_in_one_order(tmp_path: Path) -> None:
    report = demonstrate("--seconds", 3, "--journals", tmp_path / "journals")
    assert set(PROMISED) <= report.keys()
    assert report["sites"] == 9
    assert report["one_order"] is True
    assert report["failures"] == []
    assert report["published"] == report["delivered_min"] > 300
    assert report["release_spread_us"]["p50"] <= report["release_spread_us"]["p99"]
    delays = report["measured_delay_ms"]
    assert report["commit_delay_ms"] < delays["p50"] <= delays["p99"] <= delays["max"]
    journals = [Path(path) for path in report["journals"]]
    assert len(journals) == 9
    assert {path.parent for path in journals} == {tmp_path / "journals"}
    assert compare(journals).messages == report["published"]
    proofs = [verify(path) for path in journals]
    assert all(proof.sound for proof in proofs)
    assert len({proof.digest for proof in proofs}) == 1


@pytest.mark.alone
def test_a_mesh_carries_the_same_promises(tmp_path: Path) -> None:
    report = demonstrate("--seconds", 1, "--mesh", "--loss", 0.02, "--journals", tmp_path / "journals")
    assert report["carrier"] == "mesh"
    assert report["one_order"] is True
    assert report["published"] == report["delivered_min"] > 0


@pytest.mark.alone
def test_ctrl_c_ends_with_the_report_of_what_was_done(tmp_path: Path) -> None:
    demo = start("demo", "--seconds", 600, "--journals", tmp_path / "journals")
    await_line(demo, "0.0 s: published 0")
    await_line(demo, "published")
    interrupt(demo)
    code, output, _ = finish(demo)
    assert code == 130
    assert "delivered 0" not in " ".join(output.split())
    assert "one order at all 9 sites  yes" in output
    assert "the floors closed early" in output


@pytest.mark.alone
def test_no_site_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    demo = start("demo", "--seconds", 600, "--journals", tmp_path / "journals")
    await_line(demo, "published")
    demo.kill()
    code, output, _ = finish(demo)  # returns when the last process has closed the pipes
    assert (code, output) == (-signal.SIGKILL, "")


@pytest.mark.alone
def test_a_site_that_dies_is_told_and_so_is_what_the_others_declare(tmp_path: Path) -> None:
    demo = start("demo", "--seconds", 600, "--json", "--journals", tmp_path / "journals")
    await_line(demo, "published")
    os.kill(holder_of(tmp_path / "journals" / "8-tokyo" / "lock"), signal.SIGKILL)
    code, output, _ = finish(demo)
    report = json.loads(output)
    assert code == 1
    assert report["one_order"] is True
    assert any(failure.startswith("the process of Tokyo ended unasked") for failure in report["failures"])
    assert any("gave up on" in failure for failure in report["failures"])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--seconds", "0"), "--seconds is 0; give more than 0 and at most 86400"),
        (("--seconds", "-3"), "--seconds is -3; give more than 0 and at most 86400"),
        (("--seconds", "nan"), "--seconds is nan; give more than 0 and at most 86400"),
        (("--loss", "1.5"), "--loss is 1.5; give a share from 0 to 0.5, such as 0.01 for 1 %"),
        (("--loss", "-1"), "--loss is -1; give a share from 0 to 0.5, such as 0.01 for 1 %"),
        (("--rate", "0"), "--rate is 0; give more than 0 and at most 5000 messages per second"),
        (("--seed", "-1"), "--seed is -1; give 0 or more"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(arguments: tuple[str, ...], complaint: str) -> None:
    assert run("demo", *arguments) == (2, "", f"fairtape: {complaint}\n")


def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, output, errors = run("demo", "--journals", tmp_path / "file" / "journals")
    assert (code, output) == (2, "")
    assert "where nothing can be written (Not a directory); name another folder" in errors
    code, output, errors = run("demo", "--journals", tmp_path)
    assert (code, output) == (2, "")
    assert errors.endswith("which is not empty; name a new folder\n")
