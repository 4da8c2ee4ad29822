"""The postbox of a site: proves what it says and judges what it hears."""

from collections.abc import Container

from fairtape.wire.frames import Control, NodeId, encode_control, serial_of
from fairtape.wire.membership import MembershipMessage, encode_membership
from fairtape.wire.seals import Authenticator, Keys, ReplayWindow


class MessageAuthenticator:
    """Serial numbers, authenticators and replay windows of one site towards its peers and the sources."""

    def __init__(self, *, me: NodeId, keys: Keys, peers: Container[NodeId], first_serial: int) -> None:
        self._me = me
        self._keys = keys
        self._serial = first_serial  # the instant of birth: a later incarnation is always ahead of an earlier one
        self._peers = peers
        self._sites: dict[NodeId, Authenticator] = {}  # of those who were heard: there may be thousands
        self._windows: dict[NodeId, ReplayWindow] = {}
        self._sources: dict[NodeId, Authenticator] = {}

    def for_sites(self, message: Control) -> bytes:
        """A datagram that every site can trust, and no source can make."""
        self._serial += 1
        return self._authenticator(self._me).prove(encode_control(message, self._serial))

    def for_membership(self, message: MembershipMessage) -> bytes:
        """The same for a frame of governance."""
        self._serial += 1
        return self._authenticator(self._me).prove(encode_membership(message, self._serial))

    def for_source(self, source: NodeId, message: Control) -> bytes:
        """A datagram that this source can trust."""
        self._serial += 1
        if source not in self._sources:
            self._sources[source] = Authenticator(self._keys.sources[source])
        return self._sources[source].prove(encode_control(message, self._serial))

    def verdict(self, message: Control | MembershipMessage, datagram: bytes, *, fresh: bool) -> str | None:
        """Why a datagram must be ignored, or None. An acknowledgment may come again: its token number names it."""
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
