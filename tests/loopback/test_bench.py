"""`fairtape bench ring`: short runs of what a user would run, for their shape and their one order, never for speed."""

import json

import pytest

from loopback.commands import run


@pytest.mark.alone
def test_a_short_throughput_run_says_what_it_measured() -> None:
    code, output, errors = run("bench", "ring", "--only", "throughput", "--seconds", "0.5", "--json")
    assert (code, errors) == (0, "")
    figures = json.loads(output)
    assert figures["one_order"] is True
    assert figures["failures"] == []
    assert figures["messages_per_s"] > 0
    assert figures["ratio"] == pytest.approx(figures["messages_per_s"] / figures["bare_messages_per_s"], abs=0.001)


@pytest.mark.alone
def test_a_short_latency_run_is_printed_for_people() -> None:
    code, output, _ = run("bench", "ring", "--only", "latency", "--seconds", "0.5", "--receivers", "2")
    assert code == 0
    assert "one at a time: µs after the commit instant, p99" in output
    assert "3 senders, 1 % loss: ms from publish to release, p50" in output


def test_a_ring_beyond_reason_is_refused() -> None:
    code, output, errors = run("bench", "ring", "--receivers", "1000")
    assert (code, output) == (2, "")
    assert "1000" in errors
