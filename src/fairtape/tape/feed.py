"""The contract between a tape and a source of records: a journal, a file or a network.

A feed runs in a thread of its own, which the tape starts. It hands over batches of trades, single messages and notices,
in order. It never waits for the reader (the tape's queue does that) and never drops anything silently: what it cannot
deliver is a `Gap`.

`open` finds the start and refuses what cannot be done, in the thread that connects. Then `run` is iterated once, in the
feed's thread, until it ends or `stop` is called from any thread. A feed that loses its connection resumes by itself,
with the number after the last one that it handed over. A program that was restarted connects again with that number as
its start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fairtape.core.instants import Instant
from fairtape.tape.batches import TradeBatch
from fairtape.tape.records import Break, Gap, Merged, Notice, Placed, Single, Skipped


@dataclass(frozen=True, slots=True)
class Live:
    """Begin with what comes next. A file has ended, so it begins with its first trade."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Begin with the first record."""


@dataclass(frozen=True, slots=True)
class AtNumber:
    """Begin with this number of the order. Numbers from it on that are no longer stored are a `Gap`."""

    sequence: int


@dataclass(frozen=True, slots=True)
class AtInstant:
    """Begin with the first record whose token has this timestamp or a later one; in a file, the first such trade."""

    instant: Instant


@dataclass(frozen=True, slots=True)
class AtSnapshot:
    """Begin with the last trade of every symbol, then continue with what comes next."""


Start: TypeAlias = Live | Beginning | AtNumber | AtInstant | AtSnapshot


@dataclass(frozen=True, slots=True)
class LastSales:
    """The last trade of each symbol, as of a number."""

    first: int  # the first number that was read for it
    through: int
    batch: TradeBatch


Delivery: TypeAlias = TradeBatch | Single | Notice | LastSales


def number_after(delivery: Delivery, due: int) -> int:
    """The number due after a delivery, where `due` was due before it. A Break may lower it."""
    match delivery:
        case TradeBatch():
            return delivery.last + 1
        case Placed():
            return delivery.sequence + 1
        case Gap():
            return delivery.first + delivery.count
        case LastSales():
            return delivery.through + 1
        case Skipped() | Merged():
            return max(due, delivery.last + 1)
        case Break():
            return min(due, delivery.sequence)
    return due


class Feed(Protocol):
    """A source of records."""

    @property
    def title(self) -> str:
        """A short description for people."""

    @property
    def endless(self) -> bool:
        """Whether it runs until it is stopped; otherwise it ends by itself."""

    def open(self, start: Start) -> None:
        """Find the start. Raises `ClientError` or `UserError` for what cannot be done."""

    def run(self) -> Iterator[Delivery]:
        """Everything from the start on. Waits where more may come; ends soon after `stop`."""

    def stop(self) -> None:
        """End `run` soon. Called from any thread, any number of times, also before `run`.

        It takes no lock: the garbage collector closes a tape that is no longer referenced, at any point of any thread.
        """

    def last_sales(self) -> LastSales:
        """The last trade of each symbol as of now. Called from any thread; independent of `run`."""
