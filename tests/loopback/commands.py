"""`fairtape …` as a user runs it: a process of its own, its output, and what it leaves behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PATIENCE = 60.0  # seconds, for a machine that is busy with other things


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a command. Its children share its pipes, so their end is the end of all of them."""
    command = [sys.executable, "-m", "fairtape", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command and for all of its children: (exit code, standard output, standard error)."""
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, output, errors


def run(*arguments: object) -> tuple[int, str, str]:
    """Start a command and wait for it."""
    return finish(start(*arguments))


def await_line(process: subprocess.Popen[str], text: str) -> str:
    """The first line on standard error that holds this text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the command ended without saying {text!r}")


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C, as a terminal sends it: to the command and to all of its children."""
    os.killpg(process.pid, signal.SIGINT)


def holder_of(path: Path) -> int:
    """The process that has this file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == path:
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"nobody holds {path}")
