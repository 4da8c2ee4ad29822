"""`fairtape bench floor`: one flow for all engines, valid FIX, verified settlement, and the keys of the results."""

import pytest

from fairtape.bench.floor import (
    NONE,
    PEERS,
    fix_day,
    flow,
    measure_engines,
    measure_fix,
    measure_floor,
    measure_settling,
    run_engine,
    run_floor,
)
from fairtape.formats.fix.codec import FixStream


def test_the_fix_file_has_only_valid_messages() -> None:
    stream = FixStream()
    messages = stream.feed(fix_day(50))
    assert [message.flaw for message in messages] == [None] * 50
    assert {message.msg_type for message in messages} == {b"D", b"F", b"8"}
    assert (stream.counts.garbled, stream.counts.junk, stream.waiting) == (0, 0, 0)


def test_fix_results_compare_both_readers() -> None:
    pytest.importorskip("simplefix", reason="simplefix is not installed; pip install 'fairtape[bench]'")
    results = measure_fix(messages=200, rounds=1)
    assert set(results) == {"fix_messages_per_s", "simplefix_messages_per_s", "fix_ratio"}
    assert results["fix_ratio"] > 1


def test_settled_trades_are_counted_and_verified() -> None:
    results = measure_settling(trades=1_000)
    assert results["settled_trades"] == 1_000
    assert results["settled_sound"] is True


def test_the_results_have_the_documented_keys() -> None:
    results = measure_floor(orders=1_500, rounds=1, trades=500)
    keys = {"orders_per_s", "peer", "fix_ratio", "settled_trades_per_s", "problems", "shortfalls"}
    assert keys <= results.keys()
    assert results["problems"] == []


FEW = 1_500


def test_equal_seeds_give_equal_flows_of_all_kinds() -> None:
    events = flow(FEW, seed=3)
    assert events == flow(FEW, seed=3)
    assert events != flow(FEW, seed=4)
    cancels = [event for event in events if event.cancels != NONE]
    assert 0.3 < len(cancels) / FEW < 0.6
    assert all(event.cancels < number for number, event in enumerate(events))


def test_the_floor_makes_the_trades_of_its_engine_except_self_trades() -> None:
    events = flow(FEW)
    _, alone = run_engine(events)
    _, whole = run_floor(events)
    assert 0.9 * alone < whole <= 1.1 * alone


def test_results_name_the_measured_peer() -> None:
    results = measure_engines(orders=FEW, rounds=1)
    rate, floor_rate = results["orders_per_s"], results["floor_orders_per_s"]
    assert isinstance(rate, int)
    assert isinstance(floor_rate, int)
    assert min(rate, floor_rate) > 0
    if results["peer"] in PEERS:
        assert results["peer_same_trades"] is True
        assert {"peer_orders_per_s", "ratio"} <= results.keys()
