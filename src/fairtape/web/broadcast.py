"""The hub: everybody who hears the ticker, in channels. What a channel's customers get is written once for all of them.

Rounds make it cheap: a round takes what was released since the last one, and each channel makes frames of it. While
there are few customers a round is over at once and the next one follows in two milliseconds. With many, the pause is as
long as the round was, so that half of the processor is left for other things; but a round begins every 24 milliseconds
if it can, because what waits for it grows old.
Whoever was served first in one round is served later in the next: no customer is always ahead of another.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from fairtape.client.backlog import Item
from fairtape.client.selection import Selection
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import AtInstant, AtNumber, Beginning, Delivery
from fairtape.tape.records import Fresh, Notice, Stale
from fairtape.web.customer import QUEUE_MAX, CustomerConnection, CustomerReplay, TooSlow, WebCustomer
from fairtape.web.encoding import ROWS_MAX, Encoding, framed
from fairtape.web.subscription import Overload, Refusal, Subscription
from fairtape.web.ticker import LiveTicker

CUSTOMERS_MAX: Final = 2_000
CHANNELS_MAX: Final = 512  # different subscriptions
REPLAYS_MAX: Final = 256  # customers who read the past at a time
BITES: Final = 4  # pieces of the past that are handed out in a round
PAUSE_MIN: Final = 2 * MILLISECOND
ROUND_PERIOD: Final = 24 * MILLISECOND  # from the beginning of a round to that of the next, if that can be

TOO_SLOW: Final = 4408
FULL: Final = 4503
UNREADABLE: Final = 4500
AWAY: Final = 1001


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many of what there may be."""

    customers_max: int = CUSTOMERS_MAX
    channels_max: int = CHANNELS_MAX
    replays_max: int = REPLAYS_MAX
    queue_max: int = QUEUE_MAX  # records that wait for a customer


def pause_after(took: Duration) -> Duration:
    """How long to gather after a round that took so long."""
    return max(min(took, ROUND_PERIOD - took), PAUSE_MIN)


class BroadcastChannel:
    """All customers who want the same in the same form."""

    def __init__(self, selection: Selection, form: Encoding) -> None:
        self.selection = selection
        self.form = form
        self.members: dict[WebCustomer, None] = {}
        self._symbols = None if selection.symbols is None else {name.encode("ascii") for name in selection.symbols}

    def items(self, delivery: Delivery) -> Iterator[Item]:
        """What is wanted of a delivery, in pieces of one frame each."""
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
    """Knows all customers, and hands them what the ticker brings."""

    def __init__(self, ticker: LiveTicker, limits: Limits | None = None) -> None:
        self.ticker = ticker
        self.limits = limits or Limits()
        self.customers: set[WebCustomer] = set()
        self.counts: Counter[str] = Counter()
        self.stale: Stale | None = None  # the site does not serve
        self._channels: dict[tuple[object, ...], BroadcastChannel] = {}
        self._replaying: dict[WebCustomer, None] = {}  # whose turn is next stands first
        self._asking: set[WebCustomer] = set()  # for a snapshot, once they are live
        self._round = 0

    @property
    def channels(self) -> int:
        """How many different subscriptions there are."""
        return len(self._channels)

    @property
    def replaying(self) -> int:
        """How many read the past."""
        return len(self._replaying)

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a piece of the past and could take it."""
        return any(customer.flowing for customer in self._replaying)

    def admit(self, line: CustomerConnection) -> WebCustomer:
        """A new customer. Raises `Refusal` where there are too many."""
        if len(self.customers) >= self.limits.customers_max:
            self.counts["refused"] += 1
            raise Overload("connection", f"{len(self.customers):,} customers are here, as many as may; come back later")
        customer = WebCustomer(line, queue_max=self.limits.queue_max)
        self.customers.add(customer)
        self.counts["admitted"] += 1
        return customer

    def dismiss(self, customer: WebCustomer) -> None:
        """A customer has gone."""
        self._leave(customer)
        self.customers.discard(customer)

    def subscribe(self, customer: WebCustomer, wish: Subscription) -> dict[str, object]:
        """Give a customer what it wants; what to tell it about that. Raises `Refusal`."""
        due = self.ticker.due
        start = self._start(wish)
        if start > due:
            raise Refusal("from", f"from is {start}, and the order has come to {due - 1}; give at most {due}")
        past = start < due or (isinstance(wish.start, AtNumber) and start < wish.start.sequence)
        if past and customer not in self._replaying and len(self._replaying) >= self.limits.replays_max:
            raise Overload("from", f"{len(self._replaying)} customers read the past, as many as may; come back later")
        key = wish.symbols, wish.stripes, wish.form
        if key not in self._channels and len(self._channels) >= self.limits.channels_max:
            raise Overload(
                "symbols", f"{len(self._channels)} different subscriptions are here, as many as may; come later"
            )
        self._leave(customer)
        customer.subscribe(wish, CustomerReplay(self.ticker, start) if past else None)
        self._channels.setdefault(key, BroadcastChannel(customer.selection, wish.form)).members[customer] = None
        if past:
            self._replaying[customer] = None
        if wish.snapshot:
            self._asking.add(customer)
        return {
            "kind": "subscribed",
            "symbols": wish.symbols,
            "stripes": wish.stripes,
            "form": wish.form.value,
            "policy": wish.slow.value,
            "next": start,
            "formation": self.ticker.formation,
            "stale_since_ns": None if self.stale is None else str(self.stale.since),
        }

    def _start(self, wish: Subscription) -> int:
        """The number with which a subscription begins."""
        match wish.start:
            case None:
                return self.ticker.due
            case Beginning():
                return self.ticker.begin()
            case AtInstant(instant):
                return self.ticker.since(instant)
            case AtNumber(sequence) if wish.formation is None:
                return sequence
            case AtNumber(sequence):
                return self.ticker.resumption(sequence, wish.formation)

    def unsubscribe(self, customer: WebCustomer) -> dict[str, object]:
        """Give a customer nothing more."""
        self._leave(customer)
        return {"kind": "unsubscribed", "next": self.ticker.due}

    def publish(self, deliveries: Iterable[Delivery], now: Instant) -> None:
        """One round: everybody gets what is new."""
        self._round += 1
        deliveries = list(deliveries)
        for channel in list(self._channels.values()):
            members = list(channel.members)
            turn = self._round % len(members)
            members = members[turn:] + members[:turn]
            for delivery in deliveries:
                for item in channel.items(delivery):
                    self._hand_out(item, members, channel.form, now)

    def announce(self, notice: Notice, now: Instant) -> None:
        """Tell everybody something that has no place in the order."""
        if isinstance(notice, Stale | Fresh):
            self.stale = notice if isinstance(notice, Stale) else None
        self.publish([notice], now)

    def bring_up(self, now: Instant) -> None:
        """Pieces of the past for some who want them and can take them, and snapshots for those who are ready for them.

        How much is done in a round is bounded, so the present never waits long for somebody's past.
        """
        ready = (customer for customer in list(self._replaying) if customer.flowing)
        for customer in islice(ready, BITES):
            del self._replaying[customer]
            replay = customer.replay
            assert replay is not None
            try:
                found = replay.take()
            except UserError as damage:
                self._turn_away(customer, f"the journal cannot be read there: {damage}")
                continue
            for delivery in found:
                for item in customer.selection.items(delivery):
                    customer.send(item, now)
            if replay.is_over:
                customer.joined()
            else:
                self._replaying[customer] = None
        self.give_snapshots(now)

    def give_snapshots(self, now: Instant) -> None:
        """Snapshots for those who asked and have everything before them; not between an advance and its round."""
        for customer in [each for each in self._asking if each.live]:
            self.snapshot(customer, now)

    def snapshot(self, customer: WebCustomer, now: Instant) -> None:
        """The last sale of each symbol, as soon as the customer has everything before it."""
        if customer.wish is None:
            raise Refusal("do", "nothing is subscribed; subscribe first, then ask for its snapshot")
        if not customer.live:
            self._asking.add(customer)
            return
        self._asking.discard(customer)
        sales = self.ticker.sales
        customer.send_snapshot(sales.since, self.ticker.due - 1, sales.last_sales(), now)

    def freed(self, customer: WebCustomer, now: Instant) -> None:
        """A customer's line takes more again."""
        customer.free(now)
        self._settle_accounts(customer)

    def _hand_out(self, item: Item, members: Iterable[WebCustomer], form: Encoding, now: Instant) -> None:
        frame: bytes | None = None
        sent = 0
        for customer in members:
            if customer.live:
                if frame is None:
                    frame = framed(item, form, now)
                customer.line.write(frame)
                sent += 1
            elif customer.wish is not None:
                try:
                    customer.keep(item)
                except TooSlow:
                    self._let_go(customer)
        if frame is not None:
            self.counts["frames"] += sent
            self.counts["bytes"] += sent * len(frame)

    def _turn_away(self, customer: WebCustomer, sentence: str) -> None:
        """What one customer asks for cannot be had; the others go on."""
        self.counts["unreadable"] += 1
        self._leave(customer)
        customer.line.end(UNREADABLE, "unreadable", {"kind": "error", "field": "from", "told": sentence})

    def _let_go(self, customer: WebCustomer) -> None:
        self.counts["too_slow"] += 1
        due = customer.due
        self._leave(customer)
        sentence = f"more than {self.limits.queue_max:,} records wait; go on with from={due}"
        customer.line.end(TOO_SLOW, "too slow", {"kind": "error", "field": "policy", "told": sentence, "next": due})

    def _leave(self, customer: WebCustomer) -> None:
        self._replaying.pop(customer, None)
        self._asking.discard(customer)
        wish = customer.wish
        customer.unsubscribe()
        self._settle_accounts(customer)
        if wish is not None:
            key = wish.symbols, wish.stripes, wish.form
            channel = self._channels[key]
            del channel.members[customer]
            if not channel.members:
                del self._channels[key]

    def _settle_accounts(self, customer: WebCustomer) -> None:
        self.counts["skipped"] += customer.skipped
        self.counts["merged"] += customer.merged
        customer.skipped = customer.merged = 0
