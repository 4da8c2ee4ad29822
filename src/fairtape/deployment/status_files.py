"""The run folder of a deployment: status and control files of its processes on this machine.

    run/NAME.json         the status of one process, replaced every half second
    run/NAME.orders.json  what a drill demands of it: a partition, a wrong clock, no traffic
    run/NAME.start        a request to the supervisor to start this process again
    run/notices.log       the log of all processes, one line each

Nothing here is part of the protocol. A process that cannot write its status goes on without.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.deployment.status import (
    DrillControls,
    Status,
    decode_controls,
    decode_status,
    encode_controls,
    encode_status,
)
from fairtape.storage.files import write_atomically

RUN: Final = "run"
NOTICES: Final = "notices.log"
STATUS_PERIOD: Final = 500 * MILLISECOND
FRESH_PERIOD_MAX: Final = 5.0  # seconds: a process whose status is older does not make progress

Kind = TypeVar("Kind", bound=Status)


class RunFolder:
    """The folder `run` of one deployment."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RUN
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be created ({error.strerror}); name a deployment whose folder you can write"
            ) from None

    def status(self, name: str) -> Status | None:
        """The last status of a process; None where it does not run or its file is damaged."""
        try:
            status = decode_status(json.loads((self.path / f"{name}.json").read_text()))
        except (OSError, ValueError):
            return None
        return status if incarnation_of(status.pid) == status.process_incarnation else None

    def statuses(self, names: Sequence[str]) -> dict[str, Status]:
        """The same for several processes, without those that do not run."""
        found = {name: self.status(name) for name in names}
        return {name: status for name, status in found.items() if status is not None}

    def statuses_of(self, kind: type[Kind], names: Sequence[str]) -> dict[str, Kind]:
        """Those of one kind of process."""
        return {name: status for name, status in self.statuses(names).items() if isinstance(status, kind)}

    def silence(self, name: str) -> float:
        """Seconds since a process wrote its status, by the clock of this machine; 0 where it has written none."""
        try:
            return max(time.time() - (self.path / f"{name}.json").stat().st_mtime, 0.0)
        except OSError:
            return 0.0

    def controls(self, name: str) -> DrillControls:
        """What this process is to do. A file that is missing or damaged demands nothing."""
        try:
            return decode_controls(json.loads((self.path / f"{name}.orders.json").read_text()))
        except (OSError, ValueError):
            return DrillControls()

    def set_controls(self, name: str, controls: DrillControls) -> None:
        content = json.dumps(encode_controls(controls)).encode()
        write_atomically(self.path / f"{name}.orders.json", content, concurrent=True)

    def clear_controls(self, name: str) -> None:
        (self.path / f"{name}.orders.json").unlink(missing_ok=True)

    def ask_for_start(self, name: str) -> None:
        """Ask the supervisor of the deployment to start a process again."""
        (self.path / f"{name}.start").touch()

    def take_starts(self) -> list[str]:
        """The processes that are to be started. Each request is taken once."""
        found = sorted(self.path.glob("*.start"))
        for path in found:
            path.unlink(missing_ok=True)
        return [path.stem for path in found]

    def notices_from(self, offset: int) -> tuple[list[str], int]:
        """The complete lines of the log from this offset on, and the offset behind them."""
        try:
            with (self.path / NOTICES).open("rb") as file:
                file.seek(offset)
                content = file.read()
        except OSError:
            return [], offset
        complete = content[: content.rfind(b"\n") + 1]
        return complete.decode(errors="replace").splitlines(), offset + len(complete)

    def notices_end(self) -> int:
        with suppress(OSError):
            return (self.path / NOTICES).stat().st_size
        return 0


class StatusFile:
    """The status file of one process, and its lines in the log. A thread writes it: no token waits for a disk."""

    def __init__(self, run: RunFolder, name: str) -> None:
        self._name = name
        self._path = run.path / f"{name}.json"
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="status")
        self._writing: Future[None] | None = None
        self._post_at: Instant = 0
        self._log = os.open(run.path / NOTICES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def post(self, status: Status) -> None:
        """Replace the status. It is dropped while the one before is still being written."""
        if self._writing is not None and not self._writing.done():
            return
        self._writing = self._writer.submit(_write, self._path, _of_this_process(status))

    def keep_posted(self, now: Instant, status: Callable[[Instant], Status]) -> None:
        """Post a status when the next one is due. To be called often."""
        if now >= self._post_at:
            self._post_at = now + STATUS_PERIOD
            self.post(status(now))

    def note(self, text: str) -> None:
        """Append one line to the log."""
        line = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {self._name}: {text}\n"
        with suppress(OSError):
            os.write(self._log, line.encode())

    def close(self, status: Status) -> None:
        """Write the last status."""
        self._writer.shutdown()
        self._writing = None
        _write(self._path, _of_this_process(status))
        os.close(self._log)


def _of_this_process(status: Status) -> Status:
    return replace(status, pid=os.getpid(), process_incarnation=incarnation_of(os.getpid()))


def _write(path: Path, status: Status) -> None:
    with suppress(OSError):
        write_atomically(path, json.dumps(encode_status(status)).encode(), concurrent=True)


def incarnation_of(pid: int) -> str:
    """The start time of a process, which tells it from a later one with the same number; "" where none runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def cpu_seconds(pid: int) -> float:
    """The processor time of a process, all threads; 0 for a process that has ended. Exact, unlike /proc/PID/stat."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3), of CPUCLOCK_SCHED
    except OSError:
        return 0.0
