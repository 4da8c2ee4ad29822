"""What a machine may ask of the world, and the values that travel with it.

Effects are carried out in order. That order is itself a promise: an `Append` always precedes the datagram that lets
this site count as a holder of what it appends, so a driver that syncs on `Append` needs no answer back.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

from fairtape.core.instants import Duration, Instant
from fairtape.wire.frames import NodeId


class Channel(IntEnum):
    """The two multicast groups of a core stripe. Sources join only CONTROL: they must not read one another."""

    DATA = 0  # source blocks, to all sites
    CONTROL = 1  # acknowledgments, to all sites and sources


@dataclass(slots=True)
class Multicast:
    """Send these datagrams, in this order, to everyone on the channel."""

    channel: Channel
    datagrams: list[bytes]


@dataclass(slots=True)
class Send:
    """Send these datagrams, in this order, to one node."""

    to: NodeId
    datagrams: list[bytes]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive messages of one incarnation of one source, as whole blocks, with consecutive sequence numbers."""

    source: NodeId
    incarnation: int
    first: int  # the source's number of the first message
    count: int
    sequence: int  # the global number of the first message
    bodies: tuple[bytes, ...]  # opened block bodies; fairtape.wire.blocks reads them
    counts: tuple[int, ...]  # messages in each body
    fragments: tuple[bool, ...] = ()  # which bodies are fragments of a long message; () where none is


@dataclass(frozen=True, slots=True)
class Ordered:
    """Msg(e): what one token put into the order. Equal at every site, byte for byte."""

    stripe: int
    formation: int
    token: int
    sequence: int  # first sequence number
    count: int
    acknowledged_at: Instant  # t_e, the scheduled time of Ack(e) (in RMP, the time its token site stamped)
    spans: tuple[Span, ...]


@dataclass(slots=True)
class Append:
    """Write Msg(e) to the journal. Emitted when this site holds Msg(e) and everything before it."""

    ordered: Ordered


@dataclass(frozen=True, slots=True)
class Release:
    """This site's own view of the commit of one token: differs between sites, so it stands outside the order."""

    token: int
    sequence: int
    count: int
    commit_at: Instant  # t_e + commit_delay, the same everywhere
    released_at: Instant  # when this site did it
    late: bool  # it became complete only after commit_at: never silent, never reordered
    clock_bound: Duration  # this site's clock error bound at that moment


@dataclass(slots=True)
class Deliver:
    """Give Msg(e) to the applications, now. Tokens without messages are not delivered."""

    ordered: Ordered
    release: Release


class Reason(Enum):
    """Why a site declared a failure."""

    ACK_SILENT = "its acknowledgment was due and no request for it was answered"
    MESSAGES_SILENT = "messages it acknowledged could not be recovered"
    TOKEN_REFUSED = "the token was passed to it and never taken up"  # noqa: S105 - a token of the ring
    BREACH = "it broke the protocol"


@dataclass(frozen=True, slots=True)
class Report:
    """This site declares that `suspect` has failed at `token` and commits nothing from that token on."""

    suspect: NodeId
    token: int
    reason: Reason
    declared_at: Instant


Effect: TypeAlias = Multicast | Send | Append | Deliver | Report
