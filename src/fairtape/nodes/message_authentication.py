"""Message authentication: tags the control datagrams of a node and verifies those of others."""

from collections.abc import Container

from fairtape.wire.frames import Control, NodeId, encode_control, serial_of
from fairtape.wire.membership import MembershipMessage, encode_membership
from fairtape.wire.seals import Authenticator, Keys, ReplayWindow


class MessageAuthenticator:
    """The serial numbers, authenticators and replay windows of one node."""

    def __init__(self, *, me: NodeId, keys: Keys, peers: Container[NodeId], first_serial: int) -> None:
        self._me = me
        self._keys = keys
        self._serial = first_serial  # its incarnation, so that a later one is always ahead of an earlier one
        self._peers = peers
        self._sites: dict[NodeId, Authenticator] = {}  # created on first use: there may be thousands of peers
        self._windows: dict[NodeId, ReplayWindow] = {}
        self._sources: dict[NodeId, Authenticator] = {}

    def for_sites(self, message: Control) -> bytes:
        """A datagram that every site can verify, and no source can forge."""
        self._serial += 1
        return self._authenticator(self._me).prove(encode_control(message, self._serial))

    def for_membership(self, message: MembershipMessage) -> bytes:
        """The same for a membership frame."""
        self._serial += 1
        return self._authenticator(self._me).prove(encode_membership(message, self._serial))

    def for_source(self, source: NodeId, message: Control) -> bytes:
        """A datagram that this source can verify."""
        self._serial += 1
        if source not in self._sources:
            self._sources[source] = Authenticator(self._keys.sources[source])
        return self._sources[source].prove(encode_control(message, self._serial))

    def refusal(self, message: Control | MembershipMessage, datagram: bytes, *, fresh: bool) -> str | None:
        """Why a datagram must be ignored, or None. Only a `fresh` one is checked for replay: an Ack may repeat."""
        if message.sender == self._me:
            return "own"
        sender = message.sender
        if sender not in self._peers or not self._authenticator(sender).holds(datagram):
            return "forged"
        if fresh and not self._windows.setdefault(sender, ReplayWindow()).accept(serial_of(datagram)):
            return "replayed"
        return None

    def _authenticator(self, peer: NodeId) -> Authenticator:
        known = self._sites.get(peer)
        if known is None:
            known = self._sites[peer] = Authenticator(self._keys.sites[peer])
        return known
