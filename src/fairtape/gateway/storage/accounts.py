"""Logins with their secrets, and the brokers who vouch for customers.

A password is stored as its scrypt hash (RFC 7914), which costs 16 MiB and some 50 ms per guess. scrypt is in Python's
standard library; Argon2 would be one more compiled dependency for little more resistance. A token is a random 256-bit
secret for programs. It cannot be guessed, so a single SHA-256 is enough and costs nothing.

A broker is a login like any other. The logins that name it as their broker are its customers: it acts for them.

Checking a password is slow on purpose. `verify` may be called from any thread, and must not be called from an event
loop.
"""

import hashlib
import hmac
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Boolean, Column, Engine, Insert, MetaData, String, Table, Update, insert, select, update

from fairtape.core.errors import UserError
from fairtape.exchange.orders import ACCOUNT_MAX
from fairtape.storage.database import DatabaseUnavailable, database_errors, open_database

LOGINS_MAX: Final = 100_000
SECRET_MAX: Final = 128  # characters of a password; limits the work of hashing
PASSWORD_MIN: Final = 8
TOKEN_PREFIX: Final = "ft_"  # noqa: S105 - marks a secret as a token
SALT_BYTES: Final = 16
TOKEN_BYTES: Final = 32
SCRYPT_N: Final = 1 << 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
_MEMORY_MAX: Final = 64 << 20

METADATA: Final = MetaData()
LOGINS: Final = Table(
    "logins",
    METADATA,
    Column("name", String(ACCOUNT_MAX), primary_key=True),
    Column("password", String(256), nullable=False),  # scrypt$n$r$p$salt$hash
    Column("token", String(64), nullable=False),  # SHA-256, or empty
    Column("broker", String(ACCOUNT_MAX), nullable=False),  # the broker who vouches for it, or empty
    Column("closed", Boolean, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Login:
    """One login, and the account of the same name."""

    name: str
    password: str
    token: str
    broker: str
    closed: bool


class TradingAccounts:
    """All logins of a deployment."""

    def __init__(self, address: str | Path) -> None:
        """`address` is a path for SQLite, or a URL. Raises `UserError` if it cannot be opened."""
        self._engine: Engine = open_database(address, METADATA)
        self._lock = threading.Lock()
        self._logins: dict[str, Login] = {}
        self._customers: dict[str, frozenset[str]] = {}
        self._decoy = hashed(secrets.token_hex(SALT_BYTES))
        self.refresh()

    def refresh(self) -> None:
        """Read what other processes have changed. Raises `DatabaseUnavailable` if the database does not answer."""
        with database_errors(), self._engine.connect() as connection:
            logins = {row.name: Login(*row) for row in connection.execute(select(LOGINS).limit(LOGINS_MAX))}
        customers: dict[str, set[str]] = {}
        for login in logins.values():
            customers.setdefault(login.broker, set()).add(login.name)
        with self._lock:
            self._logins = logins
            self._customers = {broker: frozenset(names) for broker, names in customers.items() if broker}

    # Queries.

    def logins(self) -> list[Login]:
        """All logins, by name."""
        return [self._logins[name] for name in sorted(self._logins)]

    def knows(self, name: str) -> bool:
        """Whether the login exists and is open."""
        login = self._logins.get(name)
        return login is not None and not login.closed

    def acts_for(self, name: str, account: str) -> bool:
        """Whether a login may act for an account: its own, or a customer's."""
        return self.knows(name) and self.knows(account) and (name == account or self._logins[account].broker == name)

    def scope(self, name: str) -> frozenset[str]:
        """All accounts that a login may act for."""
        return frozenset({name}) | self._customers.get(name, frozenset())

    def verify(self, name: str, secret: str) -> bool:
        """Whether this is the password or the token of a login. Takes as long for an unknown name."""
        if name not in self._logins:
            with suppress(DatabaseUnavailable):  # known logins stay usable meanwhile
                self.refresh()
        login = self._logins.get(name)
        if len(secret) > SECRET_MAX or not _is_text(secret):
            return False
        if secret.startswith(TOKEN_PREFIX):
            kept = login.token if login is not None else ""
            right = hmac.compare_digest(_digest(secret), kept or "-")
        else:
            right = _matches(secret, self._decoy if login is None else login.password)
        return right and login is not None and not login.closed

    # Changes by an operator.

    def add(self, name: str, password: str, *, broker: str = "") -> None:
        """Add a login. Raises `UserError` if that is not possible."""
        _check_name("account", name)
        if not _is_text(password):
            raise UserError("the password is not valid Unicode text; choose another")
        if not PASSWORD_MIN <= len(password) <= SECRET_MAX or password.startswith(TOKEN_PREFIX):
            raise UserError(
                f"the password has {len(password)} characters; it must have {PASSWORD_MIN} to {SECRET_MAX}, "
                f"and not begin with {TOKEN_PREFIX}"
            )
        self.refresh()
        if name in self._logins:
            raise UserError(f"account is {name!r}, which exists already; choose another name")
        if broker and not self.knows(broker):
            raise UserError(f"broker is {broker!r}; there is no such login: add it first")
        if broker and self._logins[broker].broker:
            raise UserError(f"broker is {broker!r}, who is a customer of another broker; name one that has no broker")
        if len(self._logins) >= LOGINS_MAX:
            raise UserError(f"there are {LOGINS_MAX} logins, which is the limit")
        row = {"name": name, "password": hashed(password), "token": "", "broker": broker, "closed": False}
        self._change(insert(LOGINS).values(row))

    def issue_token(self, name: str) -> str:
        """Create a new token, which is shown once; the previous one becomes invalid."""
        self._check_known(name)
        token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        self._change(update(LOGINS).where(LOGINS.c.name == name).values(token=_digest(token)))
        return token

    def close_login(self, name: str) -> None:
        """Close a login. Its open orders stay."""
        self._check_known(name)
        self._change(update(LOGINS).where(LOGINS.c.name == name).values(closed=True))

    def close(self) -> None:
        self._engine.dispose()

    def _check_known(self, name: str) -> None:
        self.refresh()
        if name not in self._logins:
            raise UserError(f"account is {name!r}; there is no such login")

    def _change(self, statement: Insert | Update) -> None:
        with self._engine.begin() as connection:
            connection.execute(statement)
        self.refresh()


def hashed(password: str) -> str:
    """The stored form of a password."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${salt.hex()}${digest.hex()}"


def _matches(password: str, kept: str) -> bool:
    _, cost, block, parallel, salt, digest = kept.split("$")
    found = _scrypt(password, bytes.fromhex(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(found, bytes.fromhex(digest))


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=parallel, maxmem=_MEMORY_MAX, dklen=32)


def _is_text(secret: str) -> bool:
    """Whether it can be encoded: JSON can contain a lone surrogate."""
    try:
        secret.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _check_name(field: str, name: str) -> None:
    if not 1 <= len(name) <= ACCOUNT_MAX or not name.isascii() or not name.isprintable() or " " in name:
        raise UserError(f"{field} is {name!r}; it must be 1 to {ACCOUNT_MAX} printable ascii characters without blanks")
