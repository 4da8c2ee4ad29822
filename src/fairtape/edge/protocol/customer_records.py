"""What a customer is told, in order: messages, and everything that is not as it should be."""

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
    """Consecutive numbers whose messages are not there and will not come."""

    stripe: int
    session: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Reformation:
    """From this place of the order on another formation numbers it; nothing is missing."""

    stripe: int
    sequence: int
    formation: int


@dataclass(frozen=True, slots=True)
class Break:
    """As a reformation, but numbers of the order from this place on may have been used otherwise before."""

    stripe: int
    sequence: int
    formation: int


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Another plan takes over, at this place of the order where it is known (0: not yet). `follow` it."""

    version: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The session of a stripe is over. Complete: all of it was delivered or is a gap, to its very end."""

    stripe: int
    session: str
    following: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Silent:
    """One feed of a stripe is silent; the other ones are heard."""

    stripe: int
    feed: str
    since: Instant


@dataclass(frozen=True, slots=True)
class Heard:
    """A feed that was silent is heard again."""

    stripe: int
    feed: str


@dataclass(frozen=True, slots=True)
class Stale:
    """All feeds of a stripe are silent: what is known may be out of date."""

    stripe: int
    since: Instant


@dataclass(frozen=True, slots=True)
class Fresh:
    """A stripe that was stale is heard again."""

    stripe: int


Record: TypeAlias = Delivered | Gap | Reformation | Break | PlanChange | Ended | Silent | Heard | Stale | Fresh
