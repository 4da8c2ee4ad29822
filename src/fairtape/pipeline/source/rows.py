"""What the data source gives: bunches of a journal as Arrow batches of the schemas in `fairtape.pipeline.schemas`."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairtape.core.effects import FormationChange, Release
from fairtape.core.instants import NEVER
from fairtape.market.trades import TRADE_SIZE, Trades
from fairtape.pipeline.schemas import BREAK, FORMATION, FRAGMENT, MESSAGE, MESSAGES, STRETCHES, TRADES
from fairtape.pipeline.schemas import Arrow as Arrow
from fairtape.pipeline.source.journal_scan import EntryBatch, Values, scan
from fairtape.pipeline.source.options import Options
from fairtape.pipeline.source.partitions import OffsetRange
from fairtape.pipeline.source.payload_columns import fixed_names, trade_columns, valid_trades
from fairtape.tape.batches import symbol_set

_NO_RELEASE: Final = Release(0, 0, 0, 0, 0, late=False, clock_bound=0)


def batches(stretch: OffsetRange, options: Options) -> Iterator[Arrow]:
    """The chosen rows of a stretch as record batches of the schema that `options.rows` names."""
    for found in scan(stretch, ordered=options.ordered):
        if not isinstance(found, FormationChange):
            batch = _opened(found, stretch, options)
            if batch.num_rows:
                yield batch
        elif options.rows == "messages" and options.symbols is None and _is_chosen(found, stretch, options):
            yield _change(found, stretch)


def stretches_batch(task: int, stretches: Sequence[OffsetRange]) -> Arrow:
    """The stretches themselves, as one batch of STRETCHES."""
    rows = [{"task": task, **{name: getattr(each, name) for name in STRETCHES.names[1:]}} for each in stretches]
    return pa.RecordBatch.from_pylist(rows, schema=STRETCHES)


def stretch_of(row: dict[str, Any]) -> OffsetRange:
    """The stretch of a row of STRETCHES."""
    return OffsetRange(**{name: row[name] for name in STRETCHES.names[1:]})


def _opened(bunch: EntryBatch, stretch: OffsetRange, options: Options) -> Arrow:
    chosen = _chosen(bunch, stretch, options)
    if options.rows == "messages":
        columns = _places(bunch, stretch) | _contents(bunch)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in MESSAGES.names], schema=MESSAGES)
        if options.symbols is not None:
            chosen, _ = _trades(bunch, chosen, options.symbols)
        return batch if chosen.all() else batch.filter(pa.array(chosen))
    chosen, trades = _trades(bunch, chosen, options.symbols)
    places = pa.RecordBatch.from_pydict(_places(bunch, stretch))
    places = places if chosen.all() else places.filter(pa.array(chosen))
    columns = dict(zip(places.schema.names, places.columns, strict=True)) | trade_columns(trades)
    return pa.RecordBatch.from_arrays([columns[name] for name in TRADES.names], schema=TRADES)


def _chosen(bunch: EntryBatch, stretch: OffsetRange, options: Options) -> Values:
    """Which rows are within the ranges. A token may begin before a stretch and end behind it."""
    chosen = (bunch.sequence >= stretch.first) & (bunch.sequence < stretch.end)
    if options.since is not None or options.until is not None:
        at = np.repeat([found.head.instant for found in bunch.entries], bunch.rows)
        chosen &= (at >= (options.since or 0)) & (at < (NEVER if options.until is None else options.until))
    return chosen


def _is_chosen(change: FormationChange, stretch: OffsetRange, options: Options) -> bool:
    """A change belongs to the number that follows it, so it is seen together with that."""
    until = NEVER if options.until is None else options.until
    return stretch.first <= change.sequence < stretch.end and (options.since or 0) <= change.installed_at < until


def _places(bunch: EntryBatch, stretch: OffsetRange) -> dict[str, Arrow]:
    """The columns that say where messages stand, and when they were where."""
    heads = [found.head for found in bunch.entries]
    total = len(bunch.sequence)
    columns = {
        "stripe": pa.array(np.full(total, stretch.stripe, np.int32)),
        "site": pa.array(np.full(total, stretch.site)),
        "formation": _spread([head.formation for head in heads], bunch),
        "token": _spread([head.token for head in heads], bunch),
        "sequence": pa.array(bunch.sequence),
        "source": pa.array(bunch.source),
        "incarnation": pa.array(bunch.incarnation),
        "source_number": pa.array(bunch.source_number),
        "acknowledged_at_ns": _spread([head.instant for head in heads], bunch),
    }
    marks = [found.release or _NO_RELEASE for found in bunch.entries]
    unreleased = _spread_values([found.release is None for found in bunch.entries], bunch)
    mask = unreleased if unreleased.any() else None
    columns["commit_at_ns"] = _spread([mark.commit_at for mark in marks], bunch, mask)
    columns["released_at_ns"] = _spread([mark.released_at for mark in marks], bunch, mask)
    columns["late"] = _spread([mark.late for mark in marks], bunch, mask)
    columns["clock_bound_ns"] = _spread([mark.clock_bound for mark in marks], bunch, mask)
    return columns


def _spread_values(values: Sequence[int | bool], bunch: EntryBatch) -> Values:
    return np.repeat(np.array(values), bunch.rows)


def _spread(values: Sequence[int | bool], bunch: EntryBatch, mask: Values | None = None) -> Arrow:
    """What entries say, for each of their messages."""
    return pa.array(_spread_values(values, bunch), mask=mask)


def _contents(bunch: EntryBatch) -> dict[str, Arrow]:
    """What kind of message it is, and its bytes, which are not copied."""
    offsets = np.zeros(len(bunch.sizes) + 1, np.int32)
    np.cumsum(bunch.sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bunch.payloads)]
    payload = pa.Array.from_buffers(pa.binary(), len(bunch.sizes), buffers)
    kinds = np.zeros(len(bunch.sizes), np.int8)
    if len(bunch.parts):
        kinds[bunch.parts] = 1
        payload = pc.if_else(pa.array(kinds == 0), payload, pa.scalar(None, pa.binary()))
    return {"kind": pa.array([MESSAGE, FRAGMENT]).take(pa.array(kinds)), "payload": payload}


def _trades(bunch: EntryBatch, chosen: Values, symbols: Sequence[str] | None) -> tuple[Values, Trades]:
    """Which of the chosen rows are trades of these symbols, and those trades."""
    sized = bunch.sizes == TRADE_SIZE
    octets = bunch.payloads if sized.all() else bunch.payloads[np.repeat(sized, bunch.sizes)]
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


def _change(change: FormationChange, stretch: OffsetRange) -> Arrow:
    """A change of formation as a batch of one row of MESSAGES."""
    row = {
        "stripe": stretch.stripe,
        "site": stretch.site,
        "formation": change.formation,
        "token": change.token,
        "sequence": change.sequence,
        "kind": BREAK if change.broken else FORMATION,
        "acknowledged_at_ns": change.installed_at,
        "payload": change.layout,
    }
    return pa.RecordBatch.from_pylist([row], schema=MESSAGES)
