"""The open orders of one market: two sides, each a ladder of prices, each price a queue by time.

A side stores its prices as *keys*, larger for better: the price itself for bids, its negative for offers. So both sides
share one implementation, the best price is always the last key, and a taker crosses while that key is at least the
negative of its own. The keys are a sorted list, because inserting into a list of some thousand numbers is one short
memory move. A queue is an ordered dictionary of its orders, from which any order is removed in constant time.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from fairtape.exchange.orders import SelfTrade, TimeInForce, new_tuple
from fairtape.market.prices import FIXED_MAX, Price, Quantity

BUYS: Final = 1  # sign of an order to buy
SELLS: Final = -1
ANY_BUY: Final = FIXED_MAX  # limit of a market order to buy
ANY_SELL: Final = 0  # and to sell


class Order:
    """An order in a market: its terms, and what is left of it."""

    batch: int  # batch of a batch auction; set by auctions only

    __slots__ = (
        "batch",
        "client_id",
        "key",
        "number",
        "open",
        "owner",
        "policy",
        "post_only",
        "price",
        "quantity",
        "queue",
        "sign",
        "stop_price",
        "time_in_force",
    )

    def __init__(
        self,
        number: int,
        owner: object,
        sign: int,
        price: Price,
        quantity: Quantity,
        policy: SelfTrade = SelfTrade.CANCEL_NEWEST,
        time_in_force: TimeInForce = TimeInForce.DAY,
        post_only: bool = False,
        client_id: str = "",
        stop_price: Price = 0,
    ) -> None:
        self.number = number  # sequence number; unique
        self.owner = owner  # the account, compared by identity
        self.sign = sign  # BUYS or SELLS
        self.price = price  # limit; ANY_BUY or ANY_SELL for a market order
        self.key = price if sign > 0 else -price
        self.quantity = quantity  # total, including what has been filled
        self.open = quantity  # what is left to trade
        self.policy = policy
        self.time_in_force = time_in_force
        self.post_only = post_only
        self.client_id = client_id
        self.stop_price = stop_price  # 0 once the stop is triggered
        self.queue: OrderQueue | None = None  # where it rests

    @property
    def is_market(self) -> bool:
        return self.price == (ANY_BUY if self.sign > 0 else ANY_SELL)

    def __repr__(self) -> str:
        side = "buys" if self.sign > 0 else "sells"
        return f"Order({self.number} {side} {self.open} of {self.quantity} at {self.price})"


OrderQueue: TypeAlias = "OrderedDict[Order, None]"


class Fill(NamedTuple):
    """Two orders traded. In an auction the order with the smaller number counts as the maker."""

    maker: Order
    taker: Order
    price: Price
    quantity: Quantity


class RemovalReason(Enum):
    """Why a quantity of an order was removed without a trade."""

    ASKED = "cancelled by its owner"
    UNFILLED = "not filled at once"
    NOT_WHOLE = "it cannot be filled at once and completely"
    WOULD_TAKE = "it is post-only and would take"
    SELF_TRADE = "it met an order of its own account"
    NO_FUNDS = "its stop was triggered, and the account cannot pay"
    ROUND_OVER = "the round is over"
    CLOSED = "the market closed"


class Reduction(NamedTuple):
    """A quantity removed from an order without a trade; the order itself is gone when nothing is left open."""

    order: Order
    quantity: Quantity
    reason: RemovalReason


def reduce_open(order: Order, quantity: Quantity, reason: RemovalReason) -> Reduction:
    """Remove a quantity from an order. The caller removes the order from its ladder when nothing is left open."""
    order.open -= quantity
    order.quantity -= quantity
    assert order.open >= 0
    return new_tuple(Reduction, (order, quantity, reason))


class Ladder:
    """One side of a book."""

    __slots__ = ("keys", "queues")

    def __init__(self) -> None:
        self.keys: list[int] = []  # ascending: the best is last
        self.queues: dict[int, OrderQueue] = {}  # one per key, never empty

    def __bool__(self) -> bool:
        return bool(self.keys)

    def __iter__(self) -> Iterator[Order]:
        """All orders, by priority."""
        for key in reversed(self.keys):
            yield from self.queues[key]

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def add(self, order: Order, key: int) -> None:
        """Append the order to the queue of its price."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = OrderedDict()
            insort(self.keys, key)
        queue[order] = None
        order.queue = queue

    def remove(self, order: Order, key: int) -> None:
        """Remove the order from anywhere in its queue."""
        queue = order.queue
        assert queue is not None
        del queue[order]
        order.queue = None
        if not queue:
            self.drop(key)

    def drop(self, key: int) -> None:
        """Remove an empty queue."""
        del self.queues[key]
        if self.keys[-1] == key:
            self.keys.pop()
        else:
            del self.keys[bisect_left(self.keys, key)]

    def first(self) -> Order | None:
        """The order with the highest priority."""
        return next(iter(self.queues[self.keys[-1]])) if self.keys else None

    def levels(self) -> list[tuple[Price, Quantity]]:
        """The prices with their total quantity, best first."""
        return [(abs(key), sum(order.open for order in self.queues[key])) for key in reversed(self.keys)]


class Book:
    """Bids and offers of one symbol."""

    __slots__ = ("asks", "bids")

    def __init__(self) -> None:
        self.bids = Ladder()
        self.asks = Ladder()

    def side(self, order: Order) -> Ladder:
        """The side on which the order rests."""
        return self.bids if order.sign > 0 else self.asks

    def rest(self, order: Order) -> None:
        (self.bids if order.sign > 0 else self.asks).add(order, order.key)

    def remove(self, order: Order) -> None:
        (self.bids if order.sign > 0 else self.asks).remove(order, order.key)

    def reduce(self, order: Order, quantity: Quantity) -> None:
        """Reduce an open order; with its last share it leaves the book."""
        order.open -= quantity
        assert order.open >= 0
        if not order.open and order.queue is not None:
            self.remove(order)

    @property
    def is_crossed(self) -> bool:
        """Whether a bid and an offer overlap, as they may during an auction."""
        return bool(self.bids.keys and self.asks.keys) and self.bids.keys[-1] + self.asks.keys[-1] >= 0

    def depth(self, levels_max: int) -> tuple[list[tuple[Price, Quantity]], list[tuple[Price, Quantity]]]:
        """The best bids and offers as (price, quantity), best first."""
        return list(islice(self.bids.levels(), levels_max)), list(islice(self.asks.levels(), levels_max))

    def orders(self) -> Iterator[Order]:
        """All orders, bids first."""
        yield from self.bids
        yield from self.asks
