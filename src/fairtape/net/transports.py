"""Core multicast: one interface, two carriers.

`IpMulticast` uses the network's own multicast, one group for each channel. `Mesh` sends a unicast copy to every member
of the channel, for networks that carry no multicast. Both keep the same promises: sites are on both channels, sources
only on CONTROL; datagrams of one call travel in order; a node never hears itself.

Secondary loops have channels of their own. With IP multicast each is a further group, which a site joins and leaves as
it is told to. In a mesh the sender cannot know who listens, so a copy goes to everyone who may ever belong to the loop.
"""

import errno
import os
import socket
import struct
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
TRIAL_GROUP: Final = "239.195.255.254"
TRIAL_WAIT_MAX: Final = 0.5  # seconds

_IP_MULTICAST_ALL: Final = 49
_INDEX: Final = struct.Struct("@i")


class Role(Enum):
    """What a node is to the core, and so which channels reach it."""

    SITE = "site"
    SOURCE = "source"
    COORDINATOR = "governor"  # reformation servers and the operator: unicast only; the value is in ring files


HEARD_BY: Final[Mapping[Channel, frozenset[Role]]] = MappingProxyType(
    {Channel.DATA: frozenset((Role.SITE,)), Channel.CONTROL: frozenset((Role.SITE, Role.SOURCE))}
)


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a node listens, and as what."""

    host: str
    port: int
    role: Role


AddressBook: TypeAlias = Mapping[NodeId, Peer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The multicast groups of one stripe, and the interface that leads to them."""

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
        """The group of a channel. Those of secondary loops follow after the control group, one by one."""
        if channel <= LOOP_CHANNEL:
            return self.control if channel == Channel.CONTROL else self.data
        host, port = self.control
        group = str(IPv4Address(int(IPv4Address(host)) + channel - LOOP_CHANNEL))
        if not _is_group(group):
            raise UserError(
                f"control group is {host}, behind which no group is left for loop {channel - LOOP_CHANNEL};"
                " choose a lower one such as 239.195.0.2"
            )
        return group, port


class Transport(Protocol):
    """How the datagrams of one node travel."""

    @property
    def data(self) -> Sequence[UdpSocket]:
        """The sockets on which source blocks arrive."""

    @property
    def control(self) -> Sequence[UdpSocket]:
        """The sockets on which acknowledgments and requests arrive, after the blocks that they name."""

    def multicast(self, channel: int, datagrams: Sequence[bytes]) -> None:
        """Send to everyone on the channel but ourselves."""

    def listen(self, channels: Sequence[int]) -> None:
        """Hear these channels of secondary loops, and no others."""

    def send(self, node: NodeId, datagrams: Sequence[bytes]) -> None:
        """Send to one node. What cannot be sent is counted."""

    def node_at(self, address: Address) -> NodeId | None:
        """Who sends from there; None where nobody is known to. It proves nothing: only injected weather asks."""

    def traffic(self) -> Traffic:
        """What passed so far, over all sockets."""

    def close(self) -> None:
        """Give all ports back."""


class _Unicast:
    """What both carriers share: the node's own socket, and the addresses of the others."""

    __slots__ = ("_addresses", "_nodes", "_own", "_strays")

    def __init__(self, own: socket.socket, addresses: Mapping[NodeId, Address]) -> None:
        self._own = UdpSocket(own)
        self._addresses = addresses
        self._nodes = {address: node for node, address in addresses.items()}  # no two nodes share an address
        self._strays = 0  # datagrams for nodes that the book does not know

    def send(self, node: NodeId, datagrams: Sequence[bytes]) -> None:
        """Send to one node. What cannot be sent is counted."""
        address = self._addresses.get(node)
        if address is None:
            self._strays += len(datagrams)
        else:
            self._own.send(datagrams, address)

    def node_at(self, address: Address) -> NodeId | None:
        """Who sends from there. Whatever a node sends, multicasts too, leaves through its own socket."""
        return self._nodes.get(address)

    def _traffic_of(self, sockets: Iterable[UdpSocket]) -> Traffic:
        return sum((each.traffic for each in sockets), Traffic(dropped=self._strays))


class IpMulticast(_Unicast):
    """The network copies: one datagram on the wire for each multicast."""

    __slots__ = ("_groups", "_interface", "_joined", "_loops", "control", "data")

    def __init__(self, node: NodeId, book: AddressBook, groups: Groups) -> None:
        """Join the groups of the node's role. Raises `UserError` where the address book or the groups cannot work."""
        addresses = _resolved(book, node)
        _check_reach(groups.interface, addresses)
        role = book[node].role
        self._interface = Interface.named(groups.interface)
        self._groups = groups
        self._joined: set[int] = set()  # channels of secondary loops
        with ExitStack() as undo:
            own = undo.enter_context(bind(*addresses[node]))
            self._interface.configure_sender(own, ttl=groups.ttl)
            joined = {
                channel: undo.enter_context(self._interface.join(groups.of(channel)))
                for channel, hearers in HEARD_BY.items()
                if role in hearers
            }
            self._loops = undo.enter_context(_unjoined(groups.control[1])) if role is Role.SITE else None
            undo.pop_all()
        super().__init__(own, addresses)
        # Multicasts leave through the node's own socket, so its address marks the echo that the kernel brings back.
        heard = {channel: UdpSocket(group, ignored_sender=self._own.address) for channel, group in joined.items()}
        self.data: Final[tuple[UdpSocket, ...]] = (heard[Channel.DATA],) if Channel.DATA in heard else ()
        control = [heard[Channel.CONTROL]] if Channel.CONTROL in heard else []
        if self._loops is not None:
            control.append(UdpSocket(self._loops, ignored_sender=self._own.address))
        self.control: Final[tuple[UdpSocket, ...]] = (*control, self._own)

    def multicast(self, channel: int, datagrams: Sequence[bytes]) -> None:
        """Send to the channel's group."""
        self._own.send(datagrams, self._groups.of(channel))

    def listen(self, channels: Sequence[int]) -> None:
        """Join the groups of these secondary loops, and leave all others."""
        if self._loops is None:
            return
        for channel in self._joined ^ set(channels):
            self._interface.change(self._loops, self._groups.of(channel)[0], member=channel in channels)
        self._joined = set(channels)

    def traffic(self) -> Traffic:
        """What passed so far, over all sockets."""
        return self._traffic_of((*self.data, *self.control))

    def close(self) -> None:
        """Leave the groups and give all ports back."""
        for each in (*self.data, *self.control):
            each.close()


class Mesh(_Unicast):
    """The sender copies: one unicast datagram for each member of the channel."""

    __slots__ = ("_members", "control", "data")

    def __init__(
        self, node: NodeId, book: AddressBook, loops: Mapping[int, Collection[NodeId]] = MappingProxyType({})
    ) -> None:
        """Listen at the node's own address. Raises `UserError` where the address book cannot work.

        `loops` names those who may belong to each secondary loop.
        """
        addresses = _resolved(book, node)
        super().__init__(bind(*addresses[node]), addresses)
        self._members: dict[int, tuple[Address, ...]] = {
            channel: tuple(addresses[other] for other, peer in book.items() if other != node and peer.role in hearers)
            for channel, hearers in HEARD_BY.items()
        }
        for loop, sites in loops.items():
            self._members[LOOP_CHANNEL + loop] = tuple(addresses[site] for site in sites if site != node)
        # Everything comes through one socket, in one order, so nothing overtakes and nothing need be told apart.
        self.data: Final[tuple[UdpSocket, ...]] = (self._own,)
        self.control: Final[tuple[UdpSocket, ...]] = ()

    def multicast(self, channel: int, datagrams: Sequence[bytes]) -> None:
        """Send a copy to every member of the channel but ourselves, train by train."""
        self._own.send(datagrams, *self._members[channel])

    def listen(self, channels: Sequence[int]) -> None:
        """Copies come to the node's own address, whether it listens or not."""

    def traffic(self) -> Traffic:
        """What passed so far."""
        return self._traffic_of(self.data)

    def close(self) -> None:
        """Give the port back."""
        self._own.close()


def multicast_works(interface: str = LOOPBACK) -> bool:
    """Whether a datagram sent to a group on this interface comes back, tried for real with a bounded wait."""
    where = Interface.named(interface)
    try:
        with where.join((TRIAL_GROUP, 0)) as listener, bind("", 0) as speaker:
            where.configure_sender(speaker, ttl=0)
            greeting = os.urandom(16)
            speaker.sendto(greeting, listener.getsockname())
            listener.settimeout(TRIAL_WAIT_MAX)
            return listener.recv(len(greeting)) == greeting
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Interface:
    """Where multicast leaves and enters this machine."""

    name: str
    packed: bytes  # the end of `struct ip_mreqn`: an address, an index

    @classmethod
    def named(cls, name: str) -> "Interface":
        """By its name, or by one of its addresses."""
        try:
            return cls(name, IPv4Address(name).packed + _INDEX.pack(0))
        except AddressValueError:
            pass
        try:
            return cls(name, bytes(4) + _INDEX.pack(socket.if_nametoindex(name)))
        except (OSError, ValueError):
            raise UserError(_no_such_interface(name)) from None

    def join(self, group: Address) -> socket.socket:
        """A socket that hears this group on this interface, and nothing else."""
        host, port = group
        # Bound to the group itself, and without IP_MULTICAST_ALL: what other programs joined does not leak in.
        bound = bind(host, port, shared=True)
        try:
            bound.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
            self.change(bound, host, member=True)
        except BaseException:
            bound.close()
            raise
        return bound

    def change(self, bound: socket.socket, group: str, *, member: bool) -> None:
        """Let this socket hear the group on this interface, or no longer."""
        option = socket.IP_ADD_MEMBERSHIP if member else socket.IP_DROP_MEMBERSHIP
        try:
            bound.setsockopt(socket.IPPROTO_IP, option, socket.inet_aton(group) + self.packed)
        except OSError as error:
            raise self._complaint(error) from None

    def configure_sender(self, bound: socket.socket, *, ttl: int) -> None:
        """Let this socket's multicasts leave here, and be heard on this machine as well."""
        try:
            bound.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(4) + self.packed)
        except OSError as error:
            raise self._complaint(error) from None
        bound.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        bound.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)

    def _complaint(self, error: OSError) -> UserError:
        if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            return UserError(_no_such_interface(self.name))
        return UserError(f"interface is {self.name!r}, which carries no multicast ({error.strerror}); choose another")


def _unjoined(port: int) -> socket.socket:
    """A socket that hears nothing yet: one for the groups of all secondary loops, which come and go."""
    bound = bind("", port, shared=True)
    bound.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    return bound


def _resolved(book: AddressBook, node: NodeId) -> dict[NodeId, Address]:
    """The book in numbers, looked up once: a name server has no place in the path of a datagram."""
    if node not in book:
        raise UserError(f"node is {node}, which the address book does not name; it names {sorted(book)}")
    if len(book) > PEERS_MAX:
        raise UserError(f"the address book names {len(book)} nodes; at most {PEERS_MAX} are possible")
    addresses = {each: _address(each, peer) for each, peer in book.items()}
    holders: dict[Address, NodeId] = {}
    for each, address in addresses.items():
        other = holders.setdefault(address, each)
        if other != each:
            raise UserError(
                f"nodes {other} and {each} are both at {format_address(address)}; give each a port of its own"
            )
        if each != node:
            _check_route(each, address)
    return addresses


def _address(node: NodeId, peer: Peer) -> Address:
    if not 0 <= node <= NODE_MAX:
        raise UserError(f"the address book names node {node}; node numbers go from 0 to {NODE_MAX}")
    check_port(f"port of node {node}", peer.port)
    try:
        found = socket.getaddrinfo(peer.host, None, family=socket.AF_INET, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        raise UserError(
            f"host of node {node} is {peer.host!r}, which has no IPv4 address; give a name that has, or the address"
        ) from None
    host = str(found[0][4][0])
    if IPv4Address(host).is_unspecified or IPv4Address(host).is_multicast:
        raise UserError(f"host of node {node} is {peer.host!r}; give an address that other nodes can send to")
    return host, peer.port


def _check_route(node: NodeId, address: Address) -> None:
    """Connecting a UDP socket sends nothing, but finds the route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(address)
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
