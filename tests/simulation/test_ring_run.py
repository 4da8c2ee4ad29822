"""Ring runs: smoke seeds, regressions, determinism, and the variety of configurations."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairtape.simulation.campaign import CampaignTally, campaign, replay_command
from fairtape.simulation.cluster_run import run_ring
from fairtape.simulation.fault_schedule import FaultSchedule
from fairtape.simulation.ring_schedule import LOSSES, draw_ring

SMOKE_SEEDS = range(1, 25)
TWICE = (3, 7, 12, 20)
REGRESSIONS = Path(__file__).with_name("regressions.txt")


def regressions() -> list[tuple[int, float | None]]:
    lines = (line.split("#")[0].split() for line in REGRESSIONS.read_text().splitlines())
    return [(int(seed), float(loss[0]) if loss else None) for seed, *loss in filter(None, lines)]


@pytest.mark.parametrize("seed", SMOKE_SEEDS)
def test_every_guarantee_holds_in_the_world_of_seed(seed: int) -> None:
    outcome = run_ring(seed)
    assert not outcome.failed, outcome.text


@pytest.mark.parametrize(("seed", "loss"), regressions())
def test_a_seed_that_failed_once_does_not_fail_again(seed: int, loss: float | None) -> None:
    outcome = run_ring(seed, loss=loss)
    assert not outcome.failed, outcome.text


def test_one_seed_is_one_history_whatever_the_hash_seed() -> None:
    """Each smoke seed runs twice under different PYTHONHASHSEED and gives the same trace."""
    program = f"from fairtape.simulation.cluster_run import run_ring; print([run_ring(seed) for seed in {TWICE}])"
    outputs = []
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"digest=") == len(TWICE)


def test_a_seed_is_a_whole_schedule_and_loss_is_all_that_can_be_overridden() -> None:
    drawn, again, lossy = draw_ring(5), draw_ring(5), draw_ring(5, loss=0.2)
    assert (drawn.describe(), drawn.faults, drawn.bursts) == (again.describe(), again.faults, again.bursts)
    assert drawn.plan.formation == again.plan.formation
    assert loss_of(lossy) == 0.2
    assert lossy.plan.sources == drawn.plan.sources
    assert lossy.plan.topology.homes() == drawn.plan.topology.homes()


def loss_of(ring: FaultSchedule) -> float:
    return ring.plan.link_model(1, 2).loss


def test_schedules_cover_every_kind_of_ring() -> None:
    """A hundred of them include each kind of ring in which the guarantees must hold."""
    rings = [draw_ring(seed) for seed in range(100)]
    plans = [ring.plan for ring in rings]
    assert not any(plan.reformers for plan in plans)
    assert {loss_of(ring) for ring in rings} == set(LOSSES)
    assert {plan.topology.timed for plan in plans} == {True, False}
    assert {plan.topology.primary.timing.merged for plan in plans} == {True, False}
    assert {type(fault).__name__ for ring in rings for fault in ring.faults} == {
        "Clog", "Crash", "Partition", "Pause", "Restart",
    }  # fmt: skip
    assert any(ring.faulty_clocks for ring in rings)
    assert any(ring.intruder_period for ring in rings)
    assert any(plan.echo for plan in plans)
    assert any(plan.record_sources for plan in plans)
    assert any(1 < len(plan.group) < len(plan.sources) for plan in plans)
    assert any(plan.group and plan.topology.resilience and not plan.topology.timed for plan in plans)
    assert any(plan.clocks and not set(plan.clocks) & set(plan.topology.homes()) for plan in plans)  # of sources only
    assert any(len(plan.topology.primary.tour) >= 10 for plan in plans)
    assert any(max(burst.sizes) > ring.plan.datagram_max for ring in rings for burst in ring.bursts)


def test_a_campaign_over_processes_finds_the_same_as_one_in_this_process() -> None:
    alone = {outcome.seed: outcome for outcome in campaign(range(1, 7), run_ring)}
    together = {outcome.seed: outcome for outcome in campaign(range(1, 7), run_ring, jobs=2)}
    assert alone == together


def test_a_tally_counts_failures_and_names_the_command_that_repeats_them() -> None:
    tally = CampaignTally()
    outcome = run_ring(1)
    tally.add(outcome)
    assert (tally.seeds, tally.failures) == (1, [])
    assert replay_command(outcome) == "fairtape check --seed 1"
    assert replay_command(outcome, "--loss", "0.05") == "fairtape check --seed 1 --loss 0.05"
