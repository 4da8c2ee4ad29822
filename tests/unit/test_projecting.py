"""A ledger on its way into its database: in order, whole, and patient."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.process import ledger_projection as projecting
from fairtape.deployment.process.ledger_projection import Projector
from fairtape.exchange.transfers import TransferBatch
from fairtape.storage.database import DatabaseUnavailable
from fairtape.storage.ledger_tables import LedgerStore
from unit.test_ledger_tables import batches, session


class Moody(LedgerStore):
    """Away as often as it is told."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.away = 0
        self.asked = 0
        self.failure: Exception | None = None

    def write(self, batches: Sequence[TransferBatch]) -> None:  # type: ignore[override]  # counts what it is given
        self.asked += 1
        if self.away:
            self.away -= 1
            raise DatabaseUnavailable("gone")
        if self.failure is not None:
            raise self.failure
        super().write(batches)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moody:
    monkeypatch.setattr(projecting, "PAUSE", 0.01)
    return Moody(tmp_path / "ledger.sqlite")


def whole(tmp_path: Path, told: list[TransferBatch]) -> bytes:
    plain = LedgerStore(tmp_path / "plain.sqlite")
    plain.write(told)
    return plain.state_hash()


def test_a_database_that_is_away_is_told_of_once_and_misses_nothing(tmp_path: Path, store: Moody) -> None:
    told, said = [batch for batch, _ in batches(session(5))], list[str]()

    async def live() -> None:
        projector = Projector(store, said.append)
        projector.start()
        for place, batch in enumerate(told):
            store.away = 3 if place == 7 else store.away
            await projector.add([batch])
            await asyncio.sleep(0)
        await projector.drain(10)

    asyncio.run(live())
    assert store.state_hash() == whole(tmp_path, told)
    assert said == ["ledger: gone. Trading goes on, and it is asked again", "ledger: the database answers again"]


def test_who_adds_waits_while_too_much_waits(store: Moody, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projecting, "WAITING_MAX", 4)
    told = [batch for batch, _ in batches(session(5))]

    async def live() -> None:
        projector = Projector(store, lambda _words: None)
        projector.start()
        store.away = 1_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await projector.add(told[:5])
        store.away = 0
        await projector.add(told[5:])
        await projector.close(10)

    asyncio.run(live())
    assert store.token == told[-1].token


def test_after_a_break_everything_is_told_anew(tmp_path: Path, store: Moody) -> None:
    told, other = ([batch for batch, _ in batches(session(seed))] for seed in (5, 6))

    async def live() -> None:
        projector = Projector(store, lambda _words: None)
        projector.start()
        await projector.add(told)
        await projector.restart()
        await projector.add(other)
        await projector.drain(10)

    asyncio.run(live())
    assert store.state_hash() == whole(tmp_path, other)


def test_what_no_patience_helps_against_is_told_once_and_trading_goes_on(store: Moody) -> None:
    store.failure = UserError("the balance is larger than a database can hold")
    said = list[str]()

    async def live() -> None:
        projector = Projector(store, said.append)
        projector.start()
        for batch, _ in batches(session(5)):
            await projector.add([batch])
            await asyncio.sleep(0)
        await projector.drain(10)
        assert projector.stopped
        assert projector.waiting == 0

    asyncio.run(live())
    assert len(said) == 1
    assert "larger than a database can hold. The tables stay as they are" in said[0]
