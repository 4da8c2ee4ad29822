"""All FIX sessions of one acceptor. The driver numbers the connections; the first message names the session.

A connection that names an unknown client is closed without an answer, and so is one that names a client who is already
connected: a stranger must neither learn who trades here nor disturb them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.core.instants import NEVER, Instant
from fairtape.formats.fix.admin_messages import Logon
from fairtape.formats.fix.codec import MESSAGE_MAX, FixMessage, FixStream, Flaw
from fairtape.formats.fix.dictionary import BusinessReason, Tag
from fairtape.formats.fix.order_messages import OrderEntry
from fairtape.gateway.session.effects import (
    AcceptorEffect,
    Disconnect,
    FromClient,
    LoggedOff,
    LoggedOn,
    MessageRejected,
    Received,
    Transmit,
)
from fairtape.gateway.session.fix_session import Authenticate, FixOptions, FixRole, FixSession, FixState, FixStore

CONNECTIONS_MAX: Final = 1_024
CLIENTS_MAX: Final = 100_000
UNKNOWN_BODY_MAX: Final = 4_096  # bytes of the first message, before the logon

StoreOf: TypeAlias = Callable[[str], FixStore | None]
"""The store of the session with a client; None if the client is unknown."""


@dataclass(slots=True)
class AcceptorCounts:
    connections: int = 0
    refused: int = 0  # connection limit reached
    unknown: int = 0  # named an unknown client, or did not start with a Logon
    duplicate: int = 0  # named a client who is connected already
    half_open: int = 0  # sent no Logon in time
    garbled: int = 0  # messages with a wrong length or checksum
    junk: int = 0  # bytes between messages


@dataclass(slots=True)
class _FixConnection:
    opened_at: Instant
    stream: FixStream = field(default_factory=lambda: FixStream(body_max=UNKNOWN_BODY_MAX))
    session: FixSession | None = None


class FixAcceptor:
    """The acceptor `ours`, its sessions and its connections."""

    def __init__(
        self,
        ours: str,
        *,
        store_of: StoreOf,
        authenticate: Authenticate,
        options: FixOptions | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.counts = AcceptorCounts()
        self._ours = ours
        self._store_of = store_of
        self._authenticate = authenticate
        self._options = options or FixOptions()
        self._connections_max = connections_max
        self._connections: dict[int, _FixConnection] = {}
        self._sessions: dict[str, FixSession] = {}
        self._numbers: dict[str, int] = {}  # client -> its connection
        self._due_at: Instant = NEVER  # no deadline is earlier
        self._effects: list[AcceptorEffect] = []

    def connected(self, connection: int, now: Instant) -> None:
        self.counts.connections += 1
        if len(self._connections) >= self._connections_max:
            self.counts.refused += 1
            self._effects.append(CloseConnection(connection, "no room for more connections"))
            return
        self._connections[connection] = _FixConnection(now)
        self._due_at = min(self._due_at, now + self._options.logon_delay)

    def disconnected(self, connection: int, now: Instant) -> None:
        """The client disconnected, or the driver has closed the connection as requested."""
        peer = self._forget(connection)
        if peer is not None and peer.session is not None:
            peer.session.disconnected(now)
            self._collect(peer.session)

    def receive(self, connection: int, octets: bytes, now: Instant) -> None:
        """Receive bytes of a client. Never raises, whatever they are."""
        peer = self._connections.get(connection)
        if peer is None:
            return
        for message in peer.stream.feed(octets):
            if connection not in self._connections:
                return  # bytes after a disconnect are ignored
            if peer.session is None:
                self._admit(connection, peer, message, now)
            if peer.session is not None:
                peer.session.receive_message(message, now)
                self._collect(peer.session)

    def set_write_blocked(self, connection: int, *, blocked: bool) -> None:
        """The connection's write buffer is full, or has space again."""
        peer = self._connections.get(connection)
        if peer is not None and peer.session is not None:
            peer.session.set_write_blocked(blocked=blocked)
            self._due_at = min(self._due_at, self._next(peer))

    def send(self, client: str, value: OrderEntry, now: Instant) -> int:
        """Send a message to a client, or store it until the client requests it. Return its number."""
        session = self._session(client)
        assert session is not None
        number = session.send(value, now)
        self._collect(session)
        return number

    def reject(self, client: str, received: Received, reason: BusinessReason, text: str, now: Instant) -> None:
        """Send a BusinessReject: the application does not support the message."""
        session = self._sessions[client]
        session.reject(received, reason, text, now)
        self._collect(session)

    def refuse(self, client: str, received: Received, flaw: Flaw, now: Instant) -> None:
        """Send a Reject that names the invalid field."""
        session = self._sessions[client]
        session.refuse(received, flaw, now)
        self._collect(session)

    def logout_all(self, text: str, now: Instant) -> None:
        for client in list(self._numbers):
            self._sessions[client].logout(text, now)
            self._collect(self._sessions[client])

    def wake(self, now: Instant) -> None:
        """Send heartbeats, and close connections that are silent for too long."""
        if now < self._due_at:
            return
        for connection, peer in list(self._connections.items()):
            if peer.session is not None:
                peer.session.wake(now)
                self._collect(peer.session)
            elif now >= peer.opened_at + self._options.logon_delay:
                self.counts.half_open += 1
                self._close(connection, "no Logon came in time", now)
        self._due_at = min((self._next(peer) for peer in self._connections.values()), default=NEVER)

    def deadline(self) -> Instant | None:
        return None if self._due_at == NEVER else self._due_at

    def drain(self) -> list[AcceptorEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _next(self, peer: _FixConnection) -> Instant:
        """The next deadline of this connection."""
        if peer.session is None:
            return peer.opened_at + self._options.logon_delay
        return peer.session.deadline()

    def _admit(self, connection: int, peer: _FixConnection, message: FixMessage, now: Instant) -> None:
        """Attach the session that the first message names."""
        client = (message.get(Tag.SENDER_COMP_ID) or b"").decode("latin-1")
        addressed = message.get(Tag.TARGET_COMP_ID) == self._ours.encode("ascii")
        session = self._session(client) if addressed and message.msg_type == Logon.MSG_TYPE else None
        if session is None:
            self.counts.unknown += 1
            self._close(connection, "the first message is not a Logon of a known client", now)
        elif session.state is not FixState.DISCONNECTED:
            self.counts.duplicate += 1
            self._close(connection, f"{client} is connected already", now)
        else:
            peer.session, self._numbers[client] = session, connection
            session.connected(now, peer.stream)

    def _session(self, client: str) -> FixSession | None:
        session = self._sessions.get(client)
        if session is None and client and client.isascii() and client.isprintable():
            store = self._store_of(client)
            if store is not None and len(self._sessions) < CLIENTS_MAX:
                role, options = FixRole.ACCEPTOR, self._options
                session = FixSession(
                    self._ours, client, store, role=role, options=options, authenticate=self._authenticate
                )
                self._sessions[client] = session
        return session

    def _collect(self, session: FixSession) -> None:
        """Turn the effects of a session into effects on its connection."""
        client = session.theirs
        self._due_at = min(self._due_at, session.deadline())
        for effect in session.drain():
            match effect:
                case Transmit(octets):
                    self._effects.append(WriteConnection(self._numbers[client], octets))
                case Disconnect(reason):
                    self._effects.append(CloseConnection(self._numbers[client], reason))
                    self._forget(self._numbers[client])
                case Received() | MessageRejected() | LoggedOn() | LoggedOff():
                    self._effects.append(FromClient(client, effect))
                    if isinstance(effect, LoggedOn):
                        self._connections[self._numbers[client]].stream.body_max = MESSAGE_MAX

    def _forget(self, connection: int) -> _FixConnection | None:
        """Remove a connection, so that its client may connect again."""
        peer = self._connections.pop(connection, None)
        if peer is not None:
            self.counts.garbled += peer.stream.counts.garbled
            self.counts.junk += peer.stream.counts.junk
            if peer.session is not None:
                del self._numbers[peer.session.theirs]
        return peer

    def _close(self, connection: int, reason: str, now: Instant) -> None:
        self._effects.append(CloseConnection(connection, reason))
        self.disconnected(connection, now)
