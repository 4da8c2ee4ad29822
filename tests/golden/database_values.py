"""Databases that are filled with fixed values: their schemas and rows, for the bytes of an SQLite file may differ."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import MetaData, insert
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from fairtape.core.formation_log import Claim, Leadership, LogEntry, Record
from fairtape.exchange.ledger import AccountBalance, BalancePart, Settlement, Transfer, TransferBatch, TransferReason
from fairtape.gateway.storage import accounts as logins
from fairtape.gateway.storage.fix_store import FixFile
from fairtape.ring.membership.layout import encode_formation
from fairtape.storage import ledger_tables as ledgerstore
from fairtape.storage.formation_stores import etcd
from fairtape.storage.formation_stores.sqlite import SqliteStore
from golden.ring_values import FORMATION

Values = Iterator[tuple[str, bytes | str]]


def content_of(path: Path) -> Values:
    """Pragmas, schema and rows of an SQLite file."""
    with closing(sqlite3.connect(path)) as connection:
        for pragma in ("application_id", "user_version", "journal_mode"):
            yield pragma, str(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
        schema = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY type, name")
        for kind, name, sql in schema.fetchall():
            yield f"{kind} {name}", sql
            if kind != "index":
                rows = connection.execute(f"SELECT * FROM {name}")  # noqa: S608 - our own names
                for place, row in enumerate(sorted(rows, key=repr)):
                    yield f"row {place} of {name}", json.dumps(row, default=bytes.hex)


def postgresql_schema(metadata: MetaData) -> Values:
    for table in metadata.sorted_tables:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy declares no type
        yield f"postgresql {table.name}", str(CreateTable(table).compile(dialect=dialect))


def fix_store(folder: Path) -> Values:
    file = FixFile(folder / "fix.db")
    for client, messages in (("ALICE", 3), ("BOB", 0)):
        session = file.session("FAIRTAPE", client)
        session.expect(7)
        for number in range(messages):
            session.sent(b"8=FIX.4.4\x01 %d" % number if number != 1 else None)
    file.sync()
    file.close()
    yield from content_of(folder / "fix.db")


def formation_store(folder: Path) -> Values:
    first, second = Leadership(901, 1, 0), Leadership(902, 2, 5, 300_000_000)
    log = [LogEntry(loop, number, 1 + number // 2, encode_formation(FORMATION)) for number in (1, 2) for loop in (0, 1)]
    store = SqliteStore(folder / "formations.db")
    store._connection.execute("UPDATE identity SET store = 7")  # it is random
    for question in (Claim(None, first), Record(tuple(log[:2])), Claim(first, second), Record(tuple(log[2:]))):
        store.answer(question)
    store.close()
    yield from content_of(folder / "formations.db")
    keys = etcd._Keys("fairtape")
    yield f"etcd {keys.leadership} without a lease", etcd._leadership_json(first).decode()
    yield f"etcd {keys.leadership}", etcd._leadership_json(second).decode()
    yield f"etcd {keys.term}", etcd._to_json(second.term).decode()
    yield f"etcd {keys.serial(2)}", etcd._to_json([etcd._entry_json(entry) for entry in log[2:]]).decode()
    yield f"etcd {keys.identity}", etcd._to_json({"store": 7}).decode()
    yield f"etcd {keys.loop(1)}", etcd._to_json(etcd._entry_json(log[3])).decode()


def accounts(folder: Path) -> Values:
    """A password has a random salt, so the row is written here, with the hash of a fixed salt."""
    table = logins.TradingAccounts(folder / "accounts.db")
    cost = (logins.SCRYPT_N, logins.SCRYPT_R, logins.SCRYPT_P)
    digest = logins._scrypt("correct horse", bytes(range(16)), *cost)
    kept = "scrypt$" + "$".join(map(str, cost)) + f"${bytes(range(16)).hex()}${digest.hex()}"
    row = {"name": "ALICE", "password": kept, "token": logins._digest("ft_token"), "broker": "", "closed": False}
    with table._engine.begin() as connection:
        connection.execute(insert(logins.LOGINS).values(row))
    assert table.verify("ALICE", "correct horse")
    assert table.verify("ALICE", "ft_token")
    table.close()
    yield from content_of(folder / "accounts.db")
    yield from postgresql_schema(logins.METADATA)


def ledger(folder: Path) -> Values:
    store = ledgerstore.LedgerStore(folder / "ledger.db")
    funding = Transfer(TransferReason.FUNDING, 3, "", "", BalancePart.OUTSIDE, "ALICE", BalancePart.AVAILABLE, 10**12)
    reservation = Transfer(
        TransferReason.RESERVATION, 40, "", "ALICE", BalancePart.AVAILABLE, "ALICE", BalancePart.RESERVED, 10**11
    )
    settlement = Settlement(1, 40, "IBM", 101 * 10**9, 5 * 10**8, 505 * 10**8, "ALICE", "BOB", 17, 18)
    balances = [AccountBalance("ALICE", "", 9 * 10**11, 495 * 10**8), AccountBalance("ALICE", "IBM", 5 * 10**8, 0)]
    store.write([TransferBatch(40, 19, [], [funding, reservation]), TransferBatch(42, 25, [settlement], [], balances)])
    yield "digest of all rows", store.state_hash()
    yield "snapshot", store.ledger().snapshot().decode()
    store.close()
    yield from content_of(folder / "ledger.db")
    yield from postgresql_schema(ledgerstore.METADATA)
