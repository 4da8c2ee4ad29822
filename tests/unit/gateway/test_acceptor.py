"""The FIX acceptor: which clients it accepts, and that connections of different clients never mix."""

from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.core.instants import SECOND
from fairtape.formats.fix.codec import FixMessage, FixStream, encode
from fairtape.formats.fix.dictionary import BusinessReason
from fairtape.formats.fix.fields import format_instant
from fairtape.formats.fix.order_messages import write
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.session.effects import AcceptorEffect, FromClient, LoggedOff, LoggedOn, Received
from fairtape.gateway.session.fix_session import RESEND_BATCH_MAX, FixStore
from unit.gateway.fix_world import SECRET, START, fields, order, report
from unit.gateway.memory_fix_store import MemoryFixStore

ORDER = tuple(write(order("A"))[1:])


class AcceptorHarness:
    """An acceptor that knows ann and bob, and its connections."""

    def __init__(self, *, connections_max: int = 10) -> None:
        self.now = START
        self.stores = {"ANN": MemoryFixStore(), "BOB": MemoryFixStore()}
        self.acceptor = FixAcceptor(
            "FLOOR", store_of=self._store, authenticate=self._authenticate, connections_max=connections_max
        )

    def _store(self, client: str) -> FixStore | None:
        return self.stores.get(client)

    def _authenticate(self, client: str, username: str, password: str) -> str | None:
        return None if password == SECRET and username == client.lower() else "no"

    def connect(self, *connections: int) -> list[AcceptorEffect]:
        for connection in connections:
            self.acceptor.connected(connection, self.now)
        return self.acceptor.drain()

    def say(
        self, connection: int, client: str, kind: bytes, number: int, *body: tuple[int, bytes]
    ) -> list[AcceptorEffect]:
        names = [(49, client.encode()), (56, b"FLOOR"), (34, b"%d" % number), (52, format_instant(self.now))]
        self.acceptor.receive(connection, encode([(35, kind), *names, *body]), self.now)
        return self.acceptor.drain()

    def log_on(self, connection: int, client: str, number: int = 1, password: str = SECRET) -> list[AcceptorEffect]:
        secrets = (553, client.lower().encode()), (554, password.encode())
        return self.say(connection, client, b"A", number, (98, b"0"), (108, b"30"), *secrets)


def written(effects: list[AcceptorEffect], connection: int) -> list[FixMessage]:
    octets = [each.octets for each in effects if isinstance(each, WriteConnection) and each.connection == connection]
    return FixStream().feed(b"".join(octets))


def closed(effects: list[AcceptorEffect]) -> list[tuple[int, str]]:
    return [(each.connection, each.reason) for each in effects if isinstance(each, CloseConnection)]


def test_the_first_message_names_the_client() -> None:
    harness = AcceptorHarness()
    harness.connect(1, 2)
    ann, bob = harness.log_on(1, "ANN"), harness.log_on(2, "BOB")
    assert fields(written(ann, 1)[0], 56) == (b"ANN",)
    assert fields(written(bob, 2)[0], 56) == (b"BOB",)
    assert FromClient("BOB", LoggedOn()) in bob
    (event,) = harness.say(2, "BOB", b"D", 2, *ORDER)
    assert isinstance(event, FromClient)
    assert event.client == "BOB"
    harness.acceptor.send("ANN", report("A"), harness.now)
    assert [each.msg_type for each in written(harness.acceptor.drain(), 1)] == [b"8"]


def test_an_unknown_client_is_disconnected_without_an_answer() -> None:
    for client, kind in (("EVE", b"A"), ("ANN", b"D"), ("", b"A"), ("ä", b"A")):
        harness = AcceptorHarness()
        harness.connect(1)
        effects = harness.say(1, client or "x", kind, 1, (98, b"0"), (108, b"30"))
        assert effects == [CloseConnection(1, "the first message is not a Logon of a known client")]
        assert harness.acceptor.counts.unknown == 1


def test_a_long_resend_continues_without_further_input() -> None:
    harness = AcceptorHarness()
    harness.connect(1)
    harness.log_on(1, "ANN")
    for number in range(1_000):
        harness.acceptor.send("ANN", report(f"R{number}"), harness.now)
    harness.acceptor.drain()
    found = written(harness.say(1, "ANN", b"2", 2, (7, b"2"), (16, b"0")), 1)
    turns = 0
    while (deadline := harness.acceptor.deadline()) is not None and deadline <= harness.now:
        turns += 1
        harness.acceptor.wake(harness.now)
        found += written(harness.acceptor.drain(), 1)
    assert turns == 1_000 // RESEND_BATCH_MAX
    assert [each.get(34) for each in found] == [b"%d" % number for number in range(2, 1_002)]


def test_a_second_connection_of_a_client_does_not_disturb_the_first() -> None:
    harness = AcceptorHarness()
    harness.connect(1, 2)
    harness.log_on(1, "ANN")
    assert harness.log_on(2, "ANN", 2) == [CloseConnection(2, "ANN is connected already")]
    assert harness.stores["ANN"].next_in == 2
    assert isinstance(harness.say(1, "ANN", b"D", 2, *ORDER)[0], FromClient)


def test_a_session_never_changes_its_client_within_a_connection() -> None:
    harness = AcceptorHarness()
    harness.connect(1)
    harness.log_on(1, "ANN")
    effects = harness.say(1, "BOB", b"D", 2, *ORDER)
    assert [each.msg_type for each in written(effects, 1)] == [b"3", b"5"]
    assert closed(effects)
    assert harness.stores["BOB"].next_in == 1


def test_after_a_disconnect_the_client_may_reconnect_at_once() -> None:
    harness = AcceptorHarness()
    harness.connect(1, 2)
    harness.log_on(1, "ANN")
    effects = harness.say(1, "ANN", b"5", 2)
    assert closed(effects) == [(1, "the other side logged out")]
    assert written(harness.log_on(2, "ANN", 3), 2)[0].msg_type == b"A"
    harness.acceptor.receive(1, b"anything", harness.now)
    harness.acceptor.disconnected(1, harness.now)  # the driver reports it late
    assert harness.acceptor.drain() == []
    assert isinstance(harness.say(2, "ANN", b"D", 4, *ORDER)[0], FromClient)


def test_a_lost_connection_is_reported_to_the_application() -> None:
    harness = AcceptorHarness()
    harness.connect(1)
    harness.log_on(1, "ANN")
    harness.acceptor.disconnected(1, harness.now)
    assert harness.acceptor.drain() == [FromClient("ANN", LoggedOff("the connection ended"))]
    harness.acceptor.send("ANN", report("A"), harness.now)
    assert harness.acceptor.drain() == []
    harness.connect(2)
    (logon,) = written(harness.log_on(2, "ANN", 2), 2)
    assert logon.get(34) == b"3"  # number 2 waits for a resend request


def test_silent_connections_and_those_over_the_limit_are_closed() -> None:
    harness = AcceptorHarness(connections_max=1)
    assert harness.connect(1, 2) == [CloseConnection(2, "no room for more connections")]
    assert harness.acceptor.deadline() == START + 10 * SECOND
    harness.acceptor.wake(START + 10 * SECOND)
    assert harness.acceptor.drain() == [CloseConnection(1, "no Logon came in time")]
    assert harness.acceptor.deadline() is None
    assert (harness.acceptor.counts.half_open, harness.acceptor.counts.refused) == (1, 1)


def test_a_wrong_password_is_answered_and_disconnects() -> None:
    harness = AcceptorHarness()
    harness.connect(1)
    effects = harness.log_on(1, "ANN", 1, "guess")
    assert fields(written(effects, 1)[0], 35, 58) == (b"5", b"no")
    assert closed(effects) == [(1, "no")]
    assert harness.stores["ANN"].next_in == 1


def test_the_application_may_reject_a_message() -> None:
    harness = AcceptorHarness()
    harness.connect(1)
    harness.log_on(1, "ANN")
    (received,) = harness.say(1, "ANN", b"D", 2, *ORDER)
    assert isinstance(received, FromClient)
    assert isinstance(received.event, Received)
    harness.acceptor.reject("ANN", received.event, BusinessReason.NOT_AUTHORIZED, "not you", harness.now)
    (reject,) = written(harness.acceptor.drain(), 1)
    assert fields(reject, 35, 45, 372, 380, 58) == (b"j", b"2", b"D", b"6", b"not you")


def test_closing_the_market_logs_all_clients_out() -> None:
    harness = AcceptorHarness()
    harness.connect(1)
    harness.log_on(1, "ANN")
    harness.acceptor.logout_all("good night", harness.now)
    (logout,) = written(harness.acceptor.drain(), 1)
    assert fields(logout, 35, 58) == (b"5", b"good night")


def test_a_long_message_before_the_logon_is_not_buffered() -> None:
    harness = AcceptorHarness()
    harness.connect(1)
    harness.acceptor.receive(1, b"8=FIX.4.4\x019=60000\x0135=A\x01" + b"x" * 5_000, harness.now)
    harness.acceptor.disconnected(1, harness.now)
    assert harness.acceptor.counts.garbled == 1
