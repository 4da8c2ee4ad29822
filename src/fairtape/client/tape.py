"""The tape: the records of a feed, in order, in the shape that a program wants.

One tape has one reader at a time; any thread may close it. The shapes can be mixed: each goes on where the last one
stopped.

The position of the reader is one value (`_Reading`) that is stored in one step, and between two records of a piece the
interpreter runs no code of ours. So wherever a Ctrl-C strikes, the next record is the one that was not delivered.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from html import escape
from importlib import import_module
from itertools import chain, islice
from operator import length_hint
from threading import Thread, current_thread
from typing import Any, Final, NamedTuple, Self, TypeAlias
from weakref import finalize

import pyarrow as pa

from fairtape.client.backlog import Backlog, BacklogClosed
from fairtape.client.errors import ClientError, as_client_error
from fairtape.client.selection import Selection
from fairtape.tape.batches import SCHEMA, Arrow, TradeBatch
from fairtape.tape.feed import Feed, number_after
from fairtape.tape.records import Break, Message, Notice, Placed, Record, Revision, Trade, VenueStatus

PIECE_ROWS: Final = 4_096  # trades of a batch that become records at once
TURN_ROWS: Final = 256  # records after which an `async for` lets other tasks run, even if there are more
NOTICES_MAX: Final = 1_024  # that a tape keeps
STOP_PERIOD_MAX: Final = 5.0  # seconds for which `close` waits for a feed to end

Callback = Callable[[Record], object]
TapeNotice: TypeAlias = Notice | Revision | VenueStatus


class _Reading(NamedTuple):
    """The item that the reader has borrowed, and the position in it."""

    loan: int
    batch: TradeBatch | None  # None where a single record is lent
    end: int  # the row of the batch up to which records were made
    records: Iterator[Record]  # made and not delivered yet
    following: int | None  # the number to go on with once this is read

    @property
    def row(self) -> int:
        """The next row of the batch."""
        return self.end - length_hint(self.records)

    @property
    def rest(self) -> TradeBatch | None:
        return self.batch.slice(self.row) if self.batch is not None and self.row < self.batch.rows else None


class Tape:
    """An iterable of records; `async for`, callbacks, batches and data frames are other ways to read the same."""

    def __init__(self, feed: Feed, backlog: Backlog, selection: Selection) -> None:
        """`connect` makes tapes. The feed must be open."""
        self._feed = feed
        self._backlog = backlog
        self._selection = selection
        self._reading = _Reading(0, None, 0, iter(()), None)
        self._callbacks: list[Callback] = []
        self._notices: dict[int, TapeNotice] = {}
        # Neither the thread nor the finalizer refers to the tape, so a tape without references closes itself.
        thread = Thread(target=_pump, args=(feed, backlog, selection), name="fairtape feed", daemon=True)
        self._finalizer = finalize(self, _shut, feed, backlog, thread)
        thread.start()

    def __iter__(self) -> Iterator[Record]:
        """All further records; an iteration may be stopped and another one begun."""
        return chain.from_iterable(self._pieces())

    async def __aiter__(self) -> AsyncIterator[Record]:
        """All further records, without blocking other tasks."""
        while True:
            if self._refill(wait=False):
                for record in islice(self._reading.records, TURN_ROWS):
                    yield record
                await asyncio.sleep(0)
            elif self._backlog.over:
                return
            else:
                await self._filled()

    def on(self, callback: Callback) -> Callback:
        """Let `run` call this with every record. Can be used as a decorator."""
        self._callbacks.append(callback)
        return callback

    def run(self) -> None:
        """Call the callbacks with every record, to the end or until the tape is closed."""
        if not self._callbacks:
            raise ClientError("run has no callback; give a function to on() first")
        for record in self:
            for callback in self._callbacks:
                callback(record)

    def batches(self) -> Iterator[Arrow]:
        """Trades as RecordBatches of `SCHEMA`, each with what is available, of some 65,536 rows at most.

        Notices, cancels, corrections and venue statuses between batches are in `notices`. Other messages are dropped.
        """
        return self._batches(None)

    def to_arrow(self, rows: int | None = None) -> Arrow:
        """The trades up to the end, or the next `rows`, as one table."""
        if rows is None and self._feed.endless:
            raise ClientError(f"{self._feed.title} has no end; say how many rows are wanted, such as rows=1000")
        if rows is not None and rows < 0:
            raise ClientError(f"rows is {rows}; give a number from 0 on")
        return pa.Table.from_batches(self._batches(rows), schema=SCHEMA)

    def to_pandas(self, rows: int | None = None) -> Any:
        """The trades as a pandas data frame with Arrow's own types: no nanosecond and no decimal is lost in floats."""
        pandas = _imported("pandas")
        return self.to_arrow(rows).to_pandas(types_mapper=pandas.ArrowDtype)

    def to_polars(self, rows: int | None = None) -> Any:
        """The trades as a polars data frame."""
        polars = _imported("polars")
        return polars.from_arrow(self.to_arrow(rows))

    def snapshot(self) -> dict[str, Trade]:
        """The last trade of each symbol as of now, independent of what was read, as far back as the feed looks."""
        with as_client_error():
            batch = self._selection.of_batch(self._feed.last_sales().batch)
        return {trade.symbol: trade for trade in batch.records()}

    @property
    def following(self) -> int | None:
        """The number to go on with: `connect(target, start=tape.following)`. None while no record was delivered."""
        rest = self._reading.rest
        return self._reading.following if rest is None else rest.first

    @property
    def notices(self) -> list[TapeNotice]:
        """The latest notices, cancels, corrections and venue statuses that were read; at most 1,024."""
        return list(self._notices.values())

    @property
    def waiting(self) -> int:
        """Records in the backlog."""
        return len(self._backlog)

    @property
    def skipped(self) -> int:
        """Records that were dropped so far because the reader was slow; each is counted in a `Skipped`."""
        return self._backlog.skipped

    @property
    def merged(self) -> int:
        """Trades that were dropped so far for later ones of their symbols; each is counted in a `Merged`."""
        return self._backlog.merged

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """End the feed and every iteration. From any thread, any number of times."""
        reading = self._reading
        self._reading = reading._replace(end=reading.row, records=iter(()), following=self.following)
        deque(reading.records, maxlen=0)  # a reader in the middle of a piece finds its end
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        facts = (f"{name} {value}" for name, value in self._facts().items() if value)
        return f"<tape: {', '.join(facts)}>"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in self._facts().items())
        return f"<table>{''.join(rows)}</table>"

    def _facts(self) -> dict[str, object]:
        state = "closed" if self.closed else "over" if self._backlog.over else "open"
        return {
            "source": f"{self._feed.title} ({state})",
            "selection": self._selection,
            "following": self.following or 0,
            "waiting": self.waiting,
            "skipped": self.skipped,
            "merged": self.merged,
        }

    def _pieces(self) -> Iterator[Iterator[Record]]:
        while self._refill(wait=True):
            yield self._reading.records

    def _refill(self, *, wait: bool) -> bool:
        """Make a record ready to be delivered; whether there is one."""
        while not length_hint(self._reading.records):
            reading = self._reading
            rest = reading.rest
            if rest is not None and not self.closed:
                piece = rest.slice(0, PIECE_ROWS)
                records: Iterator[Record] = iter(list(piece.records()))
                self._reading = reading._replace(end=reading.end + piece.rows, records=records)
            elif not self._borrow(wait=wait):
                return False
        return True

    def _borrow(self, *, wait: bool) -> bool:
        """Borrow the next item; whether there is one."""
        lent = self._backlog.borrow(self._reading.loan, wait=wait)
        if lent is None:
            return False
        loan, item = lent
        if isinstance(item, TradeBatch):
            reading = _Reading(loan, item, 0, iter(()), item.last + 1)
        else:
            following = self._reading.following
            if isinstance(item, Placed | Break):
                following = number_after(item, following or item.sequence)
            reading = _Reading(loan, None, 0, iter((item,)), following)
            if not isinstance(item, Message):
                self._notices[loan] = item
                if len(self._notices) > NOTICES_MAX:
                    del self._notices[next(iter(self._notices))]
        self._reading = reading
        return True

    def _batches(self, rows: int | None) -> Iterator[Arrow]:
        """The next `rows` rows, or all; the rest of a batch stays for the next read."""
        left = rows
        while left is None or left > 0:
            reading = self._reading
            rest = reading.rest
            if rest is None or self.closed:
                if not self._borrow(wait=True):
                    return
                continue
            part = rest.slice(0, left)
            left = None if left is None else left - part.rows
            batch = part.to_arrow()
            done = reading._replace(end=reading.row + part.rows, records=iter(()))
            # A Ctrl-C cannot strike between these two steps.
            self._reading = done
            yield batch

    async def _filled(self) -> None:
        """Wait for an item or the end."""
        loop, filled = asyncio.get_running_loop(), asyncio.Event()
        self._backlog.call_when_filled(lambda: _wake(loop, filled))
        await filled.wait()


def _wake(loop: asyncio.AbstractEventLoop, filled: asyncio.Event) -> None:
    loop.call_soon_threadsafe(filled.set)


def _pump(feed: Feed, backlog: Backlog, selection: Selection) -> None:
    """The feed's thread: puts what is selected into the backlog, and finally what ended the feed."""
    try:
        with as_client_error():
            for delivery in feed.run():
                for item in selection.items(delivery):
                    backlog.put(item)
    except BacklogClosed:
        pass
    except Exception as error:  # noqa: BLE001 - a mistake of ours, too, must reach the reader and not end in a thread
        backlog.finish(error)
    else:
        backlog.finish()


def _shut(feed: Feed, backlog: Backlog, thread: Thread) -> None:
    feed.stop()
    backlog.close()
    if thread is not current_thread() and thread.is_alive():
        thread.join(STOP_PERIOD_MAX)


def _imported(library: str) -> Any:
    try:
        return import_module(library)
    except ImportError:
        raise ClientError(f"{library} is not installed; install it with: pip install 'fairtape[frames]'") from None
