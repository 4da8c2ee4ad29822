"""Ring runs: smoke seeds, regressions, determinism, and the variety of configurations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairtape.simulation.campaign import CampaignTally, campaign, replay_command
from fairtape.simulation.configuration import LOSSES, draw
from fairtape.simulation.ring_run import run_seed

SMOKE_SEEDS = range(1, 25)
TWICE = (3, 7, 12, 20)
REGRESSIONS = Path(__file__).with_name("regressions.txt")


def regressions() -> list[tuple[int, float | None]]:
    lines = (line.split("#")[0].split() for line in REGRESSIONS.read_text().splitlines())
    return [(int(seed), float(loss[0]) if loss else None) for seed, *loss in filter(None, lines)]


@pytest.mark.parametrize("seed", SMOKE_SEEDS)
def test_every_guarantee_holds_in_the_world_of_seed(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.failed, outcome.text


@pytest.mark.parametrize(("seed", "loss"), regressions())
def test_a_seed_that_failed_once_does_not_fail_again(seed: int, loss: float | None) -> None:
    outcome = run_seed(seed, loss=loss)
    assert not outcome.failed, outcome.text


def test_one_seed_is_one_history_whatever_the_hash_seed() -> None:
    """Each smoke seed runs twice under different PYTHONHASHSEED and gives the same trace."""
    program = f"from fairtape.simulation.ring_run import run_seed; print([run_seed(seed) for seed in {TWICE}])"
    outputs = []
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"digest=") == len(TWICE)


def test_a_seed_is_a_whole_configuration_and_loss_is_all_that_can_be_overridden() -> None:
    drawn, lossy = draw(5), draw(5, loss=0.2)
    assert draw(5) == drawn
    assert lossy.loss == 0.2
    assert (lossy.sites, lossy.sources, lossy.tree) == (drawn.sites, drawn.sources, drawn.tree)


def test_configurations_cover_every_kind_of_world() -> None:
    """A hundred configurations include each kind of world in which the guarantees must hold."""
    worlds = [draw(seed) for seed in range(100)]
    assert {world.loss for world in worlds} == set(LOSSES)
    assert {world.timed for world in worlds} == {True, False}
    assert {world.timing.merged for world in worlds} == {True, False}
    assert {type(fault).__name__ for world in worlds for fault in world.faults} == {
        "Clog", "Crash", "Partition", "Pause", "Restart",
    }  # fmt: skip
    assert any(world.clocks.faulty for world in worlds)
    assert any(world.intruder_period for world in worlds)
    assert any(world.record_sources for world in worlds)
    assert any(1 < len(world.group) < len(world.sources) for world in worlds)
    assert any(world.group and world.resilience and not world.timed for world in worlds)
    assert any(world.clocks.sources_within > world.clocks.bound for world in worlds)
    assert any(len(world.sites) >= 10 for world in worlds)
    assert any(max(burst.sizes) > world.datagram_max for world in worlds for burst in world.bursts)


def test_a_campaign_over_processes_finds_the_same_as_one_in_this_process() -> None:
    alone = {outcome.seed: outcome for outcome in campaign(range(1, 7), run_seed)}
    together = {outcome.seed: outcome for outcome in campaign(range(1, 7), run_seed, jobs=2)}
    assert alone == together


def test_a_tally_counts_failures_and_names_the_command_that_repeats_them() -> None:
    tally = CampaignTally()
    outcome = run_seed(1)
    tally.add(outcome)
    assert (tally.seeds, tally.failures) == (1, [])
    assert replay_command(outcome) == "fairtape check --seed 1"
    assert replay_command(outcome, "--loss", "0.05") == "fairtape check --seed 1 --loss 0.05"
