"""A real FIX engine trades at a real gateway over a breaking connection, while the gateway itself crashes."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairtape.exchange.orders import NewOrder, Side
from fairtape.gateway.servers.authenticator import LoginAuthenticator
from fairtape.gateway.servers.fix_orders import FixOrders
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.gateway.storage.fix_store import FixFile
from fairtape.market.prices import ONE
from loopback.gateway_fixture import SECRET, LocalSequence, accounts_in
from loopback.test_fix_quickfix import BreakingWire

pytest.importorskip("quickfix", reason="no wheel of QuickFIX for this Python or machine; pip install quickfix-ssl")

CHILD = Path(__file__).with_name("quickfix_trader_child.py")
DRILLS = os.environ.get("FAIRTAPE_DRILLS") == "all"
ORDERS = 2_000 if DRILLS else 1_000
BREAKS = 20 if DRILLS else 10


class Market:
    """The gateway of the test, through several processes."""

    def __init__(self, folder: Path, accounts: TradingAccounts) -> None:
        self.sequence = LocalSequence()
        self.folder = folder
        self.accounts = accounts
        self.port = 0
        self.gateway: OrderGateway | None = None

    @asynccontextmanager
    async def serving(self, *, crashes: bool = False) -> AsyncIterator[OrderGateway]:
        """Serve until the end of the context; a crash loses what was not synced."""
        gateway = self.sequence.gateway(101, self.accounts, order_log=self.folder / "orders.log")
        file = FixFile(self.folder / "sessions.sqlite")
        authenticator = LoginAuthenticator(self.accounts, now=time.time_ns)
        application = FixOrders(gateway)

        def sync() -> None:
            gateway.sync()
            file.sync()

        acceptor = FixAcceptor("FAIRTAPE", store_of=self._store_of(file), authenticate=authenticator.logon_refusal)
        server = FixServer(acceptor, application, sync=sync, now=time.time_ns, check_logon=authenticator.check_logon)
        _, self.port = await server.start("127.0.0.1", 0)
        application.serve(server, {client: file.session("FAIRTAPE", client) for client in file.clients("FAIRTAPE")})
        try:
            yield gateway
        finally:
            self.sequence.gateways.remove(gateway)
            if crashes:
                server.abort()
            server.close()
            file.close()
            gateway.close()
            authenticator.close()

    def _store_of(self, file: FixFile) -> Any:
        return lambda client: file.session("FAIRTAPE", client) if self.accounts.knows(client) else None


async def engine(port: int, orders: int, folder: Path) -> dict[str, Any]:
    arguments = [sys.executable, str(CHILD), str(port), str(orders), str(folder), SECRET]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    child = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        output, _ = await asyncio.wait_for(child.communicate(), 280)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    results: dict[str, Any] = json.loads(output.splitlines()[-1])
    return results


def offer(gateway: OrderGateway) -> None:
    """Sell as much as the trader will ever buy."""
    ask = NewOrder(0, 0, "maker", "ask", "MSFT", Side.SELL, 1_000_000 * ONE, 101 * ONE + ONE // 4)
    assert gateway.submit("maker", ask).entered
    gateway.sync()


def test_a_real_engine_trades_over_breaking_wires_and_a_crash(tmp_path: Path) -> None:
    async def trade() -> tuple[Market, BreakingWire, dict[str, Any], OrderGateway]:
        market = Market(tmp_path, accounts_in(tmp_path, "TRADER", "maker"))
        market.sequence.open("TRADER", "maker")
        wire = BreakingWire(lambda: market.port, breaks=BREAKS, seed=7)
        front = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
        async with market.serving(crashes=True) as gateway:
            offer(gateway)
            trader = asyncio.create_task(engine(front.sockets[0].getsockname()[1], ORDERS, tmp_path))
            while len(gateway.core.floor.accounts["TRADER"].used_ids) < ORDERS // 2:
                await asyncio.sleep(0.01)
        async with market.serving() as gateway:
            results = await trader
        front.close()
        return market, wire, results, gateway

    market, wire, results, gateway = asyncio.run(trade())
    names = [f"T{number:06}" for number in range(1, ORDERS + 1)]
    bought = [name for name in names if int(name[1:]) % 4]
    assert results["rejects"] == []
    assert wire.broken == BREAKS
    assert results["logons"] > wire.broken
    counted = Counter((name, kind, certainty) for name, kind, certainty, _, _ in results["reports"] if kind != "A")
    expected = Counter(
        {(name, "0", ""): 1 for name in names}
        | {(name, "F", "T"): 1 for name in bought}
        | {(name, "I", "C"): 1 for name in bought}
        | {(name, "4", ""): 1 for name in names if name not in bought}
    )
    assert counted == expected  # nothing lost, nothing duplicated
    accepted = Counter(name for name, kind, *_ in results["reports"] if kind == "A")
    assert max(accepted.values()) == 1
    assert len({report[3] for report in results["reports"]}) == len(results["reports"])  # every ExecID once
    account = gateway.core.floor.accounts["TRADER"]
    assert list(account.used_ids) == names  # each order entered once, and in order
    assert account.funds.balance("MSFT").total == (10_000_000 + len(bought)) * ONE
    assert not gateway.core.floor.ledger.imbalance()
    assert market.sequence.gateways == []
