"""The cities, floors and regions of the demonstration, the links between them, and the plan for all processes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from secrets import token_bytes
from typing import Final

from fairtape.core.addresses import Address
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import PROFILES
from fairtape.deployment.ring_plan import RingPlan
from fairtape.edge.protocol.feed_assignment import Region
from fairtape.edge.service.settings import EdgeSettings, PublisherPlace
from fairtape.market.stripes import DAY, Endpoint, StripePlan, plan_by_rate
from fairtape.market.symbols import VENUES, Venue, universe
from fairtape.net.loopback import free_ports, loopback_book
from fairtape.net.transports import LOOPBACK, Groups
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.cities import CITIES, City, city, faults_between
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import KEY_SIZE, Keys

# The token goes round the world once. The order of CITIES keeps most hops short, and their sum is far below nine token
# periods, so a token delayed by a loss catches up within a few hops.
SITES: Final[dict[NodeId, City]] = dict(enumerate(CITIES, 1))
FLOORS: Final[dict[NodeId, Venue]] = {100 + venue.number: venue for venue in VENUES[:6]}
REFORMER: Final = 901
REFORMER_CITY: Final = city("London")
OPERATOR: Final = 999
TIMING: Final = PROFILES["wan"]
RESILIENCE: Final = 2  # a message commits when three sites hold it, so it survives the failure of any two

TAG: Final = "DM"
CORE: Final = 0  # the core stripe
EDGE_STRIPES: Final = 2  # for trades; one more carries all other messages
EDGE_SYMBOLS: Final = 32  # listed in the directory: 192 listings over all venues; other symbols use wide messages
EDGE_BITS_PER_S: Final = 100_000_000  # per edge stripe


def _region(name: str, *cities: str) -> Region:
    """A region with two feeds: published by the first two cities, and by the next ones when those fail."""
    nodes = {site.name: node for node, site in SITES.items()}
    return Region(
        name=name, feeds=(f"{name}-A", f"{name}-B"), receivers=tuple(nodes[city_name] for city_name in cities)
    )


REGIONS: Final = (
    _region("Americas", "New York", "Chicago", "São Paulo", "London"),
    _region("Europe", "London", "Frankfurt", "New York", "Mumbai"),
    _region("Asia", "Tokyo", "Singapore", "Sydney", "Mumbai"),
)
VICTIM: Final = REGIONS[-1].receivers[0]  # killed half-way: it publishes to customers, and a floor is next to it


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePlan:
    """Configuration shared by the processes of the edge."""

    stripes: StripePlan
    settings: EdgeSettings
    folder: Path  # holds the stripe plan as a file, for the retransmit servers
    routes: Mapping[Endpoint, Address]  # where a feed of a stripe is sent: its group, or its only listener
    multicast: bool  # whether the routes are groups

    def servers_of(self, region: Region) -> tuple[Address, ...]:
        """The retransmit servers of a region, next to its first receivers."""
        return tuple(self.settings.publishers[name_of(site)].requests for site in publishers_of(region))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """Configuration shared by all processes."""

    ring: RingPlan  # its formation is a template; the reformation server sets the start
    topology: Topology
    edge: EdgePlan
    store: str  # of the reformation server


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorld:
    """The options of the user."""

    seconds: float
    loss: float
    rate: float  # messages per second, over all floors
    seed: int
    groups: Groups | None
    transport: str  # for display
    customers: int = 200  # over all regions
    kills: bool = True  # one receiver, half-way
    secret: bytes = field(default_factory=lambda: token_bytes(KEY_SIZE), repr=False)

    def plan(self, folder: Path) -> WorldPlan:
        """The plan, without a start instant. The servers keep their files in `folder`."""
        nodes = (*SITES, REFORMER, *FLOORS)
        members = tuple(SITES)
        return WorldPlan(
            ring=RingPlan(
                formation=Formation(number=1, members=members, timing=TIMING, starts_at=0, resilience=RESILIENCE),
                keys=Keys.from_secret(self.secret, (*SITES, REFORMER, OPERATOR), FLOORS),
                book=loopback_book(SITES, FLOORS, (REFORMER,)),
                groups=self.groups,
                link_faults={node: self._link_faults_at(node, nodes) for node in nodes},
                fault_seed=self.seed,
            ),
            topology=Topology(loops=(LoopTopology(number=0, tour=members, timing=TIMING),), resilience=RESILIENCE),
            edge=_edge_plan(folder / ".edge", self.groups),
            store=f"sqlite:{folder / '.formations.db'}",
        )

    def customers_of(self, region: Region) -> int:
        """How many of all customers are in this region."""
        index = REGIONS.index(region)
        return (self.customers + len(REGIONS) - 1 - index) // len(REGIONS)

    def _link_faults_at(self, node: NodeId, nodes: tuple[NodeId, ...]) -> dict[NodeId, LinkFaults]:
        here = city_of(node)
        return {other: faults_between(city_of(other), here, loss=self.loss) for other in nodes if other != node}


def _edge_plan(folder: Path, groups: Groups | None) -> EdgePlan:
    """The stripe plan of today, on a random range of groups so that two demonstrations do not collide."""
    feeds = [feed for region in REGIONS for feed in region.feeds]
    port, *ports = free_ports(1 + 2 * len(SITES) + len(feeds) * (EDGE_STRIPES + 1))
    stripes = plan_by_rate(
        dict.fromkeys(universe(EDGE_SYMBOLS), 1),
        EDGE_STRIPES,
        EDGE_BITS_PER_S,
        midnight_at=time.time_ns() // DAY * DAY,
        feeds=feeds,
        venues=[venue.name for venue in FLOORS.values()],
        base=Endpoint(f"239.196.{SystemRandom().randrange(1, 255)}.1", port),
    ).plan
    publishers = {
        name_of(site): PublisherPlace(feed=feed, requests=(LOOPBACK, ports.pop()), replays=(LOOPBACK, ports.pop()))
        for region in REGIONS
        for feed, site in zip(region.feeds, publishers_of(region), strict=True)
    }
    endpoints = [endpoint for stripe in stripes.edge for _, endpoint in stripe.feeds]
    return EdgePlan(
        stripes=stripes,
        settings=EdgeSettings(tag=TAG, core=CORE, publishers=publishers, first_plan=1, ttl=0, guaranteed=(LOOPBACK,)),
        folder=folder,
        routes={
            each: (each.address, each.port) if groups is not None else (LOOPBACK, ports.pop()) for each in endpoints
        },
        multicast=groups is not None,
    )


def publishers_of(region: Region) -> tuple[NodeId, ...]:
    """The first publishers of a region, one per feed. Each has a retransmit server next to it."""
    return region.receivers[: len(region.feeds)]


def city_of(node: NodeId) -> City:
    if node == REFORMER:
        return REFORMER_CITY
    return SITES[node] if node in SITES else city(FLOORS[node].city)


def name_of(node: NodeId) -> str:
    """The display name of a node."""
    if node == REFORMER:
        return "the reformation server"
    return SITES[node].name if node in SITES else FLOORS[node].name
