"""The cities, floors and regions of the demonstration, and the deployment that it runs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairtape.core.cities import CITIES, City, node_name
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.description import Deployment
from fairtape.deployment.operations.draft import FIRST_SOURCE, Draft, create_deployment
from fairtape.deployment.process.edge import stripe_plans_of
from fairtape.edge.protocol.feed_assignment import Region
from fairtape.market.stripes import StripePlan
from fairtape.market.symbols import VENUES, Venue
from fairtape.net.driver import may_run_in_real_time
from fairtape.net.transports import LOOPBACK, multicast_works
from fairtape.wire.frames import NodeId

# The token goes round the world once. The order of CITIES keeps most hops short, and their sum is far below nine token
# periods, so a token delayed by a loss catches up within a few hops.
SITES: Final[dict[NodeId, City]] = dict(enumerate(CITIES, 1))
FLOORS: Final[dict[NodeId, Venue]] = dict(enumerate(VENUES[:6], FIRST_SOURCE))
PROFILE: Final = "wan"
RESILIENCE: Final = 2  # a message commits when three sites hold it, so it survives the failure of any two
TIMING: Final = PROFILES[PROFILE].with_resilience(RESILIENCE)
EDGE_STRIPES: Final = 2  # for trades; one more carries all other messages
EDGE_SYMBOLS: Final = 32  # listed for six venues, so that customers need not process a long directory
# Each region is served by the first two of its cities, and by the next ones when those fail.
REGIONS: Final = {
    "Americas": ("New York", "Chicago", "São Paulo", "London"),
    "Europe": ("London", "Frankfurt", "New York", "Mumbai"),
    "Asia": ("Tokyo", "Singapore", "Sydney", "Mumbai"),
}
VICTIM: Final = next(node for node, city in SITES.items() if city.name == "Tokyo")
"""The site that is killed half-way: it publishes to customers, and a floor is next to it."""

BACKGROUND_PERIOD: Final = 100 * MILLISECOND
NICENESS: Final = 15  # of processes that are not part of the deployment, where its sites have no real-time priority


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWorld:
    """The options of the user."""

    seconds: float
    loss: float
    rate: float  # messages per second, over all floors
    seed: int
    mesh: bool = False
    customers: int = 200  # over all regions
    kills: bool = True  # one receiver, half-way

    def create(self, folder: Path) -> Deployment:
        """Write the deployment into a new or empty folder. Raises `UserError`."""
        regions = {
            name: tuple(node_name(city) for each in cities for city in CITIES if city.name == each)
            for name, cities in REGIONS.items()
        }
        draft = Draft(
            loops=(len(SITES),),
            profile=PROFILE,
            sources=len(FLOORS),
            resilience=str(RESILIENCE),
            mesh=self.mesh,
            edge=EDGE_STRIPES if self.customers else 0,
            edge_symbols=EDGE_SYMBOLS,
            regions=regions if self.customers else {},
            cities=tuple(city.name for city in SITES.values()),
            loss=self.loss,
            fault_seed=self.seed,
        )
        return create_deployment(folder, draft)

    def customers_of(self, region: int) -> int:
        """How many of all customers are in the region of this number."""
        return (self.customers + len(REGIONS) - 1 - region) // len(REGIONS)


def customers_possible() -> bool:
    """Whether customers can receive: they need IP multicast."""
    return multicast_works(LOOPBACK)


def region_of(deployment: Deployment, number: int) -> Region:
    """A region as the deployment has it."""
    assert deployment.edge is not None
    return deployment.edge.regions[number]


def plan_of(deployment: Deployment) -> StripePlan:
    """The stripe plan of the deployment."""
    assert deployment.edge is not None
    return stripe_plans_of(deployment).by_version(deployment.edge.first_plan)[0]


def city_of(deployment: Deployment, name: str) -> str:
    """The display name of a site."""
    return SITES[deployment.nodes[name].number].name


def lower_priority() -> None:
    """Lower the priority of this process below the sites, because releases have deadlines."""
    if not may_run_in_real_time():  # real-time processes come first anyway
        os.nice(NICENESS)


class BackgroundTimer:
    """When processes beside the sites do their work: each in its turn, away from the commit instants.

    At a commit instant all sites of this machine need a core at once, and any other work delays a release.
    """

    def __init__(self, commit_at: Instant, *, turn: int, turns: int) -> None:
        """`commit_at` is any commit instant: their period is a multiple of BACKGROUND_PERIOD."""
        quiet, usable = BACKGROUND_PERIOD // 8, BACKGROUND_PERIOD // 2
        self.due_at = commit_at % BACKGROUND_PERIOD + quiet + usable * turn // turns

    def is_due(self, now: Instant) -> bool:
        """Whether the turn of this process has come. True once in each period."""
        if now < self.due_at:
            return False
        self.due_at += ((now - self.due_at) // BACKGROUND_PERIOD + 1) * BACKGROUND_PERIOD
        return True

    def remaining(self, now: Instant) -> Duration:
        return max(self.due_at - now, 0)
