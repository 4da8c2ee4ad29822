"""The formation store in one SQLite file: the embedded default, shared by the processes of one machine.

Every change is one transaction that takes the write lock before it reads (`BEGIN IMMEDIATE`) and is durable before the
response (`synchronous=FULL`), so a process may be killed at any instant. Nothing is ever deleted: the log is complete,
and the latest formation of a loop is a query. The file must be on a local disk, because its locks are the kernel's.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.formation_log import (
    Claim,
    Claimed,
    Leadership,
    LogEntry,
    Recall,
    Recalled,
    Record,
    Recorded,
    RecordRefused,
    StoreRequest,
    StoreResponse,
    Unavailable,
)
from fairtape.storage.formation_stores.formation_store import TIMEOUT, new_identity, numbers_increase

APPLICATION: Final = int.from_bytes(b"ftfl")  # marks the file as ours: a fairtape formation log
VERSION: Final = 2

_OPEN_RETRY_DELAY: Final = 0.01  # seconds
_ADD_LEASE: Final = "ALTER TABLE leadership ADD COLUMN lease INTEGER NOT NULL DEFAULT 0"
_ADD_IDENTITY: Final = "CREATE TABLE identity (row INTEGER PRIMARY KEY CHECK (row = 0), store INTEGER NOT NULL)"
_TABLES: Final = (
    "CREATE TABLE leadership (row INTEGER PRIMARY KEY CHECK (row = 0), leader INTEGER, term INTEGER, renewal INTEGER)",
    _ADD_LEASE,
    _ADD_IDENTITY,
    "CREATE TABLE log (loop INTEGER, number INTEGER, term INTEGER, formation BLOB, PRIMARY KEY (loop, number))",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
_FROM_VERSION_1: Final = (_ADD_LEASE, _ADD_IDENTITY, f"PRAGMA user_version = {VERSION}")
# With a single max(), SQLite guarantees that the other columns come from the row with the maximum.
_LATEST: Final = "SELECT loop, max(number), term, formation FROM log GROUP BY loop ORDER BY loop"
_LEADERSHIP: Final = "SELECT leader, term, renewal, lease FROM leadership"
_IDENTITY: Final = "SELECT store FROM identity"
_SET_IDENTITY: Final = "INSERT INTO identity VALUES (0, ?)"
_CLAIM: Final = "INSERT OR REPLACE INTO leadership VALUES (0, ?, ?, ?, ?)"
_APPEND: Final = "INSERT INTO log VALUES (?, ?, ?, ?)"


class SqliteStore:
    """A store in a file, which is created if it does not exist."""

    def __init__(self, path: Path, *, timeout: float = TIMEOUT) -> None:
        self._path = path.absolute()
        self._timeout = timeout
        self._connection = _open(self._path, timeout)
        self._file = self._named_file()

    def answer(self, request: StoreRequest) -> StoreResponse:
        """Carry out the request; waits for other processes. What it cannot write makes the store unavailable.

        A file that is replaced while it is open would be a second store, of which other processes know nothing. So the
        one that has the name counts, and an answer of another one does not.
        """
        try:
            self._follow_name()
            response = self._carry_out(request)
            return response if self._file == self._named_file() else Unavailable(request)
        except (sqlite3.Error, OSError, OverflowError, UserError):  # the disk, the file, a number too large
            return Unavailable(request)

    def _carry_out(self, request: StoreRequest) -> StoreResponse:
        match request:
            case Recall():
                return self._recall()
            case Claim():
                return self._claim(request)
            case Record():
                return self._record(request)

    def _named_file(self) -> tuple[int, int]:
        """Raises `OSError` if no file has the name any more: then a new store would be a lost one."""
        found = self._path.stat()
        return found.st_dev, found.st_ino

    def _follow_name(self) -> None:
        """Open the file that has the name now."""
        named = self._named_file()
        if named != self._file:
            self._connection.close()
            self._connection, self._file = _open(self._path, self._timeout), named

    def probe(self) -> bool:
        """Write the version again: SQLite writes and syncs a page that has not changed, too."""
        try:
            with _transaction(self._connection):
                self._connection.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.Error:
            return False
        return True

    def close(self) -> None:
        self._connection.close()

    def _recall(self) -> Recalled:
        with _transaction(self._connection, "DEFERRED"):
            latest = self._connection.execute(_LATEST).fetchall()
            (store,) = self._connection.execute(_IDENTITY).fetchone()
            return Recalled(self._leadership(), tuple(LogEntry(*row) for row in latest), store)

    def _claim(self, claim: Claim) -> Claimed:
        with _transaction(self._connection):
            present = self._leadership()
            if present != claim.expected:
                return Claimed(present)
            wanted = claim.wanted
            self._connection.execute(_CLAIM, (wanted.leader, wanted.term, wanted.renewal, wanted.lease))
        return Claimed(wanted)

    def _record(self, record: Record) -> Recorded | RecordRefused:
        entries = record.entries
        with _transaction(self._connection):
            present = self._leadership()
            if any(present is None or entry.term != present.term for entry in entries):
                return RecordRefused(entries)
            numbers = {loop: number for loop, number, _, _ in self._connection.execute(_LATEST)}
            if not numbers_increase(entries, numbers):
                return RecordRefused(entries)
            rows = [(entry.loop, entry.number, entry.term, entry.formation) for entry in entries]
            self._connection.executemany(_APPEND, rows)
        return Recorded(entries)

    def _leadership(self) -> Leadership | None:
        row = self._connection.execute(_LEADERSHIP).fetchone()
        return None if row is None else Leadership(*row)


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """A transaction; committed and durable when the block is left normally, also by `return`."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors SQLite has rolled back already
            connection.execute("ROLLBACK")
        raise


def _open(path: Path, timeout: float) -> sqlite3.Connection:
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"store is 'sqlite:{path}', but {str(folder)!r} is not a folder that can be written; name another"
        )
    try:
        # `StoreThread` asks on one thread and the program closes on another, never both at once: no check is needed.
        connection = sqlite3.connect(path.absolute(), timeout=timeout, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise UserError(_cannot_open(path, error)) from None
    try:
        _set_pragmas(connection, timeout)
        with _transaction(connection):
            _init_schema(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise UserError(_cannot_open(path, error)) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _set_pragmas(connection: sqlite3.Connection, timeout: float) -> None:
    """Set the write-ahead log, and a sync for each commit.

    Only one process can change the mode of a new file. SQLite reports a lock to the others at once, without regard to
    the timeout, so the statement is retried here.
    """
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(_OPEN_RETRY_DELAY)
    connection.execute("PRAGMA synchronous = FULL")


def _init_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file; check the application id of an old one, and bring it to the present version."""
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
        _upgrade(connection, _TABLES)
        return
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise UserError(f"store is 'sqlite:{path}', a database of another program; name another file")
    if version == 1:
        _upgrade(connection, _FROM_VERSION_1)
    elif version != VERSION:
        raise UserError(f"store is 'sqlite:{path}', of version {version}; expected {VERSION}, so use its own fairtape")


def _upgrade(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    """Bring a file to the present version, in which the store has an identity (decision 63, One store)."""
    for statement in statements:
        connection.execute(statement)
    connection.execute(_SET_IDENTITY, (new_identity(),))


def _cannot_open(path: Path, error: sqlite3.Error) -> str:
    return f"store is 'sqlite:{path}', which cannot be opened ({error}); name a new file or one that fairtape made"
