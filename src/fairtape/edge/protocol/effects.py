"""What the machines of the edge ask of the world, and where things are sent."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.formats.moldudp64 import MoldRequest
from fairtape.market.stripes import Endpoint

Address: TypeAlias = tuple[str, int]
"""A host and its port, as a datagram came from there. It says where to answer and proves nothing."""


class Grade(Enum):
    """The two grades of service. TRMP 2001 §4.1."""

    BEST_EFFORT = "best effort"  # repairs as far as there is room
    GUARANTEED = "guaranteed"  # repairs wait in a queue, and a refusal is told


@dataclass(slots=True)
class SendMulticast:
    """Send these datagrams, in this order, to a group."""

    to: Endpoint
    datagrams: list[bytes]


@dataclass(slots=True)
class SendUnicast:
    """Send these datagrams, in this order, to one address."""

    to: Address
    datagrams: list[bytes]


class RefusalReason(Enum):
    """Why a request was not served."""

    FLOOD = "more requests than the customer may make"
    QUEUE = "too many of the customer's requests wait"
    LOAD = "the server has no room for best effort"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request of a guaranteed customer that is not served: an operator should know."""

    by: Address
    request: MoldRequest
    why: RefusalReason


@dataclass(frozen=True, slots=True)
class SequenceLost:
    """The outlet's order has a hole, or a change was told too late: it is silent until it is given its place again."""

    expected: int  # sequence
    found: int


EdgeEffect: TypeAlias = SendMulticast | SendUnicast | Refusal | SequenceLost | WriteConnection | CloseConnection
