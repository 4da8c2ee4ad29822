"""The backlog: what a feed has brought and its reader has not taken yet. Bounded, with a policy for when it is full.

- `block`: the feed waits. Nothing is lost; a journal or a file simply waits to be read.
- `skip`: the oldest records make room for the newest, because old prices are worth least; a `Skipped` stands in their
  place.
- `conflate`: of all trades that wait, the latest of each symbol is kept, and a `Merged` stands before those that are
  left; where there are more symbols than room, the oldest are skipped as well.

Under every policy: what is handed out, in order, and what `Skipped` and `Merged` account for are together everything
that was put in. Messages that are no trades are never merged, notices are never left out at all: where nothing but
notices waits, another one has to wait for room. So the size stays bounded whatever comes.

What was handed out is lent until the reader comes for the next one: a reader who is interrupted in between is lent the
same again, so that a Ctrl-C loses nothing. A Ctrl-C can come between any two steps of the reader, never of the feed,
which has a thread of its own. So the reader changes the backlog by storing one value, and whoever comes next draws the
consequences.
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

ITEMS_MAX: Final = 1_024  # lots, messages and notices that wait, before neighbouring lots are joined

ROW_SIZE: Final = TRADE_SIZE + PLACE_DTYPE.itemsize  # bytes of a trade that waits

Item: TypeAlias = TradeBatch | Single | Notice


class Policy(Enum):
    """What happens when the backlog is full."""

    BLOCK = "block"
    SKIP = "skip"
    CONFLATE = "conflate"


class BacklogClosed(Exception):
    """Nobody reads any more."""


class _Cell:
    """An item that waits. Items can be equal; cells are told apart."""

    __slots__ = ("item", "size")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.size = size_of(item)


class _Loan(NamedTuple):
    number: int
    cell: _Cell | None
    taken: int  # records that were handed out up to and with this one


class Backlog:
    """Between the thread of one feed and one reader."""

    def __init__(self, *, policy: Policy, size_max: int) -> None:
        assert size_max > 0
        self._policy = policy
        self._size_max = size_max
        self._cells: deque[_Cell] = deque()
        self._entered = 0  # records that were put in and not left out again
        self._loan = _Loan(0, None, 0)
        self._over = False
        self._closed = False
        self._error: Exception | None = None
        self._lock = RLock()  # the garbage collector may close it in the midst of anything
        self._filled = Condition(self._lock)
        self._emptied = Condition(self._lock)
        self._call: Callable[[], None] | None = None
        self.size_peak = 0
        self.skipped = 0
        self.merged = 0

    def __len__(self) -> int:
        """Records that wait; a long message counts for several.

        What stands for others is not counted: there are at most two of them before each that is.
        """
        with self._lock:
            return self._entered - self._loan.taken

    def put(self, item: Item) -> None:
        """Take what a feed brings, by the policy. Raises `BacklogClosed` once nobody reads any more."""
        if isinstance(item, TradeBatch) and not 0 < item.rows <= self._size_max:
            for start in range(0, item.rows, self._size_max):
                self.put(item.slice(start, start + self._size_max))
            return
        with self._lock:
            self._let_go()
            if self._policy is Policy.BLOCK or not isinstance(item, TradeBatch | Message):
                self._await_room(size_of(item))
            if self._closed:
                raise BacklogClosed
            _add(self._cells, item)
            self._entered += size_of(item)
            self._make_room(0)
            self.size_peak = max(self.size_peak, len(self))
            if len(self._cells) > ITEMS_MAX:
                self._join()
            self._announce()

    def finish(self, error: Exception | None = None) -> None:
        """Nothing more comes; why, if that is not as it should be. What waits can still be taken."""
        with self._lock:
            self._over, self._error = True, error
            self._announce()

    def close(self) -> None:
        """Nobody reads any more: let go of what waits, and of whoever waits."""
        with self._lock:
            self._closed = self._over = True
            self._cells.clear()
            self._emptied.notify_all()
            self._announce()

    def borrow(self, settled: int, *, wait: bool = True) -> tuple[int, Item] | None:
        """The next item and the number of its loan; None at the end, or where `wait` is off and nothing is there.

        `settled` is the number of the last loan that is done with; where a later one is out, it is lent again.
        """
        with self._lock:
            if self._closed:
                return None
            if self._loan.number > settled:
                assert self._loan.cell is not None
                return self._loan.number, self._loan.cell.item
            self._let_go()
            while not self._cells:
                if self._error is not None and self._over:
                    raise self._error
                if self._over or not wait:
                    return None
                self._filled.wait()
            cell = self._cells[0]
            self._loan = _Loan(settled + 1, cell, self._loan.taken + cell.size)
            self._let_go()
            self._emptied.notify()
            return settled + 1, cell.item

    @property
    def over(self) -> bool:
        """Whether nothing waits and nothing more will come."""
        with self._lock:
            self._let_go()
            return self._over and not self._cells

    def call_when_filled(self, call: Callable[[], None]) -> None:
        """Call this, from the feed's thread, when something comes or nothing more will; at once where it already has.

        There is one reader, so the last call that was asked for counts, and it is made once.
        """
        with self._lock:
            self._call = call
            self._let_go()
            if self._cells or self._over:
                self._announce()

    def _let_go(self) -> None:
        """Take away what is lent."""
        if self._cells and self._cells[0] is self._loan.cell:
            self._cells.popleft()

    def _announce(self) -> None:
        self._filled.notify_all()
        call, self._call = self._call, None
        if call is not None:
            # The event loop of a reader who has gone refuses the call, and nobody misses it.
            with suppress(RuntimeError):
                call()

    def _await_room(self, size: int) -> None:
        self._make_room(size)
        while not self._closed and len(self) and len(self) + size > self._size_max:
            self._emptied.wait()
            self._let_go()
            self._make_room(size)

    def _make_room(self, size: int) -> None:
        """For so many records more. Those that were just added are among those that may have to go."""
        if self._policy is Policy.CONFLATE and len(self) + size > self._size_max:
            self._conflate()
        if self._policy is not Policy.BLOCK and len(self) + size > self._size_max:
            self._skip(len(self) + size - self._size_max)

    def _skip(self, excess: int) -> None:
        """Leave out the oldest records, so many or as many as there are; notices between them stay."""
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
        """Of all trades that wait, keep the latest of each symbol, each in its place among the notices."""
        self._join()
        lots = [cell.item for cell in self._cells if isinstance(cell.item, TradeBatch)]
        if not lots:
            return
        whole = join_batches(lots)
        stays = np.zeros(whole.rows, np.bool_)
        stays[whole.latest()] = True
        parts = iter(np.split(stays, np.cumsum([lot.rows for lot in lots])))
        cells, self._cells = self._cells, deque()
        for cell in cells:
            item = cell.item
            if not isinstance(item, TradeBatch):
                _add(self._cells, item)
                continue
            mine = next(parts)
            gone = np.flatnonzero(~mine)
            if len(gone):
                numbers = item.places["sequence"]
                _add(self._cells, Merged(int(numbers[gone[0]]), int(numbers[gone[-1]]), len(gone)))
                self._entered -= len(gone)
                self.merged += len(gone)
            if mine.any():
                _add(self._cells, item.where(mine))

    def _join(self) -> None:
        """Make one lot of neighbouring ones."""
        self._cells = deque(map(_Cell, _with_joined_lots(cell.item for cell in self._cells)))


def _with_joined_lots(items: Iterable[Item]) -> Iterator[Item]:
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
    """Add an item. One that stands for others is added to its like, where only such ones lie between."""
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
    """How many records an item counts for: a long message for as many trades as would take its room."""
    if isinstance(item, TradeBatch):
        return item.rows
    if isinstance(item, Message):
        return 1 + len(item.payload) // ROW_SIZE
    return 0 if isinstance(item, Skipped | Merged) else 1
