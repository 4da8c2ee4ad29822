"""A real FIX engine as client: QuickFIX logs on, trades, loses its connection and recovers, without loss or duplicates.

The connection between the engine and the acceptor breaks after a number of bytes in either direction, in the middle of
messages. The engine's own data dictionary validates all that the acceptor sends.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairtape.core.instants import Instant
from fairtape.formats.fix.order_messages import ExecType, ExecutionReport, NewOrderSingle, OrderEntry, OrdStatus
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.session.effects import FixEvent, LoggedOff, LoggedOn, MessageRejected, Received
from fairtape.gateway.storage.fix_store import FixFile

pytest.importorskip("quickfix", reason="no wheel of QuickFIX for this Python or machine; pip install quickfix-ssl")

CHILD = Path(__file__).with_name("quickfix_child.py")
ORDERS = 1_200
BREAKS = 20
SECRET = "secret"  # noqa: S105 - protects nothing


class Recorder:
    """An application that records orders and confirms them."""

    def __init__(self) -> None:
        self.server: FixServer | None = None
        self.orders: list[str] = []
        self.repeated = 0
        self.halfway = asyncio.Event()
        self.events: list[FixEvent] = []

    def entered(self, client: str, value: OrderEntry, received: Received, now: Instant) -> None:
        assert isinstance(value, NewOrderSingle)
        assert self.server is not None
        self.orders.append(value.cl_ord_id)
        self.repeated += received.repeated
        number = len(self.orders)
        if number == ORDERS // 2:
            self.halfway.set()
        report = ExecutionReport(
            order_id=f"F{number}",
            cl_ord_id=value.cl_ord_id,
            exec_id=f"X{number}",
            exec_type=ExecType.NEW,
            ord_status=OrdStatus.NEW,
            symbol=value.symbol,
            side=value.side,
            order_qty=value.order_qty,
            leaves_qty=value.order_qty,
            cum_qty=0,
            avg_px=0,
            transact_at=now,
            sequence=number,
        )
        self.server.send(client, report)

    def changed(self, client: str, event: FixEvent, now: Instant) -> None:  # noqa: ARG002 - of `Application`
        self.events.append(event)

    def count(self, kind: type[FixEvent]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


class BreakingWire:
    """Forwards connections to the acceptor's current port; the first ones break after a number of bytes.

    Bytes of both directions count together, so that every break happens: more must get through than all breaks wait
    for.
    """

    def __init__(self, to: Callable[[], int], *, breaks: int, seed: int) -> None:
        chance = random.Random(seed)
        self._to = to
        self._budgets = [chance.randint(2_000, 16_000) for _ in range(breaks)]
        self.broken = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward = await asyncio.open_connection("127.0.0.1", self._to())
        except OSError:
            writer.transport.abort()
            return
        left = [self._budgets[0] if self._budgets else sys.maxsize]
        ways = [(reader, onward[1]), (onward[0], writer)]
        tasks = [asyncio.create_task(self._pump(*way, left)) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for each in (writer, onward[1]):
            each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]) -> None:
        while left[0] > 0 and (octets := await reader.read(4_096)):
            writer.write(octets[: max(left[0], 0)])
            breaks = left[0] > 0 >= left[0] - len(octets)
            left[0] -= len(octets)
            await writer.drain()
            if breaks:
                self.broken += 1
                del self._budgets[0]


def authenticate(client: str, username: str, password: str) -> str | None:
    return None if (client, username, password) == ("TRADER", "trader", SECRET) else "wrong user name or password"


class Acceptor:
    """The acceptor of the test: one file, one recorder, and servers that start and stop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.recorder = Recorder()
        self.port = 0

    @asynccontextmanager
    async def serving(self, *, crashes: bool = False) -> AsyncIterator[None]:
        """Serve until the end of the context, and then close, or crash: what was not synced is lost."""
        file = FixFile(self._path)
        acceptor = FixAcceptor(
            "FAIRTAPE", store_of=lambda client: file.session("FAIRTAPE", client), authenticate=authenticate
        )
        server = FixServer(acceptor, self.recorder, sync=file.sync, now=time.time_ns)
        self.recorder.server = server
        _, self.port = await server.start("127.0.0.1", 0)
        try:
            yield
        finally:
            if crashes:
                server.abort()
            server.close()
            file.close()


async def engine(port: int, orders: int, folder: Path, password: str = SECRET, more: str = "") -> dict[str, Any]:
    """The results of a trader with a real engine."""
    arguments = [sys.executable, str(CHILD), str(port), str(orders), str(folder), password, more]
    child = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    try:
        output, _ = await asyncio.wait_for(child.communicate(), 120)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    results: dict[str, Any] = json.loads(output.splitlines()[-1])
    return results


def names(orders: int) -> list[str]:
    return [f"T{number:06}" for number in range(1, orders + 1)]


def test_over_a_thousand_orders_survive_broken_connections_and_a_crash(tmp_path: Path) -> None:
    async def trade() -> tuple[Recorder, BreakingWire, dict[str, Any]]:
        acceptor = Acceptor(tmp_path / "sessions.sqlite")
        wire = BreakingWire(lambda: acceptor.port, breaks=BREAKS, seed=44)
        front = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
        trader = asyncio.create_task(engine(front.sockets[0].getsockname()[1], ORDERS, tmp_path))
        async with acceptor.serving(crashes=True):
            await acceptor.recorder.halfway.wait()
        async with acceptor.serving():  # continues from the file
            results = await trader
        front.close()
        return acceptor.recorder, wire, results

    recorder, wire, results = asyncio.run(trade())
    assert recorder.orders == names(ORDERS)
    assert results["reports"] == names(ORDERS)
    assert results["rejects"] == []
    assert recorder.count(MessageRejected) == 0
    assert wire.broken == BREAKS
    assert results["logons"] > BREAKS
    assert recorder.count(LoggedOn) > BREAKS
    assert recorder.count(LoggedOff) >= BREAKS
    assert recorder.repeated > 0  # orders were resent on request
    assert results["resends_asked"] > 0  # and so were reports


def test_an_engine_may_reset_its_session_at_each_logon(tmp_path: Path) -> None:
    async def trade() -> Recorder:
        acceptor = Acceptor(tmp_path / "sessions.sqlite")
        async with acceptor.serving():
            for _ in range(2):
                results = await engine(acceptor.port, 20, tmp_path, more="ResetOnLogon=Y")
                assert results["reports"] == names(20)
                assert results["rejects"] == []
        return acceptor.recorder

    assert asyncio.run(trade()).orders == names(20) * 2


def test_an_engine_with_a_wrong_password_gets_the_reason(tmp_path: Path) -> None:
    async def trade() -> tuple[Recorder, dict[str, Any]]:
        acceptor = Acceptor(tmp_path / "sessions.sqlite")
        async with acceptor.serving():
            results = await engine(acceptor.port, 1, tmp_path, password="guess")  # noqa: S106 - protects nothing
        return acceptor.recorder, results

    recorder, results = asyncio.run(trade())
    assert set(results["refusals"]) == {"wrong user name or password"}
    assert (results["logons"], results["reports"], recorder.orders, recorder.events) == (0, [], [], [])
