"""Run `fairtape …` as a process, and read its output."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PATIENCE = 60.0  # seconds, for a busy machine


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a command. Its children inherit its pipes: end of file means that all of them have ended."""
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
    """Start a command and wait for it: (exit code, standard output, standard error)."""
    return finish(start(*arguments))


def await_line(process: subprocess.Popen[str], text: str) -> str:
    """The first line on standard error that contains this text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the command ended without printing {text!r}")


def lines_of(process: subprocess.Popen[str], count: int, text: str) -> list[str]:
    """The lines of a command, until `count` of them contain this text."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        count -= text in line
        if not count:
            return lines
    raise AssertionError(f"{count} lines are missing")


def interrupt(process: subprocess.Popen[str]) -> None:
    """SIGINT as a terminal sends it: to the command and to its children."""
    os.killpg(process.pid, signal.SIGINT)


def holder_of(path: Path) -> int:
    """The process that has this file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if link.readlink() == path:
                return int(link.parts[2])
        except OSError:
            continue
    raise AssertionError(f"no process holds {path}")
