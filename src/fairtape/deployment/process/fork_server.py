"""Forks `fairtape` commands from one server process that has imported their modules.

A site imports for 0.6 s of processor time, so the processes of a deployment on one machine would start slowly, one
after the other. Forked, each is ready in a few milliseconds, and they share the memory of what they imported. The
server does nothing else. It ends when its supervisor is gone, and its commands end with it (`--parent`).

Requests and answers are JSON, one packet each: `{"name", "words", "errors"}` is answered by `{"started": PID}`, and a
process that ends is reported by `{"ended": PID, "code": CODE}`.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL
from importlib import import_module
from pathlib import Path
from typing import Any, Final

COMMAND: Final = "fairtape"  # the package that is run as `python -m fairtape`
PACKET_MAX: Final = 1 << 16
_PR_SET_NAME: Final = 15


class ForkServer:
    """The supervisor's end: starts commands, and learns when they end."""

    def __init__(self, imports: Sequence[str]) -> None:
        """`imports` names the modules that commands need. A command imports for itself what is missing."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", __name__, str(theirs.fileno()), *imports],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # SIGINT of a terminal is for the supervisor
            )
        self._codes: dict[int, int] = {}  # of processes that have ended, until they are taken
        self.closed = False  # the server is gone, and all of its commands are terminated

    def start(self, name: str, words: Sequence[str], errors: Path) -> "ForkedCommand":
        """Run `fairtape WORDS`. Its standard error goes to the file `errors`; `name` is what `top` shows."""
        request = {"name": name, "words": list(words), "errors": str(errors)}
        with suppress(OSError):  # a server that is gone is noticed below
            self._socket.send(json.dumps(request).encode())
        while (answer := self._receive()) is not None:
            if "started" in answer:
                return ForkedCommand(self, answer["started"])
        raise RuntimeError(f"the process that starts commands ended with exit code {self._server.wait()}")

    def take_code(self, pid: int) -> int | None:
        """The exit code of a process, once; None while it runs."""
        while not self.closed and select.select((self._socket,), (), (), 0)[0]:
            self._receive()
        return self._codes.pop(pid, -signal.SIGTERM if self.closed else None)

    def wait(self) -> None:
        """Wait until some process ends."""
        select.select((self._socket,), (), ())

    def close(self) -> None:
        """End the server. Commands that still run are terminated."""
        self.closed = True
        self._socket.close()
        self._server.wait()

    def _receive(self) -> dict[str, Any] | None:
        """The next answer; None where the server is gone."""
        try:
            packet = self._socket.recv(PACKET_MAX)
        except OSError:
            packet = b""
        if not packet:
            self.closed = True
            return None
        answer: dict[str, Any] = json.loads(packet)
        if "ended" in answer:
            self._codes[answer["ended"]] = answer["code"]
        return answer


class ForkedCommand:
    """A running command, with the methods of `subprocess.Popen` that a supervisor needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self._code: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self._code is None:
            self._code = self._server.take_code(self.pid)
        return self._code

    def wait(self) -> None:
        while self.poll() is None:
            self._server.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(requests: socket.socket) -> None:
    """The main loop of the server, until the supervisor closes its end."""
    wakeup, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    while True:
        ready, _, _ = select.select((requests.fileno(), wakeup), (), ())
        if wakeup in ready:
            os.read(wakeup, PACKET_MAX)
            _report_ended(requests)
        if requests.fileno() in ready:
            packet = requests.recv(PACKET_MAX)
            if not packet:
                return
            request = json.loads(packet)
            server = os.getpid()  # asked before the fork: when a command asks, its server may be gone
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (wakeup, alarm, requests.detach()):
                    os.close(fd)
                _run(server, **request)
                sys.exit()
            requests.send(json.dumps({"started": pid}).encode())


def _report_ended(requests: socket.socket) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            code = os.waitstatus_to_exitcode(status)
            requests.send(json.dumps({"ended": pid, "code": code}).encode())


def _run(server: int, name: str, words: list[str], errors: str) -> None:
    """In the forked process: run the command. It exits by itself, or with the server."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for source, target in ((nothing, 0), (nothing, 1), (file, 2)):
        os.dup2(source, target)
    prctl = getattr(CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_NAME, f"{COMMAND} {name}".encode(), 0, 0, 0)
    sys.argv = [COMMAND, *words, "--parent", str(server)]
    runpy.run_module(COMMAND, run_name="__main__")


if __name__ == "__main__":
    for module in sys.argv[2:]:
        import_module(module)
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)
