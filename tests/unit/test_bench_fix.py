"""The measurement of FIX: both readers read the same, and the figures are of that."""

import pytest

from fairtape.bench.trading import fix_day, measure_fix
from fairtape.formats.fix.codec import FixStream


def test_a_day_of_order_entry_is_whole() -> None:
    stream = FixStream()
    messages = stream.feed(fix_day(50))
    assert [message.flaw for message in messages] == [None] * 50
    assert {message.msg_type for message in messages} == {b"D", b"F", b"8"}
    assert (stream.counts.garbled, stream.counts.junk, stream.waiting) == (0, 0, 0)


def test_the_figures_are_of_one_run() -> None:
    pytest.importorskip("simplefix", reason="the other parser is not installed; pip install 'fairtape[bench]'")
    results = measure_fix(messages=200, rounds=1)
    assert set(results) == {"fix_messages_per_s", "simplefix_messages_per_s", "fix_ratio"}
    assert results["fix_ratio"] > 1
