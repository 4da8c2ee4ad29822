"""The nine-city world is complete, symmetric and physically possible."""

from itertools import combinations
from math import asin, cos, radians, sin, sqrt

import pytest

from fairtape.core.cities import (
    CITIES,
    ROUND_TRIPS,
    WITHIN_CITY,
    City,
    city,
    faults_between,
    round_trip,
)
from fairtape.core.instants import MILLISECOND, Duration
from fairtape.core.timing import PROFILES

PAIRS = list(combinations(CITIES, 2))
EARTH_RADIUS_KM = 6_371.0
FIBRE_KM_PER_MS = 299.792_458 / 1.468  # light in standard single-mode fibre


def distance_km(one: City, other: City) -> float:
    """Along the great circle, by the haversine formula."""
    north, other_north = radians(one.latitude), radians(other.latitude)
    across = sin((other_north - north) / 2) ** 2
    along = sin(radians(other.longitude - one.longitude) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * asin(sqrt(across + cos(north) * cos(other_north) * along))


def light_round_trip(one: City, other: City) -> Duration:
    """The round trip in a fibre along the great circle: a lower bound for any network."""
    return int(2 * distance_km(one, other) / FIBRE_KM_PER_MS * MILLISECOND)


def names(pair: tuple[City, City]) -> str:
    return f"{pair[0].name} to {pair[1].name}"


def test_there_are_nine_cities_and_every_pair_has_a_round_trip() -> None:
    assert len({place.name for place in CITIES}) == 9
    assert set(ROUND_TRIPS) == {frozenset(pair) for pair in PAIRS}


@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_no_round_trip_beats_light_in_fibre(pair: tuple[City, City]) -> None:
    assert round_trip(*pair) > light_round_trip(*pair)


@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_no_round_trip_is_implausibly_long(pair: tuple[City, City]) -> None:
    """Cables detour, but no round trip needs four times the great circle over the distances of this table."""
    assert round_trip(*pair) < 4 * light_round_trip(*pair)


@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_round_trips_and_link_faults_are_symmetric(pair: tuple[City, City]) -> None:
    one, other = pair
    assert round_trip(one, other) == round_trip(other, one)
    assert faults_between(one, other) == faults_between(other, one)


@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_the_wan_profile_waits_at_least_a_round_trip(pair: tuple[City, City]) -> None:
    """T_R is one request and its answer, queueing included.  T-RMP §5."""
    link_faults = faults_between(*pair)
    assert 2 * (link_faults.delay + link_faults.jitter) < PROFILES["wan"].retry_period


def test_distances_agree_with_an_atlas() -> None:
    assert distance_km(city("New York"), city("London")) == pytest.approx(5_570, rel=0.01)
    assert distance_km(city("Singapore"), city("Sydney")) == pytest.approx(6_300, rel=0.01)
    assert distance_km(city("Tokyo"), city("Tokyo")) == 0


def test_two_sites_of_one_city_are_a_short_hop_apart() -> None:
    london = city("London")
    assert round_trip(london, london) == WITHIN_CITY
    assert faults_between(london, london).delay == WITHIN_CITY // 2


def test_link_faults_have_half_the_round_trip_and_the_given_loss() -> None:
    link_faults = faults_between(city("New York"), city("London"), loss=0.01, duplication=0.02)
    assert 2 * link_faults.delay == round_trip(city("London"), city("New York"))
    assert link_faults.jitter > 0
    assert (link_faults.loss, link_faults.duplication) == (0.01, 0.02)


def test_a_city_is_found_in_any_case_and_an_unknown_one_is_refused_with_the_known_ones() -> None:
    assert city("são paulo").name == "São Paulo"
    with pytest.raises(ValueError, match=r"'Atlantis'; expected one of New York, Chicago"):
        city("Atlantis")
