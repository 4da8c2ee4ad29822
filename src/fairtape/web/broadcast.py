"""All customers of the ticker, in channels. What the customers of a channel are sent is encoded once for all of them.

The broadcaster works in rounds: a round takes what was released since the last one, and each channel encodes it. With
few customers a round is over at once and the next one may follow in two milliseconds. With many, the pause is as long
as the round was, so that half of the processor is left for other work; but a round begins every 24 milliseconds if it
can, because messages that wait for it grow old.

The order of customers rotates from round to round, so that no customer is always ahead of another.

A customer is *live* while its connection takes what is sent: it gets the frames of its channel. When the connection is
full the customer *lags*: what comes waits in a bounded backlog, and its policy decides what happens when that is full.
A customer that asked for the past *replays* it at its own pace, the far past from the journal and the recent past from
memory; where the replay reaches the live end, the customer becomes live in the same step. A slow customer costs the
others nothing: a backlog holds references to what all have in common, and its limit is counted in records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from fairtape.client.backlog import Backlog, Item, Policy, size_of
from fairtape.client.selection import Selection
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import AtInstant, AtNumber, Beginning, Delivery, number_after
from fairtape.tape.records import Break, Fresh, Gap, Merged, Notice, Placed, Skipped, Snapshot, Stale
from fairtape.web.encoding import ROWS_MAX, Encoding, encode_frame
from fairtape.web.live_ticker import DeliveryReader, LiveTicker
from fairtape.web.subscription import Overload, Refusal, SlowPolicy, Subscription

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
    """One customer: its subscription, its replay of the past, and its backlog when it is slower than the order."""

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


CUSTOMERS_MAX: Final = 2_000
CHANNELS_MAX: Final = 512  # different subscriptions
REPLAYS_MAX: Final = 256  # customers that read the past at a time
PIECES_MAX: Final = 4  # pieces of the past that are sent in a round
PAUSE_MIN: Final = 2 * MILLISECOND
ROUND_PERIOD: Final = 24 * MILLISECOND  # from the beginning of a round to that of the next, if possible

# Close codes of the WebSocket.
TOO_SLOW: Final = 4408
FULL: Final = 4503
UNREADABLE: Final = 4500
GOING_AWAY: Final = 1001


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastLimits:
    """Limits of one server."""

    customers_max: int = CUSTOMERS_MAX
    channels_max: int = CHANNELS_MAX
    replays_max: int = REPLAYS_MAX
    queue_max: int = QUEUE_MAX  # records that wait for a customer


def pause_after(took: Duration) -> Duration:
    """The pause after a round of this length."""
    return max(min(took, ROUND_PERIOD - took), PAUSE_MIN)


class BroadcastChannel:
    """All customers with the same selection and encoding."""

    def __init__(self, selection: Selection, encoding: Encoding) -> None:
        self.selection = selection
        self.encoding = encoding
        self.members: dict[WebCustomer, None] = {}
        self._symbols = None if selection.symbols is None else {name.encode("ascii") for name in selection.symbols}

    def items(self, delivery: Delivery) -> Iterator[Item]:
        """The selected part of a delivery, in pieces of one frame each."""
        if isinstance(delivery, TradeBatch) and self._symbols is not None:
            traded = delivery.trades["symbol"].tolist()
            if self._symbols.isdisjoint(traded):
                return
        for item in self.selection.items(delivery):
            if isinstance(item, TradeBatch):
                for start in range(0, item.rows, ROWS_MAX):
                    yield item.slice(start, start + ROWS_MAX)
            else:
                yield item


class Broadcaster:
    """Knows all customers, and sends them what the ticker brings."""

    def __init__(self, ticker: LiveTicker, limits: BroadcastLimits | None = None) -> None:
        self.ticker = ticker
        self.limits = limits or BroadcastLimits()
        self.customers: set[WebCustomer] = set()
        self.counts: Counter[str] = Counter()
        self.stale: Stale | None = None  # the site does not serve
        self.on_replay: Callable[[], None] = lambda: None  # a customer can be sent a piece of the past
        self._channels: dict[tuple[object, ...], BroadcastChannel] = {}
        self._replaying: dict[WebCustomer, None] = {}  # in the order of their turns
        self._awaiting_snapshot: set[WebCustomer] = set()  # it is sent once they are live
        self._round = 0

    @property
    def channels(self) -> int:
        return len(self._channels)

    @property
    def replaying(self) -> int:
        """How many customers read the past."""
        return len(self._replaying)

    @property
    def busy(self) -> bool:
        """Whether a customer waits for a piece of the past and can take it."""
        return any(customer.writable for customer in self._replaying)

    def admit(self, connection: CustomerConnection) -> WebCustomer:
        """A new customer. Raises `Overload` where there are too many."""
        if len(self.customers) >= self.limits.customers_max:
            self.counts["refused"] += 1
            raise Overload(
                "connection", f"{len(self.customers):,} customers are connected, which is the limit; retry later"
            )
        customer = WebCustomer(connection, queue_max=self.limits.queue_max)
        self.customers.add(customer)
        self.counts["admitted"] += 1
        return customer

    def remove(self, customer: WebCustomer) -> None:
        """The connection of a customer has ended."""
        self._leave(customer)
        self.customers.discard(customer)

    def subscribe(self, customer: WebCustomer, subscription: Subscription) -> dict[str, object]:
        """Subscribe a customer in place of its last subscription; returns the response. Raises `Refusal`."""
        due = self.ticker.due
        start = self._start(subscription)
        if start > due:
            raise Refusal("from", f"from is {start}, and the order has come to {due - 1}; give at most {due}")
        past = start < due or (isinstance(subscription.start, AtNumber) and start < subscription.start.sequence)
        if past and customer not in self._replaying and len(self._replaying) >= self.limits.replays_max:
            raise Overload("from", f"{len(self._replaying)} customers read the past, which is the limit; retry later")
        key = subscription.symbols, subscription.stripes, subscription.encoding
        if key not in self._channels and len(self._channels) >= self.limits.channels_max:
            raise Overload(
                "symbols", f"{len(self._channels)} different subscriptions are in use, which is the limit; retry later"
            )
        self._leave(customer)
        customer.subscribe(subscription, CustomerReplay(self.ticker, start) if past else None)
        self._channels.setdefault(key, BroadcastChannel(customer.selection, subscription.encoding)).members[
            customer
        ] = None
        if past:
            self._replaying[customer] = None
            self.on_replay()
        if subscription.snapshot:
            self._awaiting_snapshot.add(customer)
        return {
            "kind": "subscribed",
            "symbols": subscription.symbols,
            "stripes": subscription.stripes,
            "form": subscription.encoding.value,
            "policy": subscription.policy.value,
            "next": start,
            "formation": self.ticker.formation,
            "stale_since_ns": None if self.stale is None else str(self.stale.since),
        }

    def _start(self, subscription: Subscription) -> int:
        match subscription.start:
            case None:
                return self.ticker.due
            case Beginning():
                return self.ticker.begin()
            case AtInstant(instant):
                return self.ticker.since(instant)
            case AtNumber(sequence) if subscription.formation is None:
                return sequence
            case AtNumber(sequence):
                return self.ticker.resume_sequence(sequence, subscription.formation)

    def unsubscribe(self, customer: WebCustomer) -> dict[str, object]:
        """End the subscription of a customer; returns the response."""
        self._leave(customer)
        return {"kind": "unsubscribed", "next": self.ticker.due}

    def publish(self, deliveries: Iterable[Delivery], now: Instant) -> None:
        """One round: send what is new to all customers."""
        self._round += 1
        deliveries = list(deliveries)
        for channel in list(self._channels.values()):
            members = list(channel.members)
            turn = self._round % len(members)
            members = members[turn:] + members[:turn]
            for delivery in deliveries:
                for item in channel.items(delivery):
                    self._send(item, members, channel.encoding, now)

    def announce(self, notice: Notice, now: Instant) -> None:
        """Send a notice that has no place in the order to all customers."""
        if isinstance(notice, Stale | Fresh):
            self.stale = notice if isinstance(notice, Stale) else None
        self.publish([notice], now)

    def send_replays(self, now: Instant) -> None:
        """Send pieces of the past to some customers that replay, and snapshots to those that are live.

        The work of one round is bounded, so that live messages never wait long for a replay.
        """
        ready = (customer for customer in list(self._replaying) if customer.writable)
        for customer in islice(ready, PIECES_MAX):
            del self._replaying[customer]
            replay = customer.replay
            assert replay is not None
            try:
                found = replay.take()
            except UserError as damage:
                self._close_unreadable(customer, f"the journal cannot be read there: {damage}")
                continue
            for delivery in found:
                for item in customer.selection.items(delivery):
                    customer.send(item, now)
            if replay.is_over:
                customer.finish_replay()
            else:
                self._replaying[customer] = None
        self.send_snapshots(now)

    def send_snapshots(self, now: Instant) -> None:
        """Send the snapshots that are due. Not to be called between an advance of the ticker and its round."""
        for customer in [each for each in self._awaiting_snapshot if each.live]:
            self.snapshot(customer, now)

    def snapshot(self, customer: WebCustomer, now: Instant) -> None:
        """Send the last sale of each symbol, as soon as the customer has everything before it."""
        if customer.subscription is None:
            raise Refusal("do", "nothing is subscribed; subscribe first, then ask for its snapshot")
        if not customer.live:
            self._awaiting_snapshot.add(customer)
            return
        self._awaiting_snapshot.discard(customer)
        sales = self.ticker.sales
        customer.send_snapshot(sales.since, self.ticker.due - 1, sales.last_sales(), now)

    def resume(self, customer: WebCustomer, now: Instant) -> None:
        """The connection of a customer takes more again."""
        customer.resume(now)
        self._count_omitted(customer)
        if customer in self._replaying:
            self.on_replay()

    def _send(self, item: Item, members: Iterable[WebCustomer], encoding: Encoding, now: Instant) -> None:
        frame: bytes | None = None
        sent = 0
        for customer in members:
            if customer.live:
                if frame is None:
                    frame = encode_frame(item, encoding, now)
                customer.connection.write(frame)
                sent += 1
            elif customer.subscription is not None:
                try:
                    customer.enqueue(item)
                except TooSlow:
                    self._close_too_slow(customer)
        if frame is not None:
            self.counts["frames"] += sent
            self.counts["bytes"] += sent * len(frame)

    def _close_unreadable(self, customer: WebCustomer, sentence: str) -> None:
        """The past that one customer asks for cannot be read; the others go on."""
        self.counts["unreadable"] += 1
        self._leave(customer)
        customer.connection.end(UNREADABLE, "unreadable", {"kind": "error", "field": "from", "told": sentence})

    def _close_too_slow(self, customer: WebCustomer) -> None:
        self.counts["too_slow"] += 1
        due = customer.due
        self._leave(customer)
        sentence = f"more than {self.limits.queue_max:,} records wait; go on with from={due}"
        customer.connection.end(
            TOO_SLOW, "too slow", {"kind": "error", "field": "policy", "told": sentence, "next": due}
        )

    def _leave(self, customer: WebCustomer) -> None:
        self._replaying.pop(customer, None)
        self._awaiting_snapshot.discard(customer)
        subscription = customer.subscription
        customer.unsubscribe()
        self._count_omitted(customer)
        if subscription is not None:
            key = subscription.symbols, subscription.stripes, subscription.encoding
            channel = self._channels[key]
            del channel.members[customer]
            if not channel.members:
                del self._channels[key]

    def _count_omitted(self, customer: WebCustomer) -> None:
        self.counts["skipped"] += customer.skipped
        self.counts["merged"] += customer.merged
        customer.skipped = customer.merged = 0
