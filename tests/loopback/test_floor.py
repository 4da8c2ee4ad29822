"""A floor on real sockets: markets are opened, orders meet, the arbiter reports, and every journal gives the same."""

import json
import time
from pathlib import Path

import pytest

from fairtape.cli import run as run_here
from fairtape.market.order_codec import TRADE_REPORT_KIND
from fairtape.runtime.journal import Journal
from loopback.commands import await_line, finish, interrupt, run, start

PATIENCE = 60.0  # seconds, for a machine that is busy with other things
FIELDS = 'operators = ["XNYS"]\narbiters = { s1 = "XTKS" }\ncommit_passes = 1 #'


def open_market(folder: Path) -> None:
    """As soon as a site says that it runs."""
    give_up_at = time.monotonic() + PATIENCE
    while run_here(["floor", "open", str(folder), "ACME", "--tick", "0.05"]) != 0:
        assert time.monotonic() < give_up_at


def fund(folder: Path, account: str) -> None:
    """Cash and shares, as an operator pays them in."""
    for asset, amount in (("cash", "10000"), ("ACME", "100")):
        assert run_here(["accounts", "fund", str(folder), account, asset, amount, "--source", "XNYS"]) == 0


def reports(folder: Path) -> int:
    """How many messages of arbiters site 2 has released."""
    messages = Journal.open(folder / "journals" / "s2").messages()
    return sum(message.payload[:1] == bytes([TRADE_REPORT_KIND]) for message in messages)


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_traders_meet_and_all_journals_give_the_same_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "floor"
    assert run("init", folder, "--sites", 3, "--profile", "metro", "--reformers", 1)[0] == 0
    file = folder / "deployment.toml"
    file.write_text(file.read_text().replace("commit_passes = 3", FIELDS))
    sites = start("up", folder)
    try:
        await_line(sites, "see how they fare")
        open_market(folder)
        arbiter = start("floor", "arbiter", folder, "s1")
        await_line(arbiter, "reports as XTKS")
        fund(folder, "ann")
        fund(folder, "bob")
        give_up_at = time.monotonic() + PATIENCE
        trades = 0
        while not reports(folder) and time.monotonic() < give_up_at:
            trades += 1
            sell, buy = (f"{folder}", "bob", "sell", "1", "ACME"), (f"{folder}", "ann", "buy", "1", "ACME")
            assert run_here(["floor", "order", *sell, "--price", "10", "--source", "XLON"]) == 0
            assert run_here(["floor", "order", *buy, "--price", "10", "--source", "XLON"]) == 0
        assert "at 10, bob to ann; tentative" in capsys.readouterr().out
        assert run_here(["floor", "order", *buy[:2], "buy", "99999", "ACME", "--price", "10", "--source", "XLON"]) == 1
        assert "refused at token" in capsys.readouterr().err
        interrupt(arbiter)
        assert "0 accusations" in finish(arbiter)[2]
    finally:
        interrupt(sites)
        finish(sites)
    assert run_here(["floor", "replay", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agree"]
    assert [each["trades"] for each in found["floors"]] == [trades] * 3
    assert [each["evidence"] for each in found["floors"]] == [0] * 3
