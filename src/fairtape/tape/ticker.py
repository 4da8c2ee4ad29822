"""The unified ticker: the last sale and the volume of every symbol, and how every venue stands. TRMP 2001 §7.1.

A replica anywhere applies the same order and has the same state; `digest` says whether two of them have. Nothing but
the order counts: what a venue takes back is void because a notice of it is in the order, and a venue is silent because
the order goes on without it.

Only the source that published a trade can take it back or correct it, once, and for as long as the trade is *open*
(see `sales`). Every other notice is refused, and says why; the state is as if it had never come.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.effects import Deliver, FormationChange, Ordered, Span
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.spans import blocks
from fairtape.market.notices import BadNotice, Cancel, Correction, Status, VenueStatus, decode_notice, is_notice
from fairtape.market.symbols import Symbol
from fairtape.market.trades import TRADE_SIZE, BadTrade, records
from fairtape.tape.sales import OPEN_MAX, SYMBOLS_MAX, Sale, Sales, SymbolSales, Volume
from fairtape.wire.blocks import uniform_records, unpack_messages
from fairtape.wire.frames import Malformed

# Venues as the order shows them: who speaks for each, by which clock, how much it trades, and whether it does at all.
#
# The only clock here is that of the order: the timestamps of its tokens, equal everywhere. So all replicas call a venue
# silent at the same place of the order, and none of them because its own machine was slow.

VENUES_MAX: Final = 1_024
SILENCE_PERIOD: Final = 30 * SECOND


class VenueState(Enum):
    """How a venue stands."""

    OPEN = "open"
    HALTED = "halted"  # it said so
    SILENT = "silent"  # it says nothing, and did not say why


@dataclass(slots=True)
class VenueRecord:
    """One venue."""

    name: str  # empty: trades that name none
    source: int  # who spoke for it first: its identity
    incarnation: int  # of that source, the latest
    heard_at: Instant  # the time of the last token with a message of it
    volume: Volume = field(default_factory=Volume)
    canceled: int = 0
    corrected: int = 0
    foreign: int = 0  # trades in its name that another source published
    halted: bool = False
    standing: VenueState = VenueState.OPEN
    delay_min: Duration | None = None  # from a trade, by the venue's clock, to its token, by the order's

    @property
    def clock_ahead(self) -> Duration:
        """How far its clock is ahead at least: no trade happens after it was put into the order."""
        return max(-(self.delay_min or 0), 0)


class Venues:
    """All venues."""

    def __init__(self, *, silence_period: Duration = SILENCE_PERIOD, venues_max: int = VENUES_MAX) -> None:
        self.unlisted = 0  # messages of venues beyond the limit
        self._silence_period = silence_period
        self._venues_max = venues_max
        self._venues: dict[str, VenueRecord] = {}

    def __iter__(self) -> Iterator[VenueRecord]:
        return iter(self._venues.values())

    def of(self, name: str) -> VenueRecord | None:
        """What is known of a venue; None where it never spoke."""
        return self._venues.get(name)

    def hear(self, name: str, source: int, incarnation: int, at: Instant) -> VenueRecord | None:
        """A message in a venue's name; None where there is no room for another one."""
        venue = self._venues.get(name)
        if venue is None:
            if len(self._venues) >= self._venues_max:
                self.unlisted += 1
                return None
            venue = self._venues[name] = VenueRecord(name, source, incarnation, at)
        if venue.source == source:
            venue.incarnation = incarnation
            venue.heard_at = at
        return venue

    def look(self, now: Instant) -> list[VenueRecord]:
        """Those whose standing is another one since the last look, at this time of the order."""
        changed = []
        for venue in self._venues.values():
            if venue.halted:
                standing = VenueState.HALTED
            else:
                silent = now - venue.heard_at > self._silence_period
                standing = VenueState.SILENT if silent else VenueState.OPEN
            if standing is not venue.standing:
                venue.standing = standing
                changed.append(venue)
        return changed


class NoticeRefusal(Enum):
    """Why a notice was refused."""

    UNKNOWN = "no such trade is open: it is too old, was taken back before, or never was"
    FOREIGN = "another source published what it is about"
    OTHER = "it names another venue or symbol than the trade has"
    CROWDED = "there are too many venues"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickerOptions:
    """Equal at all replicas, or their states differ."""

    open_max: int = OPEN_MAX  # trades that can be taken back
    symbols_max: int = SYMBOLS_MAX
    venues_max: int = VENUES_MAX
    silence_period: Duration = SILENCE_PERIOD  # of the order, without a message of a venue


@dataclass(frozen=True, slots=True)
class Sold:
    """A trade: the last sale of its symbol from now on."""

    sale: Sale


@dataclass(frozen=True, slots=True)
class TradeCanceled:
    """A trade never was. `last` is the last sale of its symbol now."""

    sale: Sale
    last: Sale | None


@dataclass(frozen=True, slots=True)
class TradeCorrected:
    """A trade was another one. `last` is the last sale of its symbol now."""

    wrong: Sale
    sale: Sale
    last: Sale | None


@dataclass(frozen=True, slots=True)
class VenueChange:
    """A venue stands otherwise, since a token of this time."""

    venue: str
    standing: VenueState
    at: Instant


@dataclass(frozen=True, slots=True)
class NoticeRefused:
    """The notice with this number changed nothing."""

    number: int
    why: NoticeRefusal


Output: TypeAlias = Sold | TradeCanceled | TradeCorrected | VenueChange | NoticeRefused


class _Origin(NamedTuple):
    """Where a message comes from: its number, and the clock of the order."""

    number: int
    source: int
    incarnation: int
    at: Instant


class Ticker:
    """One replica, from the number `due` on."""

    def __init__(self, *, due: int = 1, options: TickerOptions | None = None) -> None:
        chosen = options or TickerOptions()
        self.due = due  # the number of the next message
        self.sound = True  # False: it has counted what a Break took out of the order; begin anew, from a journal
        self.others = 0  # messages that are no concern of the ticker
        self.sales = Sales(open_max=chosen.open_max, symbols_max=chosen.symbols_max)
        self.venues = Venues(silence_period=chosen.silence_period, venues_max=chosen.venues_max)

    def apply(self, delivery: Deliver) -> list[Output]:
        """The next token of the order; one that was applied before changes nothing."""
        ordered = delivery.ordered
        if ordered.sequence < self.due:
            return []
        assert ordered.sequence == self.due, f"number {self.due} is due, and {ordered.sequence} came"
        self.due += ordered.count
        outputs: list[Output] = []
        for span in ordered.spans:
            outputs += self._apply_span(span, ordered)
        changed = self.venues.look(ordered.acknowledged_at)
        return outputs + [VenueChange(each.name, each.standing, ordered.acknowledged_at) for each in changed]

    def turn(self, change: FormationChange) -> None:
        """A formation takes over. After a Break its numbers may have been used otherwise before, and counted here."""
        if change.broken:
            self.sound &= change.sequence >= self.due
            self.due = change.sequence

    def last_sale(self, symbol: Symbol) -> Sale | None:
        """None where it was never traded, or everything was taken back."""
        row = self.sales.of(symbol)
        return None if row is None else row.last

    def directory(self) -> list[SymbolSales]:
        """All symbols that were ever traded, by name."""
        return sorted(self.sales, key=lambda row: row.symbol)

    def digest(self) -> bytes:
        """Equal where everything is equal that was, is, or can become visible. It reads all of the state."""
        state = sha256()
        for part in self._state():
            state.update(repr(part).encode("ascii"))
            state.update(b"\n")
        return state.digest()

    def _state(self) -> Iterator[tuple[object, ...]]:
        yield self.due, self.sound, self.others, self.sales.unlisted, self.venues.unlisted
        for row in self.directory():
            volume, settled = row.volume, row.settled
            yield row.symbol, volume.quantity, volume.trades, sorted(row.venues), settled and tuple(settled)
        for venue in sorted(self.venues, key=lambda each: each.name):
            yield venue.name, venue.source, venue.incarnation, venue.heard_at, venue.delay_min, venue.standing.value
            yield venue.halted, venue.volume.quantity, venue.volume.trades, venue.canceled, venue.corrected
            yield (venue.foreign,)
        for sale in self.sales.all_open:
            yield tuple(sale)

    def _apply_span(self, span: Span, ordered: Ordered) -> Iterator[Output]:
        for number, body, count, fragment in blocks(span):
            origin = _Origin(number, span.source, span.incarnation, ordered.acknowledged_at)
            uniform = None if fragment else uniform_records(body, count)
            if uniform is not None and uniform[0] == TRADE_SIZE:
                yield from self._sell(bytes(uniform[1]), origin)
            elif fragment:
                self.others += count  # nothing that the ticker reads is as long as that
            else:
                for step, payload in enumerate(_messages(body, count)):
                    yield from self._apply_message(payload, origin._replace(number=number + step))

    def _apply_message(self, payload: bytes, origin: _Origin) -> Sequence[Output]:
        if len(payload) == TRADE_SIZE:
            return list(self._sell(payload, origin))
        if not is_notice(payload):
            self.others += 1
            return ()
        try:
            notice = decode_notice(payload)
        except BadNotice:
            self.others += 1
            return ()
        match notice:
            case Cancel():
                return (self._cancel(notice, origin),)
            case Correction():
                return (self._correct(notice, origin),)
            case VenueStatus():
                return self._heed(notice, origin)

    def _sell(self, octets: bytes, origin: _Origin) -> Iterator[Output]:
        """Trades back to back; where one of them is none, each is looked at by itself."""
        try:
            rows = records(octets)
        except BadTrade:
            if len(octets) == TRADE_SIZE:
                self.others += 1
                return
            for step in range(len(octets) // TRADE_SIZE):
                record = octets[step * TRADE_SIZE : (step + 1) * TRADE_SIZE]
                yield from self._sell(record, origin._replace(number=origin.number + step))
            return
        for number, row in enumerate(rows.tolist(), origin.number):
            _, _, _, venue, symbol, price, quantity, traded_at, _ = row
            sale = Sale(
                number, number, origin.source, venue.decode("ascii"), symbol.decode("ascii"), price, quantity, traded_at
            )
            if self.sales.add(sale):
                self._note(sale, origin)
                yield Sold(sale)

    def _note(self, sale: Sale, origin: _Origin) -> None:
        """What a trade says of its venue."""
        venue = self.venues.hear(sale.venue, origin.source, origin.incarnation, origin.at)
        if venue is None:
            return
        venue.volume.add(sale.quantity)
        venue.foreign += venue.source != origin.source
        delay = origin.at - sale.traded_at
        venue.delay_min = delay if venue.delay_min is None else min(venue.delay_min, delay)

    def _cancel(self, notice: Cancel, origin: _Origin) -> Output:
        wrong = self.sales.open(notice.number)
        if wrong is None:
            return NoticeRefused(origin.number, NoticeRefusal.UNKNOWN)
        objection = _objection(wrong, origin.source, notice.venue, notice.symbol)
        if objection is not None:
            return NoticeRefused(origin.number, objection)
        self.sales.take_back(wrong)
        venue = self._take_back_at_venue(wrong, origin)
        if venue is not None:
            venue.canceled += 1
        return TradeCanceled(wrong, self.last_sale(wrong.symbol))

    def _correct(self, notice: Correction, origin: _Origin) -> Output:
        trade, wrong = notice.trade, self.sales.open(notice.number)
        if wrong is None:
            return NoticeRefused(origin.number, NoticeRefusal.UNKNOWN)
        objection = _objection(wrong, origin.source, trade.venue_name, trade.symbol)
        if objection is not None:
            return NoticeRefused(origin.number, objection)
        right = wrong._replace(
            number=origin.number, price=trade.price, quantity=trade.quantity, traded_at=trade.traded_at
        )
        self.sales.replace(wrong, right)
        venue = self._take_back_at_venue(wrong, origin)
        if venue is not None:
            venue.volume.add(right.quantity)
            venue.corrected += 1
        return TradeCorrected(wrong, right, self.last_sale(right.symbol))

    def _take_back_at_venue(self, wrong: Sale, origin: _Origin) -> VenueRecord | None:
        venue = self.venues.of(wrong.venue)
        if venue is not None:
            self.venues.hear(wrong.venue, origin.source, origin.incarnation, origin.at)
            venue.volume.take_back(wrong.quantity)
        return venue

    def _heed(self, notice: VenueStatus, origin: _Origin) -> Sequence[Output]:
        """A venue says how it stands; `Venues.look` tells, once the whole token was applied."""
        venue = self.venues.hear(notice.venue, origin.source, origin.incarnation, origin.at)
        if venue is None:
            return (NoticeRefused(origin.number, NoticeRefusal.CROWDED),)
        if venue.source != origin.source:
            return (NoticeRefused(origin.number, NoticeRefusal.FOREIGN),)
        venue.halted = notice.status is Status.HALTED
        return ()


def _objection(wrong: Sale, source: int, venue: str, symbol: Symbol) -> NoticeRefusal | None:
    if wrong.source != source:
        return NoticeRefusal.FOREIGN
    return NoticeRefusal.OTHER if (wrong.venue, wrong.symbol) != (venue, symbol) else None


def _messages(body: bytes, count: int) -> list[bytes]:
    """The messages of a body; none where it is none of ours, which a receiver would not have taken."""
    try:
        return unpack_messages(body, count)
    except Malformed:
        return []
