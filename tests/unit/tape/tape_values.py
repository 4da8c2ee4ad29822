"""Orders of trades for tapes to read: journals with known trades, batches, and feeds with given deliveries."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np

import unit.journal.journal_values as values
from fairtape.client.backlog import Backlog, Policy
from fairtape.client.selection import Selection
from fairtape.client.tape import Tape
from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.core.entries import Entry as Content
from fairtape.market.trades import PublishedTrade, Trades, encode, records
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch
from fairtape.tape.feed import Delivery, LastSales, Start
from fairtape.wire.blocks import pack_messages

SYMBOLS = ("ABC", "DEF", "GHIJ", "A")


def trade(number: int) -> PublishedTrade:
    """The trade with this number."""
    price = (number * 7_919 - 40_000) * 10_000_000
    symbol = SYMBOLS[number % len(SYMBOLS)]
    return PublishedTrade(1 + number % 3, symbol, price, number * 10**9, values.STARTS_AT + number, number, number % 4)


def trades(first: int, count: int) -> Trades:
    return records(b"".join(encode(trade(number)) for number in range(first, first + count)))


def ordered(token: int, sequence: int, payloads: Sequence[Sequence[bytes]]) -> Ordered:
    """One token with a block of each source."""
    spans = []
    start = sequence
    for source, messages in enumerate(payloads, 101):
        body, count = pack_messages(messages), len(messages)
        spans.append(Span(source, 5, 1_000 + sequence, count, sequence, (body,), (count,)))
        sequence += count
    return Ordered(values.STRIPE, 1, token, start, sequence - start, values.token_at(token), tuple(spans))


def order(count: int, *, per_token: int = 3, first: int = 1) -> list[Ordered]:
    """`count` trades, `per_token` of them in each token."""
    found = []
    numbers = range(first, first + count)
    for token, at in enumerate(range(0, count, per_token), first):
        payloads = [encode(trade(number)) for number in numbers[at : at + per_token]]
        found.append(ordered(token, numbers[at], [payloads[:1], payloads[1:]] if payloads[1:] else [payloads]))
    return found


def write(folder: Path, *parts: Content | Sequence[Content]) -> Path:
    """A journal of these entries, each of the formation in force at its place; all are released."""
    history: list[Content] = []
    number = 1
    for part in parts:
        for entry in part if isinstance(part, Sequence) else (part,):
            number = entry.formation if isinstance(entry, FormationChange) else number
            history.append(replace(entry, formation=number))
    values.write(folder, history)
    return folder


def append(folder: Path, *entries: Ordered) -> None:
    """Append these entries, released."""
    with values.open_writer(folder) as writer:
        for entry in entries:
            writer.append(entry, entry.acknowledged_at)
            values.mark(writer, entry)


def batch_of(first: int, count: int) -> TradeBatch:
    """Trades with these numbers."""
    places = np.zeros(count, PLACE_DTYPE)
    places["sequence"] = np.arange(first, first + count)
    return TradeBatch(trades(first, count), places)


class ListFeed:
    """Delivers what it was given; an endless one then waits until it is stopped."""

    title = "list"

    def __init__(self, deliveries: Iterable[Delivery], *, endless: bool = False) -> None:
        self._deliveries = deliveries
        self._stopped = Event()
        self.endless = endless

    def open(self, start: Start) -> None:
        pass

    def run(self) -> Iterator[Delivery]:
        yield from self._deliveries
        if self.endless:
            self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def last_sales(self) -> LastSales:
        raise NotImplementedError


def tape_of(
    deliveries: Iterable[Delivery], *, endless: bool = False, policy: Policy = Policy.BLOCK, size_max: int = 100_000
) -> Tape:
    feed = ListFeed(deliveries, endless=endless)
    return Tape(feed, Backlog(policy=policy, size_max=size_max), Selection.of(None, None))
