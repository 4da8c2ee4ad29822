"""The run folder of a deployment: how its processes tell the people of this machine how they fare, and are told things.

    run/NAME.json         how one process fares, written anew every half second, whole or not at all
    run/NAME.orders.json  what a drill wants of it: whom not to hear, a clock that is set wrong, silence
    run/NAME.start        a wish that whoever runs the deployment start this process again
    run/notices.log       one line for everything that an operator wants to read

Nothing here is part of the protocol. A process that cannot write its news goes on without.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.storage.files import write_atomically
from fairtape.wire.frames import NodeId

RUN: Final = "run"
NOTICES: Final = "notices.log"
STATUS_PERIOD: Final = 500 * MILLISECOND
FRESH_PERIOD_MAX: Final = 5.0  # seconds: a status that is older tells of a process that stands still

Status = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a drill wants of a process."""

    deaf_to: tuple[NodeId, ...] = ()  # a partition: nothing from these nodes is heard
    skew_ns: int = 0  # as if somebody had set the system clock by this
    quiet: bool = False  # a load source: publish no more


class RunFolder:
    """The folder `run` of one deployment."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RUN
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be made ({error.strerror}); name a deployment whose folder is yours"
            ) from None

    def status(self, name: str) -> Status | None:
        """What a process said last, if it is still running."""
        try:
            status: Status = json.loads((self.path / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return status if incarnation_of(status.get("pid", 0)) == status.get("life", "") else None

    def statuses(self, names: Sequence[str]) -> dict[str, Status]:
        """The same for several, without those that do not run."""
        found = {name: self.status(name) for name in names}
        return {name: status for name, status in found.items() if status is not None}

    def orders(self, name: str) -> Orders:
        """What this process is to do; whatever is wrong with the file means nothing special."""
        try:
            fields = json.loads((self.path / f"{name}.orders.json").read_text())
            return Orders(
                deaf_to=tuple(map(int, fields["deaf_to"])), skew_ns=int(fields["skew_ns"]), quiet=bool(fields["quiet"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return Orders()

    def order(self, name: str, orders: Orders) -> None:
        """Tell a process what to do."""
        content = json.dumps(asdict(orders)).encode()
        write_atomically(self.path / f"{name}.orders.json", content, concurrent=True)

    def withdraw_orders(self, name: str) -> None:
        """Let it be as it was."""
        (self.path / f"{name}.orders.json").unlink(missing_ok=True)

    def ask_for_start(self, name: str) -> None:
        """Ask whoever runs the deployment to start a process again."""
        (self.path / f"{name}.start").touch()

    def take_starts(self) -> list[str]:
        """Whom to start, each once."""
        found = sorted(self.path.glob("*.start"))
        for path in found:
            path.unlink(missing_ok=True)
        return [path.stem for path in found]

    def notices_from(self, offset: int) -> tuple[list[str], int]:
        """The lines that were logged since, and where to go on."""
        try:
            with (self.path / NOTICES).open("rb") as file:
                file.seek(offset)
                text = file.read()
        except OSError:
            return [], offset
        whole = text[: text.rfind(b"\n") + 1]
        return whole.decode(errors="replace").splitlines(), offset + len(whole)

    def notices_end(self) -> int:
        """Where the log ends now."""
        with suppress(OSError):
            return (self.path / NOTICES).stat().st_size
        return 0


class StatusFile:
    """One process's own page and its lines in the log. A thread writes the page, so that no token waits for a disk."""

    def __init__(self, run: RunFolder, name: str) -> None:
        self._name = name
        self._path = run.path / f"{name}.json"
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bulletin")
        self._writing: Future[None] | None = None
        self._post_at: Instant = 0
        self._log = os.open(run.path / NOTICES, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def post(self, status: Mapping[str, Any]) -> None:
        """Put a new page in the place of the old one; while one is being written, this one is left out."""
        if self._writing is not None and not self._writing.done():
            return
        page = {"pid": os.getpid(), "life": incarnation_of(os.getpid()), **status}
        self._writing = self._writer.submit(_write_quietly, self._path, page)

    def keep_posted(self, now: Instant, page: Callable[[Instant], Status]) -> None:
        """Post a page when it is time for a new one. To be called often."""
        if now >= self._post_at:
            self._post_at = now + STATUS_PERIOD
            self.post(page(now))

    def note(self, text: str) -> None:
        """One line for the operator."""
        line = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {self._name}: {text}\n"
        with suppress(OSError):
            os.write(self._log, line.encode())

    def close(self, status: Mapping[str, Any]) -> None:
        """The last page."""
        self._writer.shutdown()
        self._writing = None
        _write_quietly(self._path, {"pid": os.getpid(), "life": incarnation_of(os.getpid()), **status})
        os.close(self._log)


def _write_quietly(path: Path, content: Mapping[str, Any]) -> None:
    with suppress(OSError):
        write_atomically(path, json.dumps(content).encode(), concurrent=True)


def incarnation_of(pid: int) -> str:
    """What tells a process from another one that has its number later: when it started; "" where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
