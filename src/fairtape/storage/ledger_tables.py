"""The ledger of a floor in a database: a projection of the sequence, written token by token.

Each batch is one transaction that also stores the projection's position. A process that is killed continues exactly
there: it writes the same batches again, and those that are stored already change nothing. Tables that are rebuilt from
the journal are identical, row by row.

A settlement is stored only as its trade, with buyer, seller, cash and shares. The view `transfers` shows its two
transfers among all others, so that every amount leaves one place and reaches another.

A projection that lags behind writes several batches in one transaction, with one sync.
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
from fairtape.exchange.ledger import (
    AccountBalance,
    BalancePart,
    Ledger,
    LedgerAccount,
    Settlement,
    Transfer,
    TransferBatch,
    TransferReason,
)
from fairtape.storage.database import database_errors, open_database

AMOUNT_MAX: Final = (1 << 63) - 1  # of a column
READ_ROWS: Final = 10_000  # fetched at once

METADATA: Final = MetaData()
# SQLite stores a table by a plain INTEGER key, and needs a separate index for any other key.
_KEY: Final = BigInteger().with_variant(Integer, "sqlite")
PROJECTION: Final = Table(
    "projection",
    METADATA,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    Column("token", BigInteger, nullable=False),  # the last one in the tables
    Column("sequence", BigInteger, nullable=False),  # the number of the next message
    Column("trade_id", BigInteger, nullable=False),  # the last settled one
    Column("movement", BigInteger, nullable=False),  # the last number in use
)
BALANCES: Final = Table(
    "balances",
    METADATA,
    Column("account", String(16), primary_key=True),
    Column("asset", String(16), primary_key=True),  # empty: cash
    Column("available", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
)
MOVEMENTS: Final = Table(  # all transfers except settlements
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
def _create_view(_tables: object, connection: Connection, **_: object) -> None:
    """Create the view again. A database with a table `transfers` belongs to another program, and fails here."""
    connection.exec_driver_sql("DROP VIEW IF EXISTS transfers")
    connection.exec_driver_sql(_TRANSFERS_VIEW)


class LedgerStore:
    """The tables of one floor's ledger."""

    def __init__(self, address: str | Path) -> None:
        """A path for SQLite, or a URL. Raises `UserError` where it cannot be used."""
        self._engine: Engine = open_database(address, METADATA)
        with self._engine.begin() as connection:
            row = connection.execute(select(PROJECTION)).one_or_none()
            if row is None:
                connection.execute(insert(PROJECTION).values({"id": 1, **_NOTHING}))
                row = connection.execute(select(PROJECTION)).one()
        self.token: int = row.token
        self.sequence: int = row.sequence
        self._trade_id: int = row.trade_id
        self._movement: int = row.movement
        self._insert_movements = _insert_statement(MOVEMENTS, self._engine)
        self._insert_trades = _insert_statement(TRADES, self._engine)
        self._upsert_balances = _upsert_statement(self._engine)

    @property
    def settled(self) -> int:
        """The number of settled trades: trade numbers count from 1 without gaps."""
        return self._trade_id

    def write(self, batches: Iterable[TransferBatch]) -> None:
        """Write batches in one transaction. Idempotent: batches that are in the tables already change nothing.

        Raises `DatabaseUnavailable` where the database does not answer; the same batches may be written again.
        """
        trades: list[Settlement] = []
        movements: list[tuple[Any, ...]] = []
        balances: dict[tuple[str, str], AccountBalance] = {}
        token, sequence, movement, trade_id = self.token, self.sequence, self._movement, self._trade_id
        for batch in batches:
            fresh = [settlement for settlement in batch.settlements if settlement.trade_id > trade_id]
            trades += fresh
            trade_id = fresh[-1].trade_id if fresh else trade_id
            if batch.token > token:
                token, sequence = batch.token, batch.sequence
                movements += (_row(number, each) for number, each in enumerate(batch.transfers, movement + 1))
                movement += len(batch.transfers)
                balances |= {(each.account, each.asset): each for each in batch.balances}
        if (token, trade_id) == (self.token, self._trade_id):
            return
        _check(balances.values())
        with database_errors(), self._engine.begin() as connection:
            for statement, rows in (
                (self._insert_trades, trades),
                (self._insert_movements, movements),
                (self._upsert_balances, list(balances.values())),
            ):
                if rows:
                    connection.exec_driver_sql(statement, rows)
            position = {"token": token, "sequence": sequence, "trade_id": trade_id, "movement": movement}
            connection.execute(update(PROJECTION).values(position))
        self.token, self.sequence, self._movement, self._trade_id = token, sequence, movement, trade_id

    def ledger(self) -> Ledger:
        """The ledger in the tables."""
        ledger = Ledger()
        with self._engine.connect() as connection:
            for name, asset, available, reserved in connection.execute(select(BALANCES)):
                balance = ledger.accounts.setdefault(name, LedgerAccount(name)).balance(asset)
                balance.available, balance.reserved = available, reserved
            for row in connection.execute(select(MOVEMENTS).where(MOVEMENTS.c.reason == TransferReason.FUNDING)):
                deposited = row.amount if row.giver_part == BalancePart.OUTSIDE else -row.amount
                ledger.outside[row.asset] = ledger.outside.get(row.asset, 0) - deposited
        return ledger

    def imbalance(self) -> list[tuple[str, str]]:
        """Accounts and assets whose transfers do not add up to their balance; empty unless there is a bug."""
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
        """A digest of all rows: equal for tables that were written live and rebuilt ones."""
        digest = sha256()
        with self._engine.connect() as connection:
            # Sorted here: databases differ in how they sort text.
            balances: Iterable[Row[Any]] = sorted(connection.execute(select(BALANCES)))
            streams = connection.execution_options(yield_per=READ_ROWS)
            movements = streams.execute(select(MOVEMENTS).order_by(MOVEMENTS.c.number))
            trades = streams.execute(select(TRADES).order_by(TRADES.c.trade_id))
            for each, rows in ((BALANCES, balances), (MOVEMENTS, movements), (TRADES, trades)):
                for row in rows:
                    digest.update(f"{each.name}{tuple(row)}".encode())
        return digest.digest()

    def clear(self) -> None:
        """Delete all rows: after a Break that removed tokens, the ledger is projected again from the journal."""
        with database_errors(), self._engine.begin() as connection:
            for each in (BALANCES, MOVEMENTS, TRADES):
                connection.execute(delete(each))
            connection.execute(update(PROJECTION).values(_NOTHING))
        self.token, self.sequence, self._movement, self._trade_id = 0, 1, 0, 0

    def close(self) -> None:
        self._engine.dispose()


def _row(number: int, transfer: Transfer) -> tuple[Any, ...]:
    """Enumeration members become plain integers, which drivers bind faster."""
    reason, reference, asset, giver, giver_part, taker, taker_part, amount = transfer
    return number, int(reason), reference, asset, giver, int(giver_part), taker, int(taker_part), amount


def _placeholder(engine: Engine) -> str:
    """The driver's placeholder of a positional parameter."""
    return "?" if engine.dialect.paramstyle == "qmark" else "%s"


def _insert_statement(to: Table, engine: Engine) -> str:
    """An INSERT with positional parameters. SQLAlchemy's own, by name, takes three times as long for many rows."""
    names = ", ".join(each.name for each in to.columns)
    marks = ", ".join(_placeholder(engine) for _ in to.columns)
    return f"INSERT INTO {to.name} ({names}) VALUES ({marks})"  # noqa: S608 - our own names


def _upsert_statement(engine: Engine) -> str:
    """The same SQL for SQLite and PostgreSQL."""
    changes = "available = excluded.available, reserved = excluded.reserved"
    return f"{_insert_statement(BALANCES, engine)} ON CONFLICT (account, asset) DO UPDATE SET {changes}"


def _check(balances: Iterable[AccountBalance]) -> None:
    for account, asset, available, reserved in balances:
        if max(available, reserved) > AMOUNT_MAX:
            raise UserError(f"the balance of {asset or 'cash'} of {account} is larger than a database column can hold")
