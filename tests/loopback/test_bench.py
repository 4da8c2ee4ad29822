"""Short runs of `fairtape bench …`: checks the output and the one order, never the speed."""

import json
from pathlib import Path

import pytest

from fairtape.bench.journal import RING_PROFILE, RING_SITES, age_ring, run_ring
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.journal import compare, verify
from loopback.commands import await_line, finish, interrupt, run, start


@pytest.mark.alone
def test_a_short_throughput_run_prints_all_results() -> None:
    arguments = ("--only", "throughput", "--seconds", "0.5", "--rounds", "2", "--json")
    code, output, errors = run("bench", "ring", *arguments)
    results = json.loads(output)
    assert (code, errors.count("\n")) == ((1, 1) if results["rounds_disturbed"] else (0, 0))
    assert len(results["problems"]) == errors.count("\n")
    assert results["one_order"] is True
    assert results["failures"] == results["shortfalls"] == []
    assert results["messages_per_s_min"] <= results["messages_per_s"] <= results["messages_per_s_max"]
    assert results["messages_per_s_min"] > 0
    assert results["ratio"] == pytest.approx(results["messages_per_s"] / results["bare_messages_per_s"], abs=0.001)
    assert [each["receiver"] for each in results["memory_mib"]] == [1, 2, 3]
    for each in results["memory_mib"]:
        assert 0 < each["at_start"] <= each["most"]
        assert 0 < each["warm"] <= each["most"]
        assert 0 < each["at_end"] <= each["most"]


@pytest.mark.alone
def test_a_short_latency_run_prints_a_table() -> None:
    arguments = ("--only", "latency", "--seconds", "0.5", "--rounds", "1", "--receivers", "2")
    code, output, errors = run("bench", "ring", *arguments)
    assert code == (1 if "other programs used more" in errors else 0)
    assert "one at a time: releases, late ones included" in output
    assert "real-time scheduling (SCHED_RR)" in output
    assert "one at a time: µs after the commit instant, p99" in output
    assert "3 senders, 1 % loss: ms from publish to release, p50" in output


@pytest.mark.alone
@pytest.mark.parametrize("part", ["on-time", "spread", "idle"])
def test_a_short_run_of_deployments_prints_all_results(part: str) -> None:
    arguments = ("--only", part, "--seconds", "0.5", "--rounds", "1", "--receivers", "2", "--json")
    code, output, errors = run("bench", "ring", *arguments)
    results = json.loads(output)
    assert (code, errors.count("\n")) == ((1, 1) if results["rounds_disturbed"] else (0, 0))
    names = {
        "on-time": ("flood_messages_per_s", "cpu_us_per_message", "train_share", "cpu_floor_share", "disk_share"),
        "spread": ("lan_spread_p99_us", "lan_spread_tokens"),
        "idle": ("idle_core_share", "lan_idle_core_share", "process_memory_mib"),
    }
    assert all(results[name] > 0 for name in names[part])
    assert ("on_time_messages_per_s" in results) == ("flood_late_fraction" in results) == (part == "on-time")
    assert results["other_programs_share_min"] <= results["other_programs_share_max"]


@pytest.mark.alone
def test_a_short_run_of_many_sources_prints_all_results() -> None:
    code, output, errors = run("bench", "sources", "--sources", 20, "--seconds", 0.5, "--rounds", 1, "--json")
    results = json.loads(output)
    assert code == (1 if results["problems"] else 0)
    assert errors.count("\n") == len(results["problems"]) + len(results["shortfalls"])
    for name in ("cost_us_1", "cost_us_20", "cost_ratio_20", "site_cost_us_20", "messages_per_s_20"):
        assert results[name] > 0
        assert results[f"single_{name}"] > 0
    assert results["accept_us_per_block_8"] > 0


def test_a_ring_with_too_many_receivers_is_refused() -> None:
    code, output, errors = run("bench", "ring", "--receivers", "1000")
    assert (code, output) == (2, "")
    assert "1000" in errors


@pytest.mark.alone
def test_a_short_run_of_the_edge_prints_all_results() -> None:
    code, output, errors = run("bench", "edge", "--customers", 8, "--seconds", 0.5, "--messages", 20_000, "--json")
    results = json.loads(output)
    assert code == (1 if results["problems"] else 0)
    assert errors.count("\n") == len(results["problems"]) + len(results["shortfalls"])
    assert results["websocket_customers_asked"] == 8
    assert results["websocket_customers"] in (0, 8)
    assert results["websocket_faults"] == results["websocket_deliveries_missing"] == 0
    for name in ("arrow", "record", "itch"):
        rates = [results[f"{name}_messages_per_s{each}"] for each in ("_min", "", "_max")]
        assert 0 < rates[0] <= rates[1] <= rates[2]
        assert results[f"bare_{name}_messages_per_s"] > 0
    assert results["bare_websocket_frames_per_core_s"] > 0


def test_one_part_of_the_edge_prints_a_table() -> None:
    code, output, errors = run("bench", "edge", "--only", "itch", "--messages", 1_000)
    assert code == 0
    assert output.startswith("ITCH 5.0 to Arrow, messages/s per core")
    assert errors.startswith("a file of ITCH 5.0, 1,000 messages")
    assert "WebSocket" not in output


@pytest.mark.alone
def test_a_ring_resumes_from_journals_that_were_continued_while_it_was_stopped(tmp_path: Path) -> None:
    """As `fairtape bench journal` ages them: the ring goes on after the last of the small segments."""
    deployment = create_deployment(tmp_path / "ring", Draft(loops=(RING_SITES,), profile=RING_PROFILE))
    journals = [deployment.journal_of(site) for site in deployment.sites]
    assert run_ring(deployment, 0.5).messages > 0
    age_ring(deployment, 30, lambda _: None)
    aged = verify(journals[0])
    assert aged.segments > 30
    assert run_ring(deployment, 0.5).messages > 0
    comparison = compare(journals)
    assert comparison.same
    assert aged.last_sequence is not None
    assert (comparison.last_sequence or 0) > aged.last_sequence
    assert all(verify(journal).sound for journal in journals)


@pytest.mark.alone
@pytest.mark.timeout(180)
def test_a_short_run_of_the_ordinary_commands_prints_all_results() -> None:
    code, output, errors = run("bench", "ordinary", "--minutes", 0.05, "--sites", 1, "--json")
    assert code == 0, errors
    results = json.loads(output)
    assert results["problems"] == []
    assert (results["sites"], results["trades"], results["messages"], results["listened"]) == (1, 1_500, 1_500, 1_500)
    assert {"late_fraction", "reformations", "guaranteed_delay_ms", "web_p99_ms", "requests"} <= results.keys()
    assert results["guaranteed_delay_ms"] > 0
    assert results["web_p99_ms"] > 0


@pytest.mark.alone
@pytest.mark.timeout(180)
def test_interrupted_ordinary_commands_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start("bench", "ordinary", "--sites", 1)
    await_line(process, "fairtape publish")
    interrupt(process)
    code, output, errors = finish(process)
    assert (code, output) == (130, ""), errors
    assert not list(tmp_path.iterdir())
