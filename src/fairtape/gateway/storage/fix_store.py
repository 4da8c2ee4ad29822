"""The store of FIX sessions in one SQLite file: their numbers, and the messages they sent.

A session changes its store many times within a turn of its driver, and nothing of it may be seen outside before all of
it is on disk. So changes stay in one transaction until `sync`, which the driver calls once per turn before it writes.
However the process ends, the file then holds whole turns, and every turn that could have been seen outside.

The file is locked by one process at a time: two processes would assign the same numbers.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError

APPLICATION: Final = int.from_bytes(b"ftfx")  # marks the file as FIX sessions of fairtape
VERSION: Final = 1
MESSAGES_MAX: Final = 65_536  # per session; a gap fill replaces older ones
PRUNE_PERIOD: Final = 1_024  # numbers between two deletions of old messages

_TABLES: Final = (
    "CREATE TABLE session (id INTEGER PRIMARY KEY, ours TEXT, theirs TEXT, next_in INTEGER, next_out INTEGER)",
    "CREATE UNIQUE INDEX names ON session (ours, theirs)",
    "CREATE TABLE message (session INTEGER, number INTEGER, octets BLOB, PRIMARY KEY (session, number)) WITHOUT ROWID",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
_BEGIN: Final = "INSERT OR IGNORE INTO session (ours, theirs, next_in, next_out) VALUES (?, ?, 1, 1)"
_FIND: Final = "SELECT id, next_in, next_out FROM session WHERE ours = ? AND theirs = ?"
_CLIENTS: Final = "SELECT theirs FROM session WHERE ours = ? ORDER BY theirs"
_NOTE: Final = "UPDATE session SET next_in = ?, next_out = ? WHERE id = ?"
_KEEP: Final = "INSERT OR REPLACE INTO message VALUES (?, ?, ?)"
_KEPT: Final = "SELECT number, octets FROM message WHERE session = ? AND number BETWEEN ? AND ? ORDER BY number"
_PRUNE: Final = "DELETE FROM message WHERE session = ? AND number < ?"


class FixFile:
    """The sessions of one process. Raises `UserError` for a file that cannot be used."""

    def __init__(self, path: Path, *, messages_max: int = MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self._connection = _opened(path)
        self._sessions: dict[tuple[str, str], FixFileStore] = {}

    def session(self, ours: str, theirs: str) -> "FixFileStore":
        """The store of the session between these two; a new one starts at 1."""
        names = (ours, theirs)
        if names not in self._sessions:
            self._connection.execute(_BEGIN, names)
            row, next_in, next_out = self._connection.execute(_FIND, names).fetchone()
            numbers = (next_in, next_out)
            self._sessions[names] = FixFileStore(self._connection, row, numbers, messages_max=self._messages_max)
        return self._sessions[names]

    def clients(self, ours: str) -> list[str]:
        """The clients that have a session with us."""
        return [name for (name,) in self._connection.execute(_CLIENTS, (ours,))]

    def sync(self) -> None:
        """Commit all changes to disk."""
        for session in self._sessions.values():
            session.note()
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._connection.execute("BEGIN")

    def close(self) -> None:
        """Close the file; changes since the last `sync` are lost."""
        self._connection.close()


class FixFileStore:
    """The store of one session; a `FixStore`."""

    def __init__(
        self, connection: sqlite3.Connection, row: int, numbers: tuple[int, int], *, messages_max: int
    ) -> None:
        self._connection = connection
        self._row = row
        self._next_in, self._next_out = self._noted = numbers
        self._messages_max = messages_max

    @property
    def next_in(self) -> int:
        return self._next_in

    @property
    def next_out(self) -> int:
        return self._next_out

    def expect(self, number: int) -> None:
        self._next_in = number

    def sent(self, octets: bytes | None) -> None:
        if octets is not None:
            self._connection.execute(_KEEP, (self._row, self._next_out, octets))
        self._next_out += 1
        if self._next_out % PRUNE_PERIOD == 0:
            self._connection.execute(_PRUNE, (self._row, self._next_out - self._messages_max))

    def kept(self, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        kept: list[tuple[int, bytes]] = self._connection.execute(_KEPT, (self._row, first, last)).fetchall()
        return kept

    def reset(self) -> None:
        self._connection.execute("DELETE FROM message WHERE session = ?", (self._row,))
        self._next_in = self._next_out = 1

    def note(self) -> None:
        """Write the numbers, if they changed."""
        numbers = (self._next_in, self._next_out)
        if numbers != self._noted:
            self._connection.execute(_NOTE, (*numbers, self._row))
            self._noted = numbers


def _opened(path: Path) -> sqlite3.Connection:
    """The file, locked for this process, within a transaction."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application == 0 and tables == 0:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute("COMMIT")
            connection.execute("BEGIN EXCLUSIVE")
            application = APPLICATION
    except sqlite3.Error as error:
        raise UserError(
            f"{path} cannot hold FIX sessions ({error}); name a file that no other process has open"
        ) from None
    if application != APPLICATION:
        connection.close()
        raise UserError(f"{path} is a database of another application; name another file for FIX sessions")
    return connection
