"""Commands that are forked from a server: exit codes, standard error, signals, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairtape.deployment.process.fork_server import ForkServer

WAIT_MAX = 30.0  # seconds
UP = """
import os, signal, sys, time
from pathlib import Path
from fairtape.deployment.process.fork_server import ForkServer
server = ForkServer(["fairtape.cli.processes"])
command = server.start("s1", ["node", sys.argv[1], "s1"], Path(sys.argv[2]))
if "stopped" in sys.argv:
    os.kill(command.pid, signal.SIGSTOP)
print(command.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer(["fairtape.cli.processes"])
    yield server
    server.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    folder = tmp_path / "deployment"
    subprocess.run(
        [sys.executable, "-m", "fairtape", "init", folder, "--sites", "3", "--profile", "metro"],
        check=True,
        capture_output=True,
    )
    return folder


def test_a_command_that_refuses_its_input_ends_with_its_sentence(server: ForkServer, tmp_path: Path) -> None:
    command = server.start("s1", ["node", str(tmp_path / "none"), "s1"], tmp_path / "errors")
    command.wait()
    assert command.poll() == 2
    assert "holds no deployment" in (tmp_path / "errors").read_text()


def test_a_command_that_is_killed_or_terminated_has_the_signal_as_its_code(
    server: ForkServer, deployment: Path
) -> None:
    one = server.start("s1", ["node", str(deployment), "s1"], deployment / "one")
    other = server.start("s2", ["node", str(deployment), "s2"], deployment / "other")
    one.kill()
    one.wait()
    assert one.poll() == -signal.SIGKILL
    one.kill()  # without effect
    assert other.poll() is None
    _await(lambda: (deployment / "run" / "s2.json").exists())
    other.terminate()
    other.wait()
    assert other.poll() == 0


def test_no_command_outlives_a_supervisor_that_is_killed(deployment: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", UP, str(deployment), str(tmp_path / "errors")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        os.kill(pid, 0)
        supervisor.kill()
    _await(lambda: not Path(f"/proc/{pid}").exists())


def test_a_command_that_starts_after_its_supervisor_was_killed_ends(deployment: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", UP, str(deployment), str(tmp_path / "errors"), "stopped"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        server = _parent(pid)
        supervisor.kill()
    _await(lambda: _parent(pid) != server)
    os.kill(pid, signal.SIGCONT)
    _await(lambda: not Path(f"/proc/{pid}").exists())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _await(condition: object) -> None:
    assert callable(condition)
    give_up_at = time.monotonic() + WAIT_MAX
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
