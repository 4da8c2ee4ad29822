"""A real etcd on loopback, with a directory of its own and free ports; ended by its process id."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopback.commands import PATIENCE

STARTS_MAX = 5  # another process may take a port before etcd does
ABSENT = "no etcd on this machine: install the package etcd-server to run this"


class Etcd:
    """One member, a cluster by itself."""

    def __init__(self, folder: Path, *options: str) -> None:
        """With options, such as those of TLS, it listens by `https`."""
        self.folder = folder
        self.scheme = "https" if options else "http"
        self._options = options
        self.port = self._peer_port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it is ready. A second start keeps the port and the data."""
        for _ in range(STARTS_MAX):
            if not (self.folder / "data" / "member").exists():
                self.port, self._peer_port = free_tcp_ports(2)
            if self._become_ready():
                return
        raise AssertionError(f"etcd does not start: {(self.folder / 'log').read_text()[-2_000:]}")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _become_ready(self) -> bool:
        """etcd reports when it is ready through NOTIFY_SOCKET, as to systemd."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        client, peer = f"{self.scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        command = [
            *("etcd", "--name", "only", "--data-dir", str(self.folder / "data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"only={peer}"),
            *self._options,
        ]
        environment = os.environ | {"NOTIFY_SOCKET": str(ready)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, (self.folder / "log").open("ab") as log:
            listener.bind(str(ready))
            listener.settimeout(0.1)
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            for _ in range(int(PATIENCE / 0.1)):
                try:
                    return b"READY=1" in listener.recv(1_024)
                except TimeoutError:
                    if self._process.poll() is not None:
                        return False
        self.kill()
        return False


@contextmanager
def running_etcd(folder: Path, *options: str) -> Iterator[Etcd]:
    """A running etcd; the test is skipped where etcd is not installed."""
    if shutil.which("etcd") is None:
        pytest.skip(ABSENT)
    etcd = Etcd(folder, *options)
    try:
        etcd.start()
        yield etcd
    finally:
        etcd.kill()


def free_tcp_ports(count: int) -> list[int]:
    """Ports that are free now."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports
