"""The acceptor's desk: who is let in, who is not, and that one client's connections never mix."""

from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.core.instants import SECOND
from fairtape.formats.fix.codec import FixMessage, FixStream, encode
from fairtape.formats.fix.dictionary import BusinessReason
from fairtape.formats.fix.fields import format_instant
from fairtape.formats.fix.order_messages import write
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.session.effects import AcceptorEffect, FromClient, LoggedOff, LoggedOn, Received
from fairtape.gateway.session.session import RESEND_BATCH_MAX
from fairtape.gateway.session.store import FixStore, MemoryFixStore
from unit.gateway.fix_world import SECRET, START, fields, order, report

ORDER = tuple(write(order("A"))[1:])


class Door:
    """A desk that knows ann and bob, and the connections to it."""

    def __init__(self, *, connections_max: int = 10) -> None:
        self.now = START
        self.stores = {"ANN": MemoryFixStore(), "BOB": MemoryFixStore()}
        self.desk = FixAcceptor(
            "FLOOR", store_of=self._store, authenticate=self._judge, connections_max=connections_max
        )

    def _store(self, client: str) -> FixStore | None:
        return self.stores.get(client)

    def _judge(self, client: str, username: str, password: str) -> str | None:
        return None if password == SECRET and username == client.lower() else "no"

    def come(self, *connections: int) -> list[AcceptorEffect]:
        for connection in connections:
            self.desk.connected(connection, self.now)
        return self.desk.drain()

    def say(
        self, connection: int, client: str, kind: bytes, number: int, *body: tuple[int, bytes]
    ) -> list[AcceptorEffect]:
        names = [(49, client.encode()), (56, b"FLOOR"), (34, b"%d" % number), (52, format_instant(self.now))]
        self.desk.receive(connection, encode([(35, kind), *names, *body]), self.now)
        return self.desk.drain()

    def log_on(self, connection: int, client: str, number: int = 1, password: str = SECRET) -> list[AcceptorEffect]:
        secrets = (553, client.lower().encode()), (554, password.encode())
        return self.say(connection, client, b"A", number, (98, b"0"), (108, b"30"), *secrets)


def written(effects: list[AcceptorEffect], connection: int) -> list[FixMessage]:
    octets = [each.octets for each in effects if isinstance(each, WriteConnection) and each.connection == connection]
    return FixStream().feed(b"".join(octets))


def closed(effects: list[AcceptorEffect]) -> list[tuple[int, str]]:
    return [(each.connection, each.reason) for each in effects if isinstance(each, CloseConnection)]


def test_clients_are_told_apart_by_their_first_message() -> None:
    door = Door()
    door.come(1, 2)
    ann, bob = door.log_on(1, "ANN"), door.log_on(2, "BOB")
    assert fields(written(ann, 1)[0], 56) == (b"ANN",)
    assert fields(written(bob, 2)[0], 56) == (b"BOB",)
    assert FromClient("BOB", LoggedOn()) in bob
    (event,) = door.say(2, "BOB", b"D", 2, *ORDER)
    assert isinstance(event, FromClient)
    assert event.client == "BOB"
    door.desk.send("ANN", report("A"), door.now)
    assert [each.msg_type for each in written(door.desk.drain(), 1)] == [b"8"]


def test_a_stranger_is_shown_the_door_without_a_word() -> None:
    for client, kind in (("EVE", b"A"), ("ANN", b"D"), ("", b"A"), ("ä", b"A")):
        door = Door()
        door.come(1)
        effects = door.say(1, client or "x", kind, 1, (98, b"0"), (108, b"30"))
        assert effects == [CloseConnection(1, "the first message is not a Logon of a known client")]
        assert door.desk.counts.unknown == 1


def test_much_is_sent_again_without_waiting_for_anything() -> None:
    door = Door()
    door.come(1)
    door.log_on(1, "ANN")
    for number in range(1_000):
        door.desk.send("ANN", report(f"R{number}"), door.now)
    door.desk.drain()
    found = written(door.say(1, "ANN", b"2", 2, (7, b"2"), (16, b"0")), 1)
    turns = 0
    while (deadline := door.desk.deadline()) is not None and deadline <= door.now:
        turns += 1
        door.desk.wake(door.now)
        found += written(door.desk.drain(), 1)
    assert turns == 1_000 // RESEND_BATCH_MAX
    assert [each.get(34) for each in found] == [b"%d" % number for number in range(2, 1_002)]


def test_a_second_connection_of_a_client_does_not_disturb_the_first() -> None:
    door = Door()
    door.come(1, 2)
    door.log_on(1, "ANN")
    assert door.log_on(2, "ANN", 2) == [CloseConnection(2, "ANN is connected already")]
    assert door.stores["ANN"].next_in == 2
    assert isinstance(door.say(1, "ANN", b"D", 2, *ORDER)[0], FromClient)


def test_a_session_never_changes_its_client_within_a_connection() -> None:
    door = Door()
    door.come(1)
    door.log_on(1, "ANN")
    effects = door.say(1, "BOB", b"D", 2, *ORDER)
    assert [each.msg_type for each in written(effects, 1)] == [b"3", b"5"]
    assert closed(effects)
    assert door.stores["BOB"].next_in == 1


def test_after_a_hang_up_the_client_may_come_by_another_connection_at_once() -> None:
    door = Door()
    door.come(1, 2)
    door.log_on(1, "ANN")
    effects = door.say(1, "ANN", b"5", 2)
    assert closed(effects) == [(1, "the other side logged out")]
    assert written(door.log_on(2, "ANN", 3), 2)[0].msg_type == b"A"
    door.desk.receive(1, b"anything", door.now)
    door.desk.disconnected(1, door.now)  # the driver is slow to say so
    assert door.desk.drain() == []
    assert isinstance(door.say(2, "ANN", b"D", 4, *ORDER)[0], FromClient)


def test_a_lost_connection_ends_in_a_word_to_the_application() -> None:
    door = Door()
    door.come(1)
    door.log_on(1, "ANN")
    door.desk.disconnected(1, door.now)
    assert door.desk.drain() == [FromClient("ANN", LoggedOff("the connection ended"))]
    door.desk.send("ANN", report("A"), door.now)
    assert door.desk.drain() == []
    door.come(2)
    (logon,) = written(door.log_on(2, "ANN", 2), 2)
    assert logon.get(34) == b"3"  # 2 waits for whoever asks


def test_whoever_says_nothing_is_let_go_and_so_is_whoever_is_one_too_many() -> None:
    door = Door(connections_max=1)
    assert door.come(1, 2) == [CloseConnection(2, "no room for more connections")]
    assert door.desk.deadline() == START + 10 * SECOND
    door.desk.wake(START + 10 * SECOND)
    assert door.desk.drain() == [CloseConnection(1, "no Logon came in time")]
    assert door.desk.deadline() is None
    assert (door.desk.counts.half_open, door.desk.counts.refused) == (1, 1)


def test_a_wrong_password_is_told_and_closes() -> None:
    door = Door()
    door.come(1)
    effects = door.log_on(1, "ANN", 1, "guess")
    assert fields(written(effects, 1)[0], 35, 58) == (b"5", b"no")
    assert closed(effects) == [(1, "no")]
    assert door.stores["ANN"].next_in == 1


def test_the_application_may_reject_what_it_was_given() -> None:
    door = Door()
    door.come(1)
    door.log_on(1, "ANN")
    (told,) = door.say(1, "ANN", b"D", 2, *ORDER)
    assert isinstance(told, FromClient)
    assert isinstance(told.event, Received)
    door.desk.reject("ANN", told.event, BusinessReason.NOT_AUTHORIZED, "not you", door.now)
    (reject,) = written(door.desk.drain(), 1)
    assert fields(reject, 35, 45, 372, 380, 58) == (b"j", b"2", b"D", b"6", b"not you")


def test_the_market_may_close() -> None:
    door = Door()
    door.come(1)
    door.log_on(1, "ANN")
    door.desk.logout_all("good night", door.now)
    (logout,) = written(door.desk.drain(), 1)
    assert fields(logout, 35, 58) == (b"5", b"good night")


def test_a_long_message_of_somebody_unknown_is_not_waited_for() -> None:
    door = Door()
    door.come(1)
    door.desk.receive(1, b"8=FIX.4.4\x019=60000\x0135=A\x01" + b"x" * 5_000, door.now)
    door.desk.disconnected(1, door.now)
    assert door.desk.counts.garbled == 1
