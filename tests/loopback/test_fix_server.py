"""The FIX server on real connections: answers after the sync, rejected orders, ports in use."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from errno import ENOSPC

import pytest

from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.formats.fix.codec import FixMessage, FixStream, encode
from fairtape.formats.fix.fields import format_instant
from fairtape.formats.fix.order_messages import NewOrderSingle, OrderEntry, write
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.session.effects import FixEvent, LoggedOff, LoggedOn, Received
from unit.gateway.fix_world import SECRET, authenticate, fields, order, report
from unit.gateway.memory_fix_store import MemoryFixStore


class Market:
    """Confirms orders, and records the order of events."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.disk_is_full = False
        self.store = MemoryFixStore()
        acceptor = FixAcceptor(
            "FLOOR", store_of=lambda client: self.store if client == "ANN" else None, authenticate=authenticate
        )
        self.server = FixServer(acceptor, self, sync=self.sync, now=time.time_ns)

    def sync(self) -> None:
        if self.disk_is_full:
            raise OSError(ENOSPC, "no space left on device")
        self.events.append("sync")

    def entered(self, client: str, value: OrderEntry, received: Received, now: Instant) -> None:  # noqa: ARG002
        assert isinstance(value, NewOrderSingle)
        self.events.append(value.cl_ord_id)
        self.server.send(client, report(value.cl_ord_id))

    def changed(self, client: str, event: FixEvent, now: Instant) -> None:  # noqa: ARG002
        self.events.append(type(event))


class Customer:
    """A plain connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.stream = FixStream()
        self.messages: list[FixMessage] = []

    def say(self, kind: bytes, number: int, *body: tuple[int, bytes]) -> None:
        names = [(49, b"ANN"), (56, b"FLOOR"), (34, b"%d" % number), (52, format_instant(time.time_ns()))]
        self.writer.write(encode([(35, kind), *names, *body]))

    async def hear(self) -> FixMessage:
        while not self.messages:
            octets = await self.reader.read(4_096)
            assert octets
            self.messages += self.stream.feed(octets)
        return self.messages.pop(0)


def run(scene: Callable[[Market, Customer], object]) -> Market:
    async def play() -> Market:
        market = Market()
        host, port = await market.server.start("127.0.0.1", 0)
        customer = Customer(*await asyncio.open_connection(host, port))
        customer.say(b"A", 1, (98, b"0"), (108, b"30"), (553, b"ann"), (554, SECRET.encode()))
        assert (await customer.hear()).msg_type == b"A"
        result = scene(market, customer)
        assert asyncio.iscoroutine(result)
        await result
        market.server.close()
        customer.writer.close()
        return market

    return asyncio.run(asyncio.wait_for(play(), 30))


def test_an_order_is_answered_after_it_is_durable() -> None:
    async def scene(market: Market, customer: Customer) -> None:
        customer.say(b"D", 2, *write(order("A"))[1:])
        answer = await customer.hear()
        assert fields(answer, 35, 11) == (b"8", b"A")
        assert market.events[market.events.index("A") :] == ["A", "sync"]

    assert LoggedOn in run(scene).events


def test_a_flawed_order_is_rejected_and_the_next_one_accepted() -> None:
    async def scene(_market: Market, customer: Customer) -> None:
        customer.say(b"D", 2, *((tag, b"2" if tag == 40 else value) for tag, value in write(order("A"))[1:]))
        customer.say(b"D", 3, *write(order("B"))[1:])
        assert fields(await customer.hear(), 35, 371, 373) == (b"3", b"44", b"1")
        assert fields(await customer.hear(), 35, 11) == (b"8", b"B")

    run(scene)


def test_a_turn_that_cannot_be_synced_is_the_last_one_and_stays_invisible() -> None:
    async def scene(market: Market, customer: Customer) -> None:
        market.disk_is_full = True
        customer.say(b"D", 2, *write(order("A"))[1:])
        with pytest.raises(OSError, match="no space left"):
            await market.server.ended()
        with suppress(ConnectionResetError):  # however the system reports it
            assert await customer.reader.read() == b""

    run(scene)


def test_a_closing_market_logs_clients_out() -> None:
    async def scene(market: Market, customer: Customer) -> None:
        market.server.close()
        assert fields(await customer.hear(), 35, 58) == (b"5", b"the market closes")
        assert await customer.reader.read() == b""

    assert LoggedOff not in run(scene).events


def test_a_port_in_use_is_refused_in_one_sentence() -> None:
    async def scene(market: Market, customer: Customer) -> None:
        port = customer.writer.get_extra_info("peername")[1]
        with pytest.raises(UserError, match="choose another address"):
            await Market().server.start("127.0.0.1", port)
        assert market.store.next_in == 2

    run(scene)
