"""Failover: the promised times, how a violation is detected, and `fairtape failover`."""

import json

import pytest

from fairtape.cli import run
from fairtape.core.effects import Reason
from fairtape.core.formation_log import Record, StoreRequest, StoreResponse
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.nodes.receiver import Receiver
from fairtape.simulation.cluster_run import RunOutcome
from fairtape.simulation.failover_run import AT_THE_LATEST, PromisedTime, draw, run_failover
from fairtape.simulation.simulated_store import SimulatedStoreAccess
from fairtape.wire.frames import NodeId

query = SimulatedStoreAccess.query


def slow_to_write(store: SimulatedStoreAccess, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
    delay, answer = query(store, node, question)
    return (delay + SECOND if isinstance(question, Record) else delay), answer


def declares_nothing(receiver: Receiver, suspect: NodeId, token: int, reason: Reason, now: Instant, /) -> None:
    """A member that never declares a failure."""


def test_a_formation_that_is_installed_too_late_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedStoreAccess, "query", slow_to_write)
    assert run_failover(2).guarantee == "ReformedInTime"


def test_a_failure_that_no_member_declares_is_detected_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reformation server detects the crash only when the lease has ended, which is later than promised."""
    monkeypatch.setattr(Receiver, "_declare", declares_nothing)
    assert run_failover(1).guarantee == "DetectedInTime"


def test_seeds_draw_every_kind_of_failure() -> None:
    failures = [draw(seed) for seed in range(100)]
    timings = [failure.plan.topology.primary.timing for failure in failures]
    assert {failure.victims for failure in failures} == {1, 2}
    assert {timing.merged for timing in timings} == {True, False}
    assert {timing.retry_period // MILLISECOND for timing in timings} == {2, 10, 40}
    assert {len(failure.plan.topology.primary.tour) for failure in failures} == {3, 4, 5, 6, 7}
    for failure, timing in zip(failures, timings, strict=True):
        assert failure.delay < failure.delay_max < timing.retry_period


def outcome_of(seed: int, took: Duration, promised: Duration) -> RunOutcome:
    return RunOutcome(seed=seed, durations=(("detect", took), ("detect" + AT_THE_LATEST, promised)))


def test_each_world_is_compared_with_its_own_promise() -> None:
    found = PromisedTime.of(
        "detect", [outcome_of(1, 10, 20), outcome_of(2, 30, 30), outcome_of(3, 50, 40), RunOutcome(seed=4)]
    )
    assert found is not None
    assert (found.least, found.median, found.p99, found.longest) == (10, 30, 50, 50)
    assert found.shares == (0.5, 1.0, 1.25)
    assert found.within == 0.5, "the third was late, and the fourth ended before"
    assert PromisedTime.of("detect", [RunOutcome(seed=1)]) is None


def test_the_command_prints_a_histogram_of_the_promised_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["failover", "--seeds", "2", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].startswith("detect ")
    assert shown.count("too late      0") == 2
    assert "█" in shown
    assert "every promise was kept, nothing was lost" in shown


def test_the_command_gives_the_distribution_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["failover", "--seeds", "2", "--jobs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failures"]) == (2, [])
    for name in ("detect", "install"):
        assert found[name]["count"] == 2
        assert found[name]["within"] == 1.0
        assert 0 < found[name]["min_s"] <= found[name]["median_s"] <= found[name]["max_s"]
        assert 0 < found[name]["share_of_promise_max"] <= 1.0


def test_a_broken_promise_is_named_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SimulatedStoreAccess, "query", slow_to_write)
    assert run(["failover", "--seeds", "1", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    assert "repeat with: fairtape check --seed 1 --failover" in shown
    assert "1 broke a guarantee" in shown
    assert run(["failover", "--seeds", "1", "--jobs", "1", "--json"]) == 1
    failures = json.loads(capsys.readouterr().out)["failures"]
    assert [each["command"] for each in failures] == ["fairtape check --seed 1 --failover"]


@pytest.mark.parametrize(("option", "error"), [("--seeds", "--seeds is 0"), ("--jobs", "--jobs is 0")])
def test_a_mistake_is_refused_in_one_sentence(option: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["failover", option, "0"]) == 2
    assert error in capsys.readouterr().err
