"""The ledger and the logins in a real PostgreSQL: the same rows as in SQLite, also after crashes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from fairtape.core.errors import UserError
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.storage.database import DatabaseUnavailable
from fairtape.storage.ledger_tables import LedgerStore
from loopback.postgres import Postgres, running_postgres
from unit.storage.test_ledger_tables import batches, session


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def test_the_ledger_has_the_same_rows_as_in_sqlite_through_a_crash_of_the_database(
    tmp_path: Path, postgres: Postgres
) -> None:
    written = [batch for batch, _ in batches(session(3), with_empty=True)]
    half = len(written) // 2
    live = LedgerStore(postgres.url)
    for batch in written[:half]:
        live.write([batch])
    before = live.state_hash()
    postgres.crash()
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        live.write(written[half:])
    live.close()
    postgres.start()
    again = LedgerStore(postgres.url)
    assert again.state_hash() == before
    again.write(written)  # idempotent: batches that are in the tables change nothing
    plain = LedgerStore(tmp_path / "ledger.sqlite")
    plain.write(written)
    assert again.state_hash() == plain.state_hash()
    assert again.ledger().state_hash == plain.ledger().state_hash
    assert again.imbalance() == []
    assert again.settled == plain.settled > 0
    again.clear()
    again.write(written)
    assert again.state_hash() == plain.state_hash()
    with create_engine(postgres.url).connect() as connection:
        settlements = connection.execute(text("SELECT count(*) FROM transfers WHERE reason = 3")).scalar()
    assert settlements == 2 * plain.settled
    for store in (again, plain):
        store.close()


def test_logins_are_shared_by_gateways_on_several_machines(postgres: Postgres) -> None:
    one, other = TradingAccounts(postgres.url), TradingAccounts(postgres.url)
    one.add("ann", "correct horse battery")
    token = one.issue_token("ann")
    other.refresh()
    assert other.verify("ann", "correct horse battery")
    assert other.verify("ann", token)
    assert not other.verify("ann", "wrong horse battery")
    with pytest.raises(UserError, match="ann"):
        other.add("ann", "another horse entirely")
    postgres.crash()
    with pytest.raises(DatabaseUnavailable):
        other.refresh()
    assert other.verify("ann", token)
    assert not other.verify("bob", token)
    postgres.start()
    other.close_login("ann")
    one.refresh()
    assert not one.verify("ann", token)
    for each in (one, other):
        each.close()


def test_an_unreachable_database_is_one_sentence_without_the_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(UserError, match=r"cannot be used .*; name another one") as raised:
        LedgerStore("postgresql+psycopg://ann:hunter2@127.0.0.1:9/market")
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)
