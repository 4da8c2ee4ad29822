"""Rows of the data source: entries of a journal as Arrow batches of the schemas in `fairtape.pipeline.schemas`."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairtape.core.effects import FormationChange, Release
from fairtape.core.instants import NEVER
from fairtape.market.trades import TRADE_SIZE, Trades
from fairtape.pipeline.schemas import BREAK, FORMATION, FRAGMENT, MESSAGE, MESSAGES, OFFSET_RANGES, TRADES
from fairtape.pipeline.schemas import Arrow as Arrow
from fairtape.pipeline.source.journal_scan import EntryBatch, Values, scan
from fairtape.pipeline.source.options import Options
from fairtape.pipeline.source.partitions import OffsetRange
from fairtape.pipeline.source.payload_columns import fixed_names, trade_columns, valid_trades
from fairtape.tape.batches import symbol_set

_NO_RELEASE: Final = Release(0, 0, 0, 0, 0, late=False, clock_bound=0)


def batches(offset_range: OffsetRange, options: Options) -> Iterator[Arrow]:
    """The chosen rows of an offset range, as record batches of the schema that `options.rows` names."""
    for found in scan(offset_range, ordered=options.ordered):
        if not isinstance(found, FormationChange):
            batch = _opened(found, offset_range, options)
            if batch.num_rows:
                yield batch
        elif options.rows == "messages" and options.symbols is None and _is_chosen(found, offset_range, options):
            yield _change(found, offset_range)


def offset_ranges_batch(task: int, offset_ranges: Sequence[OffsetRange]) -> Arrow:
    """The offset ranges of a task as one batch of OFFSET_RANGES."""
    rows = [{"task": task, **{name: getattr(each, name) for name in OFFSET_RANGES.names[1:]}} for each in offset_ranges]
    return pa.RecordBatch.from_pylist(rows, schema=OFFSET_RANGES)


def offset_range_of(row: dict[str, Any]) -> OffsetRange:
    """The offset range of a row of OFFSET_RANGES."""
    return OffsetRange(**{name: row[name] for name in OFFSET_RANGES.names[1:]})


def _opened(entry_batch: EntryBatch, offset_range: OffsetRange, options: Options) -> Arrow:
    chosen = _chosen(entry_batch, offset_range, options)
    if options.rows == "messages":
        columns = _places(entry_batch, offset_range) | _contents(entry_batch)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in MESSAGES.names], schema=MESSAGES)
        if options.symbols is not None:
            chosen, _ = _trades(entry_batch, chosen, options.symbols)
        return batch if chosen.all() else batch.filter(pa.array(chosen))
    chosen, trades = _trades(entry_batch, chosen, options.symbols)
    places = pa.RecordBatch.from_pydict(_places(entry_batch, offset_range))
    places = places if chosen.all() else places.filter(pa.array(chosen))
    columns = dict(zip(places.schema.names, places.columns, strict=True)) | trade_columns(trades)
    return pa.RecordBatch.from_arrays([columns[name] for name in TRADES.names], schema=TRADES)


def _chosen(entry_batch: EntryBatch, offset_range: OffsetRange, options: Options) -> Values:
    """Which rows are within the ranges. A token may begin before an offset range and end after it."""
    chosen = (entry_batch.sequence >= offset_range.first) & (entry_batch.sequence < offset_range.end)
    if options.since is not None or options.until is not None:
        at = np.repeat([found.head.instant for found in entry_batch.entries], entry_batch.rows)
        chosen &= (at >= (options.since or 0)) & (at < (NEVER if options.until is None else options.until))
    return chosen


def _is_chosen(change: FormationChange, offset_range: OffsetRange, options: Options) -> bool:
    """A change belongs to the number that follows it, and is read together with it."""
    until = NEVER if options.until is None else options.until
    return (
        offset_range.first <= change.sequence < offset_range.end and (options.since or 0) <= change.installed_at < until
    )


def _places(entry_batch: EntryBatch, offset_range: OffsetRange) -> dict[str, Arrow]:
    """The columns with the place of messages in the order and with their times."""
    heads = [found.head for found in entry_batch.entries]
    total = len(entry_batch.sequence)
    columns = {
        "stripe": pa.array(np.full(total, offset_range.stripe, np.int32)),
        "site": pa.array(np.full(total, offset_range.site)),
        "formation": _spread([head.formation for head in heads], entry_batch),
        "token": _spread([head.token for head in heads], entry_batch),
        "sequence": pa.array(entry_batch.sequence),
        "source": pa.array(entry_batch.source),
        "incarnation": pa.array(entry_batch.incarnation),
        "source_number": pa.array(entry_batch.source_number),
        "acknowledged_at_ns": _spread([head.instant for head in heads], entry_batch),
    }
    marks = [found.release or _NO_RELEASE for found in entry_batch.entries]
    unreleased = _spread_values([found.release is None for found in entry_batch.entries], entry_batch)
    mask = unreleased if unreleased.any() else None
    columns["commit_at_ns"] = _spread([mark.commit_at for mark in marks], entry_batch, mask)
    columns["released_at_ns"] = _spread([mark.released_at for mark in marks], entry_batch, mask)
    columns["late"] = _spread([mark.late for mark in marks], entry_batch, mask)
    columns["clock_bound_ns"] = _spread([mark.clock_bound for mark in marks], entry_batch, mask)
    return columns


def _spread_values(values: Sequence[int | bool], entry_batch: EntryBatch) -> Values:
    return np.repeat(np.array(values), entry_batch.rows)


def _spread(values: Sequence[int | bool], entry_batch: EntryBatch, mask: Values | None = None) -> Arrow:
    """A value of each entry, repeated for each of its messages."""
    return pa.array(_spread_values(values, entry_batch), mask=mask)


def _contents(entry_batch: EntryBatch) -> dict[str, Arrow]:
    """The kind of each message and its bytes, which are not copied."""
    offsets = np.zeros(len(entry_batch.sizes) + 1, np.int32)
    np.cumsum(entry_batch.sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(entry_batch.payloads)]
    payload = pa.Array.from_buffers(pa.binary(), len(entry_batch.sizes), buffers)
    kinds = np.zeros(len(entry_batch.sizes), np.int8)
    if len(entry_batch.parts):
        kinds[entry_batch.parts] = 1
        payload = pc.if_else(pa.array(kinds == 0), payload, pa.scalar(None, pa.binary()))
    return {"kind": pa.array([MESSAGE, FRAGMENT]).take(pa.array(kinds)), "payload": payload}


def _trades(entry_batch: EntryBatch, chosen: Values, symbols: Sequence[str] | None) -> tuple[Values, Trades]:
    """Which of the chosen rows are trades of these symbols, and those trades."""
    sized = entry_batch.sizes == TRADE_SIZE
    octets = entry_batch.payloads if sized.all() else entry_batch.payloads[np.repeat(sized, entry_batch.sizes)]
    found, trades = valid_trades(octets)
    rows = sized
    if not found.all():
        rows = sized.copy()
        rows[sized] = found
    wanted = chosen[rows]
    if symbols is not None:
        wanted &= pc.is_in(fixed_names(trades["symbol"]), value_set=symbol_set(symbols)).to_numpy(zero_copy_only=False)
    if wanted.all():
        return rows, trades
    rows = rows.copy()
    rows[rows] = wanted
    return rows, trades[wanted]


def _change(change: FormationChange, offset_range: OffsetRange) -> Arrow:
    """A change of formation as a batch of one row of MESSAGES."""
    row = {
        "stripe": offset_range.stripe,
        "site": offset_range.site,
        "formation": change.formation,
        "token": change.token,
        "sequence": change.sequence,
        "kind": BREAK if change.broken else FORMATION,
        "acknowledged_at_ns": change.installed_at,
        "payload": change.layout,
    }
    return pa.RecordBatch.from_pylist([row], schema=MESSAGES)
