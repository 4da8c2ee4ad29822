"""Who gets the volume of an auction: the better price first, and at one price by time, or by batch and then by size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from fairtape.exchange.book import Book, Fill, Order
from fairtape.market.prices import Price, Quantity

Share: TypeAlias = tuple[Order, Quantity]
Allocation: TypeAlias = Callable[[Sequence[Order], Quantity], list[Share]]


def by_time(orders: Iterable[Order], volume: Quantity) -> list[Share]:
    """The volume to the orders as they come, the last of them perhaps in part."""
    shares = []
    for order in orders:
        if not volume:
            break
        share = min(order.open, volume)
        shares.append((order, share))
        volume -= share
    return shares


def by_batch(lot: Quantity) -> Allocation:
    """Better prices first; at one price older batches first; within a batch by size, in whole lots."""

    def allocate(orders: Sequence[Order], volume: Quantity) -> list[Share]:
        shares: list[Share] = []
        for _, same in groupby(orders, key=lambda order: (order.key, order.batch)):
            batch = list(same)
            wanted = min(sum(order.open for order in batch), volume)
            shares += pro_rata(batch, wanted, lot)
            volume -= wanted
        return shares

    return allocate


def pro_rata(orders: Sequence[Order], volume: Quantity, lot: Quantity) -> list[Share]:
    """The volume by size, rounded down to lots; lots that are left go to the largest fractions, then to the oldest."""
    whole = sum(order.open for order in orders)
    if volume >= whole:
        return [(order, order.open) for order in orders]
    exact = [divmod(order.open * volume // lot, whole) for order in orders]
    left = volume // lot - sum(lots for lots, _ in exact)
    ranked = sorted(range(len(orders)), key=lambda place: (-exact[place][1], orders[place].number))
    extra = set(ranked[:left])
    shares = [(order, (exact[place][0] + (place in extra)) * lot) for place, order in enumerate(orders)]
    return [share for share in shares if share[1]]


def uncross(book: Book, price: Price, volume: Quantity, allocate: Allocation = by_time) -> list[Fill]:
    """Trade the volume at the price, and take the filled orders out of the book."""
    bids = [order for order in book.bids if order.price >= price]
    offers = [order for order in book.asks if order.price <= price]
    fills = list(paired(allocate(_in_order(bids), volume), allocate(_in_order(offers), volume), price))
    for fill in fills:
        book.reduce(fill.maker, fill.quantity)
        book.reduce(fill.taker, fill.quantity)
    return fills


def _in_order(orders: list[Order]) -> list[Order]:
    """Best price first, then by batch, then as they stand: the sort is stable."""
    return sorted(orders, key=lambda order: (-order.key, order.batch))


def paired(bids: Iterable[Share], offers: Iterable[Share], price: Price) -> Iterator[Fill]:
    """Bids and offers of the same whole volume, against one another in order."""
    sellers = iter(offers)
    seller, on_offer = next(sellers, (None, 0))
    for buyer, wanted in bids:
        while wanted:
            assert seller is not None
            quantity = min(wanted, on_offer)
            maker, taker = sorted((buyer, seller), key=attrgetter("number"))
            yield Fill(maker, taker, price, quantity)
            wanted -= quantity
            on_offer -= quantity
            if not on_offer:
                seller, on_offer = next(sellers, (None, 0))
