"""What a tape is made of: trades, what venues say about them, other messages, and notices; values that never change.

Times are integer nanoseconds UTC, prices and quantities integers of 1e-9: nothing is rounded on its way to the user. A
time that does not exist is None: a trade in a file was put into no order, so it has neither a token nor a release.

A notice is a record at its place in the stream. It says what is missing, what was left out for a slow reader, or what
happened to the order itself; so whoever reads all records knows exactly what was not read.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.instants import Duration, Instant
from fairtape.market.notices import Status
from fairtape.market.prices import DECIMALS, format_fixed
from fairtape.wire.frames import NodeId


class Trade(NamedTuple):
    """One trade, where it stands in the order and when it was where. A tuple, because a busy tape makes millions."""

    sequence: int  # its number in the whole order; in a file, its row
    source: NodeId  # who published it
    incarnation: int  # of that source: its numbers begin anew with each
    source_number: int
    stripe: int
    stripe_number: int  # its number in that stripe; in a journal, which holds one core stripe, the sequence itself
    symbol: str
    venue: str  # empty where it has none
    price: int  # 1e-9
    quantity: int  # 1e-9
    trade_id: int  # the venue's own number
    flags: int  # bits of fairtape.market.trades.TradeFlag
    traded_at: Instant  # source: when it happened, by the clock of the venue
    acknowledged_at: Instant | None  # token: the timestamp with which it was put into the order, the same everywhere
    commit_at: Instant | None  # release: when it was due, the same everywhere
    released_at: Instant | None  # release: when the site that is heard did it
    received_at: Instant | None  # receive: when this client got it, by the clock of this machine
    clock_bound: Duration | None  # how wrong the releasing site's clock may have been
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
    """Exact whatever the caller's context says: that rounds what is computed, but not what is built."""
    return Decimal((fixed < 0, tuple(map(int, str(abs(fixed)))), -DECIMALS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What is no trade and has a place in the order all the same; the numbers and times are those of a `Trade`."""

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
    """A message of which nothing more is known. One longer than a block bears the number of its last piece."""

    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Canceled(Placed):
    """The trade with this number never was: so says the source that published it.

    Of another source, venue or symbol than the trade's, or of a trade that is not open any more, it changes nothing.
    """

    number: int  # of the trade
    venue: str  # empty where it has none
    symbol: str
    canceled_at: Instant  # by the clock of the venue


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected(Placed):
    """The trade with this number was another one, `trade`, which counts where the wrong one stood. As for `Canceled`.

    From here on the trade is known by the number of its correction.
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
        """The trade as it really was, under the number and with the times of its correction."""
        return Trade(*(getattr(self, name) for name in Trade._fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class VenueStatus(Placed):
    """A venue says that it halts, or is open again."""

    venue: str
    status: Status
    since: Instant  # by the clock of the venue


@dataclass(frozen=True, slots=True)
class Gap:
    """Consecutive numbers of the order whose messages are not there and will not come."""

    first: int
    count: int
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records that this tape left out because its reader was slower (policy `skip`): so many, from first to last.

    Between first and last lie other numbers, too, where a filter had left them out anyway.
    """

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Merged:
    """Trades of which only the latest of each symbol was kept for a slow reader (policy `conflate`): those left out."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Reformation:
    """From this number on another formation of sites numbers the order; nothing is missing."""

    sequence: int
    formation: int
    installed_at: Instant | None = None
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Break:
    """As a reformation, but numbers from this one on may have been used otherwise before: forget what they said."""

    sequence: int
    formation: int
    installed_at: Instant | None = None
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing is heard any more: what is known may be out of date."""

    since: Instant
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """What was stale is heard again."""

    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Delayed:
    """Whoever sends this cannot keep up: one record in a hundred comes later than this after its release."""

    delay: Duration
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What was delayed comes in time again."""

    stripe: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The next `count` trades are the last one of each symbol, as of number `through`; what follows comes after it.

    They were found by reading back to number `first`. A symbol that traded last before it is not among them; where the
    order was read from its beginning, there is none.
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
