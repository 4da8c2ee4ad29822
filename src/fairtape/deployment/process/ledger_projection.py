"""Writes the ledger of a floor to a database, in order, in the background of trading.

Trading continues while the database is unavailable: batches wait here, up to a limit, and then trading waits too. A
process that ends meanwhile loses nothing, because the tables are a projection of the journal.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from fairtape.core.errors import UserError
from fairtape.exchange.ledger import TransferBatch
from fairtape.storage.database import DatabaseUnavailable
from fairtape.storage.ledger_tables import LedgerStore

WAITING_MAX: Final = 50_000  # batches, one per token
TRANSACTION_MAX: Final = 1_000  # batches per transaction
RETRY_PERIOD: Final = 1.0  # seconds before a retry


class Projector:
    """Writes batches, in a thread of the event loop, until it is closed."""

    def __init__(self, store: LedgerStore, report: Callable[[str], None]) -> None:
        self._store = store
        self._report = report
        self.stopped = False  # the tables cannot hold a value; nothing more is written
        self._waiting: deque[TransferBatch] = deque()
        self._added = asyncio.Event()
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of batches that are not in the database yet."""
        return len(self._waiting)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def add(self, batches: Iterable[TransferBatch]) -> None:
        """Queue batches; waits while too many are queued. Raises the failure of the writing task."""
        self._waiting.extend(batches)
        self._added.set()
        while len(self._waiting) > WAITING_MAX:
            await self._next_transaction()
        self._raise_failure()

    async def drain(self, timeout: float) -> None:
        """Wait until everything is written, but no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._waiting:
                    await self._next_transaction()

    async def restart(self) -> None:
        """Discard what is queued and what was written: the ledger is written again from the first token."""
        await self._stop()
        self._waiting.clear()
        self.stopped = False
        await self._retry(self._store.clear)
        self.start()

    async def close(self, timeout: float) -> None:
        """Write what is queued, as far as there is time, and close the database."""
        await self.drain(timeout)
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
                await self._retry(self._store.write, batches)
            except UserError as error:  # a retry would not help; trading continues without the tables
                self.stopped = True
                self._report(f"ledger: {error}. The tables are no longer updated; the journal is complete")
            for _ in batches:
                self._waiting.popleft()
            self._written.set()

    async def _retry(self, work: Callable[..., None], *arguments: object) -> None:
        """Retry while the database is unavailable. Reports the outage once, and its end."""
        unavailable = False
        while True:
            try:
                await _wait_for_thread(asyncio.create_task(asyncio.to_thread(work, *arguments)))
            except DatabaseUnavailable as error:
                if not unavailable:
                    self._report(f"ledger: {error}. Trading continues; the write is retried")
                unavailable = True
                await asyncio.sleep(RETRY_PERIOD)
            else:
                if unavailable:
                    self._report("ledger: the database is available again")
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


async def _wait_for_thread(work: "asyncio.Task[None]") -> None:
    """A thread cannot be cancelled: wait for it, so that no two threads use the database."""
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise
