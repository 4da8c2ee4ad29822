"""Two transports, one contract: over IP multicast and over a mesh of unicast copies."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from select import select

import pytest

from fairtape.core.addresses import Address
from fairtape.core.effects import Channel
from fairtape.core.errors import UserError
from fairtape.net.transports import (
    AddressBook,
    Groups,
    IpMulticast,
    Mesh,
    Peer,
    Role,
    Transport,
    multicast_works,
)
from fairtape.net.udp import bind
from fairtape.wire.frames import NodeId
from loopback.local_peers import collect, free_port, local_peer, within_patience

ONE, TWO, SOURCE, OTHER_SOURCE = 1, 2, 7, 8
NEEDS_MULTICAST = pytest.mark.skipif(not multicast_works(), reason="no multicast on this machine's loopback")

Build = Callable[[NodeId, AddressBook], Transport]


def a_book() -> dict[NodeId, Peer]:
    return {
        node: local_peer(Role.SITE if node in (ONE, TWO) else Role.SOURCE) for node in (ONE, TWO, SOURCE, OTHER_SOURCE)
    }


def some_groups() -> Groups:
    return Groups(data=("239.195.1.1", free_port()), control=("239.195.1.2", free_port()))


def by_multicast() -> Build:
    groups = some_groups()
    return lambda node, book: IpMulticast(node, book, groups)


@pytest.fixture(params=[pytest.param(by_multicast, marks=NEEDS_MULTICAST), lambda: Mesh], ids=["multicast", "mesh"])
def transports(request: pytest.FixtureRequest) -> Iterator[dict[NodeId, Transport]]:
    build, book = request.param(), a_book()
    built = {node: build(node, book) for node in book}
    yield built
    for transport in built.values():
        transport.close()


def goodbye(transports: dict[NodeId, Transport], sender: NodeId, to: NodeId) -> list[bytes]:
    """Everything that `to` hears up to a last datagram from `sender`: what is absent from it never came."""
    transports[sender].send(to, [b"goodbye"])
    sockets = (*transports[to].data, *transports[to].control)
    heard: list[bytes] = []
    done = within_patience(lambda: b"goodbye" in heard)
    while not done():
        select([each.fd for each in sockets], (), (), 0.1)
        for each in sockets:
            heard += each.receive(1_000)
    return heard


def test_data_reaches_every_site_and_no_source(transports: dict[NodeId, Transport]) -> None:
    blocks = [bytes([n]) * 1_000 for n in range(100)]
    transports[SOURCE].multicast(Channel.DATA, blocks)
    for site in (ONE, TWO):
        assert collect(transports[site].data[0], len(blocks)) == blocks
    assert goodbye(transports, SOURCE, OTHER_SOURCE) == [b"goodbye"]
    assert goodbye(transports, ONE, SOURCE) == [b"goodbye"]


def test_a_node_is_known_by_the_address_it_sends_from(transports: dict[NodeId, Transport]) -> None:
    senders: list[Address] = []
    transports[SOURCE].multicast(Channel.DATA, [b"block"])
    heard = transports[ONE].data[0]
    done = within_patience(lambda: bool(senders))
    while not done():
        select([heard.fd], (), (), 0.1)
        heard.receive(1, senders)
    assert [transports[ONE].node_at(sender) for sender in senders] == [SOURCE]
    assert transports[ONE].node_at(("192.0.2.1", 9)) is None


def test_control_reaches_every_site_and_source_but_not_its_sender(transports: dict[NodeId, Transport]) -> None:
    transports[ONE].multicast(Channel.CONTROL, [b"ack 1", b"ack 2"])
    for node in (TWO, SOURCE, OTHER_SOURCE):
        heard = (*transports[node].control, *transports[node].data)[0]
        assert collect(heard, 2) == [b"ack 1", b"ack 2"]
    assert goodbye(transports, TWO, ONE) == [b"goodbye"]


def test_a_datagram_to_one_node_reaches_that_one(transports: dict[NodeId, Transport]) -> None:
    transports[SOURCE].send(TWO, [b"for two"])
    assert goodbye(transports, SOURCE, TWO) == [b"for two", b"goodbye"]
    assert goodbye(transports, SOURCE, ONE) == [b"goodbye"]


def test_a_datagram_to_an_unknown_node_is_counted(transports: dict[NodeId, Transport]) -> None:
    transports[ONE].send(99, [b"a", b"b"])
    assert transports[ONE].traffic().dropped == 2


def test_traffic_is_counted_over_all_sockets(transports: dict[NodeId, Transport]) -> None:
    transports[SOURCE].multicast(Channel.DATA, [b"block"])
    transports[ONE].multicast(Channel.CONTROL, [b"ack"])
    assert sorted(goodbye(transports, ONE, TWO)) == [b"ack", b"block", b"goodbye"]
    assert transports[TWO].traffic().received == 3
    assert transports[ONE].traffic().sent >= 2


@NEEDS_MULTICAST
def test_a_foreign_group_on_the_same_port_does_not_leak_in() -> None:
    book, groups = a_book(), some_groups()
    foreign = replace(groups, data=("239.195.1.3", groups.data[1]), control=("239.195.1.4", groups.control[1]))
    with (
        closing(IpMulticast(ONE, book, groups)) as site,
        closing(IpMulticast(SOURCE, book, groups)) as source,
        closing(IpMulticast(TWO, book, foreign)) as foreign_site,
        closing(IpMulticast(OTHER_SOURCE, book, foreign)) as stranger,
    ):
        stranger.multicast(Channel.DATA, [b"foreign"])
        source.multicast(Channel.DATA, [b"ours"])
        assert collect(site.data[0], 1) == [b"ours"]
        assert collect(foreign_site.data[0], 1) == [b"foreign"]


@NEEDS_MULTICAST
def test_multicast_works_by_the_name_of_the_interface_as_well() -> None:
    assert multicast_works("lo")


@pytest.mark.parametrize("interface", ["no-such-interface", "198.51.100.7"])
def test_an_unknown_interface_is_refused_with_a_list_of_the_known_ones(interface: str) -> None:
    with pytest.raises(UserError, match=rf"interface is '{interface}'; name one of .*lo.*, or give an IPv4 address"):
        multicast_works(interface)
    with pytest.raises(UserError, match=rf"interface is '{interface}'; name one of"):
        IpMulticast(ONE, a_book(), replace(some_groups(), interface=interface))


def test_a_port_in_use_is_refused_and_nothing_stays_open() -> None:
    book = a_book()
    with bind("127.0.0.1", book[ONE].port), pytest.raises(UserError, match=f"port is {book[ONE].port} on 127.0.0.1"):
        Mesh(ONE, book)
    Mesh(ONE, book).close()


@NEEDS_MULTICAST
def test_a_group_port_in_use_is_refused_and_nothing_stays_open() -> None:
    book, groups = a_book(), some_groups()
    with bind(*groups.control), pytest.raises(UserError, match=f"port is {groups.control[1]} on 239.195.1.2"):
        IpMulticast(ONE, book, groups)
    IpMulticast(ONE, book, groups).close()


@pytest.mark.parametrize(
    ("peer", "sentence"),
    [
        (Peer("x" * 64, 1_000, Role.SITE), r"host of node 2 is 'x+', which has no IPv4 address"),
        (
            Peer("0.0.0.0", 1_000, Role.SITE),  # noqa: S104 - refused, never bound
            r"host of node 2 is '0\.0\.0\.0'; give an address that other nodes",
        ),
        (
            Peer("239.195.0.1", 1_000, Role.SITE),
            r"host of node 2 is '239\.195\.0\.1'; give an address that other nodes",
        ),
        (Peer("127.0.0.1", 0, Role.SITE), r"port of node 2 is 0; it must be from 1 to 65535"),
        (Peer("127.0.0.1", 65_536, Role.SITE), r"port of node 2 is 65536; it must be from 1 to 65535"),
        (Peer("255.255.255.255", 1_000, Role.SITE), r"node 2 is at 255\.255\.255\.255:1000, where no route leads"),
    ],
)
def test_an_address_that_cannot_work_is_refused_in_one_sentence(peer: Peer, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Mesh(ONE, {ONE: local_peer(Role.SITE), TWO: peer})


def test_a_node_outside_the_book_is_refused() -> None:
    with pytest.raises(UserError, match=r"node is 5, which the address book does not name; it names \[1, 2, 7, 8\]"):
        Mesh(5, a_book())


def test_two_nodes_at_one_address_are_refused() -> None:
    peer = local_peer(Role.SITE)
    with pytest.raises(UserError, match=f"nodes 1 and 2 are both at 127.0.0.1:{peer.port}; give each a port"):
        Mesh(ONE, {ONE: peer, TWO: peer})


@pytest.mark.parametrize("role", [Role.SITE, Role.COORDINATOR])
def test_a_source_shares_its_address_with_sources_only(role: Role) -> None:
    peer = local_peer(Role.SOURCE)
    with pytest.raises(UserError, match=f"nodes 7 and 2 are both at 127.0.0.1:{peer.port}; give each a port"):
        Mesh(ONE, {ONE: local_peer(Role.SITE), SOURCE: peer, TWO: replace(peer, role=role)})


@pytest.mark.parametrize("build", [pytest.param(by_multicast, marks=NEEDS_MULTICAST), lambda: Mesh])
def test_sources_at_one_address_receive_one_copy_and_are_known_by_their_headers(
    build: Callable[[], Build],
) -> None:
    group = local_peer(Role.SOURCE)
    book = {ONE: local_peer(Role.SITE), SOURCE: group, OTHER_SOURCE: group}
    built = build()
    with closing(built(ONE, book)) as site, closing(built(SOURCE, book)) as sources:
        site.multicast(Channel.CONTROL, [b"ack"])
        site.send(SOURCE, [b"for one"])
        site.send(OTHER_SOURCE, [b"for the other"])
        heard = goodbye({ONE: site, SOURCE: sources}, ONE, SOURCE)
        assert sorted(heard) == [b"ack", b"for one", b"for the other", b"goodbye"]
        assert site.node_at((group.host, group.port)) is None
        sources.multicast(Channel.DATA, [b"block"])
        assert collect(site.data[0], 1) == [b"block"]


def test_a_loopback_interface_refuses_a_node_on_another_machine() -> None:
    book = {ONE: local_peer(Role.SITE), TWO: Peer("192.0.2.200", 1_000, Role.SITE)}
    with pytest.raises(UserError, match=r"(reaches only this machine, and node 2 is at 192\.0\.2\.200|no route leads)"):
        IpMulticast(ONE, book, Groups())


def test_groups_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match=r"data group is '10\.0\.0\.1'; it must be an IPv4 multicast address"):
        Groups(data=("10.0.0.1", 1_000))
    with pytest.raises(UserError, match="control port is 0; it must be from 1"):
        Groups(control=("239.195.0.2", 0))
    with pytest.raises(UserError, match="they need two groups or two ports"):
        Groups(data=("239.195.0.1", 1_000), control=("239.195.0.1", 1_000))
    with pytest.raises(UserError, match="ttl is 256; it must be from 0 to 255"):
        Groups(ttl=256)
