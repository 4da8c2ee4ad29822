"""Effects: what a machine asks of its driver, and the values that travel with it.

Effects are carried out in order. An `Append` always precedes the datagram that lets this site count as a holder of the
appended messages, so a driver that syncs on `Append` needs to return no confirmation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, TypeAlias

from fairtape.core.formation_log import StoreRequest
from fairtape.core.instants import Duration, Instant
from fairtape.wire.frames import NodeId


class Channel(IntEnum):
    """The two multicast groups of a core stripe. Sources join only CONTROL, because they must not read one another."""

    DATA = 0  # source blocks, to all sites
    CONTROL = 1  # acknowledgments, to all sites and sources


LOOP_CHANNEL: Final = 16
"""The channel of secondary loop n is LOOP_CHANNEL + n."""


@dataclass(slots=True)
class Multicast:
    """Send these datagrams, in this order, to the channel."""

    channel: int  # a Channel, or LOOP_CHANNEL + the number of a secondary loop
    datagrams: list[bytes]


@dataclass(slots=True)
class JoinChannels:
    """Join exactly these channels of secondary loops, and leave all others."""

    channels: tuple[int, ...]


@dataclass(slots=True)
class Send:
    """Send these datagrams, in this order, to one node."""

    to: NodeId
    datagrams: list[bytes]


@dataclass(frozen=True, slots=True)
class Span:
    """Whole blocks of one incarnation of one source, with consecutive message numbers and sequence numbers."""

    source: NodeId
    incarnation: int
    first: int  # the source's number of the first message
    count: int
    sequence: int  # the global number of the first message
    bodies: tuple[bytes, ...]  # decrypted block bodies, decoded by fairtape.core.spans
    counts: tuple[int, ...]  # messages in each body
    fragments: tuple[bool, ...] = ()  # which bodies are fragments of a long message; () if none is


@dataclass(frozen=True, slots=True)
class Ordered:
    """Msg(e): the messages that one token ordered. Identical at every site, byte for byte."""

    stripe: int
    formation: int
    token: int
    sequence: int  # first sequence number
    count: int
    acknowledged_at: Instant  # t_e, the scheduled time of Ack(e); in RMP, when its token site sent it
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class FormationChange:
    """A new formation takes over at this position of the order. Identical at every site, byte for byte."""

    stripe: int
    formation: int  # its number
    token: int  # its first token
    sequence: int  # of its first message
    broken: bool  # a Break: more than K members were silent, so later numbers may have been assigned before
    layout: bytes  # the formation as fairtape.ring.membership.layout encodes it
    installed_at: Instant  # its scheduled start


@dataclass(frozen=True, slots=True)
class Recovered:
    """The end of a journal: all that a site needs to continue from it."""

    token: int  # the last one in the order
    sequence: int  # the number of the next message
    streams: Mapping[NodeId, tuple[int, int]]  # per source: its latest incarnation in the order, and its next number
    number: int  # of the last formation in it; 0: none
    layout: bytes | None  # that formation
    released_through: int  # token
    journal: int = 0  # the identity of the journal; 0: it has none

    @classmethod
    def nothing(cls, first_token: int = 1, first_sequence: int = 1, number: int = 0) -> "Recovered":
        """The end of an empty journal."""
        return cls(first_token - 1, first_sequence, {}, number, None, first_token - 1)


@dataclass(slots=True)
class AppendFormation:
    """Write a change of formation to the journal and report it to the applications: the order may have a Break."""

    change: FormationChange


@dataclass(slots=True)
class Fetch:
    """Read journal entries after `token`, up to the limit but at least one, and pass them to `fetched`.

    Where the formation is unknown, the change to that of the first entry precedes them.
    """

    token: int
    formation: int | None  # the last one before that position; 0: none; None: unknown
    size_max: int  # bytes
    ticket: int  # identifies the response


@dataclass(slots=True)
class FetchChunks:
    """Read chunks of the journal entries after a position, and pass them to `fetched_chunks`.

    Each entry is split into chunks of `chunk_size` bytes; its last one may be shorter.
    """

    token: int
    formation: int  # the last one before that position; 0: none
    skip: int  # chunks after that position
    count_max: int
    chunk_size: int
    ticket: int  # identifies the response


@dataclass(slots=True)
class Truncate:
    """Remove everything after `token` from the journal, and pass the new end to `recovered`."""

    token: int


@dataclass(slots=True)
class QueryStore:
    """Query the formation store, and pass its response to `answered`."""

    question: StoreRequest


@dataclass(slots=True)
class Append:
    """Write Msg(e) to the journal. Emitted once this site holds Msg(e) and everything before it."""

    ordered: Ordered


@dataclass(frozen=True, slots=True)
class Release:
    """When this site released one token. It differs between sites, so it is not part of the order."""

    token: int
    sequence: int
    count: int
    commit_at: Instant  # t_e + commit_delay, the same everywhere
    released_at: Instant  # by this site's clock
    late: bool  # released after commit_at, marked, never reordered
    clock_bound: Duration  # the clock error bound at that instant
    clock_behind: Duration = 0  # by how much the clock is proved to be behind; not in the journal


@dataclass(slots=True)
class Deliver:
    """Pass Msg(e) to the applications now. Tokens without messages are not delivered."""

    ordered: Ordered
    release: Release


class Reason(Enum):
    """Why a site declares a failure."""

    ACK_SILENT = "its acknowledgment did not come in time"
    MESSAGES_SILENT = "messages it acknowledged could not be recovered"
    TOKEN_REFUSED = "the token was passed to it and never taken up"  # noqa: S105 - a token of the ring
    BREACH = "it broke the protocol"
    ACK_OVERDUE = "its acknowledgment is overdue"  # a suspicion: nothing is declared yet


REASONS: Final = tuple(Reason)  # on the wire a reason is its index in this tuple, plus 1


@dataclass(frozen=True, slots=True)
class Report:
    """This site declares that `suspect` failed at `token`. It commits nothing from that token on."""

    suspect: NodeId
    token: int
    reason: Reason
    declared_at: Instant


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the operator's log."""

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
    | FetchChunks
    | Truncate
    | QueryStore
    | Notice
)
