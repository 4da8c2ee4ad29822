"""Core multicast: one interface, two transports.

`IpMulticast` uses IP multicast, one group per channel. `Mesh` sends a unicast copy to every member of the channel, for
networks without multicast. Both keep the same contract: sites are on both channels, sources only on CONTROL; datagrams
of one call are sent in order; a node never receives its own datagrams.

Several sources may share an address: they are one group in one process (`nodes/source_group.py`).

Secondary loops have channels of their own. With IP multicast each is another group, which a site joins and leaves. In a
mesh the sender cannot know the current members, so a copy goes to every node that may belong to the loop.
"""

import errno
import os
import socket
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from ipaddress import AddressValueError, IPv4Address
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from fairtape.core.addresses import Address, check_port, format_address
from fairtape.core.effects import LOOP_CHANNEL, Channel
from fairtape.core.errors import UserError
from fairtape.net.udp import Traffic, UdpSocket, bind
from fairtape.wire.frames import NODE_MAX, NodeId

LOOPBACK: Final = "127.0.0.1"
TTL_MAX: Final = 255
PEERS_MAX: Final = 4_096
PROBE_GROUP: Final = "239.195.255.254"
PROBE_WAIT_MAX: Final = 0.5  # seconds

_IP_MULTICAST_ALL: Final = 49
_INDEX: Final = struct.Struct("@i")


class Role(Enum):
    """The role of a node in the core, which decides the channels that it receives."""

    SITE = "site"
    SOURCE = "source"
    COORDINATOR = "coordinator"  # reformation servers and the operator: unicast only


RECEIVED_BY: Final[Mapping[Channel, frozenset[Role]]] = MappingProxyType(
    {Channel.DATA: frozenset((Role.SITE,)), Channel.CONTROL: frozenset((Role.SITE, Role.SOURCE))}
)


@dataclass(frozen=True, slots=True)
class Peer:
    """The address of a node, and its role."""

    host: str
    port: int
    role: Role


AddressBook: TypeAlias = Mapping[NodeId, Peer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The multicast groups of one stripe, and the interface for them."""

    data: Address = ("239.195.0.1", 17_171)
    control: Address = ("239.195.0.2", 17_172)
    interface: str = LOOPBACK  # an IPv4 address of this machine, or the interface's name
    ttl: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "control"):
            host, port = getattr(self, name)
            if not _is_group(host):
                raise UserError(f"{name} group is {host!r}; it must be an IPv4 multicast address such as 239.195.0.1")
            check_port(f"{name} port", port)
        if self.data == self.control:
            raise UserError(f"data and control groups are both {self.data}; they need two groups or two ports")
        if not 0 <= self.ttl <= TTL_MAX:
            raise UserError(f"ttl is {self.ttl}; it must be from 0 to {TTL_MAX}")

    def of(self, channel: int) -> Address:
        """The group of a channel. Secondary loops have the addresses after the control group's, in order."""
        if channel <= LOOP_CHANNEL:
            return self.control if channel == Channel.CONTROL else self.data
        host, port = self.control
        group = str(IPv4Address(int(IPv4Address(host)) + channel - LOOP_CHANNEL))
        if not _is_group(group):
            raise UserError(
                f"control group is {host}, after which no multicast address is left for loop {channel - LOOP_CHANNEL};"
                " choose a lower one such as 239.195.0.2"
            )
        return group, port


class Transport(Protocol):
    """Sends and receives the datagrams of one node."""

    @property
    def data(self) -> Sequence[UdpSocket]:
        """The sockets on which source blocks arrive."""

    @property
    def control(self) -> Sequence[UdpSocket]:
        """The sockets on which acknowledgments and requests arrive; to be handled after the blocks that they name."""

    def multicast(self, channel: int, datagrams: Sequence[bytes]) -> None:
        """Send to every other node on the channel."""

    def listen(self, channels: Sequence[int]) -> None:
        """Receive exactly these channels of secondary loops."""

    def send(self, node: NodeId, datagrams: Sequence[bytes]) -> None:
        """Send to one node. What cannot be sent is counted."""

    def node_at(self, address: Address) -> NodeId | None:
        """The node at this address, if known. It authenticates nothing: only fault injection uses it.

        None also where several sources share the address. They send only their own blocks, whose headers name them.
        """

    def traffic(self) -> Traffic:
        """The totals of all sockets."""

    def backlog(self) -> int:
        """The bytes of source blocks that have arrived and were not read yet, as the kernel accounts for them."""

    def close(self) -> None: ...


class _Unicast:
    """Common to both transports: the node's own socket, and the addresses of the other nodes."""

    __slots__ = ("_addresses", "_nodes", "_own", "_unroutable")

    def __init__(self, own: socket.socket, addresses: Mapping[NodeId, Address]) -> None:
        self._own = UdpSocket(own)
        self._addresses = addresses
        shared = Counter(addresses.values())
        self._nodes = {address: node for node, address in addresses.items() if shared[address] == 1}
        self._unroutable = 0  # datagrams for nodes that are not in the address book

    def send(self, node: NodeId, datagrams: Sequence[bytes]) -> None:
        address = self._addresses.get(node)
        if address is None:
            self._unroutable += len(datagrams)
        else:
            self._own.send(datagrams, address)

    def node_at(self, address: Address) -> NodeId | None:
        """The one node at this address. A node sends everything, multicasts too, through its own socket."""
        return self._nodes.get(address)

    def _traffic_of(self, sockets: Iterable[UdpSocket]) -> Traffic:
        return sum((each.traffic for each in sockets), Traffic(dropped=self._unroutable))


class IpMulticast(_Unicast):
    """The network copies: one datagram on the wire per multicast."""

    __slots__ = ("_groups", "_interface", "_joined", "_loops", "control", "data")

    def __init__(self, node: NodeId, book: AddressBook, groups: Groups) -> None:
        """Join the groups of the node's role. Raises `UserError` where the address book or the groups cannot work."""
        addresses = _resolve_book(book, node)
        _check_reach(groups.interface, addresses)
        role = book[node].role
        self._interface = Interface.named(groups.interface)
        self._groups = groups
        self._joined: set[int] = set()  # channels of secondary loops
        with ExitStack() as opened:
            own = opened.enter_context(bind(*addresses[node]))
            self._interface.configure_sender(own, ttl=groups.ttl)
            joined = {
                channel: opened.enter_context(self._interface.join(groups.of(channel)))
                for channel, roles in RECEIVED_BY.items()
                if role in roles
            }
            self._loops = opened.enter_context(_unjoined_socket(groups.control[1])) if role is Role.SITE else None
            opened.pop_all()
        super().__init__(own, addresses)
        # Multicasts leave through the node's own socket, so its address identifies the loopback copy from the kernel.
        sockets = {channel: UdpSocket(group, ignored_sender=self._own.address) for channel, group in joined.items()}
        self.data: Final[tuple[UdpSocket, ...]] = (sockets[Channel.DATA],) if Channel.DATA in sockets else ()
        control = [sockets[Channel.CONTROL]] if Channel.CONTROL in sockets else []
        if self._loops is not None:
            control.append(UdpSocket(self._loops, ignored_sender=self._own.address))
        self.control: Final[tuple[UdpSocket, ...]] = (*control, self._own)

    def multicast(self, channel: int, datagrams: Sequence[bytes]) -> None:
        self._own.send(datagrams, self._groups.of(channel))

    def listen(self, channels: Sequence[int]) -> None:
        """Join the groups of these secondary loops, and leave the others."""
        if self._loops is None:
            return
        for channel in self._joined ^ set(channels):
            self._interface.change(self._loops, self._groups.of(channel)[0], member=channel in channels)
        self._joined = set(channels)

    def traffic(self) -> Traffic:
        return self._traffic_of((*self.data, *self.control))

    def backlog(self) -> int:
        return sum(each.backlog() for each in self.data)

    def close(self) -> None:
        for each in (*self.data, *self.control):
            each.close()


class Mesh(_Unicast):
    """The sender copies: one unicast datagram per member of the channel."""

    __slots__ = ("_members", "control", "data")

    def __init__(
        self, node: NodeId, book: AddressBook, loops: Mapping[int, Collection[NodeId]] = MappingProxyType({})
    ) -> None:
        """Bind the node's own address. Raises `UserError` where the address book cannot work.

        `loops` names the possible members of each secondary loop.
        """
        addresses = _resolve_book(book, node)
        super().__init__(bind(*addresses[node]), addresses)
        self._members: dict[int, tuple[Address, ...]] = {}
        for channel, roles in RECEIVED_BY.items():
            receiving = dict.fromkeys(addresses[other] for other, peer in book.items() if peer.role in roles)
            self._members[channel] = tuple(address for address in receiving if address != addresses[node])
        for loop, sites in loops.items():
            self._members[LOOP_CHANNEL + loop] = tuple(addresses[site] for site in sites if site != node)
        # Everything arrives on one socket, in one order, so data and control need no separate sockets.
        self.data: Final[tuple[UdpSocket, ...]] = (self._own,)
        self.control: Final[tuple[UdpSocket, ...]] = ()

    def multicast(self, channel: int, datagrams: Sequence[bytes]) -> None:
        self._own.send(datagrams, *self._members[channel])

    def listen(self, channels: Sequence[int]) -> None:
        """Nothing to do: copies arrive at the node's own address in any case."""

    def traffic(self) -> Traffic:
        return self._traffic_of(self.data)

    def backlog(self) -> int:
        return self._own.backlog()

    def close(self) -> None:
        self._own.close()


def multicast_works(interface: str = LOOPBACK) -> bool:
    """Whether a datagram sent to a group on this interface arrives; sends one and waits for a bounded time."""
    via = Interface.named(interface)
    try:
        with via.join((PROBE_GROUP, 0)) as listener, bind("", 0) as sender:
            via.configure_sender(sender, ttl=0)
            probe = os.urandom(16)
            sender.sendto(probe, listener.getsockname())
            listener.settimeout(PROBE_WAIT_MAX)
            return listener.recv(len(probe)) == probe
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface for multicast."""

    name: str
    packed: bytes  # the end of `struct ip_mreqn`: an address, an index

    @classmethod
    def named(cls, name: str) -> "Interface":
        """By the interface's name, or by one of its addresses."""
        try:
            return cls(name, IPv4Address(name).packed + _INDEX.pack(0))
        except AddressValueError:
            pass
        try:
            return cls(name, bytes(4) + _INDEX.pack(socket.if_nametoindex(name)))
        except (OSError, ValueError):
            raise UserError(_no_such_interface(name)) from None

    def join(self, group: Address) -> socket.socket:
        """A socket that receives this group on this interface, and nothing else."""
        host, port = group
        # Bound to the group itself, and without IP_MULTICAST_ALL: groups that other programs joined do not leak in.
        bound = bind(host, port, shared=True)
        try:
            bound.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            self.change(bound, host, member=True)
        except BaseException:
            bound.close()
            raise
        return bound

    def change(self, bound: socket.socket, group: str, *, member: bool) -> None:
        """Add this socket to the group on this interface, or remove it."""
        option = socket.IP_ADD_MEMBERSHIP if member else socket.IP_DROP_MEMBERSHIP
        try:
            bound.setsockopt(socket.IPPROTO_IP, option, socket.inet_aton(group) + self.packed)
        except OSError as error:
            raise self._error(error) from None

    def configure_sender(self, bound: socket.socket, *, ttl: int) -> None:
        """Send this socket's multicasts through this interface, and loop them back on this machine."""
        try:
            bound.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(4) + self.packed)
        except OSError as error:
            raise self._error(error) from None
        bound.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        bound.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)

    def _error(self, error: OSError) -> UserError:
        if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            return UserError(_no_such_interface(self.name))
        return UserError(f"interface is {self.name!r}, which has no multicast ({error.strerror}); choose another")


def _unjoined_socket(port: int) -> socket.socket:
    """A socket without groups: one for the groups of all secondary loops, which it joins and leaves later."""
    bound = bind("", port, shared=True)
    bound.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    return bound


def _resolve_book(book: AddressBook, node: NodeId) -> dict[NodeId, Address]:
    """The addresses of all nodes, resolved once: no datagram may wait for a name server. Only sources may share one."""
    if node not in book:
        raise UserError(f"node is {node}, which the address book does not name; it names {sorted(book)}")
    if len(book) > PEERS_MAX:
        raise UserError(f"the address book names {len(book)} nodes; at most {PEERS_MAX} are possible")
    addresses = {each: _resolve_peer(each, peer) for each, peer in book.items()}
    holders: dict[Address, NodeId] = {}
    for each, address in addresses.items():
        other = holders.setdefault(address, each)
        if other == each:
            if each != node:
                _check_route(each, address)
        elif {book[each].role, book[other].role} != {Role.SOURCE}:
            raise UserError(
                f"nodes {other} and {each} are both at {format_address(address)}; give each a port of its own"
            )
    return addresses


def _resolve_peer(node: NodeId, peer: Peer) -> Address:
    if not 0 <= node <= NODE_MAX:
        raise UserError(f"the address book names node {node}; node numbers go from 0 to {NODE_MAX}")
    check_port(f"port of node {node}", peer.port)
    try:
        found = socket.getaddrinfo(peer.host, None, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        raise UserError(
            f"host of node {node} is {peer.host!r}, which has no IPv4 address; give a name that has one, or an address"
        ) from None
    host = str(found[0][4][0])
    if IPv4Address(host).is_unspecified or IPv4Address(host).is_multicast:
        raise UserError(f"host of node {node} is {peer.host!r}; give an address that other nodes can send to")
    return host, peer.port


def _check_route(node: NodeId, address: Address) -> None:
    """Connecting a UDP socket sends nothing, but finds the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
        except OSError as error:
            raise UserError(
                f"node {node} is at {format_address(address)}, where no route leads ({error.strerror});"
                " correct its host or the routes of this machine"
            ) from None


def _check_reach(named: str, addresses: Mapping[NodeId, Address]) -> None:
    if named not in (LOOPBACK, "lo"):
        return
    for node, (host, _) in addresses.items():
        if not IPv4Address(host).is_loopback:
            raise UserError(
                f"interface is {named}, which reaches only this machine, and node {node} is at {host}; name the"
                " interface that leads there"
            )


def _no_such_interface(named: str) -> str:
    known = ", ".join(name for _, name in socket.if_nameindex())
    return f"interface is {named!r}; name one of {known}, or give an IPv4 address of this machine"


def _is_group(host: str) -> bool:
    try:
        return IPv4Address(host).is_multicast
    except AddressValueError:
        return False


def interface_at(host: str) -> str:
    """The address of the interface behind a host name. A name that does not resolve is returned as it is."""
    try:
        return str(socket.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_DGRAM)[0][4][0])
    except (OSError, UnicodeError):
        return host  # opening the transport reports what is wrong with it
