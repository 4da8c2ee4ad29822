"""Which source is first, among busy and quiet ones (decision 65, Place within a token)."""

import json

import pytest

from fairtape.cli import run
from fairtape.cli.simulate import audit
from fairtape.simulation.fair_entry import EntryPath
from fairtape.simulation.unequal_load import BUSY, QUIET, groups, unequal_races


def test_a_source_is_first_as_often_as_another_whatever_it_sends_besides() -> None:
    (path,) = unequal_races(1, 400)
    quiet, _, everyone = groups(path)
    assert everyone.races == 400
    assert everyone.p_value > 0.001
    assert sum(quiet.firsts) / 400 == pytest.approx(len(QUIET) / len(QUIET + BUSY), abs=0.1)


def test_the_groups_are_the_quiet_sources_the_busy_ones_and_all() -> None:
    quiet, busy, everyone = groups(EntryPath("sum", (1, 2, 3, 4, 5, 8)))
    assert (quiet.firsts, busy.firsts) == ((1, 2, 3), (4, 5, 8))
    assert (quiet.ratio, busy.ratio, everyone.ratio) == (3, 2, 8)


def test_one_seed_gives_the_same_races_again() -> None:
    assert unequal_races(5, 20) == unequal_races(5, 20)


def test_the_audit_prints_how_often_busy_and_quiet_sources_are_first(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["entry", "--regions", "2", "--races", "1000", "--jobs", "1"]
    run([*arguments, "--json"], audit)
    unequal = json.loads(capsys.readouterr().out)["unequal_load"]
    assert set(unequal) == {"quiet", "busy", "all"}
    assert unequal["quiet"]["firsts"] + unequal["busy"]["firsts"] == unequal["all"]["firsts"]
    assert sum(unequal["all"]["firsts"]) == 1_000
    assert unequal["all"]["p_value"] > 0.001
    assert run(arguments, audit) == (0 if max(group["ratio"] for group in unequal.values()) <= 1.1 else 1)
    assert "quiet sources" in capsys.readouterr().out
