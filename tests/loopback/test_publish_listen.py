"""A temporary ring in a folder: what is published comes out in one order, and every mistake is one sentence."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest

from fairtape.core.timing import PROFILES
from fairtape.deployment.config.ring_folder import SOURCES, RingFolder
from fairtape.deployment.ring_plan import RingPlan
from fairtape.journal import verify
from fairtape.net.loopback import loopback_book
from fairtape.net.udp import bind
from fairtape.ring.membership.formation import Formation
from fairtape.wire.seals import KEY_SIZE, Keys
from loopback.commands import PATIENCE, await_line, finish, interrupt, run, start

CSV = """time,symbol,price,quantity,venue,trade_id
2024-08-09T00:00:00.300Z,BTC,61804.8,0.25,XLON,3
2024-08-09T00:00:00.100Z,ETH,2680.55,1,XLON,1
2024-08-09T00:00:00.200Z,BTC,61804.7,2,XLON,2
"""


@contextmanager
def ring(folder: Path, *arguments: object) -> Iterator[Popen[str]]:
    listen = start("listen", folder, *arguments)
    try:
        await_line(listen, "publish from another terminal")
        yield listen
    finally:
        listen.kill()


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
    lines = [json.loads(line) for line in output.splitlines()]
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
    journals = list(folder.glob("journals/*/site-*"))
    assert len(journals) == 3
    assert len({verify(journal).digest for journal in journals}) == 1
    keys = sorted((folder / "keys").iterdir())
    assert [key.name for key in keys] == sorted(f"{venue.name}.json" for venue in SOURCES.values())
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert {len(json.loads(key.read_text())["key"]) for key in keys} == {2 * KEY_SIZE}


@pytest.mark.alone
def test_a_mesh_of_two_sites_prints_lines_until_its_time_is_over(tmp_path: Path, trades: Path) -> None:
    folder = tmp_path / "ring"
    with ring(folder, "--mesh", "--sites", 2, "--seconds", 4) as listen:
        assert run("publish", folder, trades)[0] == 0
        code, output, errors = finish(listen)
    assert code == 0
    assert "3 trades in one order" in errors
    first = output.splitlines()[0].split()
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
    assert [json.loads(line)["venue"] for line in output.splitlines()] == ["MOON"] * 3 + ["MARS"] * 3


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
    assert " trades printed, then " in errors
    assert {verify(journal).released_sequence for journal in folder.glob("journals/*/site-*")} == {40_000}


@pytest.mark.alone
def test_when_a_site_is_killed_the_others_report_it(tmp_path: Path, trades: Path) -> None:
    folder = tmp_path / "ring"
    with ring(folder) as listen:
        assert run("publish", folder, trades)[0] == 0
        (lock,) = folder.glob("journals/*/site-1/lock")
        os.kill(int(lock.read_text()), signal.SIGKILL)
        code, output, errors = finish(listen)
    assert code == 1
    assert len(output.splitlines()) == 3
    assert "fairtape: the process of site 1 ended unasked, with exit code -9\n" in errors
    assert "gave up on site 1 at token " in errors
    assert "Traceback" not in errors


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
        assert "cannot be written (File too large); it ends with sequence " in errors
        assert "Traceback" not in errors
        code, output, errors = finish(publish)
        assert code == 1
        assert " trades acknowledged, published as XNYS, in " in output
        assert "has stopped; trades that are published but not acknowledged may or may not" in errors
    finally:
        listen.kill()


@pytest.mark.alone
def test_a_folder_is_refused_while_its_ring_runs_and_usable_again_afterwards(tmp_path: Path, trades: Path) -> None:
    folder = tmp_path / "ring"
    with ring(folder) as listen:
        code, output, errors = run("listen", folder)
        assert (code, output) == (2, "")
        assert errors.endswith("holds a ring that is running; stop it or name another folder\n")
        interrupt(listen)
        assert finish(listen)[0] == 0
    code, output, errors = run("publish", folder, trades)
    assert (code, output) == (2, "")
    assert "is not running; start it with: fairtape listen" in errors
    with ring(folder) as listen:
        assert run("publish", folder, trades)[0] == 0
        listen.kill()
        finish(listen)  # returns when the last process has closed the pipes: no site outlives its parent
    assert len(list(folder.glob("journals/*"))) == 2


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
    folder = RingFolder(tmp_path / "ring")
    plan = RingPlan(
        formation=Formation(number=1, members=(1,), timing=PROFILES["metro"], starts_at=0),
        keys=Keys.from_secret(b"a secret of this test", (1,), SOURCES),
        book=loopback_book((1,), SOURCES),
        groups=None,
    )
    with folder.claimed():
        folder.write(plan)
        assert replace(folder.read(), keys=plan.keys) == plan
        assert folder.keys_of(101) == plan.keys.for_source(101)
        code, output, errors = run("publish", folder.path, trades)
    assert code == 1
    assert output.startswith("0 trades acknowledged, published as XNYS, in ")
    assert output.endswith("; 3 were published\n")
    assert "has acknowledged nothing for 5 s; trades that are published but not acknowledged may or" in errors
    assert errors.count("\n") == 1


def test_a_folder_without_a_ring_is_refused_in_one_sentence(tmp_path: Path, trades: Path) -> None:
    code, output, errors = run("publish", tmp_path / "nowhere", trades)
    assert (code, output) == (2, "")
    assert "holds no ring; start one there with: fairtape listen" in errors
    code, output, errors = run("listen", tmp_path)
    assert (code, output) == (2, "")
    assert errors.endswith("holds other files and no ring; name a new or empty folder\n")
    code, output, errors = run("listen", trades / "ring")
    assert (code, output) == (2, "")
    assert "where nothing can be written (Not a directory)" in errors


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--sites", "0"), "--sites is 0; give from 1 to 16"),
        (("--seconds", "0"), "--seconds is 0; give from 0.001 to 1,000,000,000"),
        (("--seconds", "nan"), "--seconds is nan; give from 0.001 to 1,000,000,000"),
        (("--port", "65535"), "port is 65535; give one from 1 to 65524, the first of 11 in a row"),
    ],
)
def test_impossible_options_of_a_ring_are_refused(tmp_path: Path, arguments: tuple[str, ...], error: str) -> None:
    assert run("listen", tmp_path / "ring", *arguments) == (2, "", f"fairtape: {error}\n")
    assert not (tmp_path / "ring").exists()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, output, errors = run("listen", tmp_path / "ring", "--port", port)
    assert (code, output) == (2, "")
    assert errors.startswith(f"fairtape: port {port} is in use; ")
    assert errors.count("\n") == 1


def test_an_interface_without_a_multicast_route_is_named(tmp_path: Path) -> None:
    for interface in ("nowhere0", "203.0.113.9"):
        code, output, errors = run("listen", tmp_path / "ring", "--interface", interface)
        assert (code, output) == (2, "")
        assert errors.startswith(f"fairtape: interface is '{interface}'; name one of ")
        assert errors.count("\n") == 1
