"""Entries of a journal become deliveries: lots of trades, messages that are none, and notices at their places.

The usual entry is made of blocks full of trade records. Many such entries are taken at once: their blocks are joined
and looked at as one array, and the numbers and times of their tokens are spread over its rows. Whatever else an entry
holds is opened message by message.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from fairtape.core.effects import FormationChange, Span
from fairtape.core.instants import Instant
from fairtape.core.spans import MessageAssembler
from fairtape.journal import Damaged, FormationChanged, JournalEntry
from fairtape.market import notices
from fairtape.market.notices import BadNotice, Cancel, Correction, decode_notice, is_notice
from fairtape.market.trades import TRADE_SIZE, BadTrade, Trade, blank_trades, records
from fairtape.tape.batches import PLACE_DTYPE, Places, TradeBatch, join_batches
from fairtape.tape.feed import Delivery
from fairtape.tape.records import ABSENT, Break, Canceled, Corrected, Gap, Message, Reformation, Single, VenueStatus
from fairtape.wire.blocks import records_size
from fairtape.wire.frames import Malformed

# Messages that are no trades, one by one: what a payload says, and the trade that a correction tells of.


def decode_single(payload: bytes, place: Mapping[str, int | bool]) -> Single:
    """The record of a message with this place, whose names are those of PLACE_DTYPE."""
    known = {name: None if value == ABSENT else value for name, value in place.items()}
    return _read(payload, known) if is_notice(payload) else Message(payload=payload, **known)  # type: ignore[arg-type]


def corrected_of(number: int, trade: Trade, at: Instant, place: Mapping[str, Any]) -> Corrected:
    """The record of a correction with this place, in which what does not exist is None."""
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
        case Cancel(number, venue, symbol, at):
            return Canceled(number=number, venue=venue, symbol=symbol, canceled_at=at, **place)
        case Correction(number, trade, at):
            return corrected_of(number, trade, at, place)
        case notices.VenueStatus(venue, status, since):
            return VenueStatus(venue=venue, status=status, since=since, **place)


def batch_of(corrected: Corrected) -> TradeBatch:
    """The trade as it really was: a lot of one."""
    trades = blank_trades(1)
    for name in ("venue", "symbol", "price", "quantity", "trade_id", "flags", "traded_at"):
        trades[name] = getattr(corrected, name)
    places = np.zeros(1, PLACE_DTYPE)
    for name in PLACE_DTYPE.names or ():
        value = getattr(corrected, name)
        places[name] = ABSENT if value is None else value
    return TradeBatch(trades, places)


_RECORDS: Final = TRADE_SIZE.to_bytes(2, "big")  # how a block of trade records begins


class _Run(NamedTuple):
    """Consecutive messages of one span."""

    entry: JournalEntry
    span: Span
    offset: int  # how many of the span's messages are before them
    rows: int


class EntryDecoder:
    """Opens the entries of one order, from a number on. Knows which number is due, so a hole becomes a `Gap`."""

    def __init__(self, due: int) -> None:
        self.due = due
        self._assembler = MessageAssembler()

    def opened(self, found: Sequence[JournalEntry | FormationChanged], at: Instant) -> list[Delivery]:
        """All that stands in what was read at this instant, in order."""
        deliveries: list[Delivery] = []
        alike: list[JournalEntry] = []  # entries in a row that are made of nothing but records
        rows: list[bytes] = []  # theirs
        for each in found:
            more = _record_rows(each) if isinstance(each, JournalEntry) else None
            if alike and (more is None or not _follows(each, alike[-1])):
                deliveries += self._taken(alike, self._uniform(alike, rows, at))
                alike, rows = [], []
            if isinstance(each, FormationChanged):
                deliveries += self._turned(each.change)
            elif more is None:
                deliveries += self._taken([each], self._mixed([each], at))
            else:
                alike.append(each)
                rows += more
        if alike:
            deliveries += self._taken(alike, self._uniform(alike, rows, at))
        return deliveries

    def _turned(self, change: FormationChange) -> Iterator[Delivery]:
        if change.broken:
            # Other messages may have had these numbers: they are handed out again from here on.
            self.due = min(self.due, change.sequence)
            self._assembler.clear()
        kind = Break if change.broken else Reformation
        yield kind(change.sequence, change.formation, change.installed_at, change.stripe)

    def _taken(self, entries: Sequence[JournalEntry], contents: Iterable[TradeBatch | Single]) -> Iterator[Delivery]:
        """What is missing before entries that follow one another, and their contents from the number due on."""
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
        runs = [_Run(entry, span, 0, span.count) for entry in entries for span in entry.ordered.spans]
        return [TradeBatch(trades, _places(runs, at))]

    def _mixed(self, entries: Sequence[JournalEntry], at: Instant) -> Iterator[TradeBatch | Single]:
        """Message by message, trades that follow one another together."""
        lots: list[TradeBatch] = []
        for entry in entries:
            for run, payload in self._messages(entry):
                try:
                    lots.append(
                        TradeBatch(records(payload if len(payload) == TRADE_SIZE else b"-"), _places([run], at))
                    )
                except BadTrade:
                    if lots:
                        yield join_batches(lots)
                        lots = []
                    yield decode_single(payload, dict(zip(PLACE_DTYPE.names or (), _place(run, at), strict=True)))
        if lots:
            yield join_batches(lots)

    def _messages(self, entry: JournalEntry) -> Iterator[tuple[_Run, bytes]]:
        for span in entry.ordered.spans:
            try:
                for sequence, payload in self._assembler.messages(span):
                    yield _Run(entry, span, sequence - span.sequence, 1), payload
            except Malformed as error:
                raise Damaged(entry.path, entry.offset, span.sequence, str(error)) from None


def _record_rows(entry: JournalEntry) -> list[bytes] | None:
    """The records of an entry that is made of nothing but blocks of records of a trade's size; None of any other."""
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


def _places(runs: Sequence[_Run], at: Instant) -> Places:
    """Where the messages of these runs stand, a row for each."""
    counts = [run.rows for run in runs]
    table = np.array([_place(run, at) for run in runs], PLACE_DTYPE)
    places: Places = np.repeat(table, counts)
    within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    for name in ("sequence", "source_number", "stripe_number"):
        places[name] += within
    return places


def _place(run: _Run, at: Instant) -> tuple[int | bool, ...]:
    """The row of the first message of a run, with the columns of PLACE_DTYPE."""
    ordered, release, span = run.entry.ordered, run.entry.release, run.span
    sequence = span.sequence + run.offset
    numbers = sequence, span.source, span.incarnation, span.first + run.offset, ordered.stripe, sequence
    if release is None:
        return (*numbers, ordered.acknowledged_at, ABSENT, ABSENT, at, ABSENT, False)
    times = ordered.acknowledged_at, release.commit_at, release.released_at, at, release.clock_bound
    return (*numbers, *times, release.late)
