"""The records of a tape: trades, cancels and corrections, other messages, and notices. All are immutable.

Times are integer nanoseconds UTC, prices and quantities integers of 1e-9: nothing is rounded on its way to the user. A
time that does not exist is None: a trade in a file has no place in an order, so it has neither a token nor a release.

A notice is a record at its place in the stream. It reports what is missing, what a slow reader was not given, or what
happened to the order itself. So a reader of all records knows exactly what it did not receive.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.instants import Duration, Instant
from fairtape.market.notices import Status
from fairtape.market.prices import DECIMALS, format_fixed
from fairtape.wire.frames import NodeId


class Trade(NamedTuple):
    """One trade, its place in the order and its times. A tuple, because a busy tape makes millions of them."""

    sequence: int  # its number in the whole order; in a file, its row
    source: NodeId  # the source that published it
    incarnation: int  # of that source: each begins with number 1
    source_number: int
    stripe: int
    stripe_number: int  # its number in that stripe; in a journal, which holds one core stripe, the sequence itself
    symbol: str
    venue: str  # empty where it has none
    price: int  # 1e-9
    quantity: int  # 1e-9
    trade_id: int  # assigned by the venue
    flags: int  # bits of fairtape.market.trades.TradeFlag
    traded_at: Instant  # source: when it happened, by the clock of the venue
    acknowledged_at: Instant | None  # token: the timestamp with which it was put into the order, the same everywhere
    commit_at: Instant | None  # release: when it was due, the same everywhere
    released_at: Instant | None  # release: when the site of this tape released it
    received_at: Instant | None  # receive: when this client received it, by the clock of this machine
    clock_bound: Duration | None  # the largest error of the releasing site's clock
    late: bool  # it was complete only after its commit instant

    @property
    def price_decimal(self) -> Decimal:
        """The price as an exact decimal."""
        return _decimal(self.price)

    @property
    def quantity_decimal(self) -> Decimal:
        """The quantity as an exact decimal."""
        return _decimal(self.quantity)

    def __str__(self) -> str:
        venue = f"@{self.venue}" if self.venue else ""
        return f"{self.sequence} {self.symbol}{venue} {format_fixed(self.quantity)} at {format_fixed(self.price)}"


def _decimal(fixed: int) -> Decimal:
    """Exact in any decimal context: a context rounds results of arithmetic, not constructed values."""
    return Decimal((fixed < 0, tuple(map(int, str(abs(fixed)))), -DECIMALS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A record that is no trade and has a place in the order; numbers and times are those of a `Trade`."""

    sequence: int
    source: NodeId
    incarnation: int
    source_number: int
    stripe: int
    stripe_number: int
    acknowledged_at: Instant | None
    commit_at: Instant | None
    released_at: Instant | None
    received_at: Instant | None
    clock_bound: Duration | None
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Placed):
    """A message of unknown content. One longer than a block has the number of its last fragment."""

    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Canceled(Placed):
    """The source that published the trade with this number cancels it.

    A cancel by another source, of another venue or symbol, or of a trade that is no longer open changes nothing.
    """

    number: int  # of the trade
    venue: str  # empty where it has none
    symbol: str
    canceled_at: Instant  # by the clock of the venue


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected(Placed):
    """The trade with this number is corrected to `trade`, which counts at the place of the wrong one.

    The rules are those of `Canceled`. From here on the trade is known by the number of its correction.
    """

    number: int  # of the wrong trade
    venue: str
    symbol: str
    price: int  # 1e-9
    quantity: int  # 1e-9
    trade_id: int
    flags: int
    traded_at: Instant
    corrected_at: Instant  # by the clock of the venue

    @property
    def trade(self) -> Trade:
        """The corrected trade, with the number and the times of its correction."""
        return Trade(*(getattr(self, name) for name in Trade._fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class VenueStatus(Placed):
    """A venue halts, or is open again."""

    venue: str
    status: Status
    since: Instant  # by the clock of the venue


@dataclass(frozen=True, slots=True)
class Gap:
    """Consecutive numbers of the order whose messages are missing and will not come."""

    first: int
    count: int
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records that this tape left out because its reader was too slow (policy `skip`).

    The numbers from first to last may include others, which a filter had left out before; `count` is without them.
    """

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Merged:
    """Trades left out for a slow reader, which gets the latest trade of each symbol (policy `conflate`)."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Reformation:
    """From this number on another formation of sites numbers the order. Nothing is missing."""

    sequence: int
    formation: int
    installed_at: Instant | None = None
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Break:
    """Like a reformation, but other messages may have had the numbers from this one on: discard those."""

    sequence: int
    formation: int
    installed_at: Instant | None = None
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing is received any more: what is known may be out of date."""

    since: Instant
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """Something is received again after `Stale`."""

    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Delayed:
    """The sender cannot keep up: one record in a hundred comes later than this delay after its release."""

    delay: Duration
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """Records come in time again after `Delayed`."""

    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The next `count` trades are the last one of each symbol as of number `through`; live records follow them.

    They were found by reading back to number `first`. Symbols whose last trade is before that number are missing, so
    none is missing where the order was read from its beginning.
    """

    first: int
    through: int
    count: int


Notice: TypeAlias = Gap | Skipped | Merged | Reformation | Break | Stale | Fresh | Delayed | Prompt | Snapshot
Revision: TypeAlias = Canceled | Corrected
Single: TypeAlias = Message | Revision | VenueStatus
Record: TypeAlias = Trade | Single | Notice

ABSENT: Final = -1
"""A time that does not exist, in a column of integers: no instant is below zero."""
