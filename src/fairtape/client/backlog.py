"""A bounded queue between a feed and its reader, with a policy for when it is full.

- `block`: the feed waits. Nothing is lost; a journal or a file can wait to be read.
- `skip`: the oldest records are dropped for the newest, because old prices are worth least; a `Skipped` replaces them.
- `conflate`: of all waiting trades, the latest of each symbol is kept, and a `Merged` precedes those that are left;
  where there are more symbols than space, the oldest are skipped as well.

Under every policy, the items that are read, in order, and those that `Skipped` and `Merged` account for are together
everything that was put in. Messages that are no trades are never merged, and notices are never dropped: where only
notices wait, another one blocks until there is space. So the size is always bounded.

An item is lent until the reader asks for the next one: a reader that is interrupted in between is lent the same item
again, so that a Ctrl-C loses nothing. A Ctrl-C can come between any two steps of the reader, but not of the feed, which
has a thread of its own. So the reader changes the backlog by storing one value, and the next call, of either side, acts
on it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from threading import Condition, RLock
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from fairtape.market.trades import TRADE_SIZE
from fairtape.tape.batches import PLACE_DTYPE, ROWS_MAX, TradeBatch, join_batches
from fairtape.tape.records import Merged, Message, Notice, Placed, Single, Skipped

ITEMS_MAX: Final = 1_024  # waiting batches, messages and notices, before neighbouring batches are joined

ROW_SIZE: Final = TRADE_SIZE + PLACE_DTYPE.itemsize  # bytes of a waiting trade

Item: TypeAlias = TradeBatch | Single | Notice


class Policy(Enum):
    """What happens when the backlog is full."""

    BLOCK = "block"
    SKIP = "skip"
    CONFLATE = "conflate"


class BacklogClosed(Exception):
    """The reader has closed the backlog."""


class _Cell:
    """A waiting item. Items can be equal; cells are compared by identity."""

    __slots__ = ("item", "size")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.size = size_of(item)


class _Loan(NamedTuple):
    number: int
    cell: _Cell | None
    taken: int  # records that were lent up to and including this one


class Backlog:
    """Between the thread of one feed and one reader."""

    def __init__(self, *, policy: Policy, size_max: int) -> None:
        assert size_max > 0
        self._policy = policy
        self._size_max = size_max
        self._cells: deque[_Cell] = deque()
        self._entered = 0  # records that were put in and not dropped
        self._loan = _Loan(0, None, 0)
        self._over = False
        self._closed = False
        self._error: Exception | None = None
        self._lock = RLock()  # the garbage collector may call `close` at any point
        self._filled = Condition(self._lock)
        self._emptied = Condition(self._lock)
        self._call: Callable[[], None] | None = None
        self.size_peak = 0
        self.skipped = 0
        self.merged = 0

    def __len__(self) -> int:
        """Waiting records; a long message counts for several.

        `Skipped` and `Merged` are not counted: there are at most two of them before each record.
        """
        with self._lock:
            return self._entered - self._loan.taken

    def put(self, item: Item) -> None:
        """Add an item, by the policy. Raises `BacklogClosed` once the reader has closed it."""
        if isinstance(item, TradeBatch) and not 0 < item.rows <= self._size_max:
            for start in range(0, item.rows, self._size_max):
                self.put(item.slice(start, start + self._size_max))
            return
        with self._lock:
            self._drop_borrowed()
            if self._policy is Policy.BLOCK or not isinstance(item, TradeBatch | Message):
                self._await_space(size_of(item))
            if self._closed:
                raise BacklogClosed
            _add(self._cells, item)
            self._entered += size_of(item)
            self._make_space(0)
            self.size_peak = max(self.size_peak, len(self))
            if len(self._cells) > ITEMS_MAX:
                self._join()
            self._notify()

    def finish(self, error: Exception | None = None) -> None:
        """Nothing more comes; `error` is why, if that is a failure. Waiting items can still be read."""
        with self._lock:
            self._over, self._error = True, error
            self._notify()

    def close(self) -> None:
        """Stop reading: drop all items, and wake a blocked feed."""
        with self._lock:
            self._closed = self._over = True
            self._cells.clear()
            self._emptied.notify_all()
            self._notify()

    def borrow(self, settled: int, *, wait: bool = True) -> tuple[int, Item] | None:
        """The next item and the number of its loan; None at the end, or without `wait` where there is none.

        `settled` is the number of the last loan that the reader has finished; a later one is lent again.
        """
        with self._lock:
            if self._closed:
                return None
            if self._loan.number > settled:
                assert self._loan.cell is not None
                return self._loan.number, self._loan.cell.item
            self._drop_borrowed()
            while not self._cells:
                if self._error is not None and self._over:
                    raise self._error
                if self._over or not wait:
                    return None
                self._filled.wait()
            cell = self._cells[0]
            self._loan = _Loan(settled + 1, cell, self._loan.taken + cell.size)
            self._drop_borrowed()
            self._emptied.notify()
            return settled + 1, cell.item

    @property
    def over(self) -> bool:
        """Whether nothing waits and nothing more will come."""
        with self._lock:
            self._drop_borrowed()
            return self._over and not self._cells

    def call_when_filled(self, call: Callable[[], None]) -> None:
        """Call this once, from the feed's thread, when an item or the end comes; at once where it already has.

        There is one reader, so a new callback replaces the last one.
        """
        with self._lock:
            self._call = call
            self._drop_borrowed()
            if self._cells or self._over:
                self._notify()

    def _drop_borrowed(self) -> None:
        """Remove the item that is lent."""
        if self._cells and self._cells[0] is self._loan.cell:
            self._cells.popleft()

    def _notify(self) -> None:
        self._filled.notify_all()
        call, self._call = self._call, None
        if call is not None:
            # The event loop of a reader that is gone refuses the call, which then has no purpose.
            with suppress(RuntimeError):
                call()

    def _await_space(self, size: int) -> None:
        self._make_space(size)
        while not self._closed and len(self) and len(self) + size > self._size_max:
            self._emptied.wait()
            self._drop_borrowed()
            self._make_space(size)

    def _make_space(self, size: int) -> None:
        """Drop records until this many more fit. Those that were just added may be dropped as well."""
        if self._policy is Policy.CONFLATE and len(self) + size > self._size_max:
            self._conflate()
        if self._policy is not Policy.BLOCK and len(self) + size > self._size_max:
            self._skip(len(self) + size - self._size_max)

    def _skip(self, excess: int) -> None:
        """Drop up to `excess` of the oldest records; notices between them stay."""
        kept: deque[_Cell] = deque()
        while self._cells and (excess > 0 or isinstance(self._cells[0].item, Skipped | Merged)):
            item = self._cells.popleft().item
            if not isinstance(item, TradeBatch | Placed):
                _add(kept, item)
                continue
            if isinstance(item, TradeBatch):
                size = count = min(excess, item.rows)
                _add(kept, Skipped(item.first, item.slice(0, count).last, count))
                if count < item.rows:
                    self._cells.appendleft(_Cell(item.slice(count)))
            else:
                size, count = size_of(item), 1
                _add(kept, Skipped(item.sequence, item.sequence, 1))
            excess -= size
            self._entered -= size
            self.skipped += count
        self._cells.extendleft(reversed(kept))

    def _conflate(self) -> None:
        """Of all waiting trades, keep the latest of each symbol, in order with the notices."""
        self._join()
        batches = [cell.item for cell in self._cells if isinstance(cell.item, TradeBatch)]
        if not batches:
            return
        whole = join_batches(batches)
        kept_rows = np.zeros(whole.rows, np.bool_)
        kept_rows[whole.latest()] = True
        parts = iter(np.split(kept_rows, np.cumsum([batch.rows for batch in batches])))
        cells, self._cells = self._cells, deque()
        for cell in cells:
            item = cell.item
            if not isinstance(item, TradeBatch):
                _add(self._cells, item)
                continue
            kept_here = next(parts)
            dropped = np.flatnonzero(~kept_here)
            if len(dropped):
                numbers = item.places["sequence"]
                _add(self._cells, Merged(int(numbers[dropped[0]]), int(numbers[dropped[-1]]), len(dropped)))
                self._entered -= len(dropped)
                self.merged += len(dropped)
            if kept_here.any():
                _add(self._cells, item.where(kept_here))

    def _join(self) -> None:
        """Join neighbouring batches."""
        self._cells = deque(map(_Cell, _with_joined_batches(cell.item for cell in self._cells)))


def _with_joined_batches(items: Iterable[Item]) -> Iterator[Item]:
    run: list[TradeBatch] = []
    rows = 0
    for item in items:
        if run and (not isinstance(item, TradeBatch) or rows + item.rows > ROWS_MAX):
            yield join_batches(run)
            run, rows = [], 0
        if isinstance(item, TradeBatch):
            run.append(item)
            rows += item.rows
        else:
            yield item
    if run:
        yield join_batches(run)


def _add(cells: deque[_Cell], item: Item) -> None:
    """Append an item. A `Skipped` or `Merged` is combined with the last one of its kind, if nothing else is between."""
    if isinstance(item, Skipped | Merged):
        for cell in (cells[at] for at in range(-1, -min(len(cells), 2) - 1, -1)):
            before = cell.item
            if isinstance(before, Skipped) and isinstance(item, Skipped):
                cell.item = Skipped(before.first, item.last, before.count + item.count)
                return
            if isinstance(before, Merged) and isinstance(item, Merged):
                cell.item = Merged(before.first, item.last, before.count + item.count)
                return
            if not isinstance(before, Skipped | Merged):
                break
    cells.append(_Cell(item))


def size_of(item: Item) -> int:
    """How many records an item counts for: a long message for as many trades as have its size."""
    if isinstance(item, TradeBatch):
        return item.rows
    if isinstance(item, Message):
        return 1 + len(item.payload) // ROW_SIZE
    return 0 if isinstance(item, Skipped | Merged) else 1
