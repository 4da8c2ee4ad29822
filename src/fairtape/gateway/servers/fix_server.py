"""FIX sessions on real connections: accept, run the acceptor, and write nothing before it is durable.

One turn of the event loop takes what all connections received, lets the application answer, syncs once, and writes. The
application is called within the turn and must not block; what it decides later it sends later. An application with its
own storage makes it durable in the same `sync`, before the sessions' store. If the machine fails between the two,
orders are received again, marked as repeated, and recognised by their ClOrdIDs.

With `check_logon`, a connection and its first message are held until the logon is checked: checking a password is slow,
and other clients must not wait for it.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from fairtape.core.addresses import Address
from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.core.instants import SECOND, Instant
from fairtape.formats.fix.admin_messages import Logon
from fairtape.formats.fix.codec import BadFix, FixMessage, FixStream, Flaw
from fairtape.formats.fix.dictionary import BusinessReason, RejectReason, Tag
from fairtape.formats.fix.order_messages import OrderEntry, read
from fairtape.gateway.servers.streams import bind_error, tls_arguments
from fairtape.gateway.session.acceptor import UNKNOWN_BODY_MAX, FixAcceptor
from fairtape.gateway.session.effects import FixEvent, FromClient, Received

BACKLOG: Final = 128
BUFFER_MAX: Final = 16 << 20  # bytes buffered for one client, above which it is disconnected

HELD_MAX: Final = 16 << 10  # bytes held while a logon is being checked
FIELD_MAX: Final = 4 << 10  # bytes of one field of an order; a report repeats two of them
USERNAME: Final = 553
PASSWORD: Final = 554

Sync: TypeAlias = Callable[[], None]
Now: TypeAlias = Callable[[], Instant]
CheckLogon: TypeAlias = Callable[[str, str, str], Awaitable[None]]
"""Checks the CompID, user name and password of a logon, before its session asks for the result."""


class Application(Protocol):
    """What receives the orders of an acceptor."""

    def entered(self, client: str, value: OrderEntry, received: Received, now: Instant) -> None:
        """A client sent this message; each number once, in order."""

    def changed(self, client: str, event: FixEvent, now: Instant) -> None:
        """A client logged on or off, or rejected a message of ours."""


@dataclass(slots=True)
class _HeldConnection:
    """A connection that is held until its logon is checked."""

    stream: FixStream = field(default_factory=lambda: FixStream(body_max=UNKNOWN_BODY_MAX))
    octets: bytearray = field(default_factory=bytearray)
    task: "asyncio.Task[None] | None" = None


class FixServer:
    """One acceptor on one address."""

    def __init__(
        self,
        acceptor: FixAcceptor,
        application: Application,
        *,
        sync: Sync,
        now: Now,
        check_logon: CheckLogon | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._check_logon = check_logon
        self._tls = tls
        self._held: dict[int, _HeldConnection] = {}
        self._acceptor = acceptor
        self._application = application
        self._sync = sync
        self._now = now
        self._streams: dict[int, asyncio.Transport] = {}
        self._opened = 0
        self._turn_soon: asyncio.Handle | None = None
        self._turn_later: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._closed = False
        self._end: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int) -> Address:
        """Listen, and return the bound address. Raises `UserError` if it cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            make = lambda: _FixProtocol(self)  # noqa: E731 - the protocol factory of asyncio
            self._server = await loop.create_server(make, host, port, backlog=BACKLOG, **tls_arguments(self._tls))
        except OSError as error:
            raise bind_error("fix", host, port, error) from None
        self._end = loop.create_future()
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    def send(self, client: str, value: OrderEntry) -> int:
        """Send a message to a client in the next turn, or store it until the client requests it. Return its number."""
        number = self._acceptor.send(client, value, self._now())
        self.turn_soon()
        return number

    def reject(self, client: str, received: Received, reason: BusinessReason, text: str, now: Instant) -> None:
        """Send a BusinessReject in this turn: the application does not support the message."""
        self._acceptor.reject(client, received, reason, text, now)

    async def ended(self) -> None:
        """Wait until the server is closed. Raises the failure of a turn."""
        assert self._end is not None
        await self._end

    def close(self) -> None:
        """Log out all clients and close, without waiting. What arrives from now on is ignored."""
        if not self._closed:
            self._acceptor.logout_all("the market closes", self._now())
            self._turn()
            self._stop(None)
            for stream in list(self._streams.values()):
                stream.close()

    def abort(self, failure: Exception | None = None) -> None:
        """Stop at once, as after a power failure: the state in memory may differ from the stored one."""
        self._stop(failure)
        for stream in list(self._streams.values()):
            stream.abort()

    def _stop(self, failure: Exception | None) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for handle in (self._turn_soon, self._turn_later):
            if handle is not None:
                handle.cancel()
        if self._end is not None and not self._end.done():
            if failure is None:
                self._end.set_result(None)
            else:
                self._end.set_exception(failure)

    # Called by connections.

    def connected(self, transport: asyncio.Transport) -> int:
        """A connection was made. Return its number."""
        self._opened += 1
        self._streams[self._opened] = transport
        if self._check_logon is not None:
            self._held[self._opened] = _HeldConnection()
        self._acceptor.connected(self._opened, self._now())
        self.turn_soon()
        return self._opened

    def received_bytes(self, connection: int, octets: bytes) -> None:
        if self._closed:
            return
        held = self._held.get(connection)
        if held is not None:
            self._hold(connection, held, octets)
            return
        self._acceptor.receive(connection, octets, self._now())
        self.turn_soon()

    def _hold(self, connection: int, held: _HeldConnection, octets: bytes) -> None:
        first = held.stream.feed(octets) if held.task is None else []
        held.octets += octets
        if len(held.octets) > HELD_MAX:
            self._streams[connection].abort()
        elif first and first[0].msg_type == Logon.MSG_TYPE:
            held.task = asyncio.get_running_loop().create_task(self._check(connection, held, first[0]))
        elif first:
            self._release(connection, held)

    async def _check(self, connection: int, held: _HeldConnection, logon: FixMessage) -> None:
        assert self._check_logon is not None
        client, name, secret = (_text(logon, tag) for tag in (Tag.SENDER_COMP_ID, USERNAME, PASSWORD))
        await self._check_logon(client, name, secret)
        self._release(connection, held)

    def _release(self, connection: int, held: _HeldConnection) -> None:
        """Pass on what was held, if the client is still connected."""
        if self._held.pop(connection, None) is not None and not self._closed:
            self._acceptor.receive(connection, bytes(held.octets), self._now())
            self.turn_soon()

    def write_blocked(self, connection: int, *, blocked: bool) -> None:
        """The connection's write buffer is full, or has space again."""
        self._acceptor.set_write_blocked(connection, blocked=blocked)
        self.turn_soon()

    def disconnected(self, connection: int) -> None:
        self._streams.pop(connection, None)
        held = self._held.pop(connection, None)
        if held is not None and held.task is not None:
            held.task.cancel()
        self._acceptor.disconnected(connection, self._now())
        self.turn_soon()

    def turn_soon(self) -> None:
        """Schedule one turn for everything that this round of the event loop receives."""
        if self._turn_soon is None and not self._closed:
            self._turn_soon = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Run one turn. A turn that fails is the last one."""
        now = self._now()
        try:
            outgoing = self._collect_effects(now)
            self._sync()
        except Exception as failure:  # noqa: BLE001 - raised in `ended`
            self.abort(failure)
            return
        for each in outgoing:
            self._carry_out(each)
        self._turn_soon = None
        self._set_timer(now)

    def _collect_effects(self, now: Instant) -> list[WriteConnection | CloseConnection]:
        """Let the application handle what was received. Return what is to be written."""
        self._acceptor.wake(now)
        outgoing: list[WriteConnection | CloseConnection] = []
        while effects := self._acceptor.drain():
            for effect in effects:
                match effect:
                    case FromClient(client, event):
                        self._dispatch(client, event, now)
                    case WriteConnection() | CloseConnection():
                        outgoing.append(effect)
        return outgoing

    def _dispatch(self, client: str, event: FixEvent, now: Instant) -> None:
        if not isinstance(event, Received):
            self._application.changed(client, event, now)
            return
        try:
            _refuse_long_fields(event.message)
            value = read(event.message)
        except BadFix as refusal:
            flaw = refusal.flaw or Flaw(RejectReason.OTHER, None, str(refusal))
            self._acceptor.refuse(client, event, flaw, now)
        else:
            self._application.entered(client, value, event, now)

    def _carry_out(self, effect: WriteConnection | CloseConnection) -> None:
        stream = self._streams.get(effect.connection)
        if stream is None or stream.is_closing():
            return
        if isinstance(effect, CloseConnection):
            stream.close()
        else:
            stream.write(effect.octets)
            if stream.get_write_buffer_size() > BUFFER_MAX:
                stream.abort()

    def _set_timer(self, now: Instant) -> None:
        if self._turn_later is not None:
            self._turn_later.cancel()
        due_at = self._acceptor.deadline()
        loop = asyncio.get_running_loop()
        delay = None if due_at is None else max(due_at - now, 0) / SECOND
        self._turn_later = None if delay is None else loop.call_later(delay, self.turn_soon)


def _refuse_long_fields(message: FixMessage) -> None:
    """Reports repeat some fields of a message, and must have space for them."""
    for tag, value in message.pairs:
        if len(value) > FIELD_MAX:
            text = f"field {tag} has {len(value)} bytes; at most {FIELD_MAX} are taken"
            raise BadFix.of(RejectReason.VALUE_INCORRECT, tag, text)


def _text(message: FixMessage, tag: int) -> str:
    return (message.get(tag) or b"").decode("latin-1")


class _FixProtocol(asyncio.Protocol):
    """The asyncio protocol of one connection."""

    def __init__(self, server: FixServer) -> None:
        self._server = server
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._number = self._server.connected(transport)

    def data_received(self, data: bytes) -> None:
        self._server.received_bytes(self._number, data)

    def pause_writing(self) -> None:
        self._server.write_blocked(self._number, blocked=True)

    def resume_writing(self) -> None:
        self._server.write_blocked(self._number, blocked=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._server.disconnected(self._number)
