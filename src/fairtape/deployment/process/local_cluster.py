"""A deployment on this machine: all of its processes under one supervisor, their restarts, and their log."""

import signal
import time
from collections.abc import Callable
from typing import Final

from fairtape.deployment.config.description import Deployment, with_names
from fairtape.deployment.config.process_names import edge_names, floor_names
from fairtape.deployment.process.supervisor import (
    COMMAND_MODULES,
    EDGE_MODULES,
    ProcessEnded,
    Supervisor,
    Wrapping,
)
from fairtape.deployment.status_files import RunFolder

POLL_PERIOD: Final = 0.1  # seconds
RESTART_DELAY: Final = 1.0  # seconds: a process that fails at once must not keep the machine busy


class LocalCluster:
    """All processes of a deployment.

    `say` gets each process that ends or starts again, and each line of the log, with names, unless `quiet`. `restart`
    decides whether a process that ended unexpectedly is started again.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        say: Callable[[str], None] = lambda _line: None,
        quiet: bool = False,
        restart: Callable[[ProcessEnded], bool] = lambda _ended: False,
        wrapping: Wrapping = lambda _name: (),
    ) -> None:
        self.deployment = deployment
        self.run = RunFolder(deployment.folder)
        imports = COMMAND_MODULES if deployment.edge is None else (*COMMAND_MODULES, *EDGE_MODULES)
        self.supervisor = Supervisor(deployment.folder, self.run, wrapping=wrapping, imports=imports)
        self.lost: dict[str, ProcessEnded] = {}  # processes that ended unexpectedly and were not restarted
        self._say = say
        self._quiet = quiet
        self._restart = restart
        self._start_at: dict[str, float] = {}
        self._read_from = self.run.notices_end()

    def start(self) -> None:
        """Start all processes, reformation servers first: the sites need them."""
        self.run.take_starts()
        for node in (*self.deployment.reformers, *self.deployment.sites):
            self.supervisor.start(node.name)
        for name in (*edge_names(self.deployment), *floor_names(self.deployment)):
            self.supervisor.start(name)

    def stop(self) -> None:
        """Stop all processes. The floor goes first, so that gateways can still publish what they have accepted."""
        for ended in (*self.supervisor.stop(*floor_names(self.deployment)), *self.supervisor.stop()):
            if ended.code not in (0, -signal.SIGTERM):  # SIGTERM: stopped before its handler was set
                self.lost[ended.name] = ended
                self._say(str(ended))
        self._read_log()

    def look(self) -> None:
        """Report what has happened since the last call, and restart what is due."""
        self._read_log()
        for ended in self.supervisor.ended():
            self._note_end(ended)
        now = time.monotonic()
        for name in self.run.take_starts():
            beside = (*edge_names(self.deployment), *floor_names(self.deployment))
            if name in (*self.deployment.nodes, *beside) and name not in self.supervisor.names:
                self._start_at.setdefault(name, now)
        for name in [name for name, at in self._start_at.items() if at <= now]:
            del self._start_at[name]
            if name not in self.supervisor.names:
                self.lost.pop(name, None)
                self._say(f"restarting {name}")
                self.supervisor.start(name)

    def watch(self, done: Callable[[], bool]) -> None:
        """Call `look` until it is done."""
        while not done():
            self.look()
            time.sleep(POLL_PERIOD)

    def failure(self) -> ProcessEnded | None:
        """Why the deployment cannot go on: the last of all sites, or of all reformation servers, ended for good."""
        gone = [name for name in self.lost if name not in self._start_at]
        for group in (self.deployment.sites, self.deployment.reformers):
            if all(node.name in gone for node in group):
                return next(self.lost[name] for name in reversed(gone) if name in {node.name for node in group})
        return None

    def _note_end(self, ended: ProcessEnded) -> None:
        self.lost[ended.name] = ended
        self._say(str(ended))
        if self._restart(ended):
            self._start_at[ended.name] = time.monotonic() + RESTART_DELAY

    def _read_log(self) -> None:
        if self._quiet:
            return
        lines, self._read_from = self.run.notices_from(self._read_from)
        for line in lines:
            self._say(with_names(line, self.deployment))
