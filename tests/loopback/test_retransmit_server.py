"""A retransmit server on real sockets: repairs, replays, and hostile clients."""

import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.edge.protocol.replay import ReplayOptions
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer, authentication
from fairtape.edge.service.settings import EdgeSettings
from fairtape.formats import moldudp64
from fairtape.formats import soupbintcp as soup
from fairtape.formats.moldudp64 import MoldRequest, encode_request
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from loopback.edge_sockets import Groups, PacketReceiver, asker, until
from unit.edge.edge_journals import SETTINGS, history, plan_store, written


class Stand:
    """A server over a journal, and what it must send."""

    def __init__(self, folder: Path, settings: EdgeSettings, options: ReplayOptions | None, size: int) -> None:
        self.plan = Groups().plan()
        entries = history(count=150, size=size)
        self.archive = ReplayArchive(
            written(folder / "s1", entries), settings, plan_store(folder, self.plan), recent_bytes_max=4_000
        )
        place = settings.publishers["s1"]
        self.server = RetransmitServer(
            settings, place, self.archive, SharedClock(), interface=LOOPBACK, replay_options=options
        )
        until(lambda: self.archive.sequence == 150 * size + 1, self.server.run_once)
        session = self.archive.current(1)
        assert session is not None
        self.session = session
        extent = self.archive.extent(session)
        assert extent is not None
        self.following = extent.following
        self.requests, self.replays = self.server.addresses

    def wanted(self, first: int, count: int) -> list[bytes]:
        return list(self.archive.messages(self.session, first, count))

    def repairs(self, client: socket.socket, number: int) -> dict[int, bytes]:
        """The next `count` messages."""
        found: dict[int, bytes] = {}

        def receive() -> None:
            self.server.run_once()
            with suppress(BlockingIOError):
                while True:
                    packet = moldudp64.decode(client.recv(65_536))
                    found.update(enumerate(packet.messages, packet.number))

        until(lambda: len(found) >= number, receive)
        return found

    def customer(self) -> socket.socket:
        client = socket.create_connection(self.replays)
        client.settimeout(0)
        return client

    def packets(
        self, client: socket.socket, count: int, look: Callable[[], object] = lambda: None
    ) -> list[soup.Packet]:
        """The packets of a stream, until there are `count` or it ends."""
        stream = soup.SoupStream(allowed=soup.FROM_SERVER)
        found: list[soup.Packet] = []
        ended = False

        def receive() -> None:
            nonlocal ended
            self.server.run_once()
            with suppress(BlockingIOError):
                octets = client.recv(65_536)
                ended = not octets
                found.extend(stream.feed(octets))

        until(lambda: ended or len(found) >= count, receive, look)
        return found


def data_of(packets: list[soup.Packet]) -> list[bytes]:
    return [packet.message for packet in packets if isinstance(packet, soup.SequencedData)]


@contextmanager
def stand(
    folder: Path, settings: EdgeSettings = SETTINGS, *, options: ReplayOptions | None = None, size: int = 4
) -> Iterator[Stand]:
    """A server over a journal of 150 tokens of this size."""
    made = Stand(folder, settings, options, size)
    try:
        yield made
    finally:
        made.server.close()


def test_what_a_customer_missed_it_gets_by_number_from_the_journal(tmp_path: Path) -> None:
    with stand(tmp_path) as made, asker() as client:
        client.sendto(encode_request(MoldRequest(made.session, 3, 40)), made.requests)
        found = made.repairs(client, 40)
        assert [found[number] for number in range(3, 43)] == made.wanted(3, 40)


def test_what_two_customers_missed_is_repaired_by_multicast(tmp_path: Path) -> None:
    with stand(tmp_path) as made, asker() as one, asker() as other:
        multicast = PacketReceiver(made.plan, "A")
        for client in (one, other):
            client.sendto(encode_request(MoldRequest(made.session, 5, 10)), made.requests)
        until(
            lambda: len(multicast.messages().get(made.session, {})) == 10,
            made.server.run_once,
            multicast.receive,
        )
        assert list(multicast.messages()[made.session].values()) == made.wanted(5, 10)
        multicast.close()


def test_malformed_absurd_and_flooding_requests_are_counted_and_the_server_continues(tmp_path: Path) -> None:
    chance = random.Random(4)
    with stand(tmp_path) as made, asker() as stranger, asker() as client:
        for _ in range(200):
            stranger.sendto(chance.randbytes(chance.randrange(60)), made.requests)
        for number, count in ((made.following + 1, 1), (1 << 63, 65_535), (made.following + 10**6, 9)):
            stranger.sendto(encode_request(MoldRequest(made.session, number, count)), made.requests)
        stranger.sendto(encode_request(MoldRequest("ZZ99999999", 1, 1)), made.requests)
        until(lambda: made.server.status().requests.requests >= 204, made.server.run_once)
        counts = made.server.status().requests
        assert counts.malformed >= 190
        assert counts.strangers >= 1
        assert counts.absurd >= 2
        for _ in range(3_000):
            stranger.sendto(encode_request(MoldRequest(made.session, 1, 65_000)), made.requests)
        until(lambda: made.server.status().requests.floods > 100, made.server.run_once)
        with suppress(BlockingIOError):
            while True:
                stranger.recv(65_536)
        asked = 0

        def ask() -> None:
            nonlocal asked
            if asked % 50 == 0:
                client.sendto(encode_request(MoldRequest(made.session, 7, 3)), made.requests)
            asked += 1
            made.server.run_once()

        received: list[bytes] = []

        def listen() -> None:
            ask()
            with suppress(BlockingIOError):
                received.append(client.recv(65_536))

        until(lambda: any(moldudp64.decode(each).number <= 7 for each in received), listen)


def test_a_login_with_a_number_replays_from_there_and_a_range_ends_where_it_says(tmp_path: Path) -> None:
    with stand(tmp_path) as made, made.customer() as client:
        client.send(soup.encode(soup.LoginRequest("alice", "", made.session, 11)))
        client.send(soup.encode(soup.UnsequencedData(struct.pack(">cQ", b"E", 210))))
        accepted, *rest = made.packets(client, 1_000)
        assert accepted == soup.LoginAccepted(made.session, 11)
        assert data_of(rest) == made.wanted(11, 200)
        assert isinstance(rest[-1], soup.EndOfSession)


def test_absurd_logins_and_ranges_over_a_stream_are_refused_and_counted(tmp_path: Path) -> None:
    with stand(tmp_path) as made:
        for session, number in ((made.session, 10**19), ("ZZ99999999", 1), ("001@256161", 1)):
            with made.customer() as client:
                client.send(soup.encode(soup.LoginRequest("eve", "", session, number)))
                assert isinstance(made.packets(client, 2)[0], soup.LoginRejected)
        with made.customer() as client:  # a range that ends before it begins is over at once
            client.send(soup.encode(soup.LoginRequest("eve", "", made.session, 50)))
            client.send(soup.encode(soup.UnsequencedData(struct.pack(">cQ", b"E", 3))))
            assert isinstance(made.packets(client, made.following)[-1], soup.EndOfSession)
        with made.customer() as client:  # one without an end is served as far as there is something
            client.send(soup.encode(soup.LoginRequest("eve", "", made.session, 1)))
            client.send(soup.encode(soup.UnsequencedData(struct.pack(">cQ", b"E", (1 << 64) - 1))))
            assert data_of(made.packets(client, made.following)) == made.wanted(1, made.following)
        with made.customer() as client:
            client.send(soup.encode(soup.UnsequencedData(struct.pack(">cQ", b"E", 3))))
            assert made.packets(client, 1) == []
        counts = made.server.status().replays
        assert (counts.rejected, counts.breaches) == (3, 1)


def test_half_open_and_malformed_connections_are_closed(tmp_path: Path) -> None:
    options = ReplayOptions(login_delay=100 * MILLISECOND, connections_max=8)
    with stand(tmp_path, options=options) as made:
        clients = [made.customer() for _ in range(12)]
        clients[0].send(b"GET / HTTP/1.1\r\n\r\n")
        until(lambda: made.server.status().replays.half_open >= 6, made.server.run_once)
        until(lambda: made.server.status().connections == 0, made.server.run_once)
        counts = made.server.status().replays
        assert counts.turned_away == 4
        assert counts.malformed + counts.breaches + counts.half_open == 8
        for client in clients:
            client.close()
        with made.customer() as good:
            good.send(soup.encode(soup.LoginRequest("bob", "", made.session, 1)))
            first, *_ = made.packets(good, 3)
            assert isinstance(first, soup.LoginAccepted)


def test_a_client_that_does_not_read_costs_little_delays_no_other_and_can_resume(tmp_path: Path) -> None:
    buffer_max, chunk = 20_000, 32
    options = ReplayOptions(buffer_max=buffer_max, stall_period=100 * MILLISECOND, chunk_messages_max=chunk)
    with stand(tmp_path, options=options, size=300) as made:
        waited: list[int] = []
        sluggard = socket.socket()
        sluggard.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        sluggard.connect(made.replays)
        sluggard.send(soup.encode(soup.LoginRequest("slow", "", made.session, 1)))
        with made.customer() as good:
            good.send(soup.encode(soup.LoginRequest("bob", "", made.session, 1)))
            found = made.packets(good, made.following, lambda: waited.append(made.server.status().waiting_bytes))
        everything = made.wanted(1, made.following)
        assert data_of(found) == everything
        until(lambda: made.server.status().replays.stalled == 1, made.server.run_once)
        assert 0 < max(waited) < 2 * (buffer_max + chunk * 64)
        sluggard.settimeout(0)
        late = data_of(made.packets(sluggard, made.following))
        sluggard.close()
        assert late == everything[: len(late)] != everything
        with made.customer() as again:
            again.send(soup.encode(soup.LoginRequest("slow", "", made.session, len(late) + 1)))
            rest = data_of(made.packets(again, made.following - len(late)))
        assert late + rest == everything


def test_only_those_with_a_password_may_replay_where_there_are_passwords(tmp_path: Path) -> None:
    path = tmp_path / "customers.json"
    path.write_text(json.dumps({"alice": "secret"}))
    with stand(tmp_path, replace(SETTINGS, customers=path)) as made:
        for name, password, kind in (
            ("alice", "secret", soup.LoginAccepted),
            ("alice", "wrong", soup.LoginRejected),
            ("eve", "", soup.LoginRejected),
        ):
            with made.customer() as client:
                client.send(soup.encode(soup.LoginRequest(name, password, made.session, 1)))
                assert isinstance(made.packets(client, 1)[0], kind)


@pytest.mark.parametrize("text", ["[]", "nonsense", "3"])
def test_a_file_without_passwords_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "customers.json"
    path.write_text(text)
    with pytest.raises(UserError, match="has no passwords; expected JSON such as"):
        authentication(path)
