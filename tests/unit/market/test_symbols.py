"""The rule of symbols, and that the universe and the venues follow it."""

import pytest

from fairtape.core.cities import CITIES
from fairtape.market.symbols import (
    SYMBOL_MAX,
    UNIVERSE_MAX,
    VENUE_NAME_MAX,
    VENUES,
    BadName,
    checked_symbol,
    checked_venue,
    universe,
)


@pytest.mark.parametrize("text", ["A", "BRK.B", "BTCUSD_PERP", "ES=F", "~!", "X" * SYMBOL_MAX])
def test_printable_ascii_without_blanks_is_a_symbol(text: str) -> None:
    assert checked_symbol(text) == text


@pytest.mark.parametrize("text", ["", " ", "A B", "A\n", "A\0", "É", "日経", "\x7f", "X" * (SYMBOL_MAX + 1)])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadName, match="printable ascii"):
        checked_symbol(text)


def test_the_largest_universe_has_only_distinct_symbols() -> None:
    symbols = universe(UNIVERSE_MAX)
    assert len(set(symbols)) == UNIVERSE_MAX
    assert all(checked_symbol(symbol) for symbol in symbols)


def test_a_larger_universe_begins_with_the_smaller_one() -> None:
    assert universe(5_000)[:700] == universe(700)


def test_tickers_have_the_lengths_of_listed_companies() -> None:
    lengths = [len(symbol) for symbol in universe(5_000)]
    assert lengths.count(1) == 26
    assert lengths.count(2) < lengths.count(3) < lengths.count(4)


@pytest.mark.parametrize("count", [0, -1, UNIVERSE_MAX + 1])
def test_a_universe_of_no_size_or_too_large_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="symbols is"):
        universe(count)


@pytest.mark.parametrize("text", ["", "A B", "É", "X" * (VENUE_NAME_MAX + 1)])
def test_a_venue_that_does_not_fit_a_record_is_refused(text: str) -> None:
    with pytest.raises(BadName, match=r"^venue is .* 1 to 12 printable ascii"):
        checked_venue(text)


def test_venues_are_numbered_from_one_and_have_names_of_their_own() -> None:
    assert [venue.number for venue in VENUES] == list(range(1, len(VENUES) + 1))
    assert all(checked_venue(venue.name) for venue in VENUES)
    for names in ([v.number for v in VENUES], [v.name for v in VENUES], [v.city for v in VENUES]):
        assert len(set(names)) == len(VENUES)


def test_the_first_venues_are_in_the_nine_cities() -> None:
    assert {venue.city for venue in VENUES[: len(CITIES)]} == {city.name for city in CITIES}
