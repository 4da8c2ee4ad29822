"""The section `[edge]` of a deployment: the sites that publish to customers, their feeds and addresses."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairtape.core.addresses import Address
from fairtape.edge.protocol.feed_assignment import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherPlace:
    """The addresses of one edge publisher and its retransmit server."""

    feed: str  # of the plans: for its packets and for multicast repairs
    requests: Address  # UDP: retransmission requests
    replays: Address  # TCP: SoupBinTCP


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings:
    """The edge of a deployment."""

    tag: str  # the deployment in session names: 1 or 2 letters and digits
    core: int  # the core stripe of the deployment
    publishers: Mapping[str, PublisherPlace]  # by the names of the sites
    first_plan: int = 0  # the version in force from the first message on; 0: none until one is installed
    ttl: int = 1
    guaranteed: tuple[str, ...] = ()  # hosts of customers with the guaranteed grade
    customers: Path | None = None  # JSON file of names and passwords; None: any login is accepted
    regions: tuple[Region, ...] = ()  # without any, each publisher always sends on its own feed
