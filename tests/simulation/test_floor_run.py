"""Floors in clusters with faults: replicas agree, committed trades stay, and a faulty arbiter is accused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairtape.cli import run
from fairtape.cli.check import check
from fairtape.exchange.floor import TradeBook
from fairtape.exchange.ledger import Ledger, LedgerAccount
from fairtape.exchange.outputs import Execution
from fairtape.simulation.fault_schedule import draw
from fairtape.simulation.floor_run import FloorRun, arbiter_of, run_floor
from fairtape.simulation.world import Violation
from scenarios.floor_scenario import play_floor
from scenarios.scenario_text import parts

KEEPER_HELD_THE_LAST_TOKEN = Path(__file__).parents[1] / "scenarios" / "floors" / "keeper_held_the_last_token.txt"
SMOKE_SEEDS = (3, 10, 14, 16, 22, 25)


def regressions() -> list[int]:
    lines = (line.split("#")[0].strip() for line in Path(__file__).with_name("floors.txt").read_text().splitlines())
    return [int(line) for line in lines if line]


@pytest.mark.parametrize("seed", SMOKE_SEEDS)
def test_replicas_agree_under_the_faults_of_seed(seed: int) -> None:
    outcome = run_floor(seed)
    assert not outcome.failed, outcome.text
    counts = dict(outcome.counts)
    assert counts["trades made"] > 0
    assert "accusations" not in counts


@pytest.mark.parametrize("seed", [seed for seed in regressions() if seed not in SMOKE_SEEDS])
def test_a_floor_that_once_failed_never_fails_again(seed: int) -> None:
    outcome = run_floor(seed)
    assert not outcome.failed, outcome.text


def test_a_faulty_arbiter_is_accused_by_every_replica() -> None:
    floor_run = FloorRun(draw(14), faulty=1)
    floor_run.run()
    floors = floor_run.floors
    assert floors.replicas
    accusations = [
        {(each.number, each.reporter, each.token, each.field) for each in floors.evidence[site]}
        for site in floors.replicas
    ]
    assert accusations[0]
    assert {reporter for _, reporter, _, _ in accusations[0]} == {arbiter_of(1)}
    assert all(each == accusations[0] for each in accusations)


def test_a_commit_without_another_holder_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are counted across formations: the holder of the last token of one may hold the first of the next.

    Decision 42, Trade commit.
    """
    commit = TradeBook.commit

    def anywhere(book: TradeBook, token: int, _formed_at: int) -> Iterator[Execution]:
        return commit(book, token, 0)

    monkeypatch.setattr(TradeBook, "commit", anywhere)
    script, _ = parts(KEEPER_HELD_THE_LAST_TOKEN.read_text())
    with pytest.raises(Violation, match="HeldByN"):
        play_floor(script)


def test_a_settlement_that_creates_cash_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Ledger.settle

    def generous(
        ledger: Ledger, buyer: LedgerAccount, seller: LedgerAccount, symbol: str, quantity: int, amount: int
    ) -> None:
        settle(ledger, buyer, seller, symbol, quantity, amount)
        seller.cash.available += 1

    monkeypatch.setattr(Ledger, "settle", generous)
    assert run_floor(14).guarantee == "Conserved"


def test_check_counts_the_outputs_of_floors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--floor", "--seed", "14", "--json"], check) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["worlds"], found["failures"]) == ("floor", [])
    assert found["counts"]["trades committed"] > 0
    assert run(["--floor", "--healing"], check) == 2
    assert "--healing and --floor are given; give one of them" in capsys.readouterr().err
