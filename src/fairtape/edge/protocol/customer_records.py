"""The records of a customer, in order: messages, gaps, and the state of its feeds."""

from dataclasses import dataclass
from typing import TypeAlias

from fairtape.core.instants import Instant


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages of a stripe with consecutive numbers, each once and in order."""

    stripe: int
    session: str
    first: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Consecutive numbers whose messages are missing and will not come."""

    stripe: int
    session: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Reformation:
    """From this place of the order on another formation numbers it. Nothing is missing."""

    stripe: int
    sequence: int
    formation: int


@dataclass(frozen=True, slots=True)
class Break:
    """Like a reformation, but other messages may have had the numbers of the order from this place on."""

    stripe: int
    sequence: int
    formation: int


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Another plan takes over at this place of the order (0: unknown yet). `follow` it."""

    version: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The session of a stripe has ended. Complete: all of it up to its end was delivered or is a gap."""

    stripe: int
    session: str
    following: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Silent:
    """One feed of a stripe is silent; others are not."""

    stripe: int
    feed: str
    since: Instant


@dataclass(frozen=True, slots=True)
class Heard:
    """A feed that was silent sends again."""

    stripe: int
    feed: str


@dataclass(frozen=True, slots=True)
class Stale:
    """All feeds of a stripe are silent: what is known may be out of date."""

    stripe: int
    since: Instant


@dataclass(frozen=True, slots=True)
class Fresh:
    """A stripe that was stale is received again."""

    stripe: int


Record: TypeAlias = Delivered | Gap | Reformation | Break | PlanChange | Ended | Silent | Heard | Stale | Fresh
