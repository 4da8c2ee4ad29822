"""A floor on real sockets: `up` runs an arbiter and a gateway, orders trade, and all journals give the same floor."""

import json
import ssl
import time
from pathlib import Path

import pytest

import fairtape
from fairtape.cli import run as run_here
from fairtape.exchange.orders import TRADE_REPORT_KIND
from fairtape.gateway.core.events import EventKind, OrderEvent
from fairtape.journal import JournalReader
from fairtape.net.loopback import free_ports
from loopback.certificates import Authority
from loopback.commands import await_line, finish, interrupt, run, start

PATIENCE = 60.0  # seconds, for a busy machine
FIELDS = 'operators = ["XNYS"]\narbiters = { s1 = "XTKS" }\ncommit_passes = 1 #'
PASSWORD = "secret-of-the-tests"  # noqa: S105 - protects nothing


def describe(folder: Path) -> tuple[str, ssl.SSLContext]:
    """List an arbiter and a gateway with a certificate. Returns the address and the TLS context of traders."""
    authority = Authority(folder.with_name("authority"))
    gate = authority.identity("gate")
    at = f"127.0.0.1:{free_ports(1)[0]}"
    file = folder / "deployment.toml"
    gateway = f'XCHI = {{ entry = "{at}", cert_file = "{gate.certificate}", key_file = "{gate.key}" }}'
    file.write_text(f"{file.read_text().replace('commit_passes = 3', FIELDS)}\n[gateways]\n{gateway}\n")
    return at, ssl.create_default_context(cafile=str(authority.certificate))


def open_market(folder: Path) -> None:
    """Open a market as soon as a site runs."""
    give_up_at = time.monotonic() + PATIENCE
    while run_here(["floor", "open", str(folder), "ACME", "--tick", "0.05"]) != 0:
        assert time.monotonic() < give_up_at


def fund(folder: Path, account: str) -> None:
    """Fund an account with cash and shares, as an operator."""
    for asset, amount in (("cash", "10000"), ("ACME", "100")):
        assert run_here(["accounts", "fund", str(folder), account, asset, amount, "--source", "XNYS"]) == 0


def gateway_is_announced(folder: Path, words: str) -> bool:
    """Whether the log announces the gateway."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        if words in (folder / "run" / "notices.log").read_text():
            return True
    return False


def reports(folder: Path) -> int:
    """The number of arbiter reports that site 2 has released."""
    messages = JournalReader.open(folder / "journals" / "s2").messages()
    return sum(message.payload[:1] == bytes([TRADE_REPORT_KIND]) for message in messages)


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_traders_meet_and_all_journals_give_the_same_floor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "floor"
    assert run("init", folder, "--sites", 3, "--profile", "metro", "--reformers", 1, "--sources", 4)[0] == 0
    at, tls = describe(folder)
    assert run_here(["accounts", "add", str(folder), "ann", "--password", PASSWORD]) == 0
    sites = start("up", folder)
    try:
        assert "3 sites, 1 arbiter, 1 gateway and 1 reformation server" in await_line(sites, "see their status")
        open_market(folder)
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
        assert gateway_is_announced(folder, f"XCHI.gateway: entry at {at}")
        with fairtape.trade(at, account="ann", password=PASSWORD, tls=tls) as ann:
            ann.order("ACME", "buy", 1, "0.05")
            event = ann.event(PATIENCE)
            assert isinstance(event, OrderEvent)
            assert event.kind is EventKind.SEQUENCED
    finally:
        interrupt(sites)
        ended = finish(sites)
    assert ended[0] == 0, ended
    assert "0 accusations" in (folder / "run" / "s1.arbiter.err").read_text()
    assert run_here(["floor", "replay", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agree"]
    assert [each["trades"] for each in found["floors"]] == [trades] * 3
    assert [each["evidence"] for each in found["floors"]] == [0] * 3
