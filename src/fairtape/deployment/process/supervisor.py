"""Supervision of the processes of a deployment: start, signal, stop.

Each process is a `fairtape` command in its own session. SIGINT of a terminal so reaches only the supervisor, which then
terminates the others. Each of them also ends when the supervisor is gone, for whatever reason (`--parent`). Commands
are forked from a server, except those with a wrapping, which start an interpreter each.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.deployment.config.process_names import ARBITER, EDGE, GATEWAY
from fairtape.deployment.process.fork_server import ForkedCommand, ForkServer
from fairtape.deployment.status_files import RunFolder

STOP_PERIOD_MAX: Final = 10.0  # seconds for all to close their journals, before they are killed
POLL_PERIOD: Final = 0.02  # seconds
EXIT_MISTAKE: Final = 2  # of a command that ended with one sentence about its input or its machine
ERRORS_MAX: Final = 4_096  # bytes at the end of standard error that are searched for the last line

# Imported once for all nodes. Strings, because commands are above this package.
COMMAND_MODULES: Final = ("fairtape.cli.processes", "fairtape.deployment.process.node")
EDGE_MODULES: Final = ("fairtape.deployment.process.edge",)

Wrapping = Callable[[str], Sequence[str]]  # the words in front of a node's command, such as `ip netns exec`


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process that has ended."""

    name: str
    code: int  # as subprocess has it: negative for a signal
    last_line: str  # of its standard error

    @property
    def refused(self) -> bool:
        """Whether it ended with a `UserError`, such as a full disk. Started again, it would end the same way."""
        return self.code == EXIT_MISTAKE

    def __str__(self) -> str:
        if self.code < 0:
            return f"{self.name} was ended by {signal.Signals(-self.code).name}"
        cause = f": {self.last_line.removeprefix('fairtape: ')}" if self.last_line else ""
        return f"{self.name} ended with exit code {self.code}{cause}"


class Supervisor:
    """Child processes by name."""

    def __init__(
        self,
        folder: Path,
        run: RunFolder,
        *,
        wrapping: Wrapping = lambda _name: (),
        imports: Sequence[str] = COMMAND_MODULES,
    ) -> None:
        """`imports` names the modules that the processes need, to be imported once for all."""
        self._imports = imports
        self._server: ForkServer | None = None
        self._folder = folder
        self._run = run
        self._wrapping = wrapping
        self._children: dict[str, ForkedCommand | subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The processes that have not been found to have ended."""
        return tuple(self._children)

    def start(self, name: str, *options: str) -> None:
        """Start a process that does not run."""
        assert name not in self._children
        words = [*self._command(name), *options]
        wrapping = self._wrapping(name.partition(".")[0])
        if wrapping:
            self._children[name] = self._start_wrapped(name, [*wrapping, sys.executable, "-m", "fairtape", *words])
        else:
            if self._server is None or self._server.closed:
                self._server = ForkServer(self._imports)
            self._children[name] = self._server.start(name, words, self._errors(name))

    def ended(self) -> list[ProcessEnded]:
        """The processes that have ended since the last call."""
        codes = {name: child.poll() for name, child in self._children.items()}
        gone = {name: code for name, code in codes.items() if code is not None}
        for name in gone:
            del self._children[name]
        return [ProcessEnded(name, code, self._last_line(name)) for name, code in gone.items()]

    def send(self, name: str, number: signal.Signals) -> None:
        self._children[name].send_signal(number)

    def stop(self, *names: str) -> list[ProcessEnded]:
        """Terminate these processes, or all; kill those that take too long."""
        chosen = {name: child for name, child in self._children.items() if not names or name in names}
        for child in chosen.values():
            child.send_signal(signal.SIGCONT)  # a drill may have stopped it
            child.terminate()
        give_up_at = time.monotonic() + STOP_PERIOD_MAX
        while time.monotonic() < give_up_at and any(child.poll() is None for child in chosen.values()):
            time.sleep(POLL_PERIOD)
        for child in chosen.values():
            if child.poll() is None:
                child.kill()
                child.wait()
        ended = self.ended()
        if self._server is not None and not self._children:
            self._server.close()
        return ended

    def _start_wrapped(self, name: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with self._errors(name).open("wb") as errors:
            return subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def _command(self, name: str) -> list[str]:
        node, dot, role = name.partition(".")
        folder = str(self._folder)
        commands = {
            EDGE: ["edge", folder, node],
            ARBITER: ["floor", "arbiter", folder, node],
            GATEWAY: ["gateway", folder, "--source", node],
        }
        return commands.get(dot + role, ["node", folder, node])

    def _errors(self, name: str) -> Path:
        return self._run.path / f"{name}.err"

    def _last_line(self, name: str) -> str:
        try:
            lines = self._errors(name).read_bytes()[-ERRORS_MAX:].decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line for line in reversed(lines) if line.strip()), "")
