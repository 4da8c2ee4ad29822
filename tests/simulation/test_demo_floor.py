"""`fairtape demo --floor`: the site of the arbiter is killed, and no committed trade is lost."""

import re

import pytest

from fairtape.cli import run
from fairtape.demo.trading_floor import CONTINENTS


def test_the_floor_survives_a_crash_of_its_arbiter(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--floor"]) == 0
    output = capsys.readouterr().out
    killed = re.search(r"the arbiter's site in (.+) is killed", output)
    assert killed is not None
    assert f"{killed[1]} restarts" in output
    assert "0 void" in output
    assert "accused 0 times" in output
    assert "the same trades and the same ledger" in output
    assert all(name in output for name in CONTINENTS)
