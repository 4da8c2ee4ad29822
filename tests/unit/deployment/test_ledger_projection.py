"""The ledger projection: in order, complete, and across outages of the database."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.process import ledger_projection as ledger_projection
from fairtape.deployment.process.ledger_projection import Projector
from fairtape.exchange.ledger import TransferBatch
from fairtape.storage.database import DatabaseUnavailable
from fairtape.storage.ledger_tables import LedgerStore
from unit.storage.test_ledger_tables import batches, session


class UnreliableStore(LedgerStore):
    """A store that is unavailable for a number of calls."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.away = 0
        self.asked = 0
        self.failure: Exception | None = None

    def write(self, batches: Sequence[TransferBatch]) -> None:  # type: ignore[override]  # records its batches
        self.asked += 1
        if self.away:
            self.away -= 1
            raise DatabaseUnavailable("gone")
        if self.failure is not None:
            raise self.failure
        super().write(batches)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UnreliableStore:
    monkeypatch.setattr(ledger_projection, "RETRY_PERIOD", 0.01)
    return UnreliableStore(tmp_path / "ledger.sqlite")


def whole(tmp_path: Path, written: list[TransferBatch]) -> bytes:
    plain = LedgerStore(tmp_path / "plain.sqlite")
    plain.write(written)
    return plain.state_hash()


def test_an_unavailable_database_is_reported_once_and_misses_nothing(tmp_path: Path, store: UnreliableStore) -> None:
    written, reported = [batch for batch, _ in batches(session(5))], list[str]()

    async def live() -> None:
        projector = Projector(store, reported.append)
        projector.start()
        for place, batch in enumerate(written):
            store.away = 3 if place == 7 else store.away
            await projector.add([batch])
            await asyncio.sleep(0)
        await projector.drain(10)

    asyncio.run(live())
    assert store.state_hash() == whole(tmp_path, written)
    assert reported == [
        "ledger: gone. Trading continues; the write is retried",
        "ledger: the database is available again",
    ]


def test_adding_waits_while_the_queue_is_full(store: UnreliableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_projection, "WAITING_MAX", 4)
    written = [batch for batch, _ in batches(session(5))]

    async def live() -> None:
        projector = Projector(store, lambda _words: None)
        projector.start()
        store.away = 1_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await projector.add(written[:5])
        store.away = 0
        await projector.add(written[5:])
        await projector.close(10)

    asyncio.run(live())
    assert store.token == written[-1].token


def test_after_a_break_everything_is_written_again(tmp_path: Path, store: UnreliableStore) -> None:
    written, other = ([batch for batch, _ in batches(session(seed))] for seed in (5, 6))

    async def live() -> None:
        projector = Projector(store, lambda _words: None)
        projector.start()
        await projector.add(written)
        await projector.restart()
        await projector.add(other)
        await projector.drain(10)

    asyncio.run(live())
    assert store.state_hash() == whole(tmp_path, other)


def test_a_permanent_error_is_reported_once_and_trading_continues(store: UnreliableStore) -> None:
    store.failure = UserError("the balance is larger than a database can hold")
    reported = list[str]()

    async def live() -> None:
        projector = Projector(store, reported.append)
        projector.start()
        for batch, _ in batches(session(5)):
            await projector.add([batch])
            await asyncio.sleep(0)
        await projector.drain(10)
        assert projector.stopped
        assert projector.waiting == 0

    asyncio.run(live())
    assert len(reported) == 1
    assert "larger than a database can hold. The tables are no longer updated" in reported[0]
