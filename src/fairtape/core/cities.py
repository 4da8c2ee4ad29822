"""Nine cities and the round trips between them: the network for which the `wan` profile is made.

The round trips are those of ordinary network providers, in whole milliseconds and approximate, from public looking
glasses and cloud latency charts. A test checks that none is shorter than light in fibre along the great circle allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Final
from unicodedata import normalize

from fairtape.core.instants import MICROSECOND, MILLISECOND, Duration
from fairtape.core.link_faults import LinkFaults

WITHIN_CITY: Final = 500 * MICROSECOND  # round trip between two data centres of one city
JITTER_SHARE: Final = 100  # mean queueing is one part in this of the one-way delay
JITTER_MIN: Final = 50 * MICROSECOND


@dataclass(frozen=True, slots=True)
class City:
    """A location of a site, in degrees north and east."""

    name: str
    latitude: float
    longitude: float


CITIES: Final = (
    City("New York", 40.71, -74.01),
    City("Chicago", 41.88, -87.63),
    City("São Paulo", -23.55, -46.63),
    City("London", 51.51, -0.13),
    City("Frankfurt", 50.11, 8.68),
    City("Mumbai", 19.08, 72.88),
    City("Singapore", 1.35, 103.82),
    City("Tokyo", 35.68, 139.69),
    City("Sydney", -33.87, 151.21),
)

# Each row begins at the city after its own, in the order of CITIES.
_ROUND_TRIPS_MS: Final = (
    #          Chi  SPa  Lon  Fra  Mum  Sin  Tok  Syd
    (17, 115, 70, 82, 190, 225, 160, 205),  # New York
    (135, 88, 100, 208, 212, 140, 190),  # Chicago
    (185, 200, 300, 328, 258, 312),  # São Paulo: to Asia by way of North America or Europe
    (14, 112, 165, 210, 265),  # London
    (122, 158, 225, 275),  # Frankfurt
    (58, 122, 152),  # Mumbai
    (70, 93),  # Singapore
    (105,),  # Tokyo
)

ROUND_TRIPS: Final[Mapping[frozenset[City], Duration]] = MappingProxyType(
    {
        frozenset(pair): milliseconds * MILLISECOND
        for pair, milliseconds in zip(
            combinations(CITIES, 2), (rtt for row in _ROUND_TRIPS_MS for rtt in row), strict=True
        )
    }
)
"""One entry per unordered pair, so that the table is symmetric and complete."""


def city(name: str) -> City:
    """The city of that name, case-insensitive."""
    for candidate in CITIES:
        if candidate.name.casefold() == name.casefold():
            return candidate
    raise ValueError(f"city is {name!r}; expected one of {', '.join(known.name for known in CITIES)}")


def node_name(place: City) -> str:
    """The name of a node in this city: in lower case, without accents and spaces."""
    plain = normalize("NFKD", place.name).encode("ascii", "ignore").decode()
    return plain.lower().replace(" ", "-")


def round_trip(one: City, other: City) -> Duration:
    """The round trip; two sites in one city are one metropolitan hop apart."""
    return WITHIN_CITY if one == other else ROUND_TRIPS[frozenset((one, other))]


def faults_between(one: City, other: City, *, loss: float = 0.0, duplication: float = 0.0) -> LinkFaults:
    """One direction of the link: half the round trip, with jitter in proportion to it."""
    delay = round_trip(one, other) // 2
    return LinkFaults(delay=delay, jitter=max(delay // JITTER_SHARE, JITTER_MIN), loss=loss, duplication=duplication)
