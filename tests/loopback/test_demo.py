"""The demonstration: one order at nine sites, a correct report, a clean end, and no process left behind."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairtape.journal import compare, verify
from loopback.commands import await_line, finish, holder_of, interrupt, run, start

REPORT_KEYS = (
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
    "customers",
    "customers_complete",
    "customer_gaps",
    "receiver_killed",
    "report",
)
SURVIVORS = 8


def demonstrate(*arguments: object) -> dict[str, Any]:
    code, output, errors = run("demo", "--json", "--no-report", *arguments)
    assert code == 0, errors
    report = json.loads(output)
    assert isinstance(report, dict)
    return report


def await_release(demo: subprocess.Popen[str]) -> None:
    """Wait until something was released at all sites."""
    while "everywhere 0," in await_line(demo, "released everywhere"):
        pass


@pytest.mark.alone
def test_a_receiver_is_killed_and_no_customer_misses_a_trade(tmp_path: Path) -> None:
    """The ring is reformed, and X_R assigns its customers a second receiver again. TRMP 2001 §5.3."""
    report = demonstrate("--seconds", 3, "--folder", tmp_path / "demo")
    assert set(REPORT_KEYS) <= report.keys()
    assert report["receiver_killed"] == "Tokyo"
    assert report["formations"] >= 2
    assert report["one_order"] is True
    assert report["failures"] == []
    assert report["published"] == report["delivered_min"] > report["receiver_delivered"]
    assert report["customers"] == report["customers_complete"] == 200
    assert report["customer_gaps"] == 0
    journals = [Path(path) for path in report["journals"]]
    survivors = [path for path in journals if "tokyo" not in path.name]
    proofs = [verify(path) for path in survivors]
    assert len(survivors) == SURVIVORS
    assert all(proof.sound for proof in proofs)
    assert len({proof.digest for proof in proofs}) == 1
    assert compare(survivors).messages == report["published"]


@pytest.mark.alone
def test_all_sites_release_everything_in_one_order(tmp_path: Path) -> None:
    report = demonstrate("--seconds", 2, "--no-kill", "--customers", 30, "--folder", tmp_path / "demo")
    assert set(REPORT_KEYS) <= report.keys()
    assert report["receiver_killed"] is None
    assert report["customers_complete"] == 30
    assert report["sites"] == 9
    assert report["one_order"] is True
    assert report["failures"] == []
    assert report["published"] == report["delivered_min"] > 200
    assert report["release_spread_us"]["p50"] <= report["release_spread_us"]["p99"]
    delays = report["measured_delay_ms"]
    assert report["commit_delay_ms"] < delays["p50"] <= delays["p99"] <= delays["max"]
    journals = [Path(path) for path in report["journals"]]
    assert len(journals) == 9
    assert {path.parent for path in journals} == {tmp_path / "demo" / "journals"}
    assert compare(journals).messages == report["published"]
    proofs = [verify(path) for path in journals]
    assert all(proof.sound for proof in proofs)
    assert len({proof.digest for proof in proofs}) == 1


@pytest.mark.alone
def test_a_mesh_gives_the_same_guarantees(tmp_path: Path) -> None:
    quiet = ("--no-kill", "--customers", 9)
    report = demonstrate("--seconds", 1, "--mesh", *quiet, "--loss", 0.02, "--folder", tmp_path / "demo")
    assert report["carrier"] == "mesh"
    assert report["customers_complete"] == 9
    assert report["one_order"] is True
    assert report["published"] == report["delivered_min"] > 0


@pytest.mark.alone
def test_ctrl_c_ends_with_the_report_of_what_was_done(tmp_path: Path) -> None:
    demo = start("demo", "--seconds", 600, "--customers", 30, "--folder", tmp_path / "demo")
    await_line(demo, "0.0 s: published 0")
    await_release(demo)
    interrupt(demo)
    code, output, _ = finish(demo)
    assert code == 130
    assert "delivered 0" not in " ".join(output.split())
    assert "one order at all 9 sites  yes" in output
    assert "the floors closed early" in output
    assert "make the report with: fairtape pipeline run" in output
    assert "30 of 30 in 3 regions received exactly what was released" in " ".join(output.split())


@pytest.mark.alone
def test_ctrl_c_before_there_is_a_ring_ends_at_once(tmp_path: Path) -> None:
    demo = start("demo", "--seconds", 600, "--folder", tmp_path / "demo")
    await_line(demo, "0.0 s: published 0")
    interrupt(demo)
    code, output, errors = finish(demo)
    assert (code, "Traceback" in errors) == (130, False)
    assert "interrupted" in output


@pytest.mark.alone
def test_no_site_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    demo = start("demo", "--seconds", 600, "--folder", tmp_path / "demo")
    await_line(demo, "published")
    demo.kill()
    code, output, _ = finish(demo)  # returns when the last process has closed the pipes
    assert (code, output) == (-signal.SIGKILL, "")


@pytest.mark.alone
def test_an_unexpected_exit_is_reported_and_the_other_journals_still_agree(tmp_path: Path) -> None:
    few = ("--customers", 0, "--no-report")
    demo = start("demo", "--seconds", 600, *few, "--json", "--folder", tmp_path / "demo")
    await_release(demo)
    os.kill(holder_of(tmp_path / "demo" / "journals" / "tokyo" / "lock"), signal.SIGKILL)
    code, output, _ = finish(demo)
    report = json.loads(output)
    assert code == 1
    assert report["one_order"] is True
    assert any(failure.startswith("Tokyo: tokyo was ended by SIGKILL") for failure in report["failures"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seconds", "0"), "--seconds is 0; give more than 0 and at most 86400"),
        (("--seconds", "-3"), "--seconds is -3; give more than 0 and at most 86400"),
        (("--seconds", "nan"), "--seconds is nan; give more than 0 and at most 86400"),
        (("--loss", "1.5"), "--loss is 1.5; give a share from 0 to 0.5, such as 0.01 for 1 %"),
        (("--loss", "-1"), "--loss is -1; give a share from 0 to 0.5, such as 0.01 for 1 %"),
        (("--rate", "0"), "--rate is 0; give more than 0 and at most 5000 messages per second"),
        (("--seed", "-1"), "--seed is -1; give 0 or more"),
        (("--customers", "-1"), "--customers is -1; give from 0 to 1000"),
    ],
)
def test_invalid_options_are_refused_in_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    assert run("demo", *arguments) == (2, "", f"fairtape: {message}\n")


def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    code, output, errors = run("demo", "--journals", tmp_path / "file" / "journals")
    assert (code, output) == (2, "")
    assert "where nothing can be written (Not a directory); name another folder" in errors
    code, output, errors = run("demo", "--journals", tmp_path)
    assert (code, output) == (2, "")
    assert errors.endswith("holds other files and no deployment; name a new or empty folder\n")
