"""A real PostgreSQL on loopback: a cluster of its own, in a folder of its own, ended by its process id."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from loopback.commands import PATIENCE
from loopback.etcds import free_tcp_ports

ABSENT = "no PostgreSQL on this machine: install the package postgresql to run this"
PROGRAMS = Path("/usr/lib/postgresql")  # where Debian keeps what an administrator calls by way of wrappers
USER = "postgres"
SELF = USER if os.geteuid() == 0 else None  # it refuses to run as root


class Postgres:
    """One server with one database, which every user of this machine may use."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        self.port = free_tcp_ports(1)[0]
        self._programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        initdb = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", USER, "--auth=trust", "--encoding=UTF8"]
        with (folder / "log").open("ab") as log:
            subprocess.run(initdb, check=True, stdout=log, stderr=log, cwd=folder, user=SELF, group=SELF)

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{USER}"

    def start(self) -> None:
        """Start, and wait until it is ready. A second start keeps the port and the data."""
        command = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, user=SELF, group=SELF)
        ready = self.folder / "data" / "postmaster.pid"
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(OSError):
                if "ready" in ready.read_text():
                    socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                    return
            time.sleep(0.05)
        raise AssertionError(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2_000:]}")

    def crash(self) -> None:
        """End immediately, as in a crash; committed data must be on disk."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """Close connections and end."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A running server; the test is skipped where PostgreSQL is not installed."""
    pytest.importorskip("psycopg", reason="no driver of PostgreSQL: pip install 'fairtape[postgresql]' to run this")
    programs = _programs()
    if programs is None:
        pytest.skip(ABSENT)
    folder = Path(tempfile.mkdtemp(prefix="postgres"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER, USER)
    server = None
    try:
        server = Postgres(programs, folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder)


def _programs() -> Path | None:
    """The newest installed version that an unprivileged user can run."""
    found = shutil.which("initdb")
    places = sorted(PROGRAMS.glob("*/bin"), key=lambda place: int(place.parent.name))
    place = places[-1] if places else Path(found).resolve().parent if found else None
    with suppress(KeyError):
        if os.geteuid() == 0:
            pwd.getpwnam(USER)
        return place
    return None
