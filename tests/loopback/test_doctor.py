"""`fairtape doctor` on the machine that runs the tests, whatever its features."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairtape.deployment.operations import doctor
from fairtape.deployment.operations.doctor import CheckStatus, Finding
from loopback.commands import run

CHECKS: list[Callable[[], Finding]] = [
    doctor.cores,
    doctor.clock,
    doctor.real_time,
    doctor.idle_states,
    doctor.multicast,
    doctor.multicast_route,
    doctor.socket_buffers,
    doctor.trains,
    doctor.ports,
    doctor.descriptors,
    doctor.java,
    doctor.etcd,
    doctor.namespaces,
]


def is_complete(finding: Finding) -> bool:
    """One line says what was found, and one sentence what to do."""
    return (
        bool(finding.name)
        and bool(finding.found)
        and "\n" not in finding.found + finding.advice
        and finding.advice[0].isupper()
        and (finding.advice == "Nothing to do.") == (finding.status is CheckStatus.GOOD)
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_has_a_finding_and_advice(check: Callable[[], Finding]) -> None:
    assert is_complete(check())


@pytest.mark.parametrize("check", [doctor.java, doctor.etcd, doctor.namespaces], ids=lambda check: check.__name__)
def test_a_program_that_is_not_there_is_only_a_note(
    check: Callable[[], Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    finding = check()
    assert finding.status is CheckStatus.NOTE
    assert is_complete(finding)


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ('openjdk version "21.0.1" 2023-10-17', CheckStatus.GOOD),
        ('openjdk version "17" 2021-09-14', CheckStatus.GOOD),
        ('java version "11.0.2" 2019-01-15 LTS', CheckStatus.NOTE),
        ('java version "1.8.0_392"', CheckStatus.NOTE),
        ("no idea", CheckStatus.NOTE),
    ],
)
def test_java_is_good_from_version_17_on(
    output: str, status: CheckStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = doctor.java()
    assert finding.status is status
    assert is_complete(finding)


def test_a_folder_is_measured_and_not_changed(tmp_path: Path) -> None:
    finding = doctor.disk(tmp_path)
    assert is_complete(finding)
    assert "GiB free" in finding.found
    assert "a sync takes" in finding.found
    assert not any(tmp_path.iterdir())


def test_a_missing_folder_is_a_bad_finding_and_no_error(tmp_path: Path) -> None:
    finding = doctor.disk(tmp_path / "none")
    assert finding.status is CheckStatus.BAD
    assert is_complete(finding)


def test_a_folder_in_memory_is_noted() -> None:
    memory = Path("/dev/shm")  # noqa: S108 - a folder in memory is needed
    if not os.access(memory, os.W_OK):
        pytest.skip("this machine has no folder in memory that can be written")
    finding = doctor.disk(memory)
    assert finding.status is not CheckStatus.GOOD


def test_the_json_has_every_finding_and_the_exit_code_follows_the_bad_ones(tmp_path: Path) -> None:
    code, output, errors = run("doctor", "--json", "--directory", tmp_path)
    report = json.loads(output)
    findings = report["findings"]
    assert errors == ""
    assert len(findings) == len(CHECKS) + 1
    assert all(set(finding) == {"name", "status", "found", "advice"} for finding in findings)
    assert len({finding["name"] for finding in findings}) == len(findings)
    assert report["bad"] == sum(finding["status"] == "bad" for finding in findings)
    assert code == (1 if report["bad"] else 0)


def test_the_table_has_a_line_for_every_finding(tmp_path: Path) -> None:
    code, output, errors = run("doctor", "--directory", tmp_path)
    assert code in (0, 1)
    assert errors == ""
    lines = output.splitlines()
    assert sum(line.startswith(("good  ", "note  ", "bad   ")) for line in lines) == len(CHECKS) + 1
    assert lines[-1].startswith(f"{len(CHECKS) + 1} checks: ")


def test_a_bad_directory_is_one_sentence_with_exit_code_2(tmp_path: Path) -> None:
    code, output, errors = run("doctor", "--directory", tmp_path / "none")
    assert (code, output) == (2, "")
    assert (
        errors == f"fairtape: --directory is '{tmp_path / 'none'}', which is not a folder; create it or name another\n"
    )
