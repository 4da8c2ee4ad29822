"""What a reformation server asks of the store that holds the formation log, and what the store answers.

The store is the one place where reformation servers meet (decision 27, Leadership). It compares and sets, and knows
nothing of time: a standby that sees the same `Leadership` for longer than its lease replaces it, and a leader that
could not renew its own for that long has stopped by itself. No two clocks are ever compared.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from fairtape.wire.frames import NodeId


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads the reformation servers. `renewal` counts on with every sign of life within one term."""

    leader: NodeId
    term: int
    renewal: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One formation of one loop as it is kept in the log; `formation` is its encoded form."""

    loop: int
    number: int
    term: int  # of the leader who wrote it
    formation: bytes


@dataclass(frozen=True, slots=True)
class Recall:
    """Who leads, and what is the latest formation of every loop?"""


@dataclass(frozen=True, slots=True)
class Claim:
    """Put `wanted` in the place of `expected` (None: of nothing), if that is what is there."""

    expected: Leadership | None
    wanted: Leadership


@dataclass(frozen=True, slots=True)
class Record:
    """Append these entries, all or none: only while their term is the present one and each number follows on."""

    entries: tuple[LogEntry, ...]


ENTRIES_MAX: Final = 100  # of one Record: etcd takes 128 operations in one transaction

StoreRequest: TypeAlias = Recall | Claim | Record


@dataclass(frozen=True, slots=True)
class Recalled:
    """The answer to `Recall`: the latest entry of each loop, ascending by loop."""

    leadership: Leadership | None
    latest: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to `Claim`: what is there now. Equal to `wanted` where the claim was good."""

    leadership: Leadership | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The answer to `Record`: it is on the disk of the store."""

    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class RecordRefused:
    """The answer to `Record`: another term, or the numbers do not follow on. Nothing was written."""

    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The store did not answer in time; the question may or may not have been carried out."""

    question: StoreRequest


StoreResponse: TypeAlias = Recalled | Claimed | Recorded | RecordRefused | Unavailable
