"""A temporary deployment: what is published comes out in one order, and every mistake is one sentence."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from fairtape.cli.listen import SOURCES
from fairtape.deployment.config.description import FILE, NodeKind, read_deployment
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.status_files import RunFolder
from fairtape.journal import verify
from loopback.commands import PATIENCE, await_line, finish, interrupt, lines_of, run, start

CSV = """time,symbol,price,quantity,venue,trade_id
2024-08-09T00:00:00.300Z,BTC,61804.8,0.25,XLON,3
2024-08-09T00:00:00.100Z,ETH,2680.55,1,XLON,1
2024-08-09T00:00:00.200Z,BTC,61804.7,2,XLON,2
"""


@contextmanager
def ring(folder: Path, *arguments: object) -> Iterator[Popen[str]]:
    """A temporary deployment. When the command is killed, its processes end."""
    listen = start("listen", folder, *arguments)
    try:
        await_line(listen, "publish from another terminal")
        yield listen
    finally:
        listen.kill()


def trades_among(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The trades among JSON lines. Formations are lines as well."""
    return [line for line in map(json.loads, lines) if line["kind"] == "trade"]


def pids_of(folder: Path) -> dict[str, int]:
    """The processes of a deployment that run."""
    names = [*read_deployment(folder).nodes]
    return {name: status.pid for name, status in RunFolder(folder).statuses(names).items()}


@pytest.fixture
def trades(tmp_path: Path) -> Path:
    path = tmp_path / "trades.csv"
    path.write_text(CSV)
    return path


@pytest.mark.alone
def test_what_is_published_is_listened_to_in_one_order(tmp_path: Path, trades: Path) -> None:
    folder = tmp_path / "ring"
    with ring(folder, "--json") as listen:
        code, output, errors = run("publish", folder, trades)
        assert (code, errors) == (0, "")
        assert output.startswith("3 trades acknowledged, published as XNYS, in ")
        assert run("publish", folder, trades, "--speed", 10, "--source", "xlon")[0] == 0
        assert run("publish", folder, "--generate", 5_000, "--source", "3", "--max", 4_000)[0] == 0
        assert run("publish", folder, trades, "--rate", 100, "--max", 2)[0] == 0  # a new incarnation of the first
        interrupt(listen)
        code, output, errors = finish(listen)
    assert code == 0
    assert not pids_of(folder)
    assert json.loads(output.splitlines()[0])["members"] == ["s1", "s2", "s3"]
    lines = trades_among(output.splitlines())
    assert [line["sequence"] for line in lines] == list(range(1, 3 + 3 + 4_000 + 2 + 1))
    assert [line["trade_id"] for line in lines[:3]] == [3, 1, 2]  # in the order of the file
    assert [line["trade_id"] for line in lines[3:6]] == [1, 2, 3]  # in the order of time
    assert [line["source"] for line in lines[2:7]] == ["XNYS", "XLON", "XLON", "XLON", "XTKS"]
    assert lines[0] | {"commit_at_ns": 0, "late": False} == {
        "kind": "trade",
        "sequence": 1,
        "commit_at_ns": 0,
        "late": False,
        "source": "XNYS",
        "venue": "XLON",
        "symbol": "BTC",
        "price": "61804.8",
        "quantity": "0.25",
        "traded_at_ns": 1_723_161_600_300_000_000,
        "trade_id": 3,
    }
    journals = sorted(folder.glob("journals/*"))
    assert [journal.name for journal in journals] == ["s1", "s2", "s3"]
    assert len({verify(journal).digest for journal in journals}) == 1
    assert {stat.S_IMODE(key.stat().st_mode) for key in (folder / "keys").iterdir()} == {0o600}
    assert len(read_deployment(folder).of_kind(NodeKind.SOURCE)) == SOURCES


@pytest.mark.alone
def test_a_mesh_of_two_sites_prints_lines_until_its_time_is_over(tmp_path: Path, trades: Path) -> None:
    folder = tmp_path / "ring"
    with ring(folder, "--mesh", "--sites", 2, "--seconds", 4) as listen:
        assert run("publish", folder, trades)[0] == 0
        code, output, errors = finish(listen)
    assert code == 0
    assert "3 trades in one order" in errors
    formation, first = (line.split() for line in output.splitlines()[:2])
    assert formation[2:] == ["FORMATION", *["formation", "1", "of", "s1", "s2,", "from", "number", "1", "on"]]
    assert first[0] == "1"
    assert first[2:] == ["XNYS", "XLON", "BTC", "61804.8", "0.25"]


@pytest.mark.alone
def test_files_of_several_venues_keep_their_venues_apart(tmp_path: Path, trades: Path) -> None:
    folder, other = tmp_path / "ring", tmp_path / "other.csv"
    trades.write_text(CSV.replace("XLON", "MOON"))
    other.write_text(CSV.replace("XLON", "MARS"))
    with ring(folder, "--json") as listen:
        assert run("publish", folder, trades)[0] == 0
        assert run("publish", folder, other)[0] == 0
        interrupt(listen)
        _, output, _ = finish(listen)
    assert [trade["venue"] for trade in trades_among(output.splitlines())] == ["MOON"] * 3 + ["MARS"] * 3


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_reader_that_reads_nothing_delays_neither_the_ring_nor_its_end(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "ring"
    with ring(folder) as listen:
        for _ in range(2):
            code, _, errors = run("publish", folder, "--generate", 20_000)  # far more lines than fit into a pipe
            assert code == 0, errors
        listen.send_signal(number)
        code = listen.wait(PATIENCE)
        assert listen.stderr is not None
        errors = listen.stderr.read()
    assert code == 0, errors
    assert {verify(journal).released_sequence for journal in folder.glob("journals/*")} == {40_000}
    assert "; the reader stopped reading: continue with --from-seq " in errors
    rest = int(errors.partition("--from-seq ")[2].partition(";")[0])
    with ring(folder, "--json", "--from-seq", rest) as listen:
        trades = trades_among(lines_of(listen, 40_001 - rest, '"kind":"trade"'))
        assert [trade["sequence"] for trade in trades] == list(range(rest, 40_001))
        interrupt(listen)
        assert finish(listen)[0] == 0


@pytest.mark.alone
def test_when_the_printed_site_is_killed_the_others_go_on_and_it_is_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "ring"
    listen = start("listen", folder, "--json")
    try:
        printed = await_line(listen, "publish from another terminal").partition("following site ")[2].split()[0]
        assert run("publish", folder, "--generate", 1_000)[0] == 0
        os.kill(pids_of(folder)[printed], signal.SIGKILL)
        await_line(listen, f"{printed} was ended by SIGKILL")
        assert run("publish", folder, "--generate", 1_000, "--source", "XLON")[0] == 0
        await_line(listen, f"restarting {printed}")
        lines = lines_of(listen, 2_000, '"kind":"trade"')
        interrupt(listen)
        code, output, errors = finish(listen)
    finally:
        listen.kill()
    assert code == 0, errors
    assert "Traceback" not in errors
    lines += output.splitlines()
    assert [trade["sequence"] for trade in trades_among(lines)] == list(range(1, 2_001))
    formations = [line for line in map(json.loads, lines) if line["kind"] == "formation"]
    assert len(formations) > 1, "the others formed anew"
    assert not any(formation["broken"] for formation in formations)


@pytest.mark.alone
def test_a_full_disk_ends_the_ring_in_one_sentence_and_its_publisher_reports_its_progress(tmp_path: Path) -> None:
    folder = tmp_path / "ring"
    command = [sys.executable, "-m", "fairtape", "listen", str(folder)]
    small = (1 << 20, 1 << 20)
    listen = Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, small),
    )
    try:
        await_line(listen, "publish from another terminal")
        publish = start("publish", folder, "--generate", 100_000)
        code, _, errors = finish(listen)
        assert code == 1
        assert errors.count("fairtape: ") == 1
        assert errors.splitlines()[-1].startswith("fairtape: the deployment cannot continue: ")
        assert "cannot be written (File too large); it ends with sequence " in errors.splitlines()[-1]
        assert "Traceback" not in errors
        code, output, errors = finish(publish)
        assert code == 1
        assert " trades acknowledged, published as XNYS, in " in output
        assert "has stopped; trades that are published but not acknowledged may or may not" in errors
    finally:
        listen.kill()


@pytest.mark.alone
def test_a_temporary_deployment_runs_once_at_a_time_and_goes_on_when_it_is_run_again(
    tmp_path: Path, trades: Path
) -> None:
    folder = tmp_path / "ring"
    with ring(folder) as listen:
        second = start("listen", folder, "--json", "--from-seq", 1)
        await_line(second, "following site")
        code, output, errors = run("up", folder)
        assert (code, output) == (2, "")
        assert errors.endswith("is running already; stop it first\n")
        assert run("publish", folder, trades)[0] == 0
        interrupt(listen)
        assert finish(listen)[0] == 0
        code, output, errors = finish(second)
        assert (code, len(trades_among(output.splitlines()))) == (1, 3)
        assert errors.endswith("fairtape: the deployment has stopped\n")
    code, output, errors = run("publish", folder, trades)
    assert (code, output) == (2, "")
    assert "is not running; start it with: fairtape listen" in errors
    with ring(folder, "--json") as listen:
        assert run("publish", folder, trades)[0] == 0
        again = trades_among(lines_of(listen, 3, '"kind":"trade"'))
        assert [trade["sequence"] for trade in again] == [4, 5, 6], "the journals continue"
        listen.kill()
        listen.wait()
        give_up_at = time.monotonic() + PATIENCE
        while pids_of(folder):  # no process outlives the command that runs it
            assert time.monotonic() < give_up_at
    assert {verify(journal).released_sequence for journal in folder.glob("journals/*")} == {6}


@pytest.mark.alone
def test_mistakes_of_a_publisher_are_one_sentence_each(tmp_path: Path, trades: Path) -> None:
    folder = tmp_path / "ring"
    bad = tmp_path / "bad.csv"
    bad.write_text("time,symbol,price,quantity\n2024-08-09T00:00:00Z,BTC,cheap,1\n")
    in_seconds = tmp_path / "seconds.csv"
    in_seconds.write_text("time,symbol,price,quantity\n1723161600,BTC,-37.63,1\n")
    with ring(folder):
        assert run("publish", folder, in_seconds, "--time-unit", "s")[0] == 0
        for arguments, error in (
            ((), "there is neither a file nor --generate; give one of them"),
            ((trades, "--generate", 3), "there is both a file and --generate; give one of them"),
            ((trades, "--speed", 1, "--rate", 1), "--speed is 1 and --rate is 1; give one of them"),
            ((trades, "--rate", -1), "--rate is -1; give from 0.001 to 10,000,000 trades per second, or neither"),
            ((trades, "--rate", "nan"), "--rate is nan; give from 0.001"),
            ((trades, "--speed", "inf"), "--speed is inf; give from 0.001 to 1,000,000 times the recorded speed"),
            (("--generate", 30_000, "--rate", 0.01), "--rate is 0.01, at which publishing would take 35 days"),
            (("--generate", 0), "--generate is 0; give from 1 to 100,000,000"),
            ((trades, "--max", 0), "--max is 0; give from 1 to 1,000,000,000,000"),
            ((in_seconds,), "as nanoseconds that is in the early 1970s: if it counts seconds, say --time-unit s"),
            ((trades, "--source", "XXXX"), "--source is 'XXXX'; the ring knows XNYS (1), XLON (2), XTKS (3)"),
            ((tmp_path / "none.csv",), "none.csv cannot be read as CSV: No such file or directory"),
            ((bad,), "bad.csv, row 1: price is 'cheap'; expected a decimal number"),
        ):
            code, output, errors = run("publish", folder, *arguments)
            assert (code, output) == (2, ""), arguments
            assert error in errors
            assert errors.count("\n") == 1


def test_a_ring_that_acknowledges_nothing_is_reported_in_one_sentence(tmp_path: Path, trades: Path) -> None:
    folder = tmp_path / "ring"
    create_deployment(folder, Draft(loops=(1,), profile="metro", reformers=1))
    file = folder / FILE
    file.write_text(file.read_text().replace('source = "shared"', 'source = "system"'))  # its site may be elsewhere
    code, output, errors = run("publish", folder, trades)
    assert code == 1
    assert output.startswith("0 trades acknowledged, published as XNYS, in ")
    assert output.endswith("; 3 were published\n")
    assert "has acknowledged nothing for 5 s; trades that are published but not acknowledged may or" in errors
    assert errors.count("\n") == 1


def test_a_folder_without_a_deployment_is_refused_in_one_sentence(tmp_path: Path, trades: Path) -> None:
    code, output, errors = run("publish", tmp_path / "nowhere", trades)
    assert (code, output) == (2, "")
    assert "holds no deployment; make one with: fairtape init" in errors
    code, output, errors = run("listen", tmp_path)
    assert (code, output) == (2, "")
    assert errors.endswith("holds other files and no deployment; name a new or empty folder\n")
    code, output, errors = run("listen", trades / "ring")
    assert (code, output) == (2, "")
    assert "where nothing can be written (Not a directory)" in errors


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--sites", "0"), "--sites is 0; give from 1 to 16"),
        (("--seconds", "0"), "--seconds is 0; give from 0.001 to 1,000,000,000"),
        (("--seconds", "nan"), "--seconds is nan; give from 0.001 to 1,000,000,000"),
    ],
)
def test_impossible_options_of_a_new_deployment_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], error: str
) -> None:
    assert run("listen", tmp_path / "ring", *arguments) == (2, "", f"fairtape: {error}\n")
    assert not (tmp_path / "ring").exists()
