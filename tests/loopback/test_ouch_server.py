"""OUCH over SoupBinTCP at a real gateway."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from fairtape.exchange.orders import OpenMarket, encode
from fairtape.exchange.rules import Continuous
from fairtape.formats import ouch
from fairtape.formats import soupbintcp as soup
from fairtape.gateway.servers.authenticator import LoginAuthenticator
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.servers.ouch_server import OuchServer
from fairtape.gateway.servers.streams import StreamServer
from fairtape.market.prices import ONE
from loopback.gateway_fixture import LocalSequence, accounts_in

PASSWORD = "secret-ann"  # noqa: S105 - protects nothing


def enter(token: str, side: str = "B", shares: int = 10, price: int = 50_000, **other: object) -> ouch.EnterOrder:
    terms = {
        "order_token": token,
        "side": side,
        "shares": shares,
        "stock": "MSFT",
        "price": price,
        "time_in_force": ouch.MARKET_HOURS,
        "firm": "",
        "display": "Y",
        "capacity": "O",
        "intermarket_sweep": "N",
        "minimum_quantity": 0,
        "cross_type": "N",
        "customer_type": "N",
    }
    return ouch.EnterOrder(**{**terms, **other})  # type: ignore[arg-type]


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._stream = soup.SoupStream(allowed=soup.FROM_SERVER)
        self._packets: list[soup.Packet] = []

    def say(self, packet: soup.Packet) -> None:
        self.writer.write(soup.encode(packet))

    def ask(self, *messages: ouch.Inbound) -> None:
        for message in messages:
            self.say(soup.UnsequencedData(ouch.encode(message)))

    async def packet(self) -> soup.Packet | None:
        """The next packet other than a heartbeat; None at the end."""
        while True:
            while not self._packets:
                octets = await self._reader.read(4_096)
                if not octets:
                    return None
                self._packets = self._stream.feed(octets)
            packet = self._packets.pop(0)
            if not isinstance(packet, soup.ServerHeartbeat):
                return packet

    async def message_types(self, count: int) -> list[str]:
        letters = []
        for _ in range(count):
            packet = await self.packet()
            assert isinstance(packet, soup.SequencedData)
            letters.append(ouch.decode_outbound(packet.message).LETTER)
        return letters


def run(tmp_path: Path, play: Callable[[OrderGateway, Callable[..., Awaitable[Client]]], Awaitable[None]]) -> None:
    async def act() -> None:
        accounts = accounts_in(tmp_path)
        for name in ("ann", "bob"):
            accounts.add(name, PASSWORD)
        sequence = LocalSequence()
        sequence.open("ann", "bob")
        gateway, authenticator = sequence.gateway(101, accounts), LoginAuthenticator(accounts, now=time.time_ns)
        server = StreamServer("ouch", OuchServer(gateway, authenticator).open_session)
        host, port = await server.start("127.0.0.1", 0)

        async def client(*login: object) -> Client:
            made = Client(*await asyncio.open_connection(host, port))
            if login:
                made.say(soup.LoginRequest(*login))  # type: ignore[arg-type]
            return made

        try:
            await asyncio.wait_for(play(gateway, client), 30)
        finally:
            server.close()
            authenticator.close()

    asyncio.run(act())


def test_orders_trade_and_every_message_can_be_asked_for_again(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, client: Callable[..., Awaitable[Client]]) -> None:
        ann, bob = await client("ann", PASSWORD), await client("bob", PASSWORD)
        welcome = await ann.packet()
        assert isinstance(welcome, soup.LoginAccepted)
        assert isinstance(await bob.packet(), soup.LoginAccepted)
        ann.ask(enter("a1", "S"))
        assert await ann.message_types(1) == ["A"]
        bob.ask(enter("b1", shares=4), enter("b1", shares=4), enter("b2", price=40_000))
        assert await bob.message_types(3) == ["A", "E", "A"]  # a reused token is ignored
        assert await ann.message_types(1) == ["E"]
        bob.ask(
            ouch.ReplaceOrder("b2", "b3", 5, 41_000, ouch.MARKET_HOURS, "Y", "N", 0),
            ouch.CancelOrder("b3", 1),
            ouch.CancelOrder("b3", 0),
        )
        assert sorted(await bob.message_types(3)) == ["C", "I", "U"]
        ann.writer.close()
        again = await client("ann", PASSWORD, welcome.session, 2)
        assert await again.packet() == soup.LoginAccepted(welcome.session, 2)
        assert await again.message_types(1) == ["E"]
        assert gateway.core.floor.ledger.accounts["bob"].balance("MSFT").total == 10_000_004 * ONE

    run(tmp_path, play)


def test_unsupported_requests_are_rejected_with_a_letter(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, client: Callable[..., Awaitable[Client]]) -> None:
        ann = await client("ann", PASSWORD)
        await ann.packet()
        before = gateway.core.floor.ledger.state_hash
        requests = {
            "Z": enter("r1", shares=900_000, price=1_999_990_000),
            "S": enter("r2", stock="IBM"),
            "X": enter("r3", side="T"),
        }
        for letter, request in requests.items():
            ann.ask(request)
            packet = await ann.packet()
            assert isinstance(packet, soup.SequencedData)
            message = ouch.decode_outbound(packet.message)
            assert isinstance(message, ouch.OuchRejected)
            assert message.reason == letter
        assert gateway.core.floor.ledger.state_hash == before

    run(tmp_path, play)


def test_wrong_logins_and_invalid_bytes_end_the_connection(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, client: Callable[..., Awaitable[Client]]) -> None:
        assert gateway.core.payloads() == []
        wrong = await client("ann", "guess")
        assert await wrong.packet() == soup.LoginRejected("A")
        assert await wrong.packet() is None
        old = await client("ann", PASSWORD, "other")
        assert await old.packet() == soup.LoginRejected("S")
        stranger = await client()
        stranger.ask(enter("a1"))
        assert await stranger.packet() is None
        hostile = await client()
        hostile.writer.write(b"\xff\xff\xff")
        assert await hostile.packet() is None
        ann = await client("ann", PASSWORD)
        await ann.packet()
        ann.say(soup.UnsequencedData(b"?"))
        assert await ann.packet() is None

    run(tmp_path, play)


def test_a_market_too_fine_for_ouch_accepts_no_order(tmp_path: Path) -> None:
    async def play(gateway: OrderGateway, client: Callable[..., Awaitable[Client]]) -> None:
        halves = OpenMarket(1, 1_000, "HALF", Continuous(), ONE // 100, ONE // 2)
        finest = OpenMarket(1, 1_001, "FINE", Continuous(), ONE // 100_000, ONE)
        gateway._publish([encode(halves), encode(finest)])
        ann = await client("ann", PASSWORD)
        assert isinstance(await ann.packet(), soup.LoginAccepted)
        ann.ask(enter("a1", stock="HALF"), enter("a2", stock="FINE"), enter("a3"))
        assert await ann.message_types(3) == ["J", "J", "A"]

    run(tmp_path, play)
