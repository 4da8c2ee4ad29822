"""The ledger of a floor in a database: a projection of the sequence, written token by token.

Each batch is one transaction that also notes how far the projection has come. So a process that is killed goes on
exactly where it was: it hands in the same batches again, and those that are noted change nothing. Rebuilt from the
journal, the tables come out identical, row by row.

Whoever is behind hands in several batches at once, which then share one transaction, and one wait for the disk.
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    delete,
    insert,
    select,
    update,
)

from fairtape.market.ledger import Account, Ledger
from fairtape.market.transfers import Batch, Part, Reason, Settlement
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.database import opened

AMOUNT_MAX: Final = (1 << 63) - 1  # what a column holds
READ_ROWS: Final = 10_000  # that are read at once

METADATA: Final = MetaData()
# SQLite keeps a table in the order of a plain INTEGER key, and any other key in an index beside it.
_KEY: Final = BigInteger().with_variant(Integer, "sqlite")
PROJECTION: Final = Table(
    "projection",
    METADATA,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("token", BigInteger, nullable=False),  # the last one that is in the tables
    Column("sequence", BigInteger, nullable=False),  # the number of the next message
    Column("trade_id", BigInteger, nullable=False),  # the last one that is settled
    Column("transfer", BigInteger, nullable=False),  # the number of the last one
)
BALANCES: Final = Table(
    "balances",
    METADATA,
    Column("account", String(16), primary_key=True),
    Column("asset", String(16), primary_key=True),  # empty: cash
    Column("available", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)
TRANSFERS: Final = Table(
    "transfers",
    METADATA,
    Column("number", _KEY, primary_key=True, autoincrement=False),
    Column("reason", SmallInteger, nullable=False),
    Column("reference", BigInteger, nullable=False),
    Column("asset", String(16), nullable=False),
    Column("giver", String(16), nullable=False),  # empty: the outside
    Column("giver_part", SmallInteger, nullable=False),
    Column("taker", String(16), nullable=False),
    Column("taker_part", SmallInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
)
TRADES: Final = Table(
    "trades",
    METADATA,
    Column("trade_id", _KEY, primary_key=True, autoincrement=False),
    Column("token", BigInteger, nullable=False),
    Column("symbol", String(16), nullable=False),
    Column("price", BigInteger, nullable=False),
    Column("quantity", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("buyer", String(16), nullable=False),
    Column("seller", String(16), nullable=False),
    Column("buy_order", BigInteger, nullable=False),
    Column("sell_order", BigInteger, nullable=False),
)
_SETTLED_ROWS: Final = 2
# Members of an enumeration are no plain integers, for which a driver has its short way.
_SETTLEMENT, _AVAILABLE, _RESERVED = int(Reason.SETTLEMENT), int(Part.AVAILABLE), int(Part.RESERVED)
_TABLES: Final = ((BALANCES, ("account", "asset")), (TRANSFERS, ("number",)), (TRADES, ("trade_id",)))


class LedgerStore:
    """The tables of one floor's ledger."""

    def __init__(self, address: str | Path) -> None:
        """A path for SQLite, or a URL. A `Complaint` where it cannot be had."""
        self._engine: Engine = opened(address, METADATA)
        with self._engine.begin() as connection:
            row = connection.execute(select(PROJECTION)).one_or_none()
            if row is None:
                noted = {"id": 1, "token": 0, "sequence": 1, "trade_id": 0, "transfer": 0}
                connection.execute(insert(PROJECTION).values(noted))
                row = connection.execute(select(PROJECTION)).one()
        self.token: int = row.token
        self.sequence: int = row.sequence
        self._trade_id: int = row.trade_id
        self._transfer: int = row.transfer
        self._insert_transfers = _positional(TRANSFERS, self._engine)
        self._insert_trades = _positional(TRADES, self._engine)
        self._upsert_balances = _upsert(self._engine)

    @property
    def settled(self) -> int:
        """How many trades are settled: their numbers count from 1 without holes."""
        return self._trade_id

    def write(self, batches: Iterable[Batch]) -> None:
        """Write batches in one transaction; those that are in the tables already change nothing."""
        trades: list[tuple[Any, ...]] = []
        transfers: list[tuple[Any, ...]] = []
        standings: dict[tuple[str, str], tuple[Any, ...]] = {}
        token, sequence, number, trade_id = self.token, self.sequence, self._transfer, self._trade_id
        for batch in batches:
            for settlement in batch.settlements:
                if settlement.trade_id > trade_id:
                    trade_id = settlement.trade_id
                    trades.append(settlement)
                    transfers += _settled(number, settlement)
                    number += _SETTLED_ROWS
            if batch.token > token:
                token, sequence = batch.token, batch.sequence
                for transfer in batch.transfers:
                    number += 1
                    transfers.append((number, *(int(each) if isinstance(each, int) else each for each in transfer)))
                standings |= {(standing[0], standing[1]): standing for standing in batch.standings}
        if token == self.token and number == self._transfer:
            return
        _check(standings.values())
        with self._engine.begin() as connection:
            self._rows(connection, trades, transfers, list(standings.values()))
            noted = {"token": token, "sequence": sequence, "trade_id": trade_id, "transfer": number}
            connection.execute(update(PROJECTION).values(noted))
        self.token, self.sequence, self._transfer, self._trade_id = token, sequence, number, trade_id

    def ledger(self) -> Ledger:
        """The ledger as the tables have it."""
        ledger = Ledger()
        with self._engine.connect() as connection:
            for name, asset, available, reserved in connection.execute(select(BALANCES)):
                balance = ledger.accounts.setdefault(name, Account(name)).balance(asset)
                balance.available, balance.reserved = available, reserved
            for row in connection.execute(select(TRANSFERS).where(TRANSFERS.c.reason == Reason.FUNDING)):
                came = row.amount if row.giver_part == Part.OUTSIDE else -row.amount
                ledger.outside[row.asset] = ledger.outside.get(row.asset, 0) - came
        return ledger

    def imbalance(self) -> list[tuple[str, str]]:
        """Accounts and assets whose transfers do not add up to their balance: empty, unless there is a fault."""
        sums: Counter[tuple[str, str, int]] = Counter()
        with self._engine.connect() as connection:
            for row in connection.execution_options(yield_per=READ_ROWS).execute(select(TRANSFERS)):
                sums[row.giver, row.asset, row.giver_part] -= row.amount
                sums[row.taker, row.asset, row.taker_part] += row.amount
            for row in connection.execute(select(BALANCES)):
                sums[row.account, row.asset, Part.AVAILABLE] -= row.available
                sums[row.account, row.asset, Part.RESERVED] -= row.reserved
        return sorted({(name, asset) for (name, asset, part), left in sums.items() if left and part != Part.OUTSIDE})

    def state_hash(self) -> bytes:
        """A digest of all rows: equal for a store that was written live and one that was rebuilt."""
        digest = sha256()
        with self._engine.connect() as connection:
            for table, keys in _TABLES:
                ordered = select(table).order_by(*(table.c[key] for key in keys))
                rows = connection.execution_options(yield_per=READ_ROWS).execute(ordered)
                for row in rows:
                    digest.update(f"{table.name}{tuple(row)}".encode())
        return digest.digest()

    def clear(self) -> None:
        """Forget everything: after a Break that took tokens away, it is projected anew from the journal."""
        with self._engine.begin() as connection:
            for table, _ in _TABLES:
                connection.execute(delete(table))
            noted = {"token": 0, "sequence": 1, "trade_id": 0, "transfer": 0}
            connection.execute(update(PROJECTION).values(noted))
        self.token, self.sequence, self._transfer, self._trade_id = 0, 1, 0, 0

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def _rows(
        self,
        connection: Connection,
        trades: list[tuple[Any, ...]],
        transfers: list[tuple[Any, ...]],
        standings: list[tuple[Any, ...]],
    ) -> None:
        for statement, rows in (
            (self._insert_trades, trades),
            (self._insert_transfers, transfers),
            (self._upsert_balances, standings),
        ):
            if rows:
                connection.exec_driver_sql(statement, rows)


def _settled(number: int, settlement: Settlement) -> tuple[tuple[Any, ...], ...]:
    """Two transfers behind this number: cash one way, shares the other."""
    trade, _, symbol, _, quantity, amount, buyer, seller, _, _ = settlement
    return (
        (number + 1, _SETTLEMENT, trade, "", buyer, _RESERVED, seller, _AVAILABLE, amount),
        (number + 2, _SETTLEMENT, trade, symbol, seller, _RESERVED, buyer, _AVAILABLE, quantity),
    )


def _mark(engine: Engine) -> str:
    """How the driver of a database writes a value by its position."""
    return "?" if engine.dialect.paramstyle == "qmark" else "%s"


def _positional(table: Table, engine: Engine) -> str:
    """An insert by position. SQLAlchemy's own, by name, takes three times as long for many rows."""
    names = ", ".join(column.name for column in table.columns)
    marks = ", ".join(_mark(engine) for _ in table.columns)
    return f"INSERT INTO {table.name} ({names}) VALUES ({marks})"  # noqa: S608 - our own names


def _upsert(engine: Engine) -> str:
    """SQLite and PostgreSQL say it in the same words."""
    changes = "available = excluded.available, reserved = excluded.reserved"
    return f"{_positional(BALANCES, engine)} ON CONFLICT (account, asset) DO UPDATE SET {changes}"


def _check(standings: Iterable[tuple[Any, ...]]) -> None:
    for account, asset, available, reserved in standings:
        if max(available, reserved) > AMOUNT_MAX:
            raise Complaint(f"the balance of {asset or 'cash'} of {account} is larger than a database can hold")
