"""What the publisher of a site and its retransmit server report about themselves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairtape.core.json_objects import INLINE, KEY, OPTIONAL
from fairtape.edge.protocol.counters import RemulticastCounts, ReplayCounts, RetransmitterCounts

_REASON: Final[Mapping[str, str]] = {KEY: "words"}
_OPTIONAL: Final[Mapping[str, bool]] = {OPTIONAL: True}
_OPTIONAL_INLINE: Final[Mapping[str, bool]] = {OPTIONAL: True, INLINE: True}


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
