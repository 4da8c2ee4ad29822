"""What the data source gives: schemas, and bunches of a journal as Arrow batches of them.

Times count nanoseconds, prices and quantities billionths, all as BIGINT: Spark has no finer timestamp than a
microsecond, and integers survive every step. Names are those of `fairtape.client`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairtape.client.lots import symbol_set
from fairtape.core.effects import FormationChange, Release
from fairtape.core.instants import NEVER
from fairtape.market.trades import TRADE_DTYPE, TRADE_KIND, TRADE_SIZE, TRADE_VERSION, BadTrade, Trades, records
from fairtape.pipeline.lanes import Stretch
from fairtape.pipeline.options import Options
from fairtape.pipeline.scanning import Bunch, Values, scan

Arrow: TypeAlias = Any  # an array, a batch or a schema of pyarrow, which declares no types

MESSAGE: Final = "message"
FRAGMENT: Final = "fragment"  # a part of a long message, which stands with its last number
FORMATION: Final = "formation"  # a change of formation; its payload is the layout, its token and number the first ones
BREAK: Final = "break"  # a change after which numbers may have been used otherwise

_PLACE: Final = [
    pa.field("stripe", pa.int32(), nullable=False),
    pa.field("site", pa.int64(), nullable=False),  # whose journal it is
    pa.field("formation", pa.int64(), nullable=False),
    pa.field("token", pa.int64(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
]
_SOURCE: Final = ("source", "incarnation", "source_number")
_TIMES: Final = [
    pa.field("acknowledged_at_ns", pa.int64(), nullable=False),  # of a formation: when it was to start
    pa.field("commit_at_ns", pa.int64()),
    pa.field("released_at_ns", pa.int64()),
    pa.field("late", pa.bool_()),
    pa.field("clock_bound_ns", pa.int64()),
]

MESSAGES: Final = pa.schema(
    [
        *_PLACE,
        pa.field("kind", pa.string(), nullable=False),
        *(pa.field(name, pa.int64()) for name in _SOURCE),
        *_TIMES,
        pa.field("payload", pa.binary()),
    ]
)
"""A row for every number and for every change of formation."""

TRADES: Final = pa.schema(
    [
        *_PLACE,
        *(pa.field(name, pa.int64(), nullable=False) for name in _SOURCE),
        *_TIMES,
        pa.field("venue", pa.string(), nullable=False),
        pa.field("symbol", pa.string(), nullable=False),
        pa.field("price", pa.int64(), nullable=False),  # 1e-9
        pa.field("quantity", pa.int64(), nullable=False),  # 1e-9
        pa.field("traded_at_ns", pa.int64(), nullable=False),
        pa.field("trade_id", pa.int64(), nullable=False),  # the venue's 64 bits: below zero stands for 2^63 and more
        pa.field("trade_flags", pa.int32(), nullable=False),
    ]
)
"""A row for every message that is a trade."""

STRETCHES: Final = pa.schema(
    [
        pa.field("task", pa.int32(), nullable=False),
        pa.field("stripe", pa.int32(), nullable=False),
        pa.field("site", pa.int64(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("segment", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("previous", pa.binary(), nullable=False),
    ]
)
"""A row for every stretch that a task would read; it begins with the fields of `Stretch`."""

_NO_RELEASE: Final = Release(0, 0, 0, 0, 0, late=False, clock_bound=0)

SCHEMAS: Final = {"messages": MESSAGES, "trades": TRADES, "stretches": STRETCHES}


def batches(stretch: Stretch, options: Options) -> Iterator[Arrow]:
    """The chosen rows of a stretch as record batches of the schema that `options.rows` names."""
    for found in scan(stretch, ordered=options.ordered):
        if not isinstance(found, FormationChange):
            batch = _opened(found, stretch, options)
            if batch.num_rows:
                yield batch
        elif options.rows == "messages" and options.symbols is None and _is_chosen(found, stretch, options):
            yield _change(found, stretch)


def stretches_batch(task: int, stretches: Sequence[Stretch]) -> Arrow:
    """The stretches themselves, as one batch of STRETCHES."""
    rows = [{"task": task, **{name: getattr(each, name) for name in STRETCHES.names[1:]}} for each in stretches]
    return pa.RecordBatch.from_pylist(rows, schema=STRETCHES)


def stretch_of(row: dict[str, Any]) -> Stretch:
    """The stretch of a row of STRETCHES."""
    return Stretch(**{name: row[name] for name in STRETCHES.names[1:]})


def _opened(bunch: Bunch, stretch: Stretch, options: Options) -> Arrow:
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
    columns = dict(zip(places.schema.names, places.columns, strict=True)) | _trade_columns(trades)
    return pa.RecordBatch.from_arrays([columns[name] for name in TRADES.names], schema=TRADES)


def _chosen(bunch: Bunch, stretch: Stretch, options: Options) -> Values:
    """Which rows are within the ranges. A token may begin before a stretch and end behind it."""
    chosen = (bunch.sequence >= stretch.first) & (bunch.sequence < stretch.end)
    if options.since is not None or options.until is not None:
        at = np.repeat([found.head.instant for found in bunch.entries], bunch.rows)
        chosen &= (at >= (options.since or 0)) & (at < (NEVER if options.until is None else options.until))
    return chosen


def _is_chosen(change: FormationChange, stretch: Stretch, options: Options) -> bool:
    """A change belongs to the number that follows it, so it is seen together with that."""
    until = NEVER if options.until is None else options.until
    return stretch.first <= change.sequence < stretch.end and (options.since or 0) <= change.installed_at < until


def _places(bunch: Bunch, stretch: Stretch) -> dict[str, Arrow]:
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


def _spread_values(values: Sequence[int | bool], bunch: Bunch) -> Values:
    return np.repeat(np.array(values), bunch.rows)


def _spread(values: Sequence[int | bool], bunch: Bunch, mask: Values | None = None) -> Arrow:
    """What entries say, for each of their messages."""
    return pa.array(_spread_values(values, bunch), mask=mask)


def _contents(bunch: Bunch) -> dict[str, Arrow]:
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


def _trades(bunch: Bunch, chosen: Values, symbols: Sequence[str] | None) -> tuple[Values, Trades]:
    """Which of the chosen rows are trades of these symbols, and those trades."""
    sized = bunch.sizes == TRADE_SIZE
    octets = bunch.payloads if sized.all() else bunch.payloads[np.repeat(sized, bunch.sizes)]
    found, trades = _valid(octets)
    rows = sized
    if not found.all():
        rows = sized.copy()
        rows[sized] = found
    wanted = chosen[rows]
    if symbols is not None:
        wanted &= pc.is_in(_fixed_names(trades["symbol"]), value_set=symbol_set(symbols)).to_numpy(zero_copy_only=False)
    if wanted.all():
        return rows, trades
    rows = rows.copy()
    rows[rows] = wanted
    return rows, trades[wanted]


def _valid(octets: Values) -> tuple[Values, Trades]:
    """Which of these records are trades, and those trades. Usually all are."""
    candidates = octets.view(TRADE_DTYPE)
    found = (candidates["kind"] == TRADE_KIND) & (candidates["version"] == TRADE_VERSION)
    chosen = octets if found.all() else candidates[found].view(np.uint8)
    try:
        return found, records(chosen.data)
    except BadTrade:
        good = np.array([_is_trade(candidate.tobytes()) for candidate in candidates])
        return good, candidates[good]


def _is_trade(payload: bytes) -> bool:
    try:
        records(payload)
    except BadTrade:
        return False
    return True


def _trade_columns(trades: Trades) -> dict[str, Arrow]:
    return {
        "venue": _names(trades["venue"]),
        "symbol": _names(trades["symbol"]),
        "price": pa.array(trades["price"]),
        "quantity": pa.array(trades["quantity"]),
        "traded_at_ns": pa.array(trades["traded_at"]),
        "trade_id": pa.array(trades["trade_id"].view(np.int64)),
        "trade_flags": pa.array(trades["flags"].astype(np.int32)),
    }


def _change(change: FormationChange, stretch: Stretch) -> Arrow:
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


def _fixed_names(padded: Values) -> Arrow:
    """Padded names as Arrow's binary of one size, which it hashes fast."""
    width = padded.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(padded), [None, pa.py_buffer(np.ascontiguousarray(padded))])


def _names(padded: Values) -> Arrow:
    """Names as text: each is made once, since a batch has few of them, many times over."""
    coded = _fixed_names(padded).dictionary_encode()
    texts = [name.rstrip(b"\0").decode("ascii") for name in coded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(coded.indices)
