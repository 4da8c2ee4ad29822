"""Requests of reformation servers to the store of the formation log, and its responses.

Reformation servers communicate only through the store (decision 27, Leadership). It offers compare-and-set and has no
clock: a standby that sees the same `Leadership` for longer than its lease replaces it, and a leader that could not
renew its own for that long has stopped by itself. No two clocks are ever compared.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fairtape.core.instants import Duration
from fairtape.wire.frames import NodeId

STORE_CALLS_PER_LEASE: Final = 4  # requests of the usual longest time within the lease of a leader


@dataclass(frozen=True, slots=True)
class Leadership:
    """Which reformation server leads. Every claim of one server has a larger `renewal`."""

    leader: NodeId
    term: int
    renewal: int
    lease: Duration = 0  # how long the leader may act, from when it sent the claim; 0: as configured


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One formation of one loop in the log; `formation` is its encoding."""

    loop: int
    number: int
    term: int  # of the leader that wrote it
    formation: bytes


@dataclass(frozen=True, slots=True)
class Recall:
    """Read the leadership and the latest formation of every loop."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Compare and set the leadership: replace `expected` (None: no leadership) by `wanted`."""

    expected: Leadership | None
    wanted: Leadership


@dataclass(frozen=True, slots=True)
class Record:
    """Append these entries, all or none, if their term is the current one and their numbers increase in each loop.

    Numbers may be skipped: after a restored backup, those that the store has lost are not given again.
    """

    entries: tuple[LogEntry, ...]


STORE_BITS: Final = 32  # of the identity of a store
ENTRIES_MAX: Final = 100  # of one Record: etcd allows 128 operations per transaction

StoreRequest: TypeAlias = Recall | Claim | Record


@dataclass(frozen=True, slots=True)
class Recalled:
    """The response to `Recall`: the latest entry of each loop, ascending by loop."""

    leadership: Leadership | None
    latest: tuple[LogEntry, ...]
    store: int = field(default=0, compare=False)  # its identity, made with it (decision 63, One store); 0: none


@dataclass(frozen=True, slots=True)
class Claimed:
    """The response to `Claim`: the leadership now. It equals `wanted` if the claim succeeded."""

    leadership: Leadership | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The response to `Record`: the store has made it durable."""

    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class RecordRefused:
    """The response to `Record`: another term, or a number that is not above the last one. Nothing was written."""

    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store did not respond in time; the request may or may not have been carried out."""

    question: StoreRequest


StoreResponse: TypeAlias = Recalled | Claimed | Recorded | RecordRefused | Unavailable
