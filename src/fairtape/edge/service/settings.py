"""What the section `[edge]` of a deployment says: who serves customers, on which feed, and where."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairtape.core.addresses import Address
from fairtape.edge.protocol.feed_assignment import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherPlace:
    """The edge of one site."""

    feed: str  # of the plans: where its region hears it, and its retransmit server
    requests: Address  # UDP: what a customer missed, it asks for here
    replays: Address  # TCP: SoupBinTCP


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings:
    """The edge of a deployment."""

    tag: str  # the deployment in the names of sessions: 1 or 2 letters and digits
    core: int  # the core stripe that the deployment is
    stations: Mapping[str, PublisherPlace]  # by the names of the sites
    first_plan: int = 0  # the version in force from the first message on; 0: none, until one is ordered
    ttl: int = 1
    guaranteed: tuple[str, ...] = ()  # hosts of customers who bought the guaranteed grade
    customers: Path | None = None  # JSON: the password of each who may log in; None: whoever comes
    regions: tuple[Region, ...] = ()  # who speaks where; without any, each station always speaks on its own feed
