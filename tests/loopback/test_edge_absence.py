"""Customers that disconnect under load and return: by MoldUDP64, SoupBinTCP and WebSocket, with real processes.

While they are away a site is killed and the stripe plan changes. In the suite as much is published meanwhile as takes a
few seconds; with FAIRTAPE_DRILLS=all they are away for thirty.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fairtape
from fairtape.client import Gap, Skipped, Tape, Trade
from fairtape.deployment.config.description import read_deployment
from fairtape.deployment.process.edge import edge_of, stripe_plans_of
from fairtape.edge.protocol.customer import CustomerOptions, Delivered, StripeBreak, StripeGap
from fairtape.edge.service.stripe_plans import read_plan
from fairtape.edge.service.subscriber import MulticastSubscriber
from fairtape.formats import soupbintcp as soup
from fairtape.market.stripes import StripePlan
from fairtape.net.clock import SharedClock
from fairtape.net.loopback import free_ports
from fairtape.net.transports import LOOPBACK
from loopback.commands import await_line, finish, run, start
from loopback.edge_sockets import until
from loopback.test_deployment import deployment
from loopback.test_edge import await_publishers, next_plan
from simulation.edge_region import sequence_of

SITES = ("s1", "s2", "s3")
BEFORE, AFTER = 1_000, 1_000  # trades before they disconnect, and after their return
only_when_asked = pytest.mark.skipif(
    os.environ.get("FAIRTAPE_DRILLS") != "all", reason="thirty seconds of absence: set FAIRTAPE_DRILLS=all"
)


class Listener:
    """A MoldUDP64 customer of all stripes, which misses nothing while it listens and knows where it stopped."""

    def __init__(self, folder: Path, places: dict[int, int] | None = None) -> None:
        deployed = read_deployment(folder)
        settings, self._plan_store = edge_of(deployed), stripe_plans_of(deployed)
        first = self._plan(1)
        assert first is not None
        self._subscriber = MulticastSubscriber(
            settings.tag,
            feeds=first.feeds,
            servers=[place.requests for place in settings.publishers.values()],
            interface=LOOPBACK,
            clock=SharedClock(),
            options=CustomerOptions(patience=None),
            plans=self._plan,
        )
        self.heard: dict[str, dict[int, bytes]] = {}
        self.count = 0  # of trades
        self.places = places or dict.fromkeys(first.stripes, 1)  # of each stripe: the number to continue with
        self._subscriber.follow(first, starts=self.places)

    def _plan(self, version: int) -> StripePlan | None:
        path = self._plan_store.path(version)
        return read_plan(path) if path.exists() else None

    def run_once(self) -> None:
        for record in self._subscriber.run_once():
            assert not isinstance(record, StripeGap | StripeBreak)
            if isinstance(record, Delivered):
                for number, message in enumerate(record.messages, record.first):
                    assert self.heard.setdefault(record.session, {}).setdefault(number, message) is message
                    self.count += sequence_of(message) is not None
                self.places[record.stripe] = record.first + len(record.messages)

    @property
    def trades(self) -> list[int]:
        numbers = (sequence_of(message) for each in self.heard.values() for message in each.values())
        return sorted(number for number in numbers if number is not None)

    def close(self) -> None:
        self._subscriber.close()


@contextmanager
def websites(folder: Path) -> Iterator[str]:
    """A server beside each site; their addresses as a client names them."""
    ports = free_ports(len(SITES))
    servers = [start("web", folder, name, "--port", port) for name, port in zip(SITES, ports, strict=True)]
    try:
        for server in servers:
            await_line(server, "is at http://")
        yield ",".join(f"ws://127.0.0.1:{port}" for port in ports)
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def replayed(folder: Path, session: str, number: int, count: int) -> list[bytes]:
    """`count` messages of a session from this number on, by SoupBinTCP, from a site that is up."""
    place = edge_of(read_deployment(folder)).publishers["s2"].replays
    stream = soup.SoupStream(allowed=soup.FROM_SERVER)
    found: list[bytes] = []
    with socket.create_connection(place, timeout=60) as client:
        client.sendall(soup.encode(soup.LoginRequest("alice", "", session, number)))
        while len(found) < count:
            octets = client.recv(65_536)
            assert octets
            found += [each.message for each in stream.feed(octets) if isinstance(each, soup.SequencedData)]
    return found


def trades_of(tape: Tape, last: int) -> list[tuple[object, ...]]:
    """Trades up to this number, without the times that are those of one site and one client."""
    found: list[tuple[object, ...]] = []
    for record in tape:
        assert not isinstance(record, Gap | Skipped)
        if isinstance(record, Trade):
            found.append(record[:15])
            if record.sequence == last:
                break
    return found


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("away", "options"), [(3_000, ()), pytest.param(30_000, ("--rate", 1_000), marks=only_when_asked)]
)
def test_a_customer_that_was_away_gets_the_same_sequence_as_one_that_stayed(
    tmp_path: Path, away: int, options: tuple[object]
) -> None:
    folder, last = tmp_path / "deployment", BEFORE + away + AFTER
    with deployment(folder, "--sites", 3, "--profile", "metro", "--reformers", 1, "--edge", 2), websites(folder) as web:
        pages = await_publishers(folder, *SITES)
        stayed, left = Listener(folder), Listener(folder)
        with fairtape.connect(web, start="beginning") as constant:
            with fairtape.connect(web, start="beginning") as visitor:
                load = start("publish", folder, "--generate", BEFORE)
                until(lambda: left.count == BEFORE, stayed.run_once, left.run_once)
                left.close()
                early = trades_of(visitor, BEFORE)
                following = visitor.following
            assert finish(load)[0] == 0
            os.kill(pages["s1"]["pid"], signal.SIGKILL)
            load = start("publish", folder, "--generate", away, *options)
            code, _, errors = run("operate", folder, "plan", next_plan(folder))
            assert code == 0, errors
            until(lambda: load.poll() is not None and stayed.count == BEFORE + away, stayed.run_once, patience=120)
            back = Listener(folder, left.places)
            with fairtape.connect(web, start=following) as visitor:
                load = start("publish", folder, "--generate", AFTER)
                until(lambda: stayed.count == last == BEFORE + back.count, stayed.run_once, back.run_once)
                late = trades_of(visitor, last)
            whole = trades_of(constant, last)
        assert finish(load)[0] == 0
        assert stayed.trades == list(range(1, last + 1)) == [trade[0] for trade in whole]
        assert early + late == whole
        check_identical(folder, stayed, left, back)
        stayed.close()
        back.close()


def check_identical(folder: Path, stayed: Listener, left: Listener, back: Listener) -> None:
    """Every message of every session is the same at every customer, by every protocol."""
    for session, messages in stayed.heard.items():
        heard = left.heard.get(session, {}) | back.heard.get(session, {})
        assert heard == messages
        assert sorted(messages) == list(range(1, len(messages) + 1))
        again = replayed(folder, session, 5, len(messages) - 4)
        assert again == [messages[number] for number in range(5, len(messages) + 1)]
