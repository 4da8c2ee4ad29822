"""The orders that wait in one market: two sides, each a ladder of prices, each rung a queue by time.

A side keeps its prices as *keys*, larger for better: the price itself for bids, its negative for offers. So both sides
are the same code, the best rung is always the last key, and a taker crosses while that key is at least the negative of
its own. The keys are a sorted list, because insertion into a list of some thousand numbers is one short memory move;
a rung is an ordered dictionary of its orders, from which any order leaves in constant time.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from fairtape.exchange.orders import SelfTrade, TimeInForce
from fairtape.market.prices import FIXED_MAX, Price, Quantity

BUYS: Final = 1  # the sign of an order that buys
SELLS: Final = -1
new_tuple: Final = tuple.__new__  # a named tuple in a third of the time that its own name takes
ANY_BUY: Final = FIXED_MAX  # the limit of a buyer who takes every price
ANY_SELL: Final = 0  # and of such a seller


class Order:
    """One order in a market: its terms, and what is left of it."""

    batch: int  # in which batch of a batch auction it came; only auctions set it

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
        self.number = number  # its place in the sequence; unique
        self.owner = owner  # the account: one object each, compared by identity
        self.sign = sign  # BUYS or SELLS
        self.price = price  # its limit; ANY_BUY or ANY_SELL for a market order
        self.key = price if sign > 0 else -price
        self.quantity = quantity  # whole, with what has been filled
        self.open = quantity  # what is left
        self.policy = policy
        self.time_in_force = time_in_force
        self.post_only = post_only
        self.client_id = client_id
        self.stop_price = stop_price  # 0 once it is a plain order
        self.queue: OrderQueue | None = None  # where it waits

    @property
    def is_market(self) -> bool:
        """Whether it takes every price."""
        return self.price == (ANY_BUY if self.sign > 0 else ANY_SELL)

    def __repr__(self) -> str:
        side = "buys" if self.sign > 0 else "sells"
        return f"Order({self.number} {side} {self.open} of {self.quantity} at {self.price})"


OrderQueue: TypeAlias = "OrderedDict[Order, None]"


class Fill(NamedTuple):
    """Two orders met. In an auction the one with the smaller number counts as the maker."""

    maker: Order
    taker: Order
    price: Price
    quantity: Quantity


class RemovalReason(Enum):
    """Why something of an order went without a trade."""

    ASKED = "its owner asked for it"
    UNFILLED = "what cannot be filled at once does not wait"
    NOT_WHOLE = "it cannot be filled at once and whole"
    WOULD_TAKE = "it would take, and promised only to rest"
    SELF_TRADE = "it met an order of its own account"
    NO_FUNDS = "its stop was reached, and the account cannot pay"
    ROUND_OVER = "the round is over"
    CLOSED = "the market closed"


class Reduction(NamedTuple):
    """So much of an order is gone without a trade; where nothing is left open, so is the order."""

    order: Order
    quantity: Quantity
    reason: RemovalReason


def reduce_open(order: Order, quantity: Quantity, reason: RemovalReason) -> Reduction:
    """Take so much away from what is open. Whoever keeps the order in a ladder takes it out when nothing is left."""
    order.open -= quantity
    order.quantity -= quantity
    assert order.open >= 0
    return new_tuple(Reduction, (order, quantity, reason))


class Ladder:
    """One side of a book."""

    __slots__ = ("keys", "queues")

    def __init__(self) -> None:
        self.keys: list[int] = []  # ascending: the best is the last
        self.queues: dict[int, OrderQueue] = {}  # one for each key, never empty

    def __bool__(self) -> bool:
        return bool(self.keys)

    def __iter__(self) -> Iterator[Order]:
        """The orders, the first in priority first."""
        for key in reversed(self.keys):
            yield from self.queues[key]

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def add(self, order: Order, key: int) -> None:
        """Put the order at the end of its rung."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = OrderedDict()
            insort(self.keys, key)
        queue[order] = None
        order.queue = queue

    def remove(self, order: Order, key: int) -> None:
        """Take the order out, wherever in its rung it stands."""
        queue = order.queue
        assert queue is not None
        del queue[order]
        order.queue = None
        if not queue:
            self.drop(key)

    def drop(self, key: int) -> None:
        """Take an empty rung out."""
        del self.queues[key]
        if self.keys[-1] == key:
            self.keys.pop()
        else:
            del self.keys[bisect_left(self.keys, key)]

    def first(self) -> Order | None:
        """The order that comes first."""
        return next(iter(self.queues[self.keys[-1]])) if self.keys else None

    def levels(self) -> list[tuple[Price, Quantity]]:
        """The prices with all that waits there, the best first."""
        return [(abs(key), sum(order.open for order in self.queues[key])) for key in reversed(self.keys)]


class Book:
    """Bids and offers of one symbol."""

    __slots__ = ("asks", "bids")

    def __init__(self) -> None:
        self.bids = Ladder()
        self.asks = Ladder()

    def side(self, order: Order) -> Ladder:
        """The side on which the order waits."""
        return self.bids if order.sign > 0 else self.asks

    def opposite(self, order: Order) -> Ladder:
        """The side that the order can take from."""
        return self.asks if order.sign > 0 else self.bids

    def rest(self, order: Order) -> None:
        """Let the order wait."""
        (self.bids if order.sign > 0 else self.asks).add(order, order.key)

    def remove(self, order: Order) -> None:
        """Take a waiting order out."""
        (self.bids if order.sign > 0 else self.asks).remove(order, order.key)

    def reduce(self, order: Order, quantity: Quantity) -> None:
        """So much of a waiting order is filled or gone; it leaves with its last share."""
        order.open -= quantity
        assert order.open >= 0
        if not order.open and order.queue is not None:
            self.remove(order)

    @property
    def best_bid(self) -> Price | None:
        """The highest price that somebody pays."""
        return self.bids.keys[-1] if self.bids.keys else None

    @property
    def best_ask(self) -> Price | None:
        """The lowest price at which somebody sells."""
        return -self.asks.keys[-1] if self.asks.keys else None

    @property
    def is_crossed(self) -> bool:
        """Whether a bid and an offer overlap, as they may while an auction gathers."""
        return bool(self.bids.keys and self.asks.keys) and self.bids.keys[-1] + self.asks.keys[-1] >= 0

    def depth(self, levels_max: int) -> tuple[list[tuple[Price, Quantity]], list[tuple[Price, Quantity]]]:
        """The best bids and the best offers, as (price, quantity), the best first."""
        return list(islice(self.bids.levels(), levels_max)), list(islice(self.asks.levels(), levels_max))

    def orders(self) -> Iterator[Order]:
        """All waiting orders, bids first."""
        yield from self.bids
        yield from self.asks
