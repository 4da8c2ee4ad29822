"""Decodes entries of a journal into deliveries: batches of trades, single messages, and notices at their places.

The usual entry consists of blocks of trade records. Consecutive entries of this kind are decoded together: their blocks
are joined into one array, and the numbers and times of their tokens are repeated over its rows. Everything else is
decoded message by message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from fairtape.core.effects import Deliver, FormationChange, Span
from fairtape.core.instants import Instant
from fairtape.core.spans import MessageAssembler, blocks
from fairtape.journal import Damaged, FormationChanged, JournalEntry
from fairtape.market.notices import BadNotice, CancelNotice, CorrectionNotice, StatusNotice, decode_notice, is_notice
from fairtape.market.trades import TRADE_SIZE, BadTrade, PublishedTrade, blank_trades, records
from fairtape.tape.batches import PLACE_DTYPE, PlaceRows, TradeBatch, join_batches
from fairtape.tape.feed import Delivery
from fairtape.tape.records import ABSENT, Break, Canceled, Corrected, Gap, Message, Reformation, Single, VenueStatus
from fairtape.wire.blocks import records_size, unpack_messages
from fairtape.wire.frames import Malformed


def decode_single(payload: bytes, place: Mapping[str, int | bool]) -> Single:
    """The record of a message that is no trade, with this place (the names are those of PLACE_DTYPE)."""
    known = {name: None if value == ABSENT else value for name, value in place.items()}
    return _read(payload, known) if is_notice(payload) else Message(payload=payload, **known)  # type: ignore[arg-type]


def corrected_of(number: int, trade: PublishedTrade, at: Instant, place: Mapping[str, Any]) -> Corrected:
    """The record of a correction with this place, in which times that do not exist are None."""
    return Corrected(
        number=number,
        venue=trade.venue_name,
        symbol=trade.symbol,
        price=trade.price,
        quantity=trade.quantity,
        trade_id=trade.trade_id,
        flags=trade.flags,
        traded_at=trade.traded_at,
        corrected_at=at,
        **place,
    )


def _read(payload: bytes, place: Mapping[str, Any]) -> Single:
    try:
        notice = decode_notice(payload)
    except BadNotice:
        return Message(payload=payload, **place)
    match notice:
        case CancelNotice(number, venue, symbol, at):
            return Canceled(number=number, venue=venue, symbol=symbol, canceled_at=at, **place)
        case CorrectionNotice(number, trade, at):
            return corrected_of(number, trade, at, place)
        case StatusNotice(venue, status, since):
            return VenueStatus(venue=venue, status=status, since=since, **place)


def batch_of(corrected: Corrected) -> TradeBatch:
    """The corrected trade as a batch of one."""
    trades = blank_trades(1)
    for name in ("venue", "symbol", "price", "quantity", "trade_id", "flags", "traded_at"):
        trades[name] = getattr(corrected, name)
    places = np.zeros(1, PLACE_DTYPE)
    for name in PLACE_DTYPE.names or ():
        value = getattr(corrected, name)
        places[name] = ABSENT if value is None else value
    return TradeBatch(trades, places)


_RECORDS: Final = TRADE_SIZE.to_bytes(2, "big")  # the first bytes of a block of trade records


class _SpanPart(NamedTuple):
    """Consecutive messages of one span."""

    entry: JournalEntry
    span: Span
    offset: int  # the number of the span's messages before them
    rows: int


class EntryDecoder:
    """Decodes the entries of one order, from a number on. It knows which number is due, so a hole becomes a `Gap`."""

    def __init__(self, due: int) -> None:
        self.due = due
        self._assembler = MessageAssembler()

    def decode(self, found: Sequence[JournalEntry | FormationChanged], at: Instant) -> list[Delivery]:
        """Everything in these entries, in order; they were read at this instant."""
        deliveries: list[Delivery] = []
        uniform: list[JournalEntry] = []  # consecutive entries that consist of records only
        rows: list[bytes] = []  # theirs
        for each in found:
            more = _record_rows(each) if isinstance(each, JournalEntry) else None
            if uniform and (more is None or not _follows(each, uniform[-1])):
                deliveries += self._from_due(uniform, self._uniform(uniform, rows, at))
                uniform, rows = [], []
            if isinstance(each, FormationChanged):
                deliveries += self._change_formation(each.change)
            elif more is None:
                deliveries += self._from_due([each], self._mixed([each], at))
            else:
                uniform.append(each)
                rows += more
        if uniform:
            deliveries += self._from_due(uniform, self._uniform(uniform, rows, at))
        return deliveries

    def decode_release(self, delivery: Deliver) -> list[Delivery]:
        """The same for Msg(e) as a site releases it."""
        entry = JournalEntry(delivery.ordered, delivery.release, b"", Path(), 0)  # it stands in no file
        return self.decode([entry], delivery.release.released_at)

    def _change_formation(self, change: FormationChange) -> Iterator[Delivery]:
        if change.broken:
            # Other messages may have had these numbers: they are handed over again from here on.
            self.due = min(self.due, change.sequence)
            self._assembler.clear()
        kind = Break if change.broken else Reformation
        yield kind(change.sequence, change.formation, change.installed_at, change.stripe)

    def _from_due(self, entries: Sequence[JournalEntry], contents: Iterable[TradeBatch | Single]) -> Iterator[Delivery]:
        """The gap before consecutive entries, and their contents from the number due on."""
        first = entries[0].ordered
        if first.sequence > self.due:
            yield Gap(self.due, first.sequence - self.due, first.stripe)
        for content in contents:
            if isinstance(content, TradeBatch):
                behind = int(np.searchsorted(content.places["sequence"], self.due))
                if behind < content.rows:
                    yield content.slice(behind) if behind else content
            elif content.sequence >= self.due:
                yield content
        self.due = entries[-1].end

    def _uniform(
        self, entries: Sequence[JournalEntry], rows: Sequence[bytes], at: Instant
    ) -> Iterable[TradeBatch | Single]:
        try:
            trades = records(b"".join(rows))
        except BadTrade:
            return self._mixed(entries, at)
        runs = [_SpanPart(entry, span, 0, span.count) for entry in entries for span in entry.ordered.spans]
        return [TradeBatch(trades, _places(runs, at))]

    def _mixed(self, entries: Sequence[JournalEntry], at: Instant) -> Iterator[TradeBatch | Single]:
        """Message by message; consecutive trades are one batch."""
        runs: list[_SpanPart] = []  # consecutive messages of a trade's size
        payloads: list[bytes] = []  # theirs
        for entry in entries:
            for run, payload in self._messages(entry):
                if len(payload) == run.rows * TRADE_SIZE:
                    runs.append(run)
                    payloads.append(payload)
                    continue
                yield from _trades(runs, payloads, at)
                runs, payloads = [], []
                yield _single(payload, run, at)
        yield from _trades(runs, payloads, at)

    def _messages(self, entry: JournalEntry) -> Iterator[tuple[_SpanPart, bytes]]:
        """The messages of an entry; a block of records of a trade's size is one run."""
        for span in entry.ordered.spans:
            for sequence, body, count, fragment in blocks(span):
                offset = sequence - span.sequence
                if not fragment and _holds_records(body, count):
                    yield _SpanPart(entry, span, offset, count), body[len(_RECORDS) :]
                else:
                    payloads = self._payloads(entry, span, body, count, fragment=fragment)
                    for place, payload in enumerate(payloads, offset):
                        yield _SpanPart(entry, span, place, 1), payload

    def _payloads(self, entry: JournalEntry, span: Span, body: bytes, count: int, *, fragment: bool) -> list[bytes]:
        if not fragment:
            try:
                return unpack_messages(body, count)
            except Malformed as error:
                raise Damaged(entry.path, entry.offset, span.sequence, str(error)) from None
        payload = self._assembler.add((span.source, span.incarnation), body)
        return [] if payload is None else [payload]


def _trades(runs: Sequence[_SpanPart], payloads: Sequence[bytes], at: Instant) -> Iterator[TradeBatch | Single]:
    """Messages of a trade's size; each of them that is no trade becomes a record of its own."""
    if not runs:
        return
    try:
        trades = records(b"".join(payloads))
    except BadTrade:
        yield from _one_by_one(runs, payloads, at)
    else:
        yield TradeBatch(trades, _places(runs, at))


def _one_by_one(runs: Sequence[_SpanPart], payloads: Sequence[bytes], at: Instant) -> Iterator[TradeBatch | Single]:
    batches: list[TradeBatch] = []
    for run, rows in zip(runs, payloads, strict=True):
        for step in range(run.rows):
            payload = rows[step * TRADE_SIZE : (step + 1) * TRADE_SIZE]
            one = run._replace(offset=run.offset + step, rows=1)
            try:
                batches.append(TradeBatch(records(payload), _places([one], at)))
            except BadTrade:
                if batches:
                    yield join_batches(batches)
                    batches = []
                yield _single(payload, one, at)
    if batches:
        yield join_batches(batches)


def _single(payload: bytes, run: _SpanPart, at: Instant) -> Single:
    return decode_single(payload, dict(zip(PLACE_DTYPE.names or (), _place(run, at), strict=True)))


def _record_rows(entry: JournalEntry) -> list[bytes] | None:
    """The records of an entry that consists of blocks of records of a trade's size; None for any other entry."""
    rows: list[bytes] = []
    for span in entry.ordered.spans:
        if span.fragments or not all(map(_holds_records, span.bodies, span.counts)):
            return None
        rows += [body[len(_RECORDS) :] for body in span.bodies]
    return rows


def _holds_records(body: bytes, count: int) -> bool:
    return body.startswith(_RECORDS) and len(body) == records_size(count, TRADE_SIZE)


def _follows(each: JournalEntry | FormationChanged, before: JournalEntry) -> bool:
    return isinstance(each, JournalEntry) and each.ordered.sequence == before.end


def _places(runs: Sequence[_SpanPart], at: Instant) -> PlaceRows:
    """The places of the messages of these runs, one row each."""
    counts = [run.rows for run in runs]
    table = np.array([_place(run, at) for run in runs], PLACE_DTYPE)
    places: PlaceRows = np.repeat(table, counts)
    within = np.arange(len(places))
    if len(runs) > 1:
        within -= np.repeat(np.cumsum(counts) - counts, counts)
    for name in ("sequence", "source_number", "stripe_number"):
        places[name] += within
    return places


def _place(run: _SpanPart, at: Instant) -> tuple[int | bool, ...]:
    """The row of the first message of a run, with the columns of PLACE_DTYPE."""
    ordered, release, span = run.entry.ordered, run.entry.release, run.span
    sequence = span.sequence + run.offset
    numbers = sequence, span.source, span.incarnation, span.first + run.offset, ordered.stripe, sequence
    if release is None:
        return (*numbers, ordered.acknowledged_at, ABSENT, ABSENT, at, ABSENT, False)
    times = ordered.acknowledged_at, release.commit_at, release.released_at, at, release.clock_bound
    return (*numbers, *times, release.late)
