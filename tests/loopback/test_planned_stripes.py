"""A plan that the pipeline's planner made is installed in a running network, and nobody loses or doubles a message."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

import fairtape
from fairtape.client import Trade
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.deployment.config.description import FILE
from fairtape.edge.service.stripe_plans import read_plan
from fairtape.journal import compare, verify
from fairtape.market.stripe_files import to_toml
from fairtape.market.stripes import StripePlan
from fairtape.pipeline.stripes.burst_model import expected_windows
from fairtape.pipeline.stripes.packing import Likeness
from fairtape.pipeline.stripes.study import PlanRequest, Proposal, Study, propose
from loopback.commands import await_line, finish, interrupt, run, start
from loopback.test_edge import await_stations, check_order, heard, hearing, publish

SITES = ("s1", "s2", "s3", "s4")
UNDER_LOAD = 6_000  # trades, in the midst of which the plan changes
AFTERWARDS = 500
EDGE_BITS_PER_S = 200_000
FAMILY = 8  # symbols that move together
DAY_MESSAGES = 1_200_000  # of the busiest symbol; the others have less and less


@contextmanager
def network(folder: Path) -> Iterator["Popen[str]"]:
    """Four sites far from one another, which ask nothing special of this machine."""
    assert run("init", folder, "--sites", len(SITES), "--profile", "wan", "--reformers", 1, "--edge", 4)[0] == 0
    file = folder / FILE
    file.write_text(file.read_text().replace('real_time = "auto"', "real_time = false"))
    process = start("up", folder)
    try:
        await_line(process, "see how they fare")
        yield process
    finally:
        process.kill()
        process.communicate()


def history(symbols: tuple[str, ...]) -> Study:
    """Ten days of symbols, of which a few have most messages, in families that have their good days together."""
    chance = np.random.default_rng(3)
    families = np.arange(len(symbols)) // FAMILY
    means = DAY_MESSAGES / (1.0 + chance.permutation(len(symbols)))
    days = means[:, None] * chance.lognormal(0, 0.2, (families[-1] + 1, 10))[families]
    second, fine = (
        expected_windows(days, families, period=period, count=100, seed=5) for period in (SECOND, 10 * MILLISECOND)
    )
    pairs = {
        (one, other): 0.8 for one in range(len(symbols)) for other in range(one) if one // FAMILY == other // FAMILY
    }
    return Study("ten days that never were", symbols, (), (second, fine), Likeness.of(len(symbols), pairs), None)


def proposal_after(plan: StripePlan) -> Proposal:
    """The next plan, for narrower stripes than the one in force has."""
    narrow = tuple(replace(stripe, bits_per_s_max=EDGE_BITS_PER_S) for stripe in plan.edge)
    request = PlanRequest(edge_bits_per_s=EDGE_BITS_PER_S, core_bits_per_s=plan.core[0].bits_per_s_max, bound=1e-3)
    symbols = tuple(symbol for stripe in plan.edge for symbol in stripe.symbols)
    return propose(
        history(symbols), request, previous=replace(plan, edge=narrow), midnight_at=plan.midnight_at, feeds=plan.feeds
    )


@pytest.mark.alone
def test_a_planners_plan_comes_into_force_under_load_without_a_lost_or_doubled_message(tmp_path: Path) -> None:
    """Every trade is in all journals once, and at the customer once, with the plan before or with the one after."""
    folder, total = tmp_path / "deployment", UNDER_LOAD + AFTERWARDS
    with network(folder) as process:
        await_stations(folder, *SITES)
        before = read_plan(folder / "plans" / "00001.toml")
        proposal = proposal_after(before)
        assert proposal.moved > 0
        assert len(proposal.plan.edge) > len(before.edge)
        (tmp_path / "next.toml").write_text(to_toml(proposal.plan))
        with hearing(folder, "--trades", total, "--from", 1, "--grade", "guaranteed") as customer:
            load = start("publish", folder, "--generate", UNDER_LOAD, "--rate", 1_000)
            code, output, errors = run("operate", folder, "plan", tmp_path / "next.toml")
            assert code == 0, errors
            assert output.startswith("plan 2: the plan is in force: formation ")
            assert finish(load)[0] == 0
            publish(folder, AFTERWARDS)
            lines = heard(customer)
        interrupt(process)
        assert finish(process)[0] == 0
    check_order(lines, range(1, total + 1))
    trades = [line for line in lines if line["kind"] == "trade"]
    assert {line["session"][2:5] for line in trades} == {"001", "002"}
    places = {1: before, 2: proposal.plan}
    for line in trades:
        assert line["stripe"] == places[int(line["session"][2:5])].edge_of(line["symbol"], 0)
    check_journals([folder / "journals" / site for site in SITES], trades)


def check_journals(journals: list[Path], trades: list[dict[str, object]]) -> None:
    """All sites hold one sequence, and it is what the customer heard."""
    proofs = [verify(journal) for journal in journals]
    assert all(proof.sound for proof in proofs)
    found = compare(journals)
    assert (found.difference, found.messages) == (None, len(trades))
    with fairtape.connect(journals[0], start="beginning") as tape:
        released = {each.sequence: each.trade_id for each in tape if isinstance(each, Trade)}
    assert released == {line["sequence"]: line["trade_id"] for line in trades}
