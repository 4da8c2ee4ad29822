"""Cluster runs and failovers: smoke seeds, regressions, determinism, and the variety of fault schedules."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.cli import run
from fairtape.cli.check import check
from fairtape.core.instants import SECOND, Instant
from fairtape.ring.receiver.release import ReleaseQueue
from fairtape.simulation.campaign import Distribution
from fairtape.simulation.cluster_run import ClusterRun, checked, run_cluster
from fairtape.simulation.failover_run import run_failover
from fairtape.simulation.fault_schedule import draw

SMOKE_SEEDS = range(1, 13)
FAILOVERS = (2, 3, 6, 9, 12, 14, 15)
TWICE = (7, 12)
GROUPED = (1, 3, 5, 6, 43, 264, 610)


def regressions(file: str) -> list[int]:
    lines = (line.split("#")[0].strip() for line in Path(__file__).with_name(file).read_text().splitlines())
    return [int(line) for line in lines if line]


@pytest.mark.parametrize("seed", SMOKE_SEEDS)
def test_a_cluster_survives_and_heals_the_faults_of_seed(seed: int) -> None:
    outcome = run_cluster(seed)
    assert not outcome.failed, outcome.text
    assert outcome.all_delivered


@pytest.mark.parametrize("seed", [seed for seed in regressions("fault_schedules.txt") if seed not in SMOKE_SEEDS])
def test_a_fault_schedule_that_failed_once_does_not_fail_again(seed: int) -> None:
    outcome = run_cluster(seed)
    assert not outcome.failed, outcome.text


@pytest.mark.parametrize("seed", GROUPED)
def test_a_cluster_whose_sources_are_one_process_survives_and_heals_the_faults_of_seed(seed: int) -> None:
    schedule = draw(seed)
    assert len(schedule.plan.sources) > 1
    grouped = replace(schedule, plan=replace(schedule.plan, group=schedule.plan.sources))
    outcome = checked(seed, lambda: ClusterRun(grouped))
    assert not outcome.failed, outcome.text
    assert outcome.all_delivered


@pytest.mark.parametrize("seed", FAILOVERS)
def test_a_failover_takes_no_longer_than_promised(seed: int) -> None:
    outcome = run_failover(seed)
    assert not outcome.failed, outcome.text
    assert {name for name, _ in outcome.durations} >= {"detect", "install", "go on"}


@pytest.mark.parametrize("seed", regressions("failovers.txt"))
def test_a_failover_that_failed_once_does_not_fail_again(seed: int) -> None:
    outcome = run_failover(seed)
    assert not outcome.failed, outcome.text


def test_one_fault_schedule_is_one_history_whatever_the_hash_seed() -> None:
    program = f"from fairtape.simulation.cluster_run import run_cluster; print([run_cluster(seed) for seed in {TWICE}])"
    outputs = []
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"digest=") == len(TWICE)


def test_fault_schedules_cover_every_kind_of_fault() -> None:
    """Two hundred of them include every kind of fault under which the guarantees must hold."""
    schedules = [draw(seed) for seed in range(200)]
    faults = {type(fault).__name__ for each in schedules for fault in each.faults}
    assert faults == {"Clog", "Crash", "Partition", "Pause", "Restart"}
    reformers = {node for each in schedules for node in each.plan.reformers}
    assert reformers & {fault.node for each in schedules for fault in each.faults if hasattr(fault, "node")}
    assert any(outage.node is None for each in schedules for outage in each.outages)
    assert {verb.name for each in schedules for _, verb, _ in each.commands} == {"RETIRE", "ADMIT"}
    assert any(each.arrivals for each in schedules)
    assert any(each.intruder_period for each in schedules)
    assert {each.plan.durable for each in schedules} == {True, False}
    assert any(each.plan.tree_loss for each in schedules)
    assert any(each.plan.clocks for each in schedules)
    assert {each.plan.topology.primary.request_sets for each in schedules} == {1, 2, 3}
    assert {len(each.plan.topology.loops) for each in schedules} == {1, 2, 3}
    assert {each.plan.topology.excess.name for each in schedules} == {"HALT", "CONTINUE"}


renew_lease = ReleaseQueue.renew_lease


def trusts_its_lease_too_long(releases: ReleaseQueue, until: Instant, now: Instant) -> None:
    renew_lease(releases, until + SECOND, now)


def test_a_site_that_acts_after_its_lease_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReleaseQueue, "renew_lease", trusts_its_lease_too_long)
    found = run_cluster(42)
    assert found.guarantee == "Fenced", found.text


def test_check_prints_how_long_healing_took(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--failover", "--seeds", "2", "--jobs", "1", "--json"], check) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["worlds"], found["failures"]) == ("failover", [])
    assert found["durations"]["detect"]["count"] == 2
    assert found["durations"]["detect"]["longest_s"] > 0
    assert run(["--healing", "--seed", "12"], check) == 0
    output = capsys.readouterr().out
    assert output.startswith("seed 12: ")
    assert "every guarantee held" in output


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--healing", "--failover"], "--healing and --failover are given; give one of them"),
        (["--healing", "--loss", "0.1"], "--loss is 0.1; only worlds of one ring take it, leave it out"),
    ],
)
def test_check_refuses_what_does_not_go_together(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments, check) == 2
    assert error in capsys.readouterr().err


def test_a_distribution_has_median_and_maximum() -> None:
    assert Distribution.of([5]) == Distribution(1, 5, 5, 5)
    assert Distribution.of(range(1, 101)) == Distribution(100, 50, 100, 100)
