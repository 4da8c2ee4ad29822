"""The unified ticker: the last sale and the volume of every symbol, and the state of every venue. TRMP 2001 §7.1.

The ticker is a replicated state machine: replicas that apply the same order have the same state, and `digest` compares
them. The order is its only input. A trade is canceled because the order has a notice of it, and a venue is silent
because the order goes on without its messages. The only clock is that of the order, the timestamps of its tokens, so
all replicas find a venue silent at the same place of the order, whatever the speed of their machines.

Which notices count, and for how long a trade can be revised, is in `fairtape.tape.sales`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.effects import Deliver, FormationChange
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.market.notices import Status
from fairtape.market.symbols import Symbol
from fairtape.tape.batches import TradeBatch
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.records import Canceled, Corrected, Revision, VenueStatus
from fairtape.tape.sales import OPEN_MAX, SYMBOLS_MAX, NoticeRefusal, Sale, Sales, Volume, sales_of

SYMBOL_VENUES_MAX: Final = 256  # venues of one symbol
VENUES_MAX: Final = 1_024
SILENCE_PERIOD: Final = 30 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class TickerOptions:
    """Limits, which must be equal at all replicas, or their states differ."""

    open_max: int = OPEN_MAX  # trades that can be revised
    symbols_max: int = SYMBOLS_MAX
    venues_max: int = VENUES_MAX
    silence_period: Duration = SILENCE_PERIOD  # by the clock of the order, without a message of a venue


@dataclass(frozen=True, slots=True)
class Sold:
    """A trade, which is the last sale of its symbol from now on."""

    sale: Sale


@dataclass(frozen=True, slots=True)
class TradeCanceled:
    """A trade was canceled. `last` is the last sale of its symbol now."""

    sale: Sale
    last: Sale | None


@dataclass(frozen=True, slots=True)
class TradeCorrected:
    """A trade was corrected. `last` is the last sale of its symbol now."""

    wrong: Sale
    sale: Sale
    last: Sale | None


class VenueState(Enum):
    """The state of a venue."""

    OPEN = "open"
    HALTED = "halted"  # it published that it halts
    SILENT = "silent"  # it publishes nothing, without having halted


@dataclass(frozen=True, slots=True)
class VenueChange:
    """The state of a venue changed with a token of this time."""

    venue: str
    state: VenueState
    at: Instant


@dataclass(frozen=True, slots=True)
class NoticeRefused:
    """The notice with this number changed nothing."""

    number: int
    why: NoticeRefusal


Output: TypeAlias = Sold | TradeCanceled | TradeCorrected | VenueChange | NoticeRefused


class DirectoryRow(NamedTuple):
    """One symbol of the directory."""

    symbol: Symbol
    venues: frozenset[str]  # that ever traded it, at most SYMBOL_VENUES_MAX
    last: Sale | None  # None where all sales were canceled
    volume: Volume


class Ticker:
    """One replica, from the number `due` on."""

    def __init__(self, *, due: int = 1, options: TickerOptions | None = None) -> None:
        chosen = options or TickerOptions()
        self.sound = True  # False: it has counted what a Break took out of the order; start again from a journal
        self.others = 0  # messages that are neither trades nor notices
        self.sales = Sales(due, open_max=chosen.open_max, symbols_max=chosen.symbols_max)
        self.venues = Venues(silence_period=chosen.silence_period, venues_max=chosen.venues_max)
        self._symbol_venues: dict[Symbol, set[str]] = {}
        self._decoder = EntryDecoder(due)

    @property
    def due(self) -> int:
        """The number of the next message."""
        return self._decoder.due

    def apply(self, delivery: Deliver) -> list[Output]:
        """Apply the next token of the order; one that was applied before changes nothing."""
        ordered = delivery.ordered
        if ordered.sequence < self.due:
            return []
        assert ordered.sequence == self.due, f"number {self.due} is due, and {ordered.sequence} came"
        outputs: list[Output] = []
        others = ordered.count
        for content in self._decoder.decode_release(delivery):
            match content:
                case TradeBatch():
                    others -= content.rows
                    outputs += self._sell(content, ordered.acknowledged_at)
                case Canceled() | Corrected():
                    others -= 1
                    outputs.append(self._revise(content, ordered.acknowledged_at))
                case VenueStatus():
                    others -= 1
                    outputs += self._update_status(content, ordered.acknowledged_at)
        self.others += others
        changed = self.venues.update_states(ordered.acknowledged_at)
        return outputs + [VenueChange(each.name, each.state, ordered.acknowledged_at) for each in changed]

    def on_formation(self, change: FormationChange) -> None:
        """Take a change of formation. After a Break its numbers may have been used, and counted here, before."""
        if change.broken:
            self.sound &= change.sequence >= self.due
            self._decoder = EntryDecoder(change.sequence)

    def last_sale(self, symbol: Symbol) -> Sale | None:
        """None where the symbol was never traded, or all its sales were canceled."""
        found = self.sales.of(symbol)
        return None if found is None else found.last

    def directory(self) -> list[DirectoryRow]:
        """All symbols that were ever traded, by name."""
        rows = []
        for symbol in self.sales.symbols():
            found = self.sales.of(symbol)
            assert found is not None
            rows.append(DirectoryRow(symbol, frozenset(self._symbol_venues[symbol]), found.last, found.volume))
        return rows

    def digest(self) -> bytes:
        """Equal where everything that was, is, or can become visible is equal. It reads the whole state."""
        state = sha256()
        for part in self._state():
            state.update(repr(part).encode("ascii"))
            state.update(b"\n")
        return state.digest()

    def _state(self) -> Iterator[tuple[object, ...]]:
        yield self.due, self.sound, self.others, self.sales.unlisted, self.venues.unlisted
        for row in self.directory():
            settled = self.sales.settled(row.symbol)
            yield row.symbol, row.volume.quantity, row.volume.trades, sorted(row.venues), settled and tuple(settled)
        for venue in sorted(self.venues, key=lambda each: each.name):
            yield venue.name, venue.source, venue.incarnation, venue.heard_at, venue.delay_min, venue.state.value
            yield venue.halted, venue.volume.quantity, venue.volume.trades, venue.canceled, venue.corrected
            yield (venue.foreign,)
        for sale in self.sales.open_sales():
            yield tuple(sale)

    def _sell(self, batch: TradeBatch, at: Instant) -> Iterator[Output]:
        self.sales.add(batch)
        incarnations = batch.places["incarnation"].tolist()
        sales = sales_of(batch, batch.places["sequence"].tolist())
        for sale, incarnation in zip(sales, incarnations, strict=True):
            if not self.sales.lists(sale.symbol):
                continue
            venues = self._symbol_venues.setdefault(sale.symbol, set())
            if len(venues) < SYMBOL_VENUES_MAX:
                venues.add(sale.venue)
            self._count_at_venue(sale, incarnation, at)
            yield Sold(sale)

    def _count_at_venue(self, sale: Sale, incarnation: int, at: Instant) -> None:
        venue = self.venues.receive(sale.venue, sale.source, incarnation, at)
        if venue is None:
            return
        venue.volume.add(sale.quantity)
        venue.foreign += venue.source != sale.source
        delay = at - sale.traded_at
        venue.delay_min = delay if venue.delay_min is None else min(venue.delay_min, delay)

    def _revise(self, revision: Revision, at: Instant) -> Output:
        wrong = self.sales.revise(revision)
        if isinstance(wrong, NoticeRefusal):
            return NoticeRefused(revision.sequence, wrong)
        venue = self.venues.of(wrong.venue)
        if venue is not None:
            self.venues.receive(wrong.venue, revision.source, revision.incarnation, at)
            venue.volume.subtract(wrong.quantity)
        if isinstance(revision, Canceled):
            if venue is not None:
                venue.canceled += 1
            return TradeCanceled(wrong, self.last_sale(wrong.symbol))
        right = wrong._replace(
            number=revision.sequence, price=revision.price, quantity=revision.quantity, traded_at=revision.traded_at
        )
        if venue is not None:
            venue.volume.add(right.quantity)
            venue.corrected += 1
        return TradeCorrected(wrong, right, self.last_sale(right.symbol))

    def _update_status(self, notice: VenueStatus, at: Instant) -> list[Output]:
        """Take a venue's own status; `Venues.update_states` reports the change after the whole token was applied."""
        venue = self.venues.receive(notice.venue, notice.source, notice.incarnation, at)
        if venue is None:
            return [NoticeRefused(notice.sequence, NoticeRefusal.CROWDED)]
        if venue.source != notice.source:
            return [NoticeRefused(notice.sequence, NoticeRefusal.FOREIGN)]
        venue.halted = notice.status is Status.HALTED
        return []


@dataclass(slots=True)
class VenueRecord:
    """One venue."""

    name: str  # empty: trades that name no venue
    source: int  # the first source that published in its name: its identity
    incarnation: int  # of that source, the latest
    heard_at: Instant  # the time of the last token with a message of it
    volume: Volume = field(default_factory=Volume)
    canceled: int = 0
    corrected: int = 0
    foreign: int = 0  # trades in its name that another source published
    halted: bool = False
    state: VenueState = VenueState.OPEN
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
        """What is known of a venue; None where it published nothing."""
        return self._venues.get(name)

    def receive(self, name: str, source: int, incarnation: int, at: Instant) -> VenueRecord | None:
        """Take a message in a venue's name; None where the venue is beyond the limit."""
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

    def update_states(self, now: Instant) -> list[VenueRecord]:
        """The venues whose state has changed since the last call, at this time of the order."""
        changed = []
        for venue in self._venues.values():
            if venue.halted:
                state = VenueState.HALTED
            else:
                silent = now - venue.heard_at > self._silence_period
                state = VenueState.SILENT if silent else VenueState.OPEN
            if state is not venue.state:
                venue.state = state
                changed.append(venue)
        return changed
