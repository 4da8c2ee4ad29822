"""Who may trade: logins with their secrets, and the brokers who vouch for customers.

A password is kept as its scrypt hash (RFC 7914), which takes 16 MiB and some 50 ms for every guess. It is in Python's
own library; Argon2 would be one more package with a compiled core for little more resistance. A token is 256 bits of
chance that a program logs in with instead; nobody can guess one, so a single SHA-256 keeps it, and costs nothing.

A broker is a login like any other. Those who name it as theirs are its customers: it acts for them.

Checking a password takes long on purpose. `verify` may be called from any thread, and should not be called from one
that serves others.
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
SECRET_MAX: Final = 128  # characters of a password: no more is hashed for anybody
PASSWORD_MIN: Final = 8
TOKEN_PREFIX: Final = "ft_"  # noqa: S105 - by which a token is known
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
    Column("broker", String(ACCOUNT_MAX), nullable=False),  # who vouches for it, or empty
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
        """A path for SQLite, or a URL. A `UserError` where it cannot be had."""
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

    # What is asked.

    def logins(self) -> list[Login]:
        """Everybody, by name."""
        return [self._logins[name] for name in sorted(self._logins)]

    def knows(self, name: str) -> bool:
        """Whether there is such a login."""
        login = self._logins.get(name)
        return login is not None and not login.closed

    def acts_for(self, name: str, account: str) -> bool:
        """Whether a login may act for an account: its own, or a customer's."""
        return self.knows(name) and self.knows(account) and (name == account or self._logins[account].broker == name)

    def scope(self, name: str) -> frozenset[str]:
        """All accounts that a login may act for."""
        return frozenset({name}) | self._customers.get(name, frozenset())

    def verify(self, name: str, secret: str) -> bool:
        """Whether this is the password or the token of a login. As slow for a name that nobody has."""
        if name not in self._logins:
            with suppress(DatabaseUnavailable):  # those who are known are let in meanwhile
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

    # What an operator does.

    def add(self, name: str, password: str, *, broker: str = "") -> None:
        """Make a login. A `UserError` says why there cannot be one."""
        _check_name("account", name)
        if not _is_text(password):
            raise UserError("the password has characters that are no text; leave them out")
        if not PASSWORD_MIN <= len(password) <= SECRET_MAX or password.startswith(TOKEN_PREFIX):
            raise UserError(
                f"the password has {len(password)} characters; it must have {PASSWORD_MIN} to {SECRET_MAX}, "
                f"and not begin with {TOKEN_PREFIX}"
            )
        self.refresh()
        if name in self._logins:
            raise UserError(f"account is {name!r}, which there is already; choose another name")
        if broker and not self.knows(broker):
            raise UserError(f"broker is {broker!r}; there is no such login: add it first")
        if broker and self._logins[broker].broker:
            raise UserError(f"broker is {broker!r}, who is a customer of another; name one who is nobody's customer")
        if len(self._logins) >= LOGINS_MAX:
            raise UserError(f"there are {LOGINS_MAX} logins, which is the limit")
        row = {"name": name, "password": hashed(password), "token": "", "broker": broker, "closed": False}
        self._change(insert(LOGINS).values(row))

    def issue_token(self, name: str) -> str:
        """A new token for a login, which is told once; the one before is worth nothing from now on."""
        self._check_known(name)
        token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        self._change(update(LOGINS).where(LOGINS.c.name == name).values(token=_digest(token)))
        return token

    def close_login(self, name: str) -> None:
        """Let a login act no more. Its orders stay as they are."""
        self._check_known(name)
        self._change(update(LOGINS).where(LOGINS.c.name == name).values(closed=True))

    def close(self) -> None:
        """Let go of the database."""
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
    """What is kept of a password."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${salt.hex()}${digest.hex()}"


def _matches(password: str, kept: str) -> bool:
    _, cost, block, lanes, salt, digest = kept.split("$")
    found = _scrypt(password, bytes.fromhex(salt), int(cost), int(block), int(lanes))
    return hmac.compare_digest(found, bytes.fromhex(digest))


def _scrypt(password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=cost, r=block, p=lanes, maxmem=_MEMORY_MAX, dklen=32)


def _is_text(secret: str) -> bool:
    """Whether it has bytes: JSON can say half of a character."""
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
