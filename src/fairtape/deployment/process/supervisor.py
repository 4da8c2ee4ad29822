"""The processes of a deployment that one command runs: started, watched, started again if asked to, ended together.

Each is a `fairtape` command in a session of its own, so that the Ctrl-C of a terminal reaches only the one that runs
them, which then ends them politely; and each ends by itself when that one is gone, however it went.
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

from fairtape.deployment.status_files import RunFolder

STOP_PERIOD_MAX: Final = 10.0  # seconds for all to write their journals, before they are ended by force
LOOK_PERIOD: Final = 0.02  # seconds
# Behind the name of a node, which has no dot: what runs beside a site, or as a source.
BESIDE: Final = ".edge"  # the retransmit server of a site
ARBITER: Final = ".arbiter"  # of a site: reports what its tokens trade
GATEWAY: Final = ".gateway"  # the order entry of a source
WORDS_MAX: Final = 4_096  # bytes of what a process said last

Wrapping = Callable[[str], Sequence[str]]  # the words before a node's command, such as those that enter a namespace


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A process that is gone."""

    name: str
    code: int  # as subprocess has it: negative for a signal
    words: str  # the last line on its standard error

    def __str__(self) -> str:
        if self.code < 0:
            return f"{self.name} was ended by {signal.Signals(-self.code).name}"
        said = f": {self.words.removeprefix('fairtape: ')}" if self.words else ""
        return f"{self.name} ended with exit code {self.code}{said}"


class Supervisor:
    """Children by name."""

    def __init__(self, folder: Path, run: RunFolder, *, wrapping: Wrapping = lambda _name: ()) -> None:
        self._folder = folder
        self._run = run
        self._wrapping = wrapping
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.stopping = False

    @property
    def names(self) -> tuple[str, ...]:
        """Who runs, as far as is known."""
        return tuple(self._children)

    def start(self, name: str, *options: str) -> None:
        """Start a node that does not run."""
        assert name not in self._children
        node = name.partition(".")[0]
        command = [*self._wrapping(node), sys.executable, "-m", "fairtape", *self._words(name), *options]
        with self._errors(name).open("wb") as errors:
            self._children[name] = subprocess.Popen(  # noqa: S603 - our own command
                [*command, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def ended(self) -> list[ProcessEnded]:
        """Who is gone since the last look."""
        gone = {name: child.returncode for name, child in self._children.items() if child.poll() is not None}
        for name in gone:
            del self._children[name]
        return [ProcessEnded(name, code, self._last_words(name)) for name, code in gone.items()]

    def send(self, name: str, number: signal.Signals) -> None:
        """A signal to one of ours."""
        self._children[name].send_signal(number)

    def stop(self, *names: str) -> list[ProcessEnded]:
        """End these, or all, politely; by force if they take too long."""
        chosen = {name: child for name, child in self._children.items() if not names or name in names}
        for child in chosen.values():
            child.send_signal(signal.SIGCONT)  # one that a drill had stopped hears nothing else
            child.terminate()
        give_up_at = time.monotonic() + STOP_PERIOD_MAX
        while time.monotonic() < give_up_at and any(child.poll() is None for child in chosen.values()):
            time.sleep(LOOK_PERIOD)
        for child in chosen.values():
            if child.poll() is None:
                child.kill()
                child.wait()
        return self.ended()

    def _words(self, name: str) -> list[str]:
        """The command of `fairtape` that runs it."""
        node, dot, role = name.partition(".")
        folder = str(self._folder)
        words = {
            BESIDE: ["edge", folder, node],
            ARBITER: ["floor", "arbiter", folder, node],
            GATEWAY: ["gateway", folder, "--source", node],
        }
        return words.get(dot + role, ["node", folder, node])

    def _errors(self, name: str) -> Path:
        return self._run.path / f"{name}.err"

    def _last_words(self, name: str) -> str:
        try:
            lines = self._errors(name).read_bytes()[-WORDS_MAX:].decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line for line in reversed(lines) if line.strip()), "")
