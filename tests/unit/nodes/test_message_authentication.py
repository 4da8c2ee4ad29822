"""Message authentication: what is accepted, and why the rest is refused."""

from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.wire.frames import Ack, Control, Hole, Request, decode_control, serial_of
from fairtape.wire.seals import Authenticator, Keys
from unit.ring.ring_values import KEYS, OTHER_SOURCE, SOURCE, ack, formation, named

REQUEST = Request(0, 7, 2, (1,), ())


def authenticator(
    me: int, *, keys: Keys = KEYS, peers: tuple[int, ...] = (1, 2, 3), first_serial: int = 100
) -> MessageAuthenticator:
    return MessageAuthenticator(me=me, keys=keys, peers=peers, first_serial=first_serial)


def refusal(datagram: bytes, *, by: MessageAuthenticator | None = None, message: Control | None = None) -> str | None:
    message = message or decode_control(datagram)
    return (by or authenticator(1)).refusal(message, datagram, fresh=not isinstance(message, Ack))


def test_a_datagram_of_a_peer_is_accepted_once() -> None:
    mine, datagram = authenticator(1), authenticator(2).for_sites(REQUEST)
    assert refusal(datagram, by=mine) is None
    assert refusal(datagram, by=mine) == "replayed"


def test_every_datagram_has_its_own_serial_from_the_first_on() -> None:
    speaking = authenticator(2)
    datagrams = [speaking.for_sites(REQUEST), speaking.for_source(SOURCE, REQUEST), speaking.for_sites(REQUEST)]
    assert [serial_of(datagram) for datagram in datagrams] == [101, 102, 103]


def test_datagrams_out_of_order_are_accepted_too() -> None:
    mine, speaking = authenticator(1), authenticator(2)
    first, second = speaking.for_sites(REQUEST), speaking.for_sites(REQUEST)
    assert refusal(second, by=mine) is None
    assert refusal(first, by=mine) is None


def test_a_later_incarnation_of_a_peer_is_accepted() -> None:
    mine = authenticator(1)
    assert refusal(authenticator(2, first_serial=100).for_sites(REQUEST), by=mine) is None
    assert refusal(authenticator(2, first_serial=10**18).for_sites(REQUEST), by=mine) is None


def test_an_acknowledgment_may_be_received_again() -> None:
    mine = authenticator(1)
    datagram = authenticator(2).for_sites(ack(formation(), 2, 1))
    assert refusal(datagram, by=mine) is None
    assert refusal(datagram, by=mine) is None


def test_own_datagrams_are_ignored() -> None:
    assert refusal(authenticator(1).for_sites(Request(0, 7, 1, (1,), ()))) == "own"


def test_unknown_senders_and_wrong_keys_count_as_forged() -> None:
    other = Keys.from_secret(b"another deployment", (1, 2, 3), (SOURCE,))
    assert refusal(authenticator(2, keys=other).for_sites(REQUEST)) == "forged"
    stranger = authenticator(9, peers=(1, 2, 3, 9))
    assert refusal(stranger.for_sites(Request(0, 7, 9, (1,), ()))) == "forged"


def test_a_peer_cannot_impersonate_another() -> None:
    assert refusal(authenticator(3).for_sites(REQUEST)) == "forged"


def test_a_forged_datagram_does_not_use_up_its_serial() -> None:
    mine, datagram = authenticator(1), authenticator(2).for_sites(REQUEST)
    assert refusal(datagram[:-1] + bytes([datagram[-1] ^ 1]), by=mine, message=REQUEST) == "forged"
    assert refusal(datagram, by=mine) is None


def test_a_datagram_to_a_source_is_verified_by_that_source_alone() -> None:
    message = Hole(0, 7, 2, named(1))
    datagram = authenticator(2).for_source(SOURCE, message)
    assert Authenticator(KEYS.sources[SOURCE]).holds(datagram)
    assert not Authenticator(KEYS.sources[OTHER_SOURCE]).holds(datagram)
    assert refusal(datagram) == "forged"
