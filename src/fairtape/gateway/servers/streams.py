"""TCP connections with limits, for servers that talk in one event loop.

A server has room for so many connections. One that does not log in in time, says nothing for too long, or does not
read what it is sent, is closed; nobody else notices. What a conversation wants to write while its client is slow it
writes later: `can_write` says whether there is room, and `writable` when there is again.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from fairtape.core.addresses import Address, format_address
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration

# TLS for the doors of a gateway: one certificate and key, for FIX, OUCH and the native protocol alike.

HANDSHAKE_DELAY: Final[Duration] = 10 * SECOND  # within which a client must have agreed on keys
_NO_PASSPHRASE: Final = ""


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """What a server proves itself with. A `UserError` names the file that cannot serve.

    Nobody is there to be asked for a passphrase when a gateway starts again, so a key that needs one is refused.
    """
    for field, path in (("cert_file", cert_file), ("key_file", key_file)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise UserError(f"{field} is {str(path)!r}, which cannot be read ({error.strerror}); correct it") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert_file, key_file, password=_NO_PASSPHRASE)
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise UserError(
            f"cert_file is {str(cert_file)!r} and key_file {str(key_file)!r}, which do not go together ({why});"
            " give a certificate in PEM and its key without a passphrase"
        ) from None
    return context


BACKLOG: Final = 128
CONNECTIONS_MAX: Final = 1_024
BUFFER_HIGH: Final = 256 << 10  # bytes on their way to one client, from which on it is waited for
BUFFER_MAX: Final = 4 << 20  # and from which on it is let go
LOGIN_DELAY: Final[Duration] = 10 * SECOND
SILENCE_MAX: Final[Duration] = 60 * SECOND


class StreamSession(Protocol):
    """What one server says to one client."""

    @property
    def welcome(self) -> bool:
        """Whether the client has logged in."""

    def heard(self, octets: bytes) -> None:
        """The client sent these bytes."""

    def writable(self) -> None:
        """There is room again for what had to wait."""

    def ended(self) -> None:
        """The client is gone."""


class StreamWriter:
    """One connection, as a conversation sees it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFER_HIGH)

    @property
    def can_write(self) -> bool:
        """Whether more should be written now."""
        return not self._transport.is_closing() and self._transport.get_write_buffer_size() < BUFFER_HIGH

    def write(self, octets: bytes) -> None:
        """Send bytes; a client that has left far too many unread is let go."""
        if not self._transport.is_closing():
            self._transport.write(octets)
            if self._transport.get_write_buffer_size() > BUFFER_MAX:
                self._transport.abort()

    def pause(self) -> None:
        """Hear nothing for a while."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Hear again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Say goodbye, behind what was written."""
        self._transport.close()


Converse: TypeAlias = Callable[[StreamWriter], StreamSession]


class StreamServer:
    """Listens at one address."""

    def __init__(
        self,
        name: str,
        converse: Converse,
        *,
        connections_max: int = CONNECTIONS_MAX,
        login_delay: Duration = LOGIN_DELAY,
        silence_max: Duration = SILENCE_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.turned_away = 0
        self.half_open = 0
        self.silent = 0
        self.connections: set[_Connection] = set()
        self.connections_max = connections_max
        self.login_delay = login_delay
        self.silence_max = silence_max
        self.converse = converse
        self._name = name
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> Address:
        """Listen; the answer is where. A `UserError` where nothing can listen there."""
        loop = asyncio.get_running_loop()
        try:
            make = lambda: _Connection(self)  # noqa: E731 - what the event loop asks for
            self._server = await loop.create_server(make, host, port, backlog=BACKLOG, **secured(self._tls))
        except OSError as error:
            raise nowhere(self._name, host, port, error) from None
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    def close(self) -> None:
        """Say goodbye to everybody, and wait for nobody."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()


def secured(tls: ssl.SSLContext | None) -> dict[str, Any]:
    """What an event loop wants to be told of TLS. Whoever does not agree on keys in time is let go."""
    return {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_DELAY / SECOND}


def nowhere(name: str, host: str, port: int, error: OSError) -> UserError:
    """The sentence about an address. asyncio repeats the address before the reason."""
    why = (error.strerror or str(error)).rpartition(": ")[2]
    return UserError(
        f"{name} is {format_address((host, port))}, where nothing can listen ({why}); choose another address"
    )


class _Connection(asyncio.Protocol):
    """One connection, as the event loop sees it."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._conversation: StreamSession | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        server = self._server
        if len(server.connections) >= server.connections_max:
            server.turned_away += 1
            transport.abort()
            return
        server.connections.add(self)
        self._conversation = server.converse(StreamWriter(transport))
        self._wait(server.login_delay)

    def data_received(self, data: bytes) -> None:
        if self._conversation is not None:
            self._heard = True
            self._conversation.heard(data)

    def resume_writing(self) -> None:
        if self._conversation is not None:
            self._conversation.writable()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it ended
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._conversation is not None:
            self._conversation.ended()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _wait(self, period: Duration) -> None:
        self._heard = False
        self._timer = asyncio.get_running_loop().call_later(period / SECOND, self._look)

    def _look(self) -> None:
        assert self._conversation is not None
        if not self._conversation.welcome:
            self._server.half_open += 1
            self.close()
        elif not self._heard:
            self._server.silent += 1
            self.close()
        else:
            self._wait(self._server.silence_max)
