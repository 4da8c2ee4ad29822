"""Hierarchies of loops: what grows with the number of sites, and `fairtape scale`."""

import gc
import json
from dataclasses import replace
from random import Random

import pytest

from fairtape.cli import run
from fairtape.cli.simulate import show_scale
from fairtape.core.instants import MILLISECOND
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.scale import (
    ASKERS_MAX,
    TIMING,
    Measured,
    Size,
    measure,
    tree_along,
    uncollected,
)

pytestmark = pytest.mark.xdist_group("scale")  # one process measures for all tests

FEW, MANY = 100, 400
TOKENS = 60
SOURCE = 99


@pytest.fixture(scope="module")
def rows() -> dict[tuple[int, bool], Measured]:
    sizes = [Size(sites=sites, taking_turns=turns, tokens=TOKENS) for sites in (FEW, MANY) for turns in (False, True)]
    return {(size.sites, size.taking_turns): measure(size) for size in sizes}


Rows = dict[tuple[int, bool], Measured]


def test_a_loop_sends_one_control_message_per_token_for_any_number_of_sites(rows: Rows) -> None:
    for row in rows.values():
        assert row.tokens == TOKENS
        assert row.primary_control == 1.0
        assert row.secondary_control == pytest.approx(1.0, abs=0.05)


def test_every_secondary_loop_keeps_up_with_the_primary_one(rows: Rows) -> None:
    for row in rows.values():
        assert row.loop_tokens >= TOKENS - row.loop_sites


def test_every_site_releases_everything_in_the_end(rows: Rows) -> None:
    assert all(row.complete for row in rows.values())
    assert all(row.losses and row.requests and row.repairs for row in rows.values())


def test_a_site_receives_requests_only_from_its_own_loops(rows: Rows) -> None:
    """It gets requests for few of all losses, and their number does not grow with the number of sites. 2001 §4.1."""
    few, many = rows[FEW, False], rows[MANY, False]
    assert many.asked_per_token < many.missed_per_token / 2
    assert many.requests_peak <= many.requests_peak_max < MANY / 4
    assert few.requests_peak <= few.requests_peak_max < FEW / 2


def test_with_request_sets_the_number_of_simultaneous_requests_stays_the_same(rows: Rows) -> None:
    """k_p grows with the loop, so the size of a set does not. 2001 §5.2."""
    for sites in (FEW, MANY):
        assert rows[sites, True].requests_peak <= 2 * rows[sites, True].size.levels * ASKERS_MAX
        assert rows[sites, True].requests < rows[sites, False].requests
        assert rows[sites, True].repairs < rows[sites, False].repairs


def test_no_promise_of_any_row_is_broken(rows: Rows) -> None:
    assert [sentence for row in rows.values() for sentence in row.broken()] == []


def test_a_broken_promise_is_described_in_a_sentence(rows: Rows) -> None:
    worse = replace(rows[FEW, True], complete=False, primary_control=1.5, secondary_control=2.0, requests_peak=99)
    assert worse.broken() == [
        "100 sites, k_p 2: some sites have not released everything",
        "100 sites, k_p 2: 1.500 control messages per token of the primary loop",
        "100 sites, k_p 2: 2.000 control messages per token of a loop",
        "100 sites, k_p 2: a site was asked 99 times at once",
    ]


def test_one_size_is_one_history() -> None:
    size = Size(sites=12, tokens=41, tree_loss=0.02)
    assert measure(size) == measure(size)


def test_three_levels_of_loops_work_as_well() -> None:
    row = measure(Size(sites=30, levels=3, tokens=50))
    assert row.broken() == []
    assert row.loops > 5


def test_progress_is_reported_from_the_first_token_to_the_last() -> None:
    shares: list[float] = []
    measure(Size(sites=9, tokens=4), shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def loop(number: int, *members: int) -> Formation:
    return Formation(number=1, members=members, timing=TIMING, starts_at=0, loop=number)


def test_the_tree_follows_the_loops() -> None:
    """The source is connected to the backbone of junctions, and all nodes behind a junction are in its loop."""
    loops = [loop(0, 11, 21, 31), loop(1, 11, 12, 13), loop(2, 21, 22, 23), loop(3, 31, 32, 33)]
    tree = tree_along(loops, SOURCE, 0.1, Random(5))
    walk = [SOURCE, *(node for _, node in tree.outward(SOURCE))]
    assert sorted(walk) == [11, 12, 13, 21, 22, 23, 31, 32, 33, SOURCE]
    parent_of = {node: walk[parent] for parent, node in tree.outward(SOURCE)}
    for each in loops[1:]:
        assert all(parent_of[member] in each.members for member in each.members[1:])
    assert parent_of[11] == SOURCE


def test_the_garbage_collector_is_disabled_and_then_restored() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_command_prints_a_table_that_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "--sites", "9", "--sites", "12", "--tokens", "41"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:3] == ["sites", "loops", "k_p"]
    assert [line.split()[:5] for line in shown[1:5]] == [
        ["9", "4", "of", "3", "1"],
        ["9", "4", "of", "3", "2"],
        ["12", "4", "of", "4", "1"],
        ["12", "4", "of", "4", "2"],
    ]
    assert all(len(line) <= 120 for line in shown)
    assert shown[-1] == "Every promise was kept."


def test_the_command_gives_everything_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "--sites", "9", "--tokens", "41", "--loss", "0.01", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["broken"] == []
    assert [row["size"]["taking_turns"] for row in found["rows"]] == [False, True]
    assert found["rows"][0]["primary_control"] == 1.0
    assert found["rows"][0]["lag_max_s"] >= TIMING.token_period / 4 / 1_000 / MILLISECOND


def test_a_run_that_ends_too_soon_is_not_called_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert not show_scale([Size(sites=9, tokens=3)], as_json=False)
    assert "broken: 9 sites, k_p 1: some sites have not released everything" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--sites", "5"], "--sites is 5; give from 9 to 20,000"),
        (["--sites", "100", "--levels", "1"], "--levels is 1; give 2 or more"),
        (["--sites", "20000"], "levels is 2, which makes loops of 142"),
        (["--tokens", "3"], "--tokens is 3; give from 41 to 100,000"),
        (["--loss", "0.5"], "--loss is 0.5; give from 0 to 0.02, such as 0.002 for 0.2 %"),
    ],
)
def test_a_mistake_is_refused_in_one_sentence(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scale", *arguments]) == 2
    assert error in capsys.readouterr().err
