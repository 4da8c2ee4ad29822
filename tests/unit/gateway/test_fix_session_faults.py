"""FIX sessions under hostile bytes and broken connections: nothing raised, nothing lost, nothing duplicated."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import SECOND
from fairtape.formats.fix.codec import checksum
from fairtape.formats.fix.order_messages import write
from unit.formats.itch_values import mutated
from unit.gateway.fix_world import Pair, RawClient, order, report

ORDER = tuple(write(order("A"))[1:])
KINDS = {
    b"D": ORDER,
    b"A": ((98, b"0"), (108, b"30"), (141, b"Y")),
    b"0": (),
    b"1": ((112, b"x"),),
    b"2": ((7, b"1"), (16, b"0")),
    b"3": ((45, b"1"),),
    b"4": ((123, b"Y"), (36, b"9")),
    b"5": (),
}


def whole(kind: bytes) -> bytes:
    return RawClient().octets(kind, 2, *KINDS[kind])


def resealed(octets: bytes) -> bytes:
    """Changed bytes with a matching length and checksum, so that they pass the stream."""
    body = octets[octets.find(b"\x0135=") + 1 : -7] if b"\x0135=" in octets[:-7] else octets
    sealed = b"8=FIX.4.4\x019=%d\x01%b" % (len(body), body)
    return sealed + b"10=%03d\x01" % checksum(sealed)


MESSAGES = st.sampled_from(sorted(KINDS)).map(whole)


@given(st.lists(mutated(MESSAGES) | st.binary(max_size=60), max_size=5), st.booleans())
def test_invalid_bytes_change_nothing_in_a_session(pieces: list[bytes], logged_on: bool) -> None:
    client = RawClient()
    if logged_on:
        client.log_on()
    for piece in pieces:
        client.session.drain()
        before, count = (client.snapshot, client.session.deadline()), client.session.counts.messages
        client.session.receive(piece, client.now)
        if client.session.counts.messages == count:
            assert (client.snapshot, client.session.deadline()) == before
            assert client.session.drain() == []


@given(st.lists(mutated(MESSAGES).map(resealed), max_size=5), st.booleans())
def test_no_message_makes_a_session_raise(pieces: list[bytes], logged_on: bool) -> None:
    client = RawClient()
    if logged_on:
        client.log_on()
    for piece in pieces:
        client.session.receive(piece, client.now)
        client.session.wake(client.now + SECOND)
    if not logged_on:
        assert client.store.next_in == 1  # none of them had the password
    assert client.answers() is not None


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_or_duplicated_by_broken_connections(seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair()
    orders = [f"O{number}" for number in range(60)]
    reports = [f"R{number}" for number in range(60)]
    for name, other in zip(orders, reports, strict=True):
        pair.ann.session.send(order(name), pair.now)
        pair.floor.session.send(report(other), pair.now)
        pair.collect()
        match chance.randrange(6):
            case 0:
                pair.cut()
                pair.floor.session.connected(pair.now)
                pair.ann.session.connected(pair.now)
                pair.collect()
            case 1:
                pair.run()
            case _:
                pair.carry(*chance.choice([pair.sides, pair.sides[::-1]]), chance.randrange(400))
        pair.now += chance.randrange(SECOND)
    pair.cut()
    pair.connect()
    pair.wait(60 * SECOND)
    assert pair.logged_on
    assert pair.floor.names == orders
    assert pair.ann.names == reports
