"""The ledger of a floor on its way into a database, beside the trading: in order, and patient with a database.

Trading goes on while the database is away: what is to be written waits here, up to a limit, and then trading waits,
too. Nothing is lost by a process that ends meanwhile, for the tables are a projection of the journal.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from fairtape.core.errors import UserError
from fairtape.exchange.transfers import TransferBatch
from fairtape.storage.database import DatabaseUnavailable
from fairtape.storage.ledger_tables import LedgerStore

WAITING_MAX: Final = 50_000  # batches, one for each token
TRANSACTION_MAX: Final = 1_000  # of them in one transaction
PAUSE: Final = 1.0  # seconds before a database that was away is asked again


class Projector:
    """Writes what it is given, in a thread of the event loop, until it is closed."""

    def __init__(self, store: LedgerStore, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say
        self.stopped = False  # the tables cannot hold what came
        self._waiting: deque[TransferBatch] = deque()
        self._added = asyncio.Event()
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Batches that are not in the database yet."""
        return len(self._waiting)

    def start(self) -> None:
        """From now on."""
        self._task = asyncio.create_task(self._run())

    async def add(self, batches: Iterable[TransferBatch]) -> None:
        """Have them written; waits while too many do. Raises what ended the writing, if a fault of ours did."""
        self._waiting.extend(batches)
        self._added.set()
        while len(self._waiting) > WAITING_MAX:
            await self._next_transaction()
        self._raise_failure()

    async def drain(self, patience: float) -> None:
        """Wait until everything is written, but no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._waiting:
                    await self._next_transaction()

    async def restart(self) -> None:
        """Forget everything that was written and that waits: it is told anew from the beginning."""
        await self._stop()
        self._waiting.clear()
        self.stopped = False
        await self._insist(self._store.clear)
        self.start()

    async def close(self, patience: float) -> None:
        """Write what waits as far as there is time, and let go of the database."""
        await self.drain(patience)
        await self._stop()
        self._store.close()

    async def _run(self) -> None:
        while True:
            self._added.clear()
            if not self._waiting:
                await self._added.wait()
            if self.stopped:
                self._waiting.clear()
                self._written.set()
                continue
            batches = [self._waiting[place] for place in range(min(len(self._waiting), TRANSACTION_MAX))]
            try:
                await self._insist(self._store.write, batches)
            except UserError as error:  # what no patience helps against; the order and its traders go on without
                self.stopped = True
                self._say(f"ledger: {error}. The tables are no longer updated; the journal is complete")
            for _ in batches:
                self._waiting.popleft()
            self._written.set()

    async def _insist(self, work: Callable[..., None], *arguments: object) -> None:
        """Again and again, while the database does not answer. Said once, and once when it answers again."""
        away = False
        while True:
            try:
                await _to_its_end(asyncio.create_task(asyncio.to_thread(work, *arguments)))
            except DatabaseUnavailable as error:
                if not away:
                    self._say(f"ledger: {error}. Trading continues; the write is retried")
                away = True
                await asyncio.sleep(PAUSE)
            else:
                if away:
                    self._say("ledger: the database is available again")
                return

    async def _next_transaction(self) -> None:
        self._raise_failure()
        self._written.clear()
        task = asyncio.create_task(self._written.wait())
        await asyncio.wait({task, *filter(None, [self._task])}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._task is not None and self._task.done():
            self._task.result()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


async def _to_its_end(work: "asyncio.Task[None]") -> None:
    """A thread cannot be cancelled: whoever is, waits for it, so that no two of them are in the database."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise
