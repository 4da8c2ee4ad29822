"""The world of the demonstration: which cities, which floors, what lies between them, and the plan of their ring."""

from dataclasses import dataclass, field
from secrets import token_bytes
from typing import Final

from fairtape.core.cities import CITIES, City, city, weather_between
from fairtape.core.instants import Instant
from fairtape.core.timing import PROFILES
from fairtape.core.weather import Weather
from fairtape.deployment.loopback import loopback_book
from fairtape.deployment.ring import RingPlan
from fairtape.market.symbols import VENUES, Venue
from fairtape.ring.formation import Formation
from fairtape.runtime.carriers import Groups
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import KEY_SIZE, Keys

# The token goes round the world once: the order of CITIES keeps most hops short, and the sum of them far below what
# nine tokens take, so a token that was held up by a loss catches up within a few hops.
SITES: Final[dict[NodeId, City]] = dict(enumerate(CITIES, 1))
FLOORS: Final[dict[NodeId, Venue]] = {100 + venue.number: venue for venue in VENUES[:6]}
TIMING: Final = PROFILES["wan"]
RESILIENCE: Final = 2  # a message commits when three sites hold it, so it survives any two of them


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the user chose."""

    seconds: float
    loss: float
    rate: float  # messages per second, over all floors
    seed: int
    groups: Groups | None
    carrier: str  # in words
    secret: bytes = field(default_factory=lambda: token_bytes(KEY_SIZE), repr=False)

    def plan(self, starts_at: Instant) -> RingPlan:
        """The ring of this world, whose first token is due then."""
        return RingPlan(
            formation=Formation(
                number=1, members=tuple(SITES), timing=TIMING, starts_at=starts_at, resilience=RESILIENCE
            ),
            keys=Keys.from_secret(self.secret, SITES, FLOORS),
            book=loopback_book(SITES, FLOORS),
            groups=self.groups,
            weather={node: self._weather_at(node) for node in (*SITES, *FLOORS)},
            weather_seed=self.seed,
        )

    def _weather_at(self, node: NodeId) -> dict[NodeId, Weather]:
        here = place(node)
        others = (other for other in (*SITES, *FLOORS) if other != node)
        return {other: weather_between(place(other), here, loss=self.loss) for other in others}


def place(node: NodeId) -> City:
    """Where a node stands."""
    return SITES[node] if node in SITES else city(FLOORS[node].city)


def name_of(node: NodeId) -> str:
    """What people call a node."""
    return SITES[node].name if node in SITES else FLOORS[node].name
