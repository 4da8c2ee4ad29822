"""The results file of a campaign: one line per world, so that a campaign can be interrupted and continued.

The first line names what was run: the kind of worlds, their options, and a digest of the code. Outcomes of other code
are not outcomes of this one, so such a file is refused. A last line that was not written completely is dropped.
"""

import fcntl
import json
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final

from fairtape.core.errors import UserError
from fairtape.simulation.cluster_run import RunOutcome

FORMAT: Final = "fairtape check results, version 1"
DIGEST_SIZE: Final = 16


class CampaignResults:
    """The outcomes that a file has, and those that are added to it."""

    def __init__(self, path: Path, kind: str, options: tuple[str, ...]) -> None:
        """Raises `UserError` where the file belongs to another campaign, or cannot be read or written."""
        self.outcomes: dict[int, RunOutcome] = {}  # by seed
        head = {"format": FORMAT, "worlds": kind, "options": list(options), "code": code_digest()}
        try:
            self._file: IO[bytes] = path.open("a+b")
            _lock(self._file, path)
            self._file.seek(0)
            self._read(path, head)
        except OSError as error:
            raise UserError(f"--results {path} cannot be used ({error.strerror}); name a file") from None

    def _read(self, path: Path, head: dict[str, Any]) -> None:
        first = self._file.readline()
        if not first:
            self._write(head)
            return
        found = _decoded(first)
        if found is None or found.get("format") != FORMAT:
            raise UserError(
                f"--results {path} has something else; name a file that `fairtape check` wrote, or a new one"
            )
        for name, value in head.items():
            if found.get(name) != value:
                raise UserError(
                    f"--results {path} is of another campaign: its {name} is {found.get(name)!r} and not {value!r}; "
                    "name a new file"
                )
        end = len(first)
        for line in self._file:
            outcome = _decoded(line)
            if outcome is None:
                break
            end += len(line)
            self.outcomes[outcome["seed"]] = _outcome(outcome)
        self._file.truncate(end)

    def add(self, outcome: RunOutcome) -> None:
        self.outcomes[outcome.seed] = outcome
        self._write(asdict(outcome))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()


def _lock(file: IO[bytes], path: Path) -> None:
    """Two campaigns would cut off each other's lines."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"--results {path} is used by another campaign; wait until it ends, or name a new file"
        ) from None


def _decoded(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None where the line is not complete, or is something else."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _outcome(line: dict[str, Any]) -> RunOutcome:
    pairs = {name: tuple(map(tuple, line[name])) for name in ("durations", "counts")}
    return RunOutcome(**{**line, **pairs, "faults": tuple(line["faults"])})


def code_digest() -> str:
    """A digest of the package: equal digests run equal worlds."""
    folder = Path(__file__).parents[1]
    digest = blake2b(digest_size=DIGEST_SIZE)
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
