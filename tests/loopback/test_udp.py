"""Trains of datagrams over real sockets: the same datagrams in the same order, and every loss is counted."""

import os
import socket
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.addresses import Address
from fairtape.core.errors import UserError
from fairtape.net.udp import KERNEL_OVERHEAD, TRAIN_BYTES_MAX, TRAIN_MAX, UdpSocket, bind, trains
from loopback.local_peers import collect, within_patience

SO_NO_CHECK = 11
MIXED = [bytes([n % 251]) * size for n, size in enumerate([1_400] * 150 + [300] + [900] * 3 + [0, 0, 64, 1_400, 1])]


@pytest.fixture
def sender() -> Iterator[UdpSocket]:
    opened = UdpSocket(bind("127.0.0.1", 0))
    yield opened
    opened.close()


@pytest.fixture
def listener() -> Iterator[UdpSocket]:
    opened = UdpSocket(bind("127.0.0.1", 0))
    yield opened
    opened.close()


@given(st.lists(st.integers(0, 4).map(lambda kind: bytes(kind * 16_000)) | st.just(bytes(100)), max_size=200))
def test_trains_are_the_datagrams_in_order_and_each_is_one_that_the_kernel_takes(datagrams: list[bytes]) -> None:
    cut = list(trains(datagrams))
    assert [datagram for train in cut for datagram in train] == datagrams
    for train in cut:
        *body, last = map(len, train)
        assert all(size == body[0] for size in body)
        assert not body or body[0] >= last > 0
        assert len(train) <= TRAIN_MAX
        assert len(train) == 1 or sum(map(len, train)) <= TRAIN_BYTES_MAX


@pytest.mark.parametrize("count", [0, 1, TRAIN_MAX, TRAIN_MAX + 1, 3 * TRAIN_MAX])
def test_equal_datagrams_fill_their_trains(count: int) -> None:
    assert len(list(trains([bytes(200)] * count))) == -(-count // TRAIN_MAX)


@pytest.mark.parametrize("sends_trains", [True, False])
@pytest.mark.parametrize("takes_trains", [True, False])
def test_datagrams_arrive_the_same_with_and_without_trains(sends_trains: bool, takes_trains: bool) -> None:
    sender = UdpSocket(bind("127.0.0.1", 0), trains=sends_trains)
    listener = UdpSocket(bind("127.0.0.1", 0), trains=takes_trains)
    sender.send(MIXED, listener.address)
    assert collect(listener, len(MIXED)) == MIXED
    assert sender.traffic.sent == listener.traffic.received == len(MIXED)
    sender.close()
    listener.close()


def test_one_send_reaches_every_address(sender: UdpSocket) -> None:
    listeners = [UdpSocket(bind("127.0.0.1", 0)) for _ in range(3)]
    sender.send(MIXED, *(each.address for each in listeners))
    for each in listeners:
        assert collect(each, len(MIXED)) == MIXED
        each.close()


def test_a_socket_whose_route_refuses_trains_sends_one_by_one_and_remembers(listener: UdpSocket) -> None:
    bound = bind("127.0.0.1", 0)
    bound.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # the kernel cuts no trains without checksums
    sender = UdpSocket(bound)
    for _ in range(2):
        sender.send(MIXED, listener.address)
        assert collect(listener, len(MIXED)) == MIXED
    assert sender.traffic.dropped == 0
    assert sender._refusing == {listener.address} or not sender._trains
    sender.close()


def test_a_read_stops_at_its_limit_and_a_whole_train(listener: UdpSocket) -> None:
    sender = UdpSocket(bind("127.0.0.1", 0), trains=False)
    sender.send([bytes([n]) for n in range(10)], listener.address)
    first = collect(listener, 1)
    assert first == [bytes([n]) for n in range(len(first))]
    assert len(first) == 1
    assert collect(listener, 9) == [bytes([n]) for n in range(1, 10)]
    assert listener.receive(10) == []
    sender.close()


def test_a_socket_drops_datagrams_of_its_ignored_sender(sender: UdpSocket) -> None:
    listener = UdpSocket(bind("127.0.0.1", 0), ignored_sender=sender.address)
    other = UdpSocket(bind("127.0.0.1", 0))
    sender.send([b"echo"] * 5, listener.address)
    other.send([b"news"], listener.address)
    assert collect(listener, 1) == [b"news"]
    other.close()
    listener.close()


@pytest.mark.parametrize("takes_trains", [True, False])
def test_the_sender_of_every_datagram_is_returned_on_request(sender: UdpSocket, takes_trains: bool) -> None:
    listener, other = UdpSocket(bind("127.0.0.1", 0), trains=takes_trains), UdpSocket(bind("127.0.0.1", 0))
    sender.send(MIXED, listener.address)
    other.send([b"news"] * 3, listener.address)
    heard: list[bytes] = []
    senders: list[Address] = [("earlier", 1)]
    enough = within_patience(lambda: len(heard) >= len(MIXED) + 3)
    while not enough():
        heard += listener.receive(100, senders)
    assert heard == [*MIXED, *[b"news"] * 3]
    assert senders == [("earlier", 1), *[sender.address] * len(MIXED), *[other.address] * 3]
    other.close()
    listener.close()


def test_what_the_kernel_would_not_send_is_counted(sender: UdpSocket) -> None:
    sender.send([bytes(65_508)], sender.address)  # longer than UDP can carry
    sender.send([b"a", b"b"], ("255.255.255.255", 9))  # a broadcast without permission
    assert sender.traffic.dropped == 3
    assert sender.traffic.sent == 0


def test_what_the_kernel_could_not_buffer_is_counted(sender: UdpSocket) -> None:
    bound = bind("127.0.0.1", 0)
    listener = UdpSocket(bound)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    sender.send([bytes(1_000)] * 200, listener.address)
    sender.send([b"last"] * 10, listener.address)
    heard = len(listener.receive(1_000))
    sender.send([b"after"], listener.address)
    assert collect(listener, 1) == [b"after"]
    assert heard < 210
    assert listener.traffic.overflowed > 0
    listener.close()


def test_datagrams_for_a_queue_that_stays_full_are_dropped_and_counted() -> None:
    """A Unix socket has the same calls and, unlike UDP over loopback, a queue that a test can fill."""
    names = [f"\0fairtape-{os.getpid()}-{role}" for role in ("speaker", "listener")]
    opened = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in names]
    for each, name in zip(opened, names, strict=True):
        each.bind(name)
    sender, listener = map(UdpSocket, opened)
    sender.send([b"x"] * 1_000, cast(Address, names[1]))
    assert sender.traffic.sent > 0
    assert sender.traffic.dropped > 0
    assert sender.traffic.sent + sender.traffic.dropped == 1_000
    assert len(listener.receive(1_000)) == sender.traffic.sent
    sender.close()
    listener.close()


@pytest.mark.parametrize("size", [1, 100, 400, 1_400])
@pytest.mark.parametrize("train", [False, True], ids=["alone", "in trains"])
def test_what_was_read_is_about_what_the_kernel_accounted_for(
    sender: UdpSocket, listener: UdpSocket, size: int, train: bool
) -> None:
    """A hundred small datagrams alone count for ten times their size while they wait."""
    datagrams = [bytes(size)] * 40
    for each in [datagrams] if train else [[datagram] for datagram in datagrams]:
        sender.send(each, listener.address)
    waited = listener.backlog()
    assert listener.receive(100) == datagrams
    assert waited / 2 <= 40 * size + listener.receive_calls * KERNEL_OVERHEAD <= 2 * waited
    assert listener.backlog() == 0


def test_the_granted_size_of_the_buffers_is_known(sender: UdpSocket) -> None:
    assert sender.receive_buffer > 0
    assert sender.send_buffer > 0


def test_a_port_in_use_is_refused_in_one_sentence(sender: UdpSocket) -> None:
    host, port = sender.address
    with pytest.raises(UserError, match=f"port is {port} on {host}, which another program uses; stop that program"):
        bind(host, port)


def test_an_address_of_another_machine_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match=r"host is 198\.51\.100\.7, which is not an address of this machine"):
        bind("198.51.100.7", 0)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(UserError, match=f"port is {port}; it must be from 0 to 65535"):
        bind("127.0.0.1", port)
