"""Counters of the edge machines, which status files show to the operator."""

from dataclasses import dataclass


@dataclass(slots=True)
class RemulticastCounts:
    """Counters for the operator."""

    messages: int = 0
    packets: int = 0
    heartbeats: int = 0
    overruns: int = 0  # messages that waited for the rate limit longer than `overrun_delay`
    dropped: int = 0  # messages dropped from a full queue; customers request them
    strayed: int = 0  # tokens that were not sent because the position is lost


@dataclass(slots=True)
class RetransmitterCounts:
    """Counters of requests and repairs."""

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
    """Counters of connections and replays."""

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
