"""The Python client at real gateways: orders, events, broken connections, gateways that die."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

import fairtape
from fairtape.client import AsyncTrader, ClientError, OrderRefused
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.gateway.core.events import OrderEvent
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.gateway.servers.authenticator import LoginAuthenticator
from fairtape.gateway.servers.native_server import NativeServer
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.servers.streams import StreamServer
from fairtape.gateway.storage.accounts import TradingAccounts
from loopback.gateway_fixture import SECRET, LocalSequence, accounts_in

T = TypeVar("T")


class GatewayFixture:
    """Gateways on one sequence."""

    def __init__(self, folder: Path) -> None:
        self.sequence = LocalSequence()
        self.accounts: TradingAccounts = accounts_in(folder, "ann", "bob", "gateway", "cyd", brokers={"cyd": "gateway"})
        self.sequence.open("ann", "bob", "cyd")
        self.authenticator = LoginAuthenticator(self.accounts, now=time.time_ns)

    @asynccontextmanager
    async def gateway(
        self, me: int = 101, limits: GatewayLimits | None = None, **options: Any
    ) -> AsyncIterator[tuple[OrderGateway, StreamServer, str]]:
        gateway = self.sequence.gateway(me, self.accounts, limits=limits)
        server = StreamServer("entry", NativeServer(gateway, self.authenticator).open_session, **options)
        host, port = await server.start("127.0.0.1", 0)
        try:
            yield gateway, server, f"{host}:{port}"
        finally:
            self.sequence.gateways.remove(gateway)
            server.close()

    def trader(self, target: str, name: str, **options: Any) -> Any:
        return fairtape.trade(target, account=name, password=SECRET, **options)


def run(tmp_path: Path, play: Callable[[GatewayFixture], Awaitable[T]]) -> T:
    async def act() -> T:
        fixture = GatewayFixture(tmp_path)
        try:
            return await asyncio.wait_for(play(fixture), 60)
        finally:
            fixture.authenticator.close()

    return asyncio.run(act())


async def received(trader: AsyncTrader, count: int) -> list[OrderEvent]:
    events = []
    for _ in range(count):
        event = await trader.event()
        assert isinstance(event, OrderEvent)
        events.append(event)
    return events


def kinds(events: list[OrderEvent]) -> list[tuple[str, str]]:
    return [(event.client_id, event.kind.value) for event in events]


def test_an_order_is_entered_traded_committed_and_reported_to_both(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        async with fixture.gateway() as (_, _, at), fixture.trader(at, "ann") as ann, fixture.trader(at, "bob") as bob:
            await ann.order("MSFT", "sell", 10, "5.25", client_id="a1")
            assert kinds(await received(ann, 1)) == [("a1", "sequenced")]
            name = await bob.order("MSFT", "buy", 4, 5.25)
            assert kinds(await received(bob, 3)) == [(name, "sequenced"), (name, "filled"), (name, "committed")]
            filled, committed = await received(ann, 2)
            assert (filled.open, filled.last_price, committed.kind.value) == (6 * SECOND, 5_250_000_000, "committed")
            assert await ann.replace("a1", quantity=20, price=6, new_id="a2") == "a2"
            await ann.cancel("a2")
            assert kinds(await received(ann, 2)) == [("a2", "replaced"), ("a2", "cancelled")]

    run(tmp_path, play)


def test_refusals_are_clear_and_change_nothing(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        limits = GatewayLimits(requests_per_s=100_000, open_orders_max=1)
        async with fixture.gateway(limits=limits) as (gateway, _, at), fixture.trader(at, "ann") as ann:
            before = gateway.core.floor.ledger.state_hash
            for cause, request in {
                "funds": ann.order("MSFT", "buy", 1_000_000_000, 5),
                "account": ann.order("MSFT", "buy", 1, 5, account="bob"),
                "symbol": ann.order("IBM", "buy", 1, 5),
                "value": ann.order("MSFT", "buy", 1, "5.001"),
                "order": ann.cancel("none"),
            }.items():
                with pytest.raises(OrderRefused) as refused:
                    await request
                assert refused.value.cause == cause
            assert gateway.core.floor.ledger.state_hash == before
            await ann.order("MSFT", "buy", 1, 5, client_id="a1")
            with pytest.raises(OrderRefused, match="the account has 1 open orders, its limit"):
                await ann.order("MSFT", "buy", 1, 5)
            with pytest.raises(OrderRefused, match="used it before"):
                await ann.order("MSFT", "buy", 1, 5, client_id="a1")
            with pytest.raises(ClientError, match="side is 'hold'; give one of buy, sell"):
                await ann.order("MSFT", "hold", 1, 5)

    run(tmp_path, play)


def test_a_wrong_password_and_an_unknown_name_get_the_same_answer(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        async with fixture.gateway() as (gateway, _, at):
            for name, secret in (("ann", "guess"), ("eve", SECRET), ("ann", "")):
                with pytest.raises(ClientError, match="wrong user name or password"):
                    async with fairtape.trade(at, account=name, password=secret):
                        pass
            assert gateway.core.payloads() == []
            token = fixture.accounts.issue_token("ann")
            async with fairtape.trade(at, account="ann", password=token) as ann:
                assert ann.accounts == ("ann",)

    run(tmp_path, play)


def test_a_broker_acts_for_its_customers_and_gets_their_events(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        async with (
            fixture.gateway() as (_, _, at),
            fixture.trader(at, "gateway") as broker,
            fixture.trader(at, "cyd") as cyd,
        ):
            assert broker.accounts == ("cyd", "gateway")
            name = await broker.order("MSFT", "buy", 1, 5, account="cyd")
            assert kinds(await received(broker, 1)) == kinds(await received(cyd, 1)) == [(name, "sequenced")]
            with pytest.raises(OrderRefused, match="account is ann; gateway may not act for it"):
                await broker.order("MSFT", "buy", 1, 5, account="ann")

    run(tmp_path, play)


def test_a_trader_whose_gateway_dies_continues_at_another_without_loss_or_duplicates(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        names = [f"a{number}" for number in range(40)]
        async with fixture.gateway(102) as (_, other, second):
            async with fixture.gateway(101) as (_, server, first):
                trader = fixture.trader(f"{first},{second}", "ann")
                ann = await trader.__aenter__()
                for name in names[:20]:
                    await ann.order("MSFT", "buy", 1, 5, client_id=name)
                    if int(name[1:]) % 5 == 4:
                        for connection in [*server.connections, *other.connections]:  # the connection breaks
                            connection.close()
                events = await received(ann, 10)
            for name in names[20:]:
                await ann.order("MSFT", "buy", 1, 5, client_id=name)
            events += await received(ann, 30)
            assert kinds(events) == [(name, "sequenced") for name in names]
            assert ann.reconnections >= 4
            await trader.__aexit__()
            assert await ann.event() is None

    run(tmp_path, play)


def test_events_are_read_again_from_a_position_on(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        async with fixture.gateway() as (_, _, at):
            async with fixture.trader(at, "ann") as ann:
                for name in ("a1", "a2", "a3"):
                    await ann.order("MSFT", "buy", 1, 5, client_id=name)
                await received(ann, 1)
                position = ann.position
            async with fixture.trader(at, "ann", after=position) as ann:
                assert kinds(await received(ann, 2)) == [("a2", "sequenced"), ("a3", "sequenced")]
            async with fixture.trader(at, "ann", after=(0, 0)) as ann:
                events = await received(ann, 5)
                assert kinds(events)[2:] == [("a1", "sequenced"), ("a2", "sequenced"), ("a3", "sequenced")]
                assert [event.symbol for event in events[:2]] == ["", "MSFT"]  # funded

    run(tmp_path, play)


async def lines(at: str, *sent: dict[str, Any] | bytes) -> list[dict[str, Any]]:
    """A server's answers to these lines, until it disconnects or has answered all."""
    host, _, port = at.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = []
    for each in sent:
        writer.write(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n")
        said.append(json.loads(await reader.readline() or b'{"is": "gone"}'))
    writer.close()
    return said


LOGIN = {"do": "login", "login": "ann", "password": SECRET}


def test_a_replayed_request_is_refused_on_any_connection(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        async with fixture.gateway() as (gateway, _, at):
            host, _, port = at.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(json.dumps(LOGIN).encode() + b"\n")
            session = json.loads(await reader.readline())["session"]
            request = {"do": "order", "client_id": "a1", "symbol": "MSFT", "side": "buy", "quantity": "1", "price": "5"}
            captured = {**request, "session": session, "request": 1}
            writer.write(json.dumps(captured).encode() + b"\n")
            assert json.loads(await reader.readline()) == {"is": "accepted", "request": 1}
            writer.write(json.dumps(captured).encode() + b"\n")  # on the same connection
            said = json.loads(await reader.readline())
            while said["is"] == "event":
                said = json.loads(await reader.readline())
            assert said["is"] == "closed"
            assert "it is a replay" in said["reason"]
            writer.close()
            _, said = await lines(at, LOGIN, captured)  # on another
            assert "it is a replay" in said["reason"]
            assert len(gateway.core.floor.accounts["ann"].used_ids) == 1

    run(tmp_path, play)


def test_hostile_lines_end_only_their_own_connection(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        async with fixture.gateway() as (_, _, at), fixture.trader(at, "bob") as bob:
            for hostile in (b"\xff\xfe\n", b"[]\n", b"{}\n", b"x" * 5_000, b'{"do": "order"}\n'):
                (said,) = await lines(at, hostile)
                assert said["is"] == "closed"
            for wrong in ({"login": 1}, {"era": "x"}, {"after": None}):
                (said,) = await lines(at, {**LOGIN, **wrong})
                assert "must be text" in said["reason"]
            await bob.order("MSFT", "buy", 1, 5)

    run(tmp_path, play)


def test_a_request_that_cannot_be_read_names_its_field(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        async with fixture.gateway() as (_, _, at):
            host, _, port = at.partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(json.dumps(LOGIN).encode() + b"\n")
            session = json.loads(await reader.readline())["session"]
            request = {"do": "order", "client_id": "a1", "symbol": "MSFT", "side": "buy", "quantity": "1"}
            wrongs: list[dict[str, Any]] = [
                {"quantity": 1},
                {"side": "up"},
                {"colour": "red"},
                {"price": "x"},
                {"client_id": ""},
            ]
            for number, wrong in enumerate(wrongs, 1):
                writer.write(json.dumps({**request, **wrong, "session": session, "request": number}).encode() + b"\n")
                said = json.loads(await reader.readline())
                assert (said["is"], said["cause"]) == ("refused", "value")
                assert next(iter(wrong)) in said["reason"]
            writer.close()

    run(tmp_path, play)


def test_silent_connections_and_one_too_many_are_closed(tmp_path: Path) -> None:
    async def play(fixture: GatewayFixture) -> None:
        options: dict[str, Any] = {"login_delay": SECOND, "silence_max": 50 * MILLISECOND, "connections_max": 2}
        async with fixture.gateway(**options) as (_, server, at):
            host, _, port = at.partition(":")
            streams = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
            streams[0][1].write(json.dumps(LOGIN).encode() + b"\n")
            ends = [await reader.read() for reader, _ in streams]
            assert ends[0].startswith(b'{"is":"welcome"')
            assert ends[1:] == [b"", b""]
            assert (server.refused, server.half_open, server.silent) == (1, 1, 1)

    run(tmp_path, play)


def test_an_ordinary_program_trades_without_asyncio(tmp_path: Path) -> None:
    def program(fixture: GatewayFixture, at: str) -> list[tuple[str, str]]:
        with fixture.trader(at, "ann") as ann:
            name = ann.order("MSFT", "buy", "1", "5", time_in_force="ioc")
            first, second = ann.event(10), ann.event(10)
            assert ann.event(0.01) is None
            with pytest.raises(OrderRefused):
                ann.cancel(name)
        with pytest.raises(ClientError, match="use it within"):
            ann.order("MSFT", "buy", 1, 5)
        return kinds([first, second])

    async def play(fixture: GatewayFixture) -> None:
        async with fixture.gateway() as (_, _, at):
            events = await asyncio.to_thread(program, fixture, at)
            assert [kind for _, kind in events] == ["sequenced", "cancelled"]

    run(tmp_path, play)


@pytest.mark.parametrize("target", ["", "host", "host:x", "host:0", ":1", 7])
def test_a_target_that_is_no_address_is_refused(target: Any) -> None:
    with pytest.raises(ClientError, match="target is"):
        fairtape.trade(target, account="ann", password=SECRET)
