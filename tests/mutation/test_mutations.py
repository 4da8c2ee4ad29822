"""Mutation tests: each deliberate fault of `faults.py` makes the named tests fail.

A fault is put into a copy of the package, and a few tests run against the copy in a process of their own: every named
file must have a failing test, and a short campaign of the simulator must name the guarantee. Without a fault they all
pass, here in the suite and, as a sample shows, in the copy. So it is the fault that they notice.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fairtape
from mutation.faults import FAULTS, Fault

PACKAGE = Path(fairtape.__file__).parent
TESTS = Path(__file__).parents[1]
SEEDS = 8  # worlds in a campaign; the first few already show a missing guarantee
LOSS = 0.2  # each also with this loss: repeated requests are rare in a healthy ring
SAMPLE = 8  # every eighth fault
TESTS_FAILED = 1  # pytest's exit code; others mean that the tests could not run

CAMPAIGN = f"""
import sys
import fairtape
from fairtape.simulation.cluster_run import run_ring
assert fairtape.__file__.startswith(sys.argv[1]), fairtape.__file__
wanted = sys.argv[2]
for seed, loss in [(seed, loss) for seed in range(1, {SEEDS} + 1) for loss in (None, {LOSS})]:
    outcome = run_ring(seed, loss=loss)
    if outcome.failed:
        sys.stdout.write(outcome.guarantee + "\\n")
        if outcome.guarantee == wanted:
            break
"""


CLUSTERS = """
import sys
import fairtape
from fairtape.simulation.cluster_run import run_cluster
assert fairtape.__file__.startswith(sys.argv[1]), fairtape.__file__
for seed in map(int, sys.argv[3:]):
    outcome = run_cluster(seed)
    if outcome.failed:
        sys.stdout.write(outcome.guarantee + "\\n")
"""


def copied(to: Path) -> Path:
    """A copy of the package that imports before the installed one."""
    shutil.copytree(PACKAGE, to / "fairtape", ignore=shutil.ignore_patterns("__pycache__"))
    return to


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {**inherited, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )


def verdict_on(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    paths = [str(TESTS / test) for test in tests]
    stop = ["-x"] if len(paths) == 1 else []
    return run(copy, "-m", "pytest", "-p", "no:cacheprovider", "-rf", "--tb=no", *stop, *paths)


def campaign_on(copy: Path, guarantee: str, clusters: tuple[int, ...] = ()) -> list[str]:
    """The guarantees that were broken, in the order of the seeds; in rings, or in these clusters."""
    program = CLUSTERS if clusters else CAMPAIGN
    found = run(copy, "-c", program, str(copy), guarantee, *map(str, clusters))
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_deliberate_fault_is_detected(fault: Fault, tmp_path: Path) -> None:
    copy = copied(tmp_path)
    page = copy / "fairtape" / fault.file
    text = page.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} has changed: say anew how to break the rule"
    page.write_text(text.replace(fault.old, fault.new))
    result = verdict_on(copy, fault.tests)
    assert result.returncode == TESTS_FAILED, result.stdout + result.stderr
    for test in fault.tests:
        assert f"FAILED tests/{test}" in result.stdout, f"{test} did not notice"
    if fault.guarantee is not None:
        assert fault.guarantee in campaign_on(copy, fault.guarantee, fault.clusters)


def test_without_a_fault_a_sample_of_the_tests_passes_in_the_copy(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    tests = tuple(dict.fromkeys(test for fault in FAULTS[::SAMPLE] for test in fault.tests))
    result = verdict_on(copy, tests)
    assert result.returncode == 0, result.stdout + result.stderr
    assert campaign_on(copy, "none") == []


def test_there_are_at_least_ten_faults_and_each_breaks_another_rule() -> None:
    assert len(FAULTS) >= 10
    assert len({fault.rule for fault in FAULTS}) == len(FAULTS)
