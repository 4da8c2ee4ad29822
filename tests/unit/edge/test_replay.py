"""Replays over a stream: from a number, from a time, to an end; and connections that are closed."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.replay import ReplayOptions, ReplayServer
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.formats import soupbintcp as soup
from unit.edge.edge_values import NOON, edition, tokens

SESSION = edition().session(1)


def login(number: int = 1, session: str = SESSION, word: str = "right", **more: int) -> bytes:
    return soup.encode(soup.LoginRequest("ada", word, session, number, **more))


@dataclass
class Office:
    """A replay server with an archive that grows, and clients that read at any rate."""

    replay: ReplayServer
    recent: RecentMessages
    sequencer: StripeSequencer
    now: int = NOON
    heard: dict[int, list[soup.Packet]] = field(default_factory=dict)
    closed: dict[int, str] = field(default_factory=dict)
    streams: dict[int, soup.SoupStream] = field(default_factory=dict)
    reading: bool = True

    def connect(self, connection: int, *octets: bytes) -> None:
        self.replay.connected(connection, self.now)
        for each in octets:
            self.replay.receive(connection, each, self.now)
        self.run(0)

    def release(self, count: int) -> None:
        for ordered in tokens(count, 6, first=self.sequencer.sequence):
            for step in self.sequencer.deliver(ordered):
                self.recent.take(step, self.sequencer.at)
        self.replay.released(self.now)

    def run(self, period: int) -> None:
        until = self.now + period
        while True:
            self._carry()
            deadline = self.replay.deadline()
            if deadline is None or deadline > until:
                self.now = until
                return
            self.now = max(self.now, deadline)
            self.replay.wake(self.now)

    def _carry(self) -> None:
        for effect in self.replay.drain():
            match effect:
                case WriteConnection(connection, octets):
                    stream = self.streams.setdefault(connection, soup.SoupStream(allowed=soup.FROM_SERVER))
                    self.heard.setdefault(connection, []).extend(stream.feed(octets))
                    if self.reading:
                        self.replay.flushed(connection, len(octets), self.now)
                case CloseConnection(connection, reason):
                    self.closed[connection] = reason

    def messages(self, connection: int) -> list[bytes]:
        return [packet.message for packet in self.heard.get(connection, []) if isinstance(packet, soup.SequencedData)]

    def everything(self) -> list[bytes]:
        return list(self.recent.messages(SESSION, 1, 100_000))


def office(tokens_before: int = 20, **options: int) -> Office:
    recent, sequencer = RecentMessages(), StripeSequencer(StripePosition.fresh(edition()))
    replay = ReplayServer(
        recent,
        authenticate=lambda _, word: word == "right",
        options=ReplayOptions(**options),
    )
    made = Office(replay, recent, sequencer)
    for step in sequencer.begin():
        recent.take(step, sequencer.at)
    made.release(tokens_before)
    return made


@given(st.integers(1, 60))
def test_a_login_with_a_number_replays_from_there_and_continues(number: int) -> None:
    world = office()
    world.connect(1, login(number))
    assert world.heard[1][0] == soup.LoginAccepted(SESSION, number)
    world.run(10 * MILLISECOND)
    assert world.messages(1) == world.everything()[number - 1 :]
    world.release(5)
    world.run(10 * MILLISECOND)
    assert world.messages(1) == world.everything()[number - 1 :]


def test_number_zero_means_only_what_is_new() -> None:
    world = office()
    before = len(world.everything())
    world.connect(1, login(0))
    assert world.heard[1] == [soup.LoginAccepted(SESSION, before + 1)]
    world.release(2)
    world.run(MILLISECOND)
    assert world.messages(1) == world.everything()[before:]


def test_a_replay_can_begin_at_a_time_of_day() -> None:
    world = office(2_000, default_stripe=1)
    world.connect(1, login(1, "001@120002"))
    accepted = world.heard[1][0]
    assert isinstance(accepted, soup.LoginAccepted)
    assert accepted.number == world.recent.number_since(SESSION, 43_202 * SECOND) != 1
    world.connect(2, login(1, ""))
    assert world.heard[2][0] == soup.LoginAccepted(SESSION, 1)


def test_a_range_ends_where_the_client_says() -> None:
    world = office()
    world.connect(1, login(5) + soup.encode(soup.UnsequencedData(b"E" + (9).to_bytes(8, "big"))))
    world.run(MILLISECOND)
    assert world.messages(1) == world.everything()[4:9]
    assert world.heard[1][-1] == soup.EndOfSession()
    assert 1 in world.closed


def test_the_end_of_the_session_is_sent() -> None:
    world = office()
    world.connect(1, login())
    for step in world.sequencer.finish(NOON):
        world.recent.take(step, NOON)
    world.replay.released(world.now)
    world.run(MILLISECOND)
    assert world.messages(1) == world.everything()
    assert world.heard[1][-1] == soup.EndOfSession()


@pytest.mark.parametrize(
    ("octets", "reason"),
    [
        (login(word="wrong"), "A"),
        (login(session="NOWHERE"), "S"),
        (login(1 << 40), "S"),
        (login(session="001@996199"), "S"),
        (login(session="ZZZ@120000"), "S"),
        (login(session=""), "S"),
    ],
)
def test_a_login_that_cannot_be_granted_is_rejected(octets: bytes, reason: str) -> None:
    world = office()
    world.connect(1, octets)
    assert world.heard[1] == [soup.LoginRejected(reason)]
    assert world.replay.counts.rejected == 1
    assert 1 in world.closed


def test_a_connection_without_a_login_is_closed() -> None:
    world = office(login_delay=5 * SECOND)
    world.connect(1)
    world.connect(2, login()[:10])
    world.run(6 * SECOND)
    assert set(world.closed) == {1, 2}
    assert world.replay.counts.half_open == 2
    assert not world.replay._connections


def test_a_silent_client_is_disconnected_and_one_that_sends_is_not() -> None:
    world = office()
    world.connect(1, login())
    world.connect(2, login(timeout_ms=3_000))
    world.connect(3, login())
    for _ in range(20):
        world.run(SECOND)
        world.replay.receive(3, soup.encode(soup.ClientHeartbeat()), world.now)
    assert set(world.closed) == {1, 2}
    assert world.replay.counts.silent == 2
    beats = [packet for packet in world.heard[3] if isinstance(packet, soup.ServerHeartbeat)]
    assert 18 <= len(beats) <= 20


def test_a_client_that_does_not_read_costs_a_bounded_buffer_and_then_its_connection() -> None:
    world = office(2_000, buffer_max=20_000, stall_period=3 * SECOND)
    world.reading = False
    world.connect(1, login())
    world.run(2 * SECOND)
    assert world.replay._connections[1].unflushed < 20_000 + 256 * 60
    assert len(world.messages(1)) < len(world.everything())
    world.replay.flushed(1, 15_000, world.now)
    world.run(SECOND)
    assert 1 not in world.closed
    world.run(5 * SECOND)
    assert world.closed[1] == "the client does not read"
    assert world.replay.counts.stalled == 1


@pytest.mark.parametrize("taken", [0, 1])
def test_a_client_that_read_a_little_and_nothing_since_stalls_as_well(taken: int) -> None:
    world = office(2_000, buffer_max=20_000, stall_period=3 * SECOND)
    world.reading = False
    world.connect(1, login())
    world.run(SECOND)
    world.replay.flushed(1, taken, world.now)
    world.run(4 * SECOND)
    assert world.closed[1] == "the client does not read"


def test_one_customer_has_a_limited_number_of_connections_and_so_have_all() -> None:
    world = office(connections_max=4, customer_connections_max=2)
    for connection in range(3):
        world.connect(connection, login())
    assert set(world.closed) == {2}
    for connection in range(10, 14):
        world.connect(connection)
    assert world.replay.counts.turned_away == 3
    world.replay.disconnected(0)
    world.replay.disconnected(1)
    assert not world.replay._customers


def test_a_customer_gets_no_more_than_its_rate() -> None:
    world = office(2_000, customer_bits_per_s=1_000_000, burst_period=10 * MILLISECOND)
    world.connect(1, login())
    world.run(SECOND)
    sent = sum(len(soup.encode(packet)) for packet in world.heard[1])
    assert 100_000 < sent < 125_000 + 1_250 + 256 * 60


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_no_bytes_raise_an_exception_and_others_are_served(noise: list[bytes]) -> None:
    world = office(2)
    world.connect(1, login())
    world.connect(2, *noise)
    world.connect(3, login(), *noise)
    world.run(MILLISECOND)
    assert world.messages(1) == world.everything()
    assert 1 not in world.closed


def test_a_second_login_is_a_breach() -> None:
    world = office(2)
    world.connect(1, login(), login())
    assert world.replay.counts.breaches == 1
    assert 1 in world.closed


def test_a_replay_of_what_is_no_longer_stored_is_refused_with_a_reason() -> None:
    world = office(400)
    world.recent._bytes_max = 5_000
    world.release(1)
    world.connect(1, login(1))
    world.run(MILLISECOND)
    assert world.closed[1] == "message 1 is no longer stored"
    assert world.replay.counts.gone == 1
