"""One customer: its subscription, its replay of the past, and its backlog when it is slower than the order.

A customer is *live* while its connection takes what is sent: it gets the frames of its channel. When the connection is
full the customer *lags*: what comes waits in a bounded backlog, and its policy decides what happens when that is full.
A customer that asked for the past *replays* it at its own pace, the far past from the journal and the recent past from
memory; where the replay reaches the live end, the customer becomes live in the same step. A slow customer costs the
others nothing: a backlog holds references to what all have in common, and its limit is counted in records.
"""

from typing import Final, Protocol

from fairtape.client.backlog import Backlog, Item, Policy, size_of
from fairtape.client.selection import Selection
from fairtape.core.instants import Instant
from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import Delivery, number_after
from fairtape.tape.records import Break, Gap, Merged, Placed, Skipped, Snapshot
from fairtape.web.encoding import ROWS_MAX, encode_frame
from fairtape.web.subscription import SlowPolicy, Subscription
from fairtape.web.ticker import DeliveryReader, LiveTicker

PIECE_ROWS: Final = 256  # records of the recent past in one piece: some milliseconds of JSON


class CustomerReplay:
    """The order from a number on, up to its live end."""

    def __init__(self, ticker: LiveTicker, start: int) -> None:
        self._ticker = ticker
        self._due = start
        self._reader: DeliveryReader | None = None
        self._index = ticker.tail.find(start)  # of the next delivery in memory; None where it has to be read

    @property
    def is_over(self) -> bool:
        """Whether the live end is reached."""
        return self._index == self._ticker.tail.end

    def take(self) -> list[Delivery]:
        """The next piece; may be empty before the end."""
        tail = self._ticker.tail
        if self._index is not None and self._index < tail.start:
            # Memory has moved on. A Break uses numbers again; a customer beyond it goes on with the Break itself.
            self._index = tail.start if tail.first < self._due else tail.find(self._due)
        if self._index is None:
            return self._read()
        found: list[Delivery] = []
        rows = 0
        while self._index < tail.end and rows < PIECE_ROWS:
            delivery, after = tail.at(self._index)
            self._index += 1
            if isinstance(delivery, TradeBatch) and delivery.first < self._due <= delivery.last:
                delivery = delivery.where(delivery.places["sequence"] >= self._due)
            found.append(delivery)
            rows += delivery.rows if isinstance(delivery, TradeBatch) else 1
            self._due = after
        return found

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _read(self) -> list[Delivery]:
        """Read from the journal until memory holds the number that is due."""
        if self._reader is None:
            self._reader = DeliveryReader(self._ticker.journal, self._due)
        found = self._reader.take()
        self._due = self._reader.due
        if self._reader.ends_with_message or not found:
            self._index = self._ticker.tail.find(self._due)
        if self._index is not None:
            self.close()
        return found


QUEUE_MAX: Final = 16_384  # records that wait for one customer
QUEUE_MIN: Final = 2_048
NOTICES_MAX: Final = 256  # that wait for one customer: they are never left out, so a customer with more is closed

_POLICIES: Final = {
    SlowPolicy.SKIP: Policy.SKIP,
    SlowPolicy.CONFLATE: Policy.CONFLATE,
    SlowPolicy.DISCONNECT: Policy.SKIP,
}


class CustomerConnection(Protocol):
    """The connection of one customer, as the broadcaster sees it."""

    def write(self, frame: bytes, /) -> object:
        """Send a frame. May call `WebCustomer.pause` before it returns."""

    def end(self, code: int, reason: str, notice: dict[str, object]) -> None:
        """Send a notice with the reason, and close."""


class TooSlow(Exception):
    """The backlog of a customer is full, and its policy does not let it drop anything."""


class WebCustomer:
    """The state of one customer."""

    def __init__(self, connection: CustomerConnection, *, queue_max: int = QUEUE_MAX) -> None:
        assert queue_max >= QUEUE_MIN
        self.connection = connection
        self.live = False  # it is sent the frames of its channel
        self.subscription: Subscription | None = None
        self.selection = Selection(None, None)
        self.replay: CustomerReplay | None = None
        self.due = 0  # while it lags: the number that it has to go on with
        self.skipped = 0  # records that it was not sent and that the broadcaster has not counted yet
        self.merged = 0
        self._queue_max = queue_max
        self._writable = True
        self._backlog: Backlog | None = None
        self._borrowed = 0
        self._notices = 0  # that wait

    @property
    def writable(self) -> bool:
        """Whether its connection takes more."""
        return self._writable

    @property
    def lags(self) -> bool:
        return self._backlog is not None

    @property
    def waiting(self) -> int:
        """Records that wait for it."""
        return 0 if self._backlog is None else len(self._backlog)

    def subscribe(self, subscription: Subscription, replay: CustomerReplay | None) -> None:
        """Replace the subscription."""
        self.unsubscribe()
        self.subscription, self.selection, self.replay = subscription, subscription.selection, replay
        self._settle()

    def unsubscribe(self) -> None:
        """End the subscription, and drop what waits."""
        self.subscription = None
        self.live = False
        self._drop_backlog()
        if self.replay is not None:
            self.replay.close()
            self.replay = None

    def pause(self) -> None:
        """The connection takes no more for now."""
        self._writable = self.live = False

    def enqueue(self, item: Item) -> None:
        """Queue an item that its channel sends while it is not live. Raises `TooSlow` by its policy."""
        assert self.subscription is not None
        if self.replay is not None:
            return  # the replay will reach it
        if self._backlog is None:
            self._backlog, self._borrowed = (
                Backlog(policy=_POLICIES[self.subscription.policy], size_max=self._queue_max),
                0,
            )
            self._notices = self.due = 0
        self.due = self.due or _first(item)
        self._notices += _is_kept_notice(item)
        overflows = len(self._backlog) + size_of(item) > self._queue_max
        if self._notices > NOTICES_MAX or (overflows and self.subscription.policy is SlowPolicy.DISCONNECT):
            raise TooSlow
        self._backlog.put(item)

    def resume(self, now: Instant) -> None:
        """The connection takes more again: send what waits."""
        self._writable = True
        while self._writable and self._backlog is not None:
            assert self.subscription is not None
            lent = self._backlog.borrow(self._borrowed, wait=False)
            if lent is None:
                self._drop_backlog()
                break
            self._borrowed, item = lent
            self._notices -= _is_kept_notice(item)
            self.due = number_after(item, self.due)
            self.send(item, now)
        self._settle()

    def send(self, item: Item, now: Instant) -> None:
        """Send an item to this customer alone."""
        assert self.subscription is not None
        if isinstance(item, TradeBatch):
            for start in range(0, item.rows, ROWS_MAX):
                self.connection.write(
                    encode_frame(item.slice(start, start + ROWS_MAX), self.subscription.encoding, now)
                )
        else:
            self.connection.write(encode_frame(item, self.subscription.encoding, now))

    def send_snapshot(self, first: int, through: int, sales: TradeBatch, now: Instant) -> None:
        """Send the last sale of each symbol that it subscribed to."""
        wanted = self.selection.of_batch(sales)
        self.send(Snapshot(first, through, wanted.rows), now)
        self.send(wanted, now)

    def finish_replay(self) -> None:
        assert self.replay is not None
        self.replay.close()
        self.replay = None
        self._settle()

    def _settle(self) -> None:
        subscribed = self.subscription is not None
        self.live = subscribed and self._writable and self._backlog is None and self.replay is None

    def _drop_backlog(self) -> None:
        if self._backlog is not None:
            self.skipped += self._backlog.skipped
            self.merged += self._backlog.merged
            self._backlog.close()
            self._backlog = None


def _is_kept_notice(item: Item) -> bool:
    """Whether this is a notice of the order; the backlog bounds its own notices."""
    return not isinstance(item, TradeBatch | Placed | Skipped | Merged)


def _first(item: Item) -> int:
    """The first number of an item; 0 where it has none."""
    match item:
        case TradeBatch() | Gap():
            return item.first
        case Placed() | Break():
            return item.sequence
    return 0
