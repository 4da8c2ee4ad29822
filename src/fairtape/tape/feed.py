"""What a tape asks of a source of records, whatever brings them: a journal, a file, a network.

A feed runs in a thread of its own that the tape starts. It hands over lots of trades, single messages that are none and
notices, in their order; it never waits for the reader (the tape's queue does that) and never drops anything in silence:
what it cannot deliver is a `Gap`.

The life of a feed: `open` finds the place to begin and refuses what cannot be done, in the thread of whoever connects;
then `run` is iterated once, in the feed's thread, until it ends or `stop` is called from anywhere. A feed that loses
its connection resumes by itself, from the number behind the last one that it handed over; a program that comes back
later connects again with that number as its start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fairtape.core.instants import Instant
from fairtape.tape.batches import TradeBatch
from fairtape.tape.records import Break, Gap, Merged, Notice, Placed, Single, Skipped


@dataclass(frozen=True, slots=True)
class Live:
    """Begin with what comes next; a source that is over has nothing next, so a file begins with its first trade."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Begin with the first record there is."""


@dataclass(frozen=True, slots=True)
class AtNumber:
    """Begin with this number of the order. Numbers from it on that are not there any more are a `Gap`."""

    sequence: int


@dataclass(frozen=True, slots=True)
class AtInstant:
    """Begin with the first record whose token has this timestamp or a later one; in a file, the first such trade."""

    instant: Instant


@dataclass(frozen=True, slots=True)
class AtSnapshot:
    """Begin with the last trade of every symbol, and go on with what comes next."""


Start: TypeAlias = Live | Beginning | AtNumber | AtInstant | AtSnapshot


@dataclass(frozen=True, slots=True)
class LastSales:
    """The last trade of each symbol, as of a number."""

    first: int  # how far back was looked
    through: int
    batch: TradeBatch


Delivery: TypeAlias = TradeBatch | Single | Notice | LastSales


def number_after(delivery: Delivery, due: int) -> int:
    """The number to go on with after a delivery, where `due` was before it. Behind a Break numbers begin anew."""
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
        """What is heard, in a few words, for a person."""

    @property
    def endless(self) -> bool:
        """Whether it goes on until it is stopped; otherwise it ends by itself."""

    def open(self, start: Start) -> None:
        """Find the place to begin. Raises `ClientError` or `Complaint` for what cannot be done."""

    def run(self) -> Iterator[Delivery]:
        """Everything from there on. Waits for more where there is more to come; ends soon after `stop`."""

    def stop(self) -> None:
        """Let `run` end soon. From any thread, any number of times, also before `run`.

        It takes no lock: a tape that is forgotten is closed by the garbage collector, which strikes anywhere.
        """

    def last_sales(self) -> LastSales:
        """The last trade of each symbol as of now. From any thread; independent of `run`."""
