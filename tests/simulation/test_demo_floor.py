"""`fairtape demo --floor`: the arbiter's site is killed, and no committed trade is lost."""

import pytest

from fairtape.cli import run
from fairtape.demo.trading_floor import CONTINENTS


def test_the_floor_outlives_its_arbiter(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--floor"]) == 0
    told = capsys.readouterr().out
    assert "the arbiter's site in London is killed" in told
    assert "London is back" in told
    assert "0 void" in told
    assert "accused 0 times" in told
    assert "the same trades and the same ledger" in told
    assert all(name in told for name in CONTINENTS)
