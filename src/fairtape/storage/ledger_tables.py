"""The ledger of a floor in a database: a projection of the sequence, written token by token.

Each batch is one transaction that also notes how far the projection has come. So a process that is killed goes on
exactly where it was: it hands in the same batches again, and those that are noted change nothing. Rebuilt from the
journal, the tables come out identical, row by row.

A settlement is told by its trade alone: buyer, seller, cash and shares stand there once. `transfers` is a view that
shows its two transfers among all others, so that whoever adds up sees every amount leave one place and reach another.

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
    Row,
    SmallInteger,
    String,
    Table,
    TableClause,
    column,
    delete,
    event,
    insert,
    select,
    table,
    update,
)

from fairtape.core.errors import UserError
from fairtape.exchange.ledger import Ledger, LedgerAccount
from fairtape.exchange.transfers import BalancePart, Settlement, Transfer, TransferBatch, TransferReason, TransferState
from fairtape.storage.database import database_errors, open_database

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
    Column("movement", BigInteger, nullable=False),  # the number of the last one
)
BALANCES: Final = Table(
    "balances",
    METADATA,
    Column("account", String(16), primary_key=True),
    Column("asset", String(16), primary_key=True),  # empty: cash
    Column("available", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)
MOVEMENTS: Final = Table(  # all transfers that are no settlement
    "movements",
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
_PLACES: Final = ("reason", "reference", "asset", "giver", "giver_part", "taker", "taker_part", "amount")
TRANSFERS: Final[TableClause] = table("transfers", *(column(name) for name in _PLACES))
_BOTH: Final = (
    f"{BalancePart.RESERVED:d}, {{}}, {BalancePart.AVAILABLE:d}"  # out of what the one reserved, to the other
)
_TRANSFERS_VIEW: Final = f"""CREATE VIEW transfers ({", ".join(_PLACES)}) AS
    SELECT {", ".join(_PLACES)} FROM movements
    UNION ALL
    SELECT {TransferReason.SETTLEMENT:d}, trade_id, '', buyer, {_BOTH.format("seller")}, amount FROM trades
    UNION ALL
    SELECT {TransferReason.SETTLEMENT:d}, trade_id, symbol, seller, {_BOTH.format("buyer")}, quantity FROM trades
"""  # noqa: S608 - our own names
_NOTHING: Final = {"token": 0, "sequence": 1, "trade_id": 0, "movement": 0}


@event.listens_for(METADATA, "after_create")
def _show_transfers(_tables: object, connection: Connection, **_: object) -> None:
    """Make the view anew. A database whose `transfers` is no view was another program's, and is refused here."""
    connection.exec_driver_sql("DROP VIEW IF EXISTS transfers")
    connection.exec_driver_sql(_TRANSFERS_VIEW)


class LedgerStore:
    """The tables of one floor's ledger."""

    def __init__(self, address: str | Path) -> None:
        """A path for SQLite, or a URL. A `UserError` where it cannot be had."""
        self._engine: Engine = open_database(address, METADATA)
        with self._engine.begin() as connection:
            row = connection.execute(select(PROJECTION)).one_or_none()
            if row is None:
                noted = {"id": 1, **_NOTHING}
                connection.execute(insert(PROJECTION).values(noted))
                row = connection.execute(select(PROJECTION)).one()
        self.token: int = row.token
        self.sequence: int = row.sequence
        self._trade_id: int = row.trade_id
        self._movement: int = row.movement
        self._insert_movements = _positional(MOVEMENTS, self._engine)
        self._insert_trades = _positional(TRADES, self._engine)
        self._upsert_balances = _upsert(self._engine)

    @property
    def settled(self) -> int:
        """How many trades are settled: their numbers count from 1 without holes."""
        return self._trade_id

    def write(self, batches: Iterable[TransferBatch]) -> None:
        """Write batches in one transaction; those that are in the tables already change nothing.

        Raises `Away` where the database does not answer; the same batches can be handed in again.
        """
        trades: list[Settlement] = []
        movements: list[tuple[Any, ...]] = []
        standings: dict[tuple[str, str], TransferState] = {}
        token, sequence, movement, trade_id = self.token, self.sequence, self._movement, self._trade_id
        for batch in batches:
            fresh = [settlement for settlement in batch.settlements if settlement.trade_id > trade_id]
            trades += fresh
            trade_id = fresh[-1].trade_id if fresh else trade_id
            if batch.token > token:
                token, sequence = batch.token, batch.sequence
                movements += (_row(number, each) for number, each in enumerate(batch.transfers, movement + 1))
                movement += len(batch.transfers)
                standings |= {(each.account, each.asset): each for each in batch.standings}
        if (token, trade_id) == (self.token, self._trade_id):
            return
        _check(standings.values())
        with database_errors(), self._engine.begin() as connection:
            for statement, rows in (
                (self._insert_trades, trades),
                (self._insert_movements, movements),
                (self._upsert_balances, list(standings.values())),
            ):
                if rows:
                    connection.exec_driver_sql(statement, rows)
            noted = {"token": token, "sequence": sequence, "trade_id": trade_id, "movement": movement}
            connection.execute(update(PROJECTION).values(noted))
        self.token, self.sequence, self._movement, self._trade_id = token, sequence, movement, trade_id

    def ledger(self) -> Ledger:
        """The ledger as the tables have it."""
        ledger = Ledger()
        with self._engine.connect() as connection:
            for name, asset, available, reserved in connection.execute(select(BALANCES)):
                balance = ledger.accounts.setdefault(name, LedgerAccount(name)).balance(asset)
                balance.available, balance.reserved = available, reserved
            for row in connection.execute(select(MOVEMENTS).where(MOVEMENTS.c.reason == TransferReason.FUNDING)):
                came = row.amount if row.giver_part == BalancePart.OUTSIDE else -row.amount
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
                sums[row.account, row.asset, BalancePart.AVAILABLE] -= row.available
                sums[row.account, row.asset, BalancePart.RESERVED] -= row.reserved
        return sorted(
            {(name, asset) for (name, asset, part), left in sums.items() if left and part != BalancePart.OUTSIDE}
        )

    def state_hash(self) -> bytes:
        """A digest of all rows: equal for a store that was written live and one that was rebuilt."""
        digest = sha256()
        with self._engine.connect() as connection:
            balances: Iterable[Row[Any]] = sorted(
                connection.execute(select(BALANCES))
            )  # databases sort texts variously
            streams = connection.execution_options(yield_per=READ_ROWS)
            movements = streams.execute(select(MOVEMENTS).order_by(MOVEMENTS.c.number))
            trades = streams.execute(select(TRADES).order_by(TRADES.c.trade_id))
            for each, rows in ((BALANCES, balances), (MOVEMENTS, movements), (TRADES, trades)):
                for row in rows:
                    digest.update(f"{each.name}{tuple(row)}".encode())
        return digest.digest()

    def clear(self) -> None:
        """Forget everything: after a Break that took tokens away, it is projected anew from the journal."""
        with database_errors(), self._engine.begin() as connection:
            for each in (BALANCES, MOVEMENTS, TRADES):
                connection.execute(delete(each))
            connection.execute(update(PROJECTION).values(_NOTHING))
        self.token, self.sequence, self._movement, self._trade_id = 0, 1, 0, 0

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()


def _row(number: int, transfer: Transfer) -> tuple[Any, ...]:
    """Members of an enumeration are no plain integers, for which a driver has its short way."""
    reason, reference, asset, giver, giver_part, taker, taker_part, amount = transfer
    return number, int(reason), reference, asset, giver, int(giver_part), taker, int(taker_part), amount


def _mark(engine: Engine) -> str:
    """How the driver of a database writes a value by its position."""
    return "?" if engine.dialect.paramstyle == "qmark" else "%s"


def _positional(to: Table, engine: Engine) -> str:
    """An insert by position. SQLAlchemy's own, by name, takes three times as long for many rows."""
    names = ", ".join(each.name for each in to.columns)
    marks = ", ".join(_mark(engine) for _ in to.columns)
    return f"INSERT INTO {to.name} ({names}) VALUES ({marks})"  # noqa: S608 - our own names


def _upsert(engine: Engine) -> str:
    """SQLite and PostgreSQL say it in the same words."""
    changes = "available = excluded.available, reserved = excluded.reserved"
    return f"{_positional(BALANCES, engine)} ON CONFLICT (account, asset) DO UPDATE SET {changes}"


def _check(standings: Iterable[TransferState]) -> None:
    for account, asset, available, reserved in standings:
        if max(available, reserved) > AMOUNT_MAX:
            raise UserError(f"the balance of {asset or 'cash'} of {account} is larger than a database can hold")
