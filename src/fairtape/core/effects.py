"""What a machine may ask of the world, and the values that travel with it.

Effects are carried out in order. That order is itself a promise: an `Append` always precedes the datagram that lets
this site count as a holder of what it appends, so a driver that syncs on `Append` needs no answer back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, TypeAlias

from fairtape.core.formation_log import StoreRequest
from fairtape.core.instants import Duration, Instant
from fairtape.wire.frames import NodeId


class Channel(IntEnum):
    """The two multicast groups of a core stripe. Sources join only CONTROL: they must not read one another."""

    DATA = 0  # source blocks, to all sites
    CONTROL = 1  # acknowledgments, to all sites and sources


LOOP_CHANNEL: Final = 16
"""The channels of secondary loops begin above this one: loop 1 is channel 17."""


@dataclass(slots=True)
class Multicast:
    """Send these datagrams, in this order, to everyone on the channel."""

    channel: int  # a Channel, or LOOP_CHANNEL + the number of a secondary loop
    datagrams: list[bytes]


@dataclass(slots=True)
class JoinChannels:
    """From now on hear these channels of secondary loops, and no others."""

    channels: tuple[int, ...]


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


@dataclass(frozen=True, slots=True)
class FormationChange:
    """A new formation takes over at this place of the order. Equal at every site, byte for byte."""

    stripe: int
    formation: int  # its number
    token: int  # its first one
    sequence: int  # the number that its first message will have
    broken: bool  # a Break: more than K members were silent, so that numbers from here on may have been used otherwise
    layout: bytes  # the formation as fairtape.ring.membership.layout encodes it
    installed_at: Instant  # when it was to start


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where a journal stands: all that a site needs to go on from it."""

    token: int  # the last one in the order
    sequence: int  # the number of the next message
    streams: Mapping[NodeId, tuple[int, int]]  # of each source: its latest incarnation in the order, its next number
    number: int  # of the last formation that it notes; 0: none
    layout: bytes | None  # that formation
    released_through: int  # token

    @classmethod
    def nothing(cls, first_token: int = 1, first_sequence: int = 1) -> "Recovered":
        """A journal that is still empty."""
        return cls(first_token - 1, first_sequence, {}, 0, None, first_token - 1)


@dataclass(slots=True)
class AppendFormation:
    """Write a change of formation to the journal, and tell the applications: after it the order may be broken."""

    change: FormationChange


@dataclass(slots=True)
class Fetch:
    """Read from the journal what follows `token`, at most about this many bytes, and hand it to `fetched`."""

    token: int
    formation: int | None  # the last one that was noted before it; 0: none was; None: whichever it is
    size_max: int
    ticket: int  # names the question in the answer


@dataclass(slots=True)
class Truncate:
    """Take everything after `token` out of the journal, and hand what is left to `recovered`."""

    token: int


@dataclass(slots=True)
class QueryStore:
    """Ask the formation store, and hand its answer to `answered`."""

    question: StoreRequest


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

    ACK_SILENT = "its acknowledgment did not come in time"
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


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that an operator wants to read in the log."""

    text: str


@dataclass(slots=True)
class WriteConnection:
    """Send these bytes on a stream connection, after those written before."""

    connection: int  # as the driver numbers them
    octets: bytes


@dataclass(slots=True)
class CloseConnection:
    """Close a stream connection, after what was written to it."""

    connection: int
    reason: str


Effect: TypeAlias = (
    Multicast
    | JoinChannels
    | Send
    | Append
    | Deliver
    | Report
    | AppendFormation
    | Fetch
    | Truncate
    | QueryStore
    | Notice
)
