"""One customer: what it subscribed to, and what becomes of it when it is slower than the order.

A customer is *live* while its line takes what is sent: it gets the frames that everybody of its channel gets. When its
line is full it *lags*: what comes waits in a bounded backlog, and its policy decides what happens when that is full. A
customer who asked for the past *replays* it at its own pace. It costs the others nothing either way: what waits are
references to what all have in common, and its limit is counted in records.
"""

from typing import Final, Protocol

from fairtape.client.backlog import Backlog, Item, Policy, size_of
from fairtape.client.selection import Selection
from fairtape.core.instants import Instant
from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import Delivery, number_after
from fairtape.tape.records import Break, Gap, Merged, Placed, Skipped, Snapshot
from fairtape.web.encoding import ROWS_MAX, framed
from fairtape.web.subscription import Slow, Subscription
from fairtape.web.ticker import DeliveryReader, LiveTicker

# The past, then the present: what a customer who resumes from a number gets before it is live.
#
# The far past comes from the journal, the recent one from memory. It is taken piece by piece, at the customer's own
# pace; where it ends, in the same step, the customer joins those who are live.

BITE_ROWS: Final = 256  # of the recent past that are taken at once: some milliseconds of JSON


class CustomerReplay:
    """The order from a number on, up to its live end."""

    def __init__(self, ticker: LiveTicker, start: int) -> None:
        self._ticker = ticker
        self._due = start
        self._reading: DeliveryReader | None = None
        self._index = ticker.tail.find(start)  # of the next delivery in memory; None where it has to be read

    @property
    def is_over(self) -> bool:
        """Whether the live end is reached."""
        return self._index == self._ticker.tail.end

    def take(self) -> list[Delivery]:
        """The next piece; may be empty before the end."""
        tail = self._ticker.tail
        if self._index is not None and self._index < tail.start:
            # Memory has moved on. Behind a Break numbers begin anew; who is beyond it goes on with the Break itself.
            self._index = tail.start if tail.first < self._due else tail.find(self._due)
        if self._index is None:
            return self._read()
        found: list[Delivery] = []
        rows = 0
        while self._index < tail.end and rows < BITE_ROWS:
            delivery, after = tail.at(self._index)
            self._index += 1
            if isinstance(delivery, TradeBatch) and delivery.first < self._due <= delivery.last:
                delivery = delivery.where(delivery.places["sequence"] >= self._due)
            found.append(delivery)
            rows += delivery.rows if isinstance(delivery, TradeBatch) else 1
            self._due = after
        return found

    def close(self) -> None:
        """Give the files back."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _read(self) -> list[Delivery]:
        """From the journal, until memory goes on with the number that is due."""
        if self._reading is None:
            self._reading = DeliveryReader(self._ticker.journal, self._due)
        found = self._reading.take()
        self._due = self._reading.due
        if self._reading.ends_with_message or not found:
            self._index = self._ticker.tail.find(self._due)
        if self._index is not None:
            self.close()
        return found


QUEUE_MAX: Final = 16_384  # records that wait for one customer
QUEUE_MIN: Final = 2_048
NOTICES_MAX: Final = 256  # that wait for one customer: they are never left out, so who has more is let go

_POLICIES: Final = {Slow.SKIP: Policy.SKIP, Slow.CONFLATE: Policy.CONFLATE, Slow.DISCONNECT: Policy.SKIP}


class CustomerConnection(Protocol):
    """What carries frames to a customer."""

    def write(self, frame: bytes, /) -> object:
        """Send a frame. May call `WebCustomer.full` before it returns."""

    def end(self, code: int, reason: str, told: dict[str, object]) -> None:
        """Say why, and close."""


class TooSlow(Exception):
    """More waits than may."""


class WebCustomer:
    """Somebody at the other end of a line."""

    def __init__(self, line: CustomerConnection, *, queue_max: int = QUEUE_MAX) -> None:
        assert queue_max >= QUEUE_MIN
        self.line = line
        self.live = False  # it gets what its channel sends
        self.wish: Subscription | None = None
        self.selection = Selection(None, None)
        self.replay: CustomerReplay | None = None
        self.due = 0  # while it lags: the number that it has to go on with
        self.skipped = 0  # records that it was not sent, and whoever counts them has not counted yet
        self.merged = 0
        self._queue_max = queue_max
        self._flowing = True
        self._backlog: Backlog | None = None
        self._loan = 0
        self._notices = 0  # that wait

    @property
    def flowing(self) -> bool:
        """Whether its line takes more."""
        return self._flowing

    @property
    def lags(self) -> bool:
        """Whether something waits for it."""
        return self._backlog is not None

    @property
    def waiting(self) -> int:
        """Records that wait for it."""
        return 0 if self._backlog is None else len(self._backlog)

    def subscribe(self, wish: Subscription, replay: CustomerReplay | None) -> None:
        """Want this from now on, and nothing of what was wanted before."""
        self.unsubscribe()
        self.wish, self.selection, self.replay = wish, wish.selection, replay
        self._settle()

    def unsubscribe(self) -> None:
        """Want nothing; what waits is let go."""
        self.wish = None
        self.live = False
        self._drop_backlog()
        if self.replay is not None:
            self.replay.close()
            self.replay = None

    def full(self) -> None:
        """The line takes no more for now."""
        self._flowing = self.live = False

    def keep(self, item: Item) -> None:
        """Let an item wait that its channel sends while it is not live. Raises `TooSlow` by its policy."""
        assert self.wish is not None
        if self.replay is not None:
            return  # it will come to it
        if self._backlog is None:
            self._backlog, self._loan = Backlog(policy=_POLICIES[self.wish.slow], size_max=self._queue_max), 0
            self._notices = self.due = 0
        self.due = self.due or _first(item)
        self._notices += _is_kept_notice(item)
        overflows = len(self._backlog) + size_of(item) > self._queue_max
        if self._notices > NOTICES_MAX or (overflows and self.wish.slow is Slow.DISCONNECT):
            raise TooSlow
        self._backlog.put(item)

    def free(self, now: Instant) -> None:
        """The line takes more again: send what waits."""
        self._flowing = True
        while self._flowing and self._backlog is not None:
            assert self.wish is not None
            lent = self._backlog.borrow(self._loan, wait=False)
            if lent is None:
                self._drop_backlog()
                break
            self._loan, item = lent
            self._notices -= _is_kept_notice(item)
            self.due = number_after(item, self.due)
            self.send(item, now)
        self._settle()

    def send(self, item: Item, now: Instant) -> None:
        """Send this to nobody else."""
        assert self.wish is not None
        if isinstance(item, TradeBatch):
            for start in range(0, item.rows, ROWS_MAX):
                self.line.write(framed(item.slice(start, start + ROWS_MAX), self.wish.form, now))
        else:
            self.line.write(framed(item, self.wish.form, now))

    def send_snapshot(self, first: int, through: int, sales: TradeBatch, now: Instant) -> None:
        """The last sale of each symbol that it wants."""
        wanted = self.selection.of_lot(sales)
        self.send(Snapshot(first, through, wanted.rows), now)
        self.send(wanted, now)

    def joined(self) -> None:
        """The past is read: be live."""
        assert self.replay is not None
        self.replay.close()
        self.replay = None
        self._settle()

    def _settle(self) -> None:
        subscribed = self.wish is not None
        self.live = subscribed and self._flowing and self._backlog is None and self.replay is None

    def _drop_backlog(self) -> None:
        if self._backlog is not None:
            self.skipped += self._backlog.skipped
            self.merged += self._backlog.merged
            self._backlog.close()
            self._backlog = None


def _is_kept_notice(item: Item) -> bool:
    """Whether this is a notice of the order; those of the backlog itself are as few as it makes them."""
    return not isinstance(item, TradeBatch | Placed | Skipped | Merged)


def _first(item: Item) -> int:
    """The first number of an item; 0 where it has none."""
    match item:
        case TradeBatch() | Gap():
            return item.first
        case Placed() | Break():
            return item.sequence
    return 0
