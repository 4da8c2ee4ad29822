"""External merge sort of trades by time, in bounded memory.

Batches are gathered into runs. A full run is sorted and written to a temporary file; at the end the runs are merged.
A single run stays in memory.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.market.trades import TRADE_DTYPE, Trades

RUN_MAX: Final = 1 << 20  # trades of one run: 64 MiB
BLOCK_MAX: Final = 1 << 13  # trades of each run in one step of the merge


def by_time(batches: Iterable[Trades], *, run_max: int = RUN_MAX, block_max: int = BLOCK_MAX) -> Iterator[Trades]:
    """The same trades by time. The sort is stable."""
    with tempfile.TemporaryDirectory(prefix="fairtape-sort-") as folder:
        written: list[Trades] = []
        last: Trades | None = None
        for run in _runs(batches, run_max):
            if last is not None:
                written.append(_write_run(last, Path(folder) / f"{len(written)}.run"))
            last = run
        if last is not None:
            yield from _merged([*written, last], block_max)


def _runs(batches: Iterable[Trades], run_max: int) -> Iterator[Trades]:
    """Sorted runs of at most `run_max` trades, or of one batch where that is larger."""
    gathered: list[Trades] = []
    count = 0
    for batch in batches:
        if gathered and count + len(batch) > run_max:
            yield _sorted(gathered)
            gathered, count = [], 0
        if len(batch):
            gathered.append(batch)
            count += len(batch)
    if gathered:
        yield _sorted(gathered)


def _sorted(batches: list[Trades]) -> Trades:
    trades: Trades = np.concatenate(batches)
    return trades[np.argsort(trades["traded_at"], kind="stable")]


def _write_run(run: Trades, path: Path) -> Trades:
    try:
        run.tofile(path)
        return np.memmap(path, TRADE_DTYPE, mode="r")
    except OSError as error:
        raise UserError(
            f"temporary folder is {tempfile.gettempdir()!r}, where trades cannot be sorted ({error}); free space"
            " there or name another folder in TMPDIR"
        ) from None


def _merged(runs: list[Trades], block_max: int) -> Iterator[Trades]:
    """In each step, everything up to an instant that the unread part of no run precedes."""
    starts = [0] * len(runs)
    while any(start < len(run) for run, start in zip(runs, starts, strict=True)):
        bound = _bound(runs, starts, block_max)
        parts = []
        for position, run in enumerate(runs):
            rest = run[starts[position] :] if bound is None else _through(run, starts[position], bound, block_max)
            parts.append(np.asarray(rest))
            starts[position] += len(rest)
        yield _sorted(parts)


def _bound(runs: list[Trades], starts: list[int], block_max: int) -> Instant | None:
    """The earliest end of the next blocks, of runs that have more behind them; None when none has."""
    ends = [start + block_max for start in starts]
    return min(
        (int(run["traded_at"][end - 1]) for run, end in zip(runs, ends, strict=True) if end < len(run)), default=None
    )


def _through(run: Trades, start: int, bound: Instant, block_max: int) -> Trades:
    """From `start` on, the trades not later than the bound: usually part of one block, more where times are equal."""
    end = start
    while end < len(run) and run["traded_at"][end] <= bound:
        block = run[end : end + block_max]
        end += int(np.searchsorted(block["traded_at"], bound, side="right"))
    return run[start:end]
