"""`fairtape init` measures what this machine sustains, and leaves nothing but the deployment behind."""

from pathlib import Path

import pytest

from fairtape.core.timing import PROFILES
from fairtape.deployment.config.description import read_deployment
from loopback.commands import await_line, finish, interrupt, run, start


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the commands."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.alone
@pytest.mark.timeout(120)
def test_the_profile_is_measured_with_the_processes_of_the_deployment(tmp_path: Path, scratch: Path) -> None:
    folder = tmp_path / "new"
    code, output, errors = run("init", folder, "--sites", 2, "--edge", 1)
    assert code == 0, errors
    title, header, *rows, reason, written, command = output.splitlines()
    assert title == "measured here with 2 sites, 2 reformation servers, 500 messages/s and another busy program:"
    assert header.split()[:3] == ["profile", "guaranteed", "delay"]
    assert {row.split()[0] for row in rows} <= {"lan", "metro"}
    assert reason.startswith("this machine sustains ")
    assert command == f"  fairtape up {folder}"
    assert errors.count("measuring what this machine sustains, for at most 15 s in all: profile") == len(rows) > 0
    chosen = written.partition("profile ")[2].partition(";")[0]
    assert chosen in PROFILES
    assert read_deployment(folder).timing == PROFILES[chosen].with_resilience(1)
    assert sorted(path.name for path in folder.iterdir()) == ["deployment.toml", "keys", "plans"]
    assert not list(scratch.iterdir())


def test_a_given_profile_skips_the_measurement(tmp_path: Path, scratch: Path) -> None:
    code, output, errors = run("init", tmp_path / "new", "--sites", 2, "--profile", "metro")
    assert (code, errors) == (0, "")
    assert output.startswith(f"{tmp_path / 'new' / 'deployment.toml'}: 2 sites, profile metro; start it with:")


def test_sites_on_other_machines_are_not_measured(tmp_path: Path) -> None:
    code, output, errors = run("init", tmp_path / "new", "--sites", 2, "--address", "192.0.2.1")
    assert (code, errors) == (0, "")
    assert "2 sites, profile metro" in output


@pytest.mark.timeout(120)
def test_an_interrupted_measurement_leaves_nothing_behind(tmp_path: Path, scratch: Path) -> None:
    folder = tmp_path / "new"
    process = start("init", folder, "--sites", 2)
    await_line(process, "measuring what this machine sustains")
    while not list(scratch.glob("*/deployment/run/s1.json")):
        assert process.poll() is None
    interrupt(process)
    code, output, errors = finish(process)
    assert (code, output) == (130, ""), errors
    assert not folder.exists()
    assert not list(scratch.iterdir())


def test_a_folder_that_is_not_empty_is_refused_before_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    code, _, errors = run("init", tmp_path)
    assert (code, errors) == (
        2,
        f"fairtape: folder {str(tmp_path)!r} holds other files and no deployment; name a new or empty folder\n",
    )


def test_a_folder_that_cannot_be_made_is_refused_before_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "new"
    code, output, errors = run("init", folder)
    assert (code, output, errors) == (
        2,
        "",
        f"fairtape: folder is {str(folder)!r}, where nothing can be written (Not a directory); name another folder\n",
    )


def test_more_failures_than_other_sites_are_refused_before_the_measurement(tmp_path: Path) -> None:
    code, output, errors = run("init", tmp_path / "new", "--sites", 5, "--resilience", 9)
    assert (code, output, errors) == (
        2,
        "",
        'fairtape: --resilience is 9, and the primary loop has 5 sites; give at most 4, or "all"\n',
    )
