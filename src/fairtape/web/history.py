"""Ranges of the past, by number or by time, for HTTP: read from the journal, in another thread."""

import io
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa

from fairtape.client.selection import Selection
from fairtape.core.instants import Instant
from fairtape.journal import Damaged, JournalFollower, JournalReader
from fairtape.journal.follow import first_sequence
from fairtape.tape.batches import ROWS_MAX as BATCH_ROWS
from fairtape.tape.batches import SCHEMA, TradeBatch
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import Delivery
from fairtape.tape.records import Notice, Placed, Single
from fairtape.tape.serialization import record_fields
from fairtape.web.encoding import ROWS_MAX, encode_trade, json_bytes
from fairtape.web.subscription import Refusal
from fairtape.wire.frames import NUMBER_MAX

LIMIT: Final = 1_000
LIMIT_MAX: Final = 100_000  # trades of one response
SCAN_MAX: Final = 1_000_000  # sequence numbers that are searched for one response
_FIELDS: Final = ("from", "to", "since_ns", "until_ns", "symbols", "limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRange:
    """The range that a request names."""

    selection: Selection
    start: int | None  # a number of the order
    since: Instant | None  # or the first token of this instant or later
    end: int  # the number after the last
    until: Instant | None  # or the first token of this instant or later, which does not belong to it any more
    limit: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "HistoryRange":
        """The range in a query. Raises `Refusal`."""
        for name in query:
            if name not in _FIELDS:
                raise Refusal(name[:40], f"{name[:40]!r} is no field; there are {', '.join(_FIELDS)}, format")
        start, since = _number(query, "from"), _number(query, "since_ns")
        if start is not None and since is not None:
            raise Refusal("since_ns", "from and since_ns are both given; begin with a number or with an instant")
        to, until, limit = _number(query, "to"), _number(query, "until_ns"), _number(query, "limit")
        for field, first, last in (("to", start, to), ("until_ns", since, until)):
            if first is not None and last is not None and last < first:
                raise Refusal(
                    field, f"{field} is {last}, before {first}, with which the range begins; give a later one"
                )
        if limit is not None and not 1 <= limit <= LIMIT_MAX:
            raise Refusal("limit", f"limit is {limit}; it must be from 1 to {LIMIT_MAX:,}")
        names = query.get("symbols")
        return cls(
            selection=Selection.of(None if names is None else names.split(","), None),
            start=start,
            since=since,
            end=NUMBER_MAX if to is None else to + 1,
            until=until,
            limit=LIMIT if limit is None else limit,
        )


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """The part of a range that one response holds."""

    items: list[TradeBatch | Single | Notice]
    next_sequence: int  # the number to go on with

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items if isinstance(item, TradeBatch))

    def json(self) -> Iterator[bytes]:
        """All records in order, piece by piece."""
        yield b'{"records":['
        comma = b""
        for item in self.items:
            for records in _record_batches(item):
                yield comma + b",".join(map(json_bytes, records))
                comma = b","
        yield b'],"next":%d}' % self.next_sequence

    def arrow(self) -> Iterator[bytes]:
        """The trades as an Arrow stream, piece by piece; other records have no columns."""
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, SCHEMA) as stream:
            for item in self.items:
                if isinstance(item, TradeBatch) and item.rows:
                    stream.write_batch(item.to_arrow())
                    yield _drained(sink)
        yield _drained(sink)


def _record_batches(item: TradeBatch | Single | Notice) -> Iterator[list[dict[str, Any]]]:
    """An item as objects, at most `ROWS_MAX` at a time."""
    if not isinstance(item, TradeBatch):
        yield [record_fields(item)]
        return
    for first in range(0, item.rows, ROWS_MAX):
        yield [{"kind": "trade", **encode_trade(trade)} for trade in item.slice(first, first + ROWS_MAX).records()]


def _drained(sink: io.BytesIO) -> bytes:
    octets = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return octets


class HistoryArchive:
    """Reads ranges of one journal, one at a time."""

    def __init__(self, directory: Path) -> None:
        self._journal = JournalReader.open(directory)
        self._lock = Lock()

    def read(self, requested: HistoryRange, due: int) -> HistoryPart:
        """The part of a range that is released, up to `due`, and within the limits. Raises `Refusal`."""
        with self._lock:
            try:
                return self._read(requested, due)
            except Damaged as damage:
                raise Refusal("from", f"the journal cannot be read there: {damage}") from None

    def _read(self, requested: HistoryRange, due: int) -> HistoryPart:
        start = self._start(requested, due)
        end = min(requested.end, start + SCAN_MAX, self._place(requested.until, due))
        decoder, left = EntryDecoder(start), requested.limit
        items: list[TradeBatch | Single | Notice] = []
        for item in self._items(decoder, end, requested.selection):
            if not left:
                return HistoryPart(items, _first_of(item))
            if not isinstance(item, TradeBatch):
                items.append(item)
                continue
            taken = item.slice(0, left)
            items.append(taken)
            if taken.rows < item.rows:
                return HistoryPart(items, taken.last + 1)
            left -= taken.rows
        return HistoryPart(items, max(start, min(decoder.due, end)))

    def _start(self, requested: HistoryRange, due: int) -> int:
        if requested.start is not None:
            if requested.start > due:
                raise Refusal(
                    "from", f"from is {requested.start}, and the order has come to {due - 1}; give at most {due}"
                )
            return requested.start
        return first_sequence(self._journal) if requested.since is None else self._place(requested.since, due)

    def _place(self, instant: Instant | None, due: int) -> int:
        """The number of the first message acknowledged at or after this instant; `due` where there is none."""
        place = None if instant is None else self._journal.place(1, instant)
        return due if place is None else min(place.sequence, due)

    def _items(self, decoder: EntryDecoder, end: int, selection: Selection) -> Iterator[TradeBatch | Single | Notice]:
        with closing(JournalFollower.of_journal(self._journal, from_sequence=decoder.due)) as follower:
            while decoder.due < end and (found := follower.read(BATCH_ROWS)):
                for delivery in decoder.decode(found, time.time_ns()):
                    yield from _before(delivery, end, selection)


def _before(delivery: Delivery, end: int, selection: Selection) -> list[TradeBatch | Single | Notice]:
    if isinstance(delivery, TradeBatch):
        delivery = delivery.where(delivery.places["sequence"] < end)
    elif isinstance(delivery, Placed) and delivery.sequence >= end:
        return []
    return [item for item in selection.items(delivery) if not isinstance(item, TradeBatch) or item.rows]


def _first_of(item: TradeBatch | Single | Notice) -> int:
    if isinstance(item, TradeBatch):
        return item.first
    first = getattr(item, "sequence", None) or getattr(item, "first", None)
    assert isinstance(first, int)
    return first


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > len(str(NUMBER_MAX)) or not int(text):
        raise Refusal(name, f"{name} is {text[:40]!r}; expected a whole number above 0")
    return int(text)
