"""FIX at a real gateway, message by message: logons, refusals, and that refused requests change nothing."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fairtape.core.instants import SECOND
from fairtape.exchange.orders import Cancel, Funding, encode
from fairtape.formats.fix import order_messages as fix
from fairtape.formats.fix.order_messages import OrderEntry, read
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.gateway.servers.authenticator import LoginAuthenticator
from fairtape.gateway.servers.fix_orders import FixOrders, last_reported
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.session.effects import Disconnect, FixEffect, LoggedOff, LoggedOn, Received, Transmit
from fairtape.gateway.session.fix_session import FixOptions, FixRole, FixSession
from fairtape.market.prices import ONE
from loopback.gateway_fixture import SECRET, LocalSequence, accounts_in
from unit.gateway.memory_fix_store import MemoryFixStore


class Engine:
    """An initiator on a real connection."""

    def __init__(self, name: str, password: str, store: MemoryFixStore | None = None) -> None:
        options = FixOptions(
            accepts=frozenset({b"8", b"9"}), username=name, password=password, heartbeat_period=30 * SECOND
        )
        self._session = FixSession(name, "FAIRTAPE", store or MemoryFixStore(), role=FixRole.INITIATOR, options=options)
        self._effects: list[FixEffect] = []

    async def connect(self, port: int) -> "Engine":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._session.connected(time.time_ns())
        self._flush()
        return self

    def send(self, value: OrderEntry) -> None:
        self._session.send(value, time.time_ns())
        self._flush()

    def hang_up(self) -> None:
        self._writer.close()

    async def next(self) -> FixEffect:
        """The next effect in the session."""
        while not self._effects:
            octets = await self._reader.read(4_096)
            if octets:
                self._session.receive(octets, time.time_ns())
            else:
                self._session.disconnected(time.time_ns())
            self._flush()
        return self._effects.pop(0)

    async def log_on(self, port: int) -> "Engine":
        await self.connect(port)
        assert isinstance(await self.next(), LoggedOn)
        return self

    async def reports(self, count: int) -> list[OrderEntry]:
        found: list[OrderEntry] = []
        while len(found) < count:
            effect = await self.next()
            assert not isinstance(effect, LoggedOff | Disconnect)
            if isinstance(effect, Received):
                found.append(read(effect.message))
        return found

    def _flush(self) -> None:
        for effect in self._session.drain():
            if isinstance(effect, Transmit):
                self._writer.write(effect.octets)
            else:
                self._effects.append(effect)


def order(name: str, quantity: int, price: int = 5, account: str | None = None, **other: object) -> fix.NewOrderSingle:
    terms = {"symbol": "MSFT", "side": fix.FixSide.BUY, "ord_type": fix.OrdType.LIMIT, **other}
    return fix.NewOrderSingle(
        cl_ord_id=name,
        account=account,
        transact_at=time.time_ns(),
        order_qty=quantity * ONE,
        price=price * ONE,
        **terms,  # type: ignore[arg-type]
    )


def run(tmp_path: Path, play: Callable[[OrderGateway, int, dict[str, MemoryFixStore]], Awaitable[None]]) -> None:
    async def act() -> None:
        accounts = accounts_in(tmp_path, "ann", "bob", "gateway", "cyd", brokers={"cyd": "gateway"})
        sequence = LocalSequence()
        sequence.open("ann", "bob", "cyd")
        limits = GatewayLimits(requests_per_s=100_000, open_orders_max=2)
        gateway, authenticator = (
            sequence.gateway(101, accounts, limits=limits),
            LoginAuthenticator(accounts, now=time.time_ns),
        )
        stores: dict[str, MemoryFixStore] = {}
        acceptor = FixAcceptor(
            "FAIRTAPE",
            store_of=lambda client: stores.setdefault(client, MemoryFixStore()) if accounts.knows(client) else None,
            authenticate=authenticator.logon_refusal,
        )
        application = FixOrders(gateway)
        server = FixServer(
            acceptor, application, sync=gateway.sync, now=time.time_ns, check_logon=authenticator.check_logon
        )
        _, port = await server.start("127.0.0.1", 0)
        application.serve(server, {})
        try:
            await asyncio.wait_for(play(gateway, port, stores), 30)
        finally:
            server.close()
            authenticator.close()

    asyncio.run(act())


def test_a_wrong_password_is_answered_and_nothing_else_is(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, port: int, stores: dict[str, MemoryFixStore]) -> None:
        wrong = await Engine("ann", "guess").connect(port)
        effects = [await wrong.next(), await wrong.next()]
        assert any("wrong user name or password" in str(effect) for effect in effects)
        assert not any(isinstance(effect, LoggedOn) for effect in effects)
        await Engine("ann", SECRET).log_on(port)
        assert gateway.core.payloads() == []

    run(tmp_path, play)


def test_invalid_orders_are_rejected_with_a_reason_and_change_nothing(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, port: int, stores: dict[str, MemoryFixStore]) -> None:
        ann = await Engine("ann", SECRET).log_on(port)
        before = gateway.core.floor.ledger.state_hash
        for request, reason in (
            (order("r1", 1_000_000_000), fix.OrdRejReason.EXCEEDS_LIMIT),
            (order("r2", 1, symbol="IBM"), fix.OrdRejReason.UNKNOWN_SYMBOL),
            (order("r3", 1, account="bob"), fix.OrdRejReason.UNKNOWN_ACCOUNT),
            (order("r4", 1, side=fix.FixSide.SELL_SHORT), fix.OrdRejReason.OTHER),
            (order("r5", 1, time_in_force=fix.FixTimeInForce.AT_THE_OPENING), fix.OrdRejReason.OTHER),
            (order("r6", 1, ex_destination="XNYS"), fix.OrdRejReason.OTHER),
            (order("r7", 1, min_qty=ONE), fix.OrdRejReason.OTHER),
            (order("r8", 1, exec_inst="G"), fix.OrdRejReason.OTHER),
        ):
            ann.send(request)
            (report,) = await ann.reports(1)
            assert isinstance(report, fix.ExecutionReport)
            assert (report.cl_ord_id, report.ord_status) == (request.cl_ord_id, fix.OrdStatus.REJECTED)
            assert report.ord_rej_reason is reason
            assert report.text
        cancel = fix.OrderCancelRequest(
            orig_cl_ord_id="none", cl_ord_id="c1", symbol="MSFT", side=fix.FixSide.BUY, transact_at=time.time_ns()
        )
        ann.send(cancel)
        (refusal,) = await ann.reports(1)
        assert isinstance(refusal, fix.OrderCancelReject)
        assert refusal.reason is fix.CxlRejReason.UNKNOWN_ORDER
        assert gateway.core.floor.ledger.state_hash == before

    run(tmp_path, play)


def test_an_order_is_accepted_sequenced_replaced_queried_and_cancelled(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, port: int, stores: dict[str, MemoryFixStore]) -> None:
        ann = await Engine("ann", SECRET).log_on(port)
        ann.send(order("a1", 10))
        taken, new = await ann.reports(2)
        assert isinstance(taken, fix.ExecutionReport)
        assert isinstance(new, fix.ExecutionReport)
        assert (taken.exec_type, new.exec_type) == (fix.ExecType.PENDING_NEW, fix.ExecType.NEW)
        assert new.sequence == int(new.order_id) > 0
        base: dict[str, Any] = {"symbol": "MSFT", "side": fix.FixSide.BUY}
        now = time.time_ns()
        ann.send(
            fix.OrderCancelReplaceRequest(
                orig_cl_ord_id="a1",
                cl_ord_id="a2",
                order_qty=20 * ONE,
                price=6 * ONE,
                ord_type=fix.OrdType.LIMIT,
                transact_at=now,
                **base,
            )
        )
        ann.send(fix.OrderStatusRequest(cl_ord_id="none", **base))
        answers = await ann.reports(2)
        kinds = {each.exec_type: each for each in answers if isinstance(each, fix.ExecutionReport)}
        assert kinds.keys() == {fix.ExecType.REPLACED, fix.ExecType.ORDER_STATUS}
        assert kinds[fix.ExecType.REPLACED].orig_cl_ord_id == "a1"
        assert kinds[fix.ExecType.ORDER_STATUS].ord_status is fix.OrdStatus.REJECTED
        ann.send(fix.OrderCancelRequest(orig_cl_ord_id="a2", cl_ord_id="c1", transact_at=now, **base))
        (gone,) = await ann.reports(1)
        assert isinstance(gone, fix.ExecutionReport)
        assert (gone.exec_type, gone.cl_ord_id, gone.orig_cl_ord_id) == (fix.ExecType.CANCELED, "c1", "a2")
        era, number = last_reported(stores["ann"])
        assert (era, gone.exec_id) == (0, f"0.{number}")
        assert gateway.core.floor.ledger.accounts["ann"].cash.reserved == 0

    run(tmp_path, play)


def test_events_during_a_disconnect_are_reported_after_it(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, port: int, stores: dict[str, MemoryFixStore]) -> None:
        memory = MemoryFixStore()
        ann = await Engine("ann", SECRET, memory).log_on(port)
        ann.send(order("a1", 10))
        await ann.reports(2)
        ann.hang_up()
        broker = await Engine("gateway", SECRET).log_on(port)
        broker.send(order("c1", 4, account="cyd", side=fix.FixSide.SELL))
        kinds = [each.exec_type.name for each in await broker.reports(4) if isinstance(each, fix.ExecutionReport)]
        assert kinds == ["PENDING_NEW", "NEW", "TRADE", "ORDER_STATUS"]
        back = await Engine("ann", SECRET, memory).log_on(port)
        trade, commit = await back.reports(2)
        assert isinstance(trade, fix.ExecutionReport)
        assert isinstance(commit, fix.ExecutionReport)
        assert (trade.exec_type, trade.certainty) == (fix.ExecType.TRADE, fix.Certainty.TENTATIVE)
        assert (commit.certainty, commit.cum_qty) == (fix.Certainty.COMMITTED, 4 * ONE)

    run(tmp_path, play)


def test_a_cancel_entered_by_two_processes_is_reported_once(tmp_path: Path) -> None:
    """What a killed gateway had sent may get its place after its successor has entered it again."""

    async def play(gateway: OrderGateway, port: int, stores: dict[str, MemoryFixStore]) -> None:
        ann = await Engine("ann", SECRET).log_on(port)
        ann.send(order("o1", 1))
        await ann.reports(2)
        for _ in range(2):
            assert gateway.core.reenter(Cancel(0, 0, "ann", "o1"), time.time_ns()).entered
        gateway.sync()
        ann.send(order("o2", 1))
        reports = await ann.reports(3)
        kinds = {(each.cl_ord_id, each.exec_type) for each in reports if isinstance(each, fix.ExecutionReport)}
        taken = (fix.ExecType.PENDING_NEW, fix.ExecType.NEW)
        assert kinds == {("o1", fix.ExecType.CANCELED), *(("o2", kind) for kind in taken)}

    run(tmp_path, play)


def test_invalid_fix_orders_do_not_end_the_session(tmp_path: Path) -> None:
    """A refused withdrawal or an id that is too long is rejected or left out, and the next order is accepted."""

    async def play(gateway: OrderGateway, port: int, stores: dict[str, MemoryFixStore]) -> None:
        ann = await Engine("ann", SECRET).log_on(port)
        ann.send(order("o1", 1))
        await ann.reports(2)
        gateway._publish([encode(Funding(101, 1 << 60, "ann", "", -(1 << 62)))])
        await asyncio.sleep(0.05)
        ann.send(order("o" * 40_000, 1))
        ann.send(order("o2", 1))
        reports = await ann.reports(2)
        assert [each.cl_ord_id for each in reports if isinstance(each, fix.ExecutionReport)] == ["o2", "o2"]

    run(tmp_path, play)


def test_many_heartbeats_hide_no_report() -> None:
    store = MemoryFixStore()
    store.sent(b"8=FIX.4.4\x0135=8\x0117=0.122\x0110=000\x01")
    for _ in range(3_000):
        store.sent(None)
    assert last_reported(store) == (0, 122)
