"""Effects that the machines of the edge ask of their driver."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairtape.core.addresses import Address
from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.formats.moldudp64 import MoldRequest
from fairtape.market.stripes import Endpoint


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

    FLOOD = "the customer exceeds its request rate"
    QUEUE = "too many requests of the customer are queued"
    LOAD = "the server has no capacity for best effort"


@dataclass(frozen=True, slots=True)
class RepairRefused:
    """A request of a guaranteed customer that is not served, reported to the operator."""

    by: Address  # where the request came from; it proves nothing
    request: MoldRequest
    why: RefusalReason


@dataclass(frozen=True, slots=True)
class SequenceLost:
    """The order has a hole, or a change came too late: nothing is sent until `resume` with a known position."""

    expected: int  # sequence
    found: int


EdgeEffect: TypeAlias = SendMulticast | SendUnicast | RepairRefused | SequenceLost | WriteConnection | CloseConnection
