"""The ledger in a database: written live, after kills, or rebuilt, the rows are the same."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import text

from fairtape.core.effects import Ordered
from fairtape.core.errors import UserError
from fairtape.exchange.floor import Floor
from fairtape.exchange.ledger import AccountBalance, Bookkeeper, TransferBatch
from fairtape.exchange.orders import CASH, FloorMessage, Funding
from fairtape.storage.ledger_tables import LedgerStore
from unit.exchange.floor_values import Script, fixed

ACCOUNTS = ("ann", "bob", "cyd", "dan")


def session(seed: int, tokens: int = 40) -> list[Ordered]:
    """Tokens with orders, cancels, replaces and withdrawals; token numbers have gaps, as for empty tokens."""
    chance, script = Random(seed), Script()
    opening = script.open()
    funding = [each for name in ACCOUNTS for each in script.fund(name, 10_000, 1_000)]
    script.ordered(opening, *funding)
    names: list[tuple[str, str]] = []
    for _ in range(tokens):
        script.token += chance.randrange(4)
        messages: list[FloorMessage] = []
        for _ in range(chance.randrange(1, 12)):
            account, draw = chance.choice(ACCOUNTS), chance.random()
            if names and draw < 0.2:
                messages.append(script.cancel(*names.pop(chance.randrange(len(names)))))
            elif names and draw < 0.3:
                owner, name = names.pop(chance.randrange(len(names)))
                names.append((owner, f"{name}r"))
                messages.append(
                    script.replace(owner, name, f"{name}r", chance.randrange(1, 50), chance.randrange(9, 12))
                )
            elif draw < 0.35:
                amount = -fixed(chance.randrange(1, 2_000))
                messages.append(Funding(1, script.next_number(1), account, CASH, amount))
            else:
                name = f"o{script.sequence}-{len(messages)}"
                names.append((account, name))
                side = script.buy if chance.random() < 0.5 else script.sell
                messages.append(side(account, name, chance.randrange(1, 50), chance.randrange(9, 12)))
        script.ordered(*messages)
    return script.tokens


def batches(tokens: list[Ordered], *, with_empty: bool = False) -> Iterator[tuple[TransferBatch, Floor]]:
    """The batches of a floor's bookkeeper, with or without those of empty tokens."""
    floor = Floor(commit_passes=2)
    books = Bookkeeper(floor.ledger)
    for ordered in tokens:
        while with_empty and floor.token + 1 < ordered.token:
            token = floor.token + 1
            yield books.keep(floor.pass_token(token), token=token, sequence=ordered.sequence), floor
        outputs = floor.apply(ordered)
        yield books.keep(outputs, token=ordered.token, sequence=ordered.sequence + ordered.count), floor
    assert not floor.ledger.imbalance()


@pytest.mark.parametrize("seed", range(3))
def test_a_ledger_rebuilt_from_the_sequence_is_the_live_one_row_by_row(tmp_path: Path, seed: int) -> None:
    tokens = session(seed)
    live = LedgerStore(tmp_path / "live.sqlite")
    for batch, floor in batches(tokens, with_empty=True):
        live.write([batch])
        assert live.ledger().state_hash == floor.ledger.state_hash
    rebuilt = LedgerStore(tmp_path / "rebuilt.sqlite")
    rebuilt.write([batch for batch, _ in batches(tokens)])  # in one transaction, without empty tokens
    rebuilt.write([])
    last = tokens[-1].token + 2
    final = TransferBatch(last, tokens[-1].sequence + tokens[-1].count)
    for store in (live, rebuilt):
        store.write([final])
        assert store.imbalance() == []
        assert not store.ledger().imbalance()
    assert live.settled == rebuilt.settled > 0
    assert live.state_hash() == rebuilt.state_hash()
    for store in (live, rebuilt):
        store.close()


def test_a_killed_process_writes_every_batch_exactly_once(tmp_path: Path) -> None:
    """It writes everything again after each restart; batches that are in the tables change nothing."""
    tokens, chance = session(7), Random(7)
    path = tmp_path / "ledger.sqlite"
    done = 0
    while done < len(tokens):
        done = min(done + chance.randrange(1, 12), len(tokens))
        store = LedgerStore(path)
        written = batches(tokens[:done], with_empty=chance.random() < 0.5)
        for batch, _ in written:
            store.write([batch])
        assert store.token == tokens[done - 1].token
        store.close()
    whole = LedgerStore(tmp_path / "whole.sqlite")
    whole.write([batch for batch, _ in batches(tokens)])
    store = LedgerStore(path)
    assert store.state_hash() == whole.state_hash()
    assert store.settled == whole.settled
    store.clear()
    assert (store.token, store.sequence, store.settled, store.ledger().accounts) == (0, 1, 0, {})
    store.write([batch for batch, _ in batches(tokens)])
    assert store.state_hash() == whole.state_hash()


def test_an_imbalance_in_the_tables_is_found(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    store.write([batch for batch, _ in batches(session(1))])
    assert store.imbalance() == []
    with store._engine.begin() as connection:
        connection.execute(text("UPDATE balances SET available = available + 1 WHERE account = 'ann' AND asset = ''"))
    assert store.imbalance() == [("ann", "")]


def test_the_file_is_synchronised_with_the_disk(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    with store._engine.connect() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_a_balance_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path / "ledger.sqlite")
    with pytest.raises(UserError, match="the balance of cash of ann is larger"):
        store.write([TransferBatch(1, 2, balances=[AccountBalance("ann", "", 1 << 63, 0)])])
    assert store.token == 0


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nodb://here", "driver is not installed"),
        ("sqlite:////nowhere/at/all.sqlite", "cannot be used"),
        ("://", "no URL"),
    ],
)
def test_a_database_that_cannot_be_opened_is_one_sentence(address: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        LedgerStore(address)


def test_every_trade_is_two_transfers_of_the_view(tmp_path: Path) -> None:
    """Cash one way and shares the other, out of the givers' reserved balances."""
    store = LedgerStore(tmp_path / "ledger.sqlite")
    store.write([batch for batch, _ in batches(session(2))])
    with store._engine.connect() as connection:
        trades = connection.execute(
            text("SELECT trade_id, symbol, buyer, seller, amount, quantity FROM trades ORDER BY trade_id")
        ).all()
        transfers = connection.execute(
            text("SELECT * FROM transfers WHERE reason = :reason ORDER BY reference, asset"), {"reason": 3}
        ).all()
    expected: list[tuple[object, ...]] = []
    for trade_id, symbol, buyer, seller, amount, quantity in trades:
        expected.append((3, trade_id, "", buyer, 2, seller, 1, amount))
        expected.append((3, trade_id, symbol, seller, 2, buyer, 1, quantity))
    assert trades
    assert [tuple(row) for row in transfers] == expected


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE transfers (number INTEGER)")
    for _ in range(2):
        with pytest.raises(UserError, match=r"cannot be used .*transfers"):
            LedgerStore(path)
