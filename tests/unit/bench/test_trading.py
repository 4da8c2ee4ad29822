"""The results of `fairtape bench floor`: FIX, settlement, and all keys of the JSON output."""

import pytest

from fairtape.bench.trading import fix_day, measure_fix, measure_settling, measure_trading
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
    results = measure_trading(orders=1_500, rounds=1, trades=500)
    keys = {"orders_per_s", "peer", "fix_ratio", "settled_trades_per_s", "problems", "shortfalls"}
    assert keys <= results.keys()
    assert results["problems"] == []
