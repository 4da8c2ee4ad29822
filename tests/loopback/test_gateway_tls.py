"""TLS at a gateway: FIX and OUCH sessions over it, and clients that speak plain text."""

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from fairtape.formats import soupbintcp as soup
from fairtape.formats.fix.order_messages import write
from fairtape.gateway.servers.authenticator import LoginAuthenticator
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.servers.ouch_server import OuchServer
from fairtape.gateway.servers.streams import StreamServer, server_context
from fairtape.gateway.session.acceptor import FixAcceptor
from loopback.certificates import Authority
from loopback.gateway_fixture import LocalSequence, accounts_in
from loopback.test_fix_server import Customer, Market
from loopback.test_ouch_server import PASSWORD, Client, enter
from unit.gateway.fix_world import SECRET, authenticate, fields, order

PATIENCE = 30


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The TLS contexts of the gateway and of its traders."""
    authority = Authority(folder / "authority")
    gate = authority.identity("gate")
    return server_context(gate.certificate, gate.key), ssl.create_default_context(cafile=str(authority.certificate))


def test_a_fix_session_works_over_tls(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)

    async def play() -> None:
        market = Market()
        acceptor = FixAcceptor("FLOOR", store_of=lambda _client: market.store, authenticate=authenticate)
        market.server = FixServer(acceptor, market, sync=market.sync, now=time.time_ns, tls=ours)
        host, port = await market.server.start("127.0.0.1", 0)
        plain = Customer(*await asyncio.open_connection(host, port))
        plain.say(b"A", 1, (98, b"0"), (108, b"30"), (553, b"ann"), (554, SECRET.encode()))
        assert not plain.stream.feed(await plain.reader.read(4_096))  # an alert, or nothing; no session
        customer = Customer(*await asyncio.open_connection(host, port, ssl=theirs))
        customer.say(b"A", 1, (98, b"0"), (108, b"30"), (553, b"ann"), (554, SECRET.encode()))
        assert (await customer.hear()).msg_type == b"A"
        customer.say(b"D", 2, *write(order("A"))[1:])
        assert fields(await customer.hear(), 35, 11) == (b"8", b"A")
        market.server.close()
        customer.writer.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE))


def test_ouch_works_over_tls_unless_the_trader_distrusts_the_authority(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)

    async def play() -> None:
        accounts = accounts_in(tmp_path)
        accounts.add("ann", PASSWORD)
        sequence = LocalSequence()
        sequence.open("ann")
        authenticator = LoginAuthenticator(accounts, now=time.time_ns)
        server = StreamServer("ouch", OuchServer(sequence.gateway(101, accounts), authenticator).open_session, tls=ours)
        host, port = await server.start("127.0.0.1", 0)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
        ann = Client(*await asyncio.open_connection(host, port, ssl=theirs))
        ann.say(soup.LoginRequest("ann", PASSWORD))
        assert isinstance(await ann.packet(), soup.LoginAccepted)
        ann.ask(enter("a1", "S"))
        assert await ann.message_types(1) == ["A"]
        server.close()
        authenticator.close()
        ann.writer.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE))
