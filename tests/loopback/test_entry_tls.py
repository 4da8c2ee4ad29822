"""TLS at the doors of a gateway: FIX and OUCH sessions over it, and what becomes of those who speak plainly."""

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from fairtape.formats import soupbintcp as soup
from fairtape.formats.fix.order_messages import write
from fairtape.gateway.servers.authenticator import Authenticator
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.servers.ouch_server import OuchServer
from fairtape.gateway.servers.streams import StreamServer, server_context
from fairtape.gateway.session.acceptor import FixAcceptor
from loopback.certificates import Authority
from loopback.local_sequencer import LocalSequencer, accounts_in
from loopback.test_fix_server import Customer, Market
from loopback.test_ouch_server import PASSWORD, Client, enter
from unit.fix_world import SECRET, fields, judge, order

PATIENCE = 30


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What the gateway proves itself with, and whom its traders trust."""
    authority = Authority(folder / "authority")
    gate = authority.identity("gate")
    return server_context(gate.certificate, gate.key), ssl.create_default_context(cafile=str(authority.certificate))


def test_a_fix_session_over_tls(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)

    async def play() -> None:
        market = Market()
        desk = FixAcceptor("FLOOR", store_of=lambda _client: market.store, judge=judge)
        market.server = FixServer(desk, market, sync=market.sync, now=time.time_ns, tls=ours)
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


def test_ouch_over_tls_and_a_trader_who_does_not_know_the_authority(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)

    async def play() -> None:
        accounts = accounts_in(tmp_path)
        accounts.add("ann", PASSWORD)
        sequencer = LocalSequencer()
        sequencer.open("ann")
        doorman = Authenticator(accounts, now=time.time_ns)
        server = StreamServer("ouch", OuchServer(sequencer.gateway(101, accounts), doorman).converse, tls=ours)
        host, port = await server.start("127.0.0.1", 0)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
        ann = Client(*await asyncio.open_connection(host, port, ssl=theirs))
        ann.say(soup.LoginRequest("ann", PASSWORD))
        assert isinstance(await ann.packet(), soup.LoginAccepted)
        ann.ask(enter("a1", "S"))
        assert await ann.told(1) == ["A"]
        server.close()
        doorman.close()
        ann.writer.close()

    asyncio.run(asyncio.wait_for(play(), PATIENCE))
