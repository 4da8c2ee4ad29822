"""Databases through SQLAlchemy: SQLite in a file by default, PostgreSQL where a URL names one.

SQLite uses a write-ahead log and full synchronisation: committed transactions survive a power failure.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, MetaData, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)

from fairtape.core.errors import UserError

BUSY_PERIOD: Final = 5.0  # seconds that a statement waits for another process
_PRAGMAS: Final = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON")


class DatabaseUnavailable(UserError):
    """An open database does not answer. The operation may be retried."""


@contextmanager
def database_errors() -> Iterator[None]:
    """Convert a driver's connection errors to `DatabaseUnavailable`."""
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise DatabaseUnavailable(f"the database does not answer ({_reason(error)}); check that it runs") from None


def open_database(address: str | Path, metadata: MetaData) -> Engine:
    """Open the database at a path or URL, and create missing tables. A `UserError` says why it cannot be used."""
    text = f"sqlite:///{address}" if isinstance(address, Path) or "://" not in address else address
    try:
        url = make_url(text)
        sqlite = url.get_backend_name() == "sqlite"
        # A server may have been restarted since: a pooled connection is tested before it is used.
        engine = create_engine(url, connect_args={"timeout": BUSY_PERIOD} if sqlite else {}, pool_pre_ping=not sqlite)
        if sqlite:
            event.listen(engine, "connect", _make_durable)
        metadata.create_all(engine)
    except (NoSuchModuleError, ModuleNotFoundError):
        raise UserError(
            f"database is {_shown(text)}, and its driver is not installed; try: pip install 'fairtape[postgresql]'"
        ) from None
    except ArgumentError:
        raise UserError(
            f"database is {_shown(text)}; name a file, or a URL such as postgresql+psycopg://host/name"
        ) from None
    except (DBAPIError, SQLAlchemyError) as error:
        raise UserError(f"database {_shown(text)} cannot be used ({_reason(error)}); name another one") from None
    return engine


def _make_durable(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _reason(error: SQLAlchemyError) -> str:
    """The first line of the driver's message."""
    return str(getattr(error, "orig", None) or error).splitlines()[0]


def _shown(text: str) -> str:
    """A URL without its password: errors end up in logs."""
    try:
        return make_url(text).render_as_string(hide_password=True)
    except ArgumentError:
        return "no URL"
