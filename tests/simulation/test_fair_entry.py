"""Which region wins simultaneous bids: the rotating portal compared with two other ways to enter."""

import json
from math import inf
from pathlib import Path

import pytest

from fairtape.cli import run
from fairtape.cli.simulate import audit
from fairtape.simulation.fair_entry import REGIONS_MAX, EntryPath, chi_square_tail, race, regions


@pytest.mark.parametrize(
    ("value", "freedom", "tail"),
    [(3.841, 1, 0.05), (5.991, 2, 0.05), (7.815, 3, 0.05), (11.070, 5, 0.05), (15.086, 5, 0.01), (20.090, 8, 0.01)],
)
def test_the_tail_of_chi_square_is_what_tables_print(value: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(value, freedom) == pytest.approx(tail, rel=1e-3)


def test_an_entry_path_measures_how_unequal_it_is() -> None:
    assert EntryPath("equal", (10, 10, 10)).ratio == 1
    assert EntryPath("equal", (10, 10, 10)).p_value == pytest.approx(1)
    assert EntryPath("one", (30, 0, 0)).ratio == inf
    assert (EntryPath("sum", (1, 2)) + EntryPath("sum", (3, 4))).firsts == (4, 6)


def test_six_regions_are_on_four_continents_and_more_than_an_ocean_apart() -> None:
    assert len(set(regions(6))) == 6
    assert len(set(regions(REGIONS_MAX))) == REGIONS_MAX
    assert {"New York", "São Paulo", "London", "Tokyo", "Sydney"} <= {city.name for city in regions(6)}


def test_one_venue_favours_its_neighbours_and_the_portal_favours_no_region() -> None:
    portal, direct, held, cheated = race(1, count=6, races=120)
    assert portal.p_value > 0.001
    assert min(portal.firsts) > 0
    assert max(direct.firsts) == direct.firsts[0] >= 0.95 * direct.races
    assert held.ratio < direct.ratio
    assert max(cheated.firsts) == cheated.firsts[-1] >= 0.5 * cheated.races


def test_one_seed_gives_the_same_races_again() -> None:
    assert race(5, count=3, races=20) == race(5, count=3, races=20)


def test_the_audit_prints_the_shares_and_draws_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "entry.svg"
    arguments = ["entry", "--regions", "2", "--races", "1000", "--jobs", "1", "--json", "--svg", str(chart)]
    run(arguments, audit)
    found = json.loads(capsys.readouterr().out)
    assert found["ways"][0]["name"] == "rotating portal"
    assert found["ways"][0]["ratio"] < 1.3
    assert chart.read_text().count("<rect") == 2 * len(found["ways"])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--regions", "1"], "--regions is 1"),
        (["--races", "10"], "--races is 10"),
        (["--races", "1000", "--regions", "2", "--jobs", "0"], "--jobs is 0"),
    ],
)
def test_the_audit_refuses_invalid_options(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["entry", *arguments], audit) == 2
    assert error in capsys.readouterr().err
