"""What the edge reports to the operator: the counters of its machines, and the status of its two servers.

It imports little, so that a command reads status files without loading the machines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairtape.core.json_objects import INLINE, KEY, OPTIONAL

_REASON: Final[Mapping[str, str]] = {KEY: "words"}
_OPTIONAL: Final[Mapping[str, bool]] = {OPTIONAL: True}
_OPTIONAL_INLINE: Final[Mapping[str, bool]] = {OPTIONAL: True, INLINE: True}


@dataclass(slots=True)
class RemulticastCounts:
    """Counters of a remulticaster."""

    messages: int = 0
    packets: int = 0
    heartbeats: int = 0
    overruns: int = 0  # messages that waited for the rate limit longer than `overrun_delay`
    dropped: int = 0  # messages dropped from a full queue; customers request them
    strayed: int = 0  # tokens that were not sent because the position is lost


@dataclass(slots=True)
class RetransmitterCounts:
    """Counters of a retransmit server."""

    requests: int = 0
    malformed: int = 0  # not a request of MoldUDP64
    strangers: int = 0  # for an unknown session
    absurd: int = 0  # for numbers that do not exist yet
    floods: int = 0  # beyond the request rate of a host
    refused: int = 0  # under load, or too many of one host
    crossed: int = 0  # answered already by a multicast repair
    gone: int = 0  # repairs of messages that the archive no longer has
    unicasts: int = 0  # repairs
    multicasts: int = 0  # repairs
    messages: int = 0


@dataclass(slots=True)
class ReplayCounts:
    """Counters of a replay server."""

    connections: int = 0
    turned_away: int = 0  # beyond the limit of connections, in all or of one customer
    malformed: int = 0
    breaches: int = 0  # packets that are not allowed in their state
    rejected: int = 0  # logins
    half_open: int = 0  # connections without a login
    silent: int = 0
    stalled: int = 0  # clients that did not read
    gone: int = 0  # replays of numbers that the archive no longer has
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStatus:
    """The publisher in the process of a site. One that has no socket has neither feeds nor counts."""

    feed: str
    feeds: tuple[str, ...] | None = field(default=None, metadata=_OPTIONAL)
    speaks: bool  # whether it sends
    reason: str = field(metadata=_REASON)  # why it does not send
    plan: int | None  # version of the stripe plan in force
    marks: tuple[int, ...]  # plans that it has read, in force or not
    counts: RemulticastCounts | None = field(default=None, metadata=_OPTIONAL_INLINE)
    sent: int | None = field(default=None, metadata=_OPTIONAL)  # datagrams
    unsent: int  # datagrams that the kernel refused; without a socket, messages


@dataclass(frozen=True, slots=True, kw_only=True)
class RetransmitStatus:
    """The retransmit server beside a site."""

    feed: str
    reason: str = field(metadata=_REASON)  # why it cannot go on
    plan: int  # 0: none is in force
    sequence: int  # the last one that it has read
    restarts: int
    forgets: bool  # whether its checkpoint cannot be written
    connections: int
    waiting_bytes: int
    connections_refused: int
    guaranteed_refused: int
    requests: RetransmitterCounts
    replays: ReplayCounts
    unsent: int
