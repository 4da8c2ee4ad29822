"""FIX sessions on real connections: accepts, turns the desk, and writes nothing before it is kept.

One turn of the event loop takes what all connections brought, lets the application answer, syncs once, and writes. The
application is called within the turn and must not wait; what it decides later it sends later. An application with a
memory of its own makes it durable in the same `sync`, before the sessions' store; where the machine fails between the
two, orders come again, marked as repeated, and their ClOrdIDs tell.

Where somebody `looks` at logons, a connection is held back with its first message until that is done: checking a
password takes long, and others must not wait for it.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from fairtape.core.addresses import Address
from fairtape.core.instants import SECOND, Instant
from fairtape.edge.protocol.effects import CloseConnection, WriteConnection
from fairtape.formats.fix.admin_messages import Logon
from fairtape.formats.fix.codec import BadFix, FixMessage, FixStream, Flaw
from fairtape.formats.fix.dictionary import BusinessReason, RejectReason, Tag
from fairtape.formats.fix.order_messages import OrderEntry, read
from fairtape.gateway.servers.streams import nowhere, secured
from fairtape.gateway.session.acceptor import UNKNOWN_BODY_MAX, FixAcceptor
from fairtape.gateway.session.effects import FromClient, Received, SessionEvent

BACKLOG: Final = 128
BUFFER_MAX: Final = 16 << 20  # bytes on their way to one client; whoever does not read is let go

HELD_MAX: Final = 16 << 10  # bytes of somebody whose logon is being looked at
FIELD_MAX: Final = 4 << 10  # bytes of one field of an order; a report repeats two of them, and must have room
USERNAME: Final = 553
PASSWORD: Final = 554

Sync: TypeAlias = Callable[[], None]
Now: TypeAlias = Callable[[], Instant]
Look: TypeAlias = Callable[[str, str, str], Awaitable[None]]
"""Looks at the CompID, the user name and the password of a logon, before its session is asked about them."""


class Application(Protocol):
    """Whoever takes the orders."""

    def entered(self, client: str, value: OrderEntry, received: Received, now: Instant) -> None:
        """A client sent this; each number once, in order."""

    def changed(self, client: str, event: SessionEvent, now: Instant) -> None:
        """A client came or went, or does not take a message of ours."""


@dataclass(slots=True)
class _Screen:
    """A connection whose first message is looked at before anybody else sees it."""

    stream: FixStream = field(default_factory=lambda: FixStream(body_max=UNKNOWN_BODY_MAX))
    held: bytearray = field(default_factory=bytearray)
    task: "asyncio.Task[None] | None" = None


class FixServer:
    """One acceptor on one address."""

    def __init__(
        self,
        desk: FixAcceptor,
        application: Application,
        *,
        sync: Sync,
        now: Now,
        look: Look | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._look = look
        self._tls = tls
        self._screens: dict[int, _Screen] = {}
        self._desk = desk
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
        """Listen; the answer is where. A `Complaint` where nothing can listen there."""
        loop = asyncio.get_running_loop()
        try:
            make = lambda: _Stream(self)  # noqa: E731 - what the event loop asks for
            self._server = await loop.create_server(make, host, port, backlog=BACKLOG, **secured(self._tls))
        except OSError as error:
            raise nowhere("fix", host, port, error) from None
        self._end = loop.create_future()
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    def send(self, client: str, value: OrderEntry) -> int:
        """Send a message to a client in the next turn, or keep it until it asks; the answer is its number."""
        number = self._desk.send(client, value, self._now())
        self.turn_soon()
        return number

    def reject(self, client: str, received: Received, reason: BusinessReason, text: str, now: Instant) -> None:
        """Tell a client in this turn that the application does not take its message."""
        self._desk.reject(client, received, reason, text, now)

    async def ended(self) -> None:
        """Wait until it is closed. What made a turn fail is raised here."""
        assert self._end is not None
        await self._end

    def close(self) -> None:
        """Say goodbye to everybody, and wait for nobody. What comes from now on is as if it had never come."""
        if not self._closed:
            self._desk.logout_all("the market closes", self._now())
            self._turn()
            self._stop(None)
            for stream in list(self._streams.values()):
                stream.close()

    def abort(self, failure: Exception | None = None) -> None:
        """Be gone at once, as if the power had failed: what is in memory may differ from what is kept."""
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

    # For connections.

    def came(self, transport: asyncio.Transport) -> int:
        """Somebody connected; the answer is the connection's number."""
        self._opened += 1
        self._streams[self._opened] = transport
        if self._look is not None:
            self._screens[self._opened] = _Screen()
        self._desk.connected(self._opened, self._now())
        self.turn_soon()
        return self._opened

    def heard(self, connection: int, octets: bytes) -> None:
        """A connection brought these bytes."""
        if self._closed:
            return
        screen = self._screens.get(connection)
        if screen is None or self._screened(connection, screen, octets):
            self._desk.receive(connection, octets, self._now())
            self.turn_soon()

    def _screened(self, connection: int, screen: _Screen, octets: bytes) -> bool:
        """Whether these bytes may go on at once; otherwise they are held back."""
        first = screen.stream.feed(octets) if screen.task is None else []
        screen.held += octets
        if len(screen.held) > HELD_MAX:
            self._streams[connection].abort()
        elif first and first[0].msg_type == Logon.MSG_TYPE:
            screen.task = asyncio.get_running_loop().create_task(self._look_at(connection, screen, first[0]))
        elif first:
            self._let_pass(connection, screen)
        return False

    async def _look_at(self, connection: int, screen: _Screen, logon: FixMessage) -> None:
        assert self._look is not None
        client, name, secret = (_text(logon, tag) for tag in (Tag.SENDER_COMP_ID, USERNAME, PASSWORD))
        await self._look(client, name, secret)
        self._let_pass(connection, screen)

    def _let_pass(self, connection: int, screen: _Screen) -> None:
        """Hand on what was held back, if the client is still there."""
        if self._screens.pop(connection, None) is not None and not self._closed:
            self._desk.receive(connection, bytes(screen.held), self._now())
            self.turn_soon()

    def filled(self, connection: int, *, full: bool) -> None:
        """A client reads more slowly than it is told, or has caught up."""
        self._desk.fill_up(connection, full=full)
        self.turn_soon()

    def went(self, connection: int) -> None:
        """A connection is gone."""
        self._streams.pop(connection, None)
        screen = self._screens.pop(connection, None)
        if screen is not None and screen.task is not None:
            screen.task.cancel()
        self._desk.disconnected(connection, self._now())
        self.turn_soon()

    def turn_soon(self) -> None:
        """Once for all that this round of the event loop brings."""
        if self._turn_soon is None and not self._closed:
            self._turn_soon = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """A turn that fails is the last one."""
        now = self._now()
        try:
            outgoing = self._answers(now)
            self._sync()
        except Exception as failure:  # noqa: BLE001 - whoever waits for the end gets it
            self.abort(failure)
            return
        for each in outgoing:
            self._carry_out(each)
        self._turn_soon = None
        self._set_timer(now)

    def _answers(self, now: Instant) -> list[WriteConnection | CloseConnection]:
        """Let the application hear what came; what is then to be written."""
        self._desk.wake(now)
        outgoing: list[WriteConnection | CloseConnection] = []
        while effects := self._desk.drain():
            for effect in effects:
                match effect:
                    case FromClient(client, event):
                        self._tell(client, event, now)
                    case WriteConnection() | CloseConnection():
                        outgoing.append(effect)
        return outgoing

    def _tell(self, client: str, event: SessionEvent, now: Instant) -> None:
        if not isinstance(event, Received):
            self._application.changed(client, event, now)
            return
        try:
            _refuse_long_fields(event.message)
            value = read(event.message)
        except BadFix as refusal:
            flaw = refusal.flaw or Flaw(RejectReason.OTHER, None, str(refusal))
            self._desk.refuse(client, event, flaw, now)
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
        due_at = self._desk.deadline()
        loop = asyncio.get_running_loop()
        delay = None if due_at is None else max(due_at - now, 0) / SECOND
        self._turn_later = None if delay is None else loop.call_later(delay, self.turn_soon)


def _refuse_long_fields(message: FixMessage) -> None:
    """What is told of a message repeats some of its fields, and must have room for them."""
    for tag, value in message.pairs:
        if len(value) > FIELD_MAX:
            text = f"field {tag} has {len(value)} bytes; at most {FIELD_MAX} are taken"
            raise BadFix.of(RejectReason.VALUE_INCORRECT, tag, text)


def _text(message: FixMessage, tag: int) -> str:
    return (message.get(tag) or b"").decode("latin-1")


class _Stream(asyncio.Protocol):
    """One connection, as the event loop sees it."""

    def __init__(self, server: FixServer) -> None:
        self._server = server
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._number = self._server.came(transport)

    def data_received(self, data: bytes) -> None:
        self._server.heard(self._number, data)

    def pause_writing(self) -> None:
        self._server.filled(self._number, full=True)

    def resume_writing(self) -> None:
        self._server.filled(self._number, full=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it ended
        self._server.went(self._number)
