"""A gateway of a deployment of real processes: traders trade on though the gateway is killed."""

import asyncio
import os
import re
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import fairtape
from fairtape.cli import run as run_command
from fairtape.client import OrderRefused, Trader
from fairtape.core.addresses import Address
from fairtape.deployment.config.description import GatewayOptions, read_deployment
from fairtape.deployment.process.gateway import GatewayProcess
from fairtape.deployment.publish.source_thread import publish_once
from fairtape.deployment.publish.target import publish_target
from fairtape.deployment.status_files import RunFolder, StatusFile
from fairtape.exchange.orders import OpenMarket, encode
from fairtape.exchange.rules import Continuous
from fairtape.gateway.core.events import OrderEvent
from fairtape.market.prices import ONE
from fairtape.storage.ledger_tables import LedgerStore
from loopback.commands import PATIENCE, finish, interrupt, run, start
from loopback.test_deployment import await_members, deployment

PASSWORD = "secret-of-the-tests"  # noqa: S105 - protects nothing


def event_kinds(trader: Trader, count: int) -> list[str]:
    """The kinds of the next events."""
    events = [trader.event(PATIENCE) for _ in range(count)]
    return [event.kind.value for event in events if isinstance(event, OrderEvent)]


def opened(folder: Path, *more: object) -> tuple[subprocess.Popen[str], str]:
    """A gateway, and the address for its traders."""
    process = start("gateway", folder, "--source", "XLON", "--entry", "127.0.0.1:0", *more)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("entry at "), finish(process)
    return process, line.removeprefix("entry at ").strip()


def furnish(folder: Path) -> None:
    """Two funded logins, and a market."""
    for name in ("ann", "bob"):
        assert run("accounts", "add", folder, name, "--password", PASSWORD)[0] == 0
    door = publish_target(folder)
    terms = OpenMarket(101, 1, "MSFT", Continuous(), ONE // 100, ONE)
    publish_once(door.source_config(101), [encode(terms)])
    for words in (("ann", "MSFT", "100"), ("bob", "cash", "1000")):
        assert run("accounts", "fund", folder, *words, "--source", "XNYS")[0] == 0


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_traders_trade_though_their_gateway_is_killed(tmp_path: Path) -> None:
    folder, ledger = tmp_path / "deployment", tmp_path / "ledger.sqlite"
    with deployment(folder, "--sites", 2, "--profile", "metro", "--reformers", 1):
        await_members(folder, "s1", "s2")
        furnish(folder)
        process, at = opened(folder, "--ledger", ledger)
        with fairtape.trade(at, account="ann", password=PASSWORD) as ann:
            ann.order("MSFT", "sell", 10, 5, client_id="a1")
            assert event_kinds(ann, 1) == ["sequenced"]
            position = ann.position
            process.kill()
            finish(process)
        process, at = opened(folder, "--ledger", ledger)
        with (
            fairtape.trade(at, account="ann", password=PASSWORD, after=position) as ann,
            fairtape.trade(at, account="bob", password=PASSWORD) as bob,
        ):
            bob.order("MSFT", "buy", 4, 5, client_id="b1")
            assert event_kinds(bob, 3) == ["sequenced", "filled", "committed"]  # without messages of any other source
            assert event_kinds(ann, 2) == ["filled", "committed"]
            with pytest.raises(OrderRefused, match="980 of cash is available; the request needs 5000"):
                bob.order("MSFT", "buy", 1_000, 5)
        assert re.search(r"gateway +[\d,]+ .*entry at 127\.0\.0\.1:", run("status", folder)[1])
        interrupt(process)
        assert finish(process)[0] == 0
        store = LedgerStore(ledger)
        assert (store.settled, store.imbalance()) == (1, [])
        assert store.ledger().accounts["bob"].balance("MSFT").available == 4 * ONE


@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_gateway_whose_floor_was_revoked_is_rebuilt_while_traders_stay(tmp_path: Path) -> None:
    """A Break that revokes tokens is rare and cannot be forced: here the floor is declared stale instead."""
    folder, ledger = tmp_path / "deployment", tmp_path / "ledger.sqlite"
    with deployment(folder, "--sites", 2, "--profile", "metro", "--reformers", 1):
        await_members(folder, "s1", "s2")
        furnish(folder)
        options = GatewayOptions(entry=("127.0.0.1", 0), ledger=str(ledger))
        status_file = StatusFile(RunFolder(folder), "XLON.gateway")
        process = GatewayProcess(
            read_deployment(folder), publish_target(folder).source_config(102), "XLON", options, status_file
        )
        trading: list[Future[None]] = []

        def play(address: Address) -> None:
            try:
                trade(f"{address[0]}:{address[1]}")
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        def trade(at: str) -> None:
            with (
                fairtape.trade(at, account="ann", password=PASSWORD) as ann,
                fairtape.trade(at, account="bob", password=PASSWORD) as bob,
            ):
                ann.order("MSFT", "sell", 10, 5, client_id="a1")
                bob.order("MSFT", "buy", 4, 5, client_id="b1")
                assert event_kinds(bob, 3) == ["sequenced", "filled", "committed"]
                before = process._gateway.core
                before.stale = True
                with pytest.raises(OrderRefused, match="waits for the sequence; try again"):
                    bob.order("MSFT", "buy", 2, 5, client_id="b2")
                assert run("accounts", "fund", folder, "bob", "cash", "1", "--source", "XNYS")[0] == 0
                while process._gateway.core is before:
                    time.sleep(0.01)
                bob.order("MSFT", "buy", 2, 5, client_id="b2")
                while "committed" not in event_kinds(bob, 1):
                    pass

        with ThreadPoolExecutor(1) as traders:
            asyncio.run(process.run(lambda at: trading.append(traders.submit(play, at["entry"]))))
            trading[0].result(PATIENCE)
        store = LedgerStore(ledger)
        assert store.imbalance() == []
        assert store.settled == 2
        assert store.ledger().accounts["bob"].balance("MSFT").available == 6 * ONE


def test_mistakes_at_the_commands_are_one_sentence_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "deployment")
    assert run_command(["init", folder, "--profile", "metro"]) == 0
    capsys.readouterr()
    for words, said in (
        (("gateway", folder, "--source", "XLON"), "none of --entry, --fix and --ouch is given"),
        (("gateway", folder, "--source", "XLON", "--fix", "here"), "--fix is 'here'; expected HOST:PORT"),
        (("gateway", folder, "--source", "XLON", "--entry", "127.0.0.1:0"), "is not running; start it with"),
        (
            ("gateway", folder, "--source", "XLON", "--fix", "a:1", "--key-file", "k"),
            "key_file is given without cert_file",
        ),
        (("gateway", folder, "--source", "XLON", "--fix", "a:1", "--notional", "0"), "--notional is 0; give from 1 to"),
        (
            ("gateway", folder, "--source", "XPAR", "--fix", "a:1"),
            "--source is 'XPAR'; the deployment knows XNYS (101)",
        ),
        (
            ("accounts", "fund", folder, "ann", "cash", "-1x", "--source", "XNYS"),
            "AMOUNT: '-1x' is not a decimal number",
        ),
        (("accounts", "add", folder, "a b", "--password", PASSWORD), "account is 'a b'"),
        (("accounts", "token", folder, "eve"), "there is no such login"),
        (("accounts", "fund", folder, "ann", "cash", "1", "--source", "XNYS"), "is not running; start it with"),
    ):
        assert run_command(words) == 2
        output, errors = capsys.readouterr()
        assert (output, errors.count("\n")) == ("", 1)
        assert said in errors
