"""TCP servers with limits, in one event loop, with or without TLS.

The number of connections is limited. A connection is closed if its client does not log in in time, is silent for too
long, or does not read. A session that writes much checks `can_write`; `writable` is called when there is space again.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from fairtape.core.addresses import Address
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration

# TLS: one certificate and key for FIX, OUCH and the native protocol.

HANDSHAKE_DELAY: Final[Duration] = 10 * SECOND  # for the TLS handshake
_NO_PASSPHRASE: Final = ""


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """The TLS context of a server. Raises `UserError` naming the file that cannot be used.

    A gateway restarts unattended, so a key with a passphrase is refused.
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
            f"cert_file is {str(cert_file)!r} and key_file {str(key_file)!r}, which do not match ({why});"
            " give a certificate in PEM and its key without a passphrase"
        ) from None
    return context


BACKLOG: Final = 128
CONNECTIONS_MAX: Final = 1_024
BUFFER_HIGH: Final = 256 << 10  # bytes buffered for one client, above which a session should wait
BUFFER_MAX: Final = 4 << 20  # above which the client is disconnected
LOGIN_DELAY: Final[Duration] = 10 * SECOND
SILENCE_MAX: Final[Duration] = 60 * SECOND


class StreamSession(Protocol):
    """The server's side of one connection."""

    @property
    def logged_in(self) -> bool:
        """Whether the client has logged in."""

    def received(self, octets: bytes) -> None:
        """The client sent these bytes."""

    def writable(self) -> None:
        """The write buffer has space again."""

    def disconnected(self) -> None:
        """The connection is closed."""


class StreamWriter:
    """Writes to one connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFER_HIGH)

    @property
    def can_write(self) -> bool:
        return not self._transport.is_closing() and self._transport.get_write_buffer_size() < BUFFER_HIGH

    def write(self, octets: bytes) -> None:
        """Send bytes; a client that leaves too many unread is disconnected."""
        if not self._transport.is_closing():
            self._transport.write(octets)
            if self._transport.get_write_buffer_size() > BUFFER_MAX:
                self._transport.abort()

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection after what was written."""
        self._transport.close()


OpenSession: TypeAlias = Callable[[StreamWriter], StreamSession]


class StreamServer:
    """Listens at one address."""

    def __init__(
        self,
        name: str,
        open_session: OpenSession,
        *,
        connections_max: int = CONNECTIONS_MAX,
        login_delay: Duration = LOGIN_DELAY,
        silence_max: Duration = SILENCE_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.refused = 0
        self.half_open = 0
        self.silent = 0
        self.connections: set[_StreamProtocol] = set()
        self.connections_max = connections_max
        self.login_delay = login_delay
        self.silence_max = silence_max
        self.open_session = open_session
        self._name = name
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> Address:
        """Listen, and return the bound address. Raises `UserError` if it cannot be bound."""
        loop = asyncio.get_running_loop()
        try:
            make = lambda: _StreamProtocol(self)  # noqa: E731 - the protocol factory of asyncio
            self._server = await loop.create_server(make, host, port, backlog=BACKLOG, **tls_arguments(self._tls))
        except OSError as error:
            raise bind_error(self._name, host, port, error) from None
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    def close(self) -> None:
        """Close all connections, without waiting."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()


def tls_arguments(tls: ssl.SSLContext | None) -> dict[str, Any]:
    """The TLS arguments of `create_server`."""
    return {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_DELAY / SECOND}


def bind_error(name: str, host: str, port: int, error: OSError) -> UserError:
    """The error for an address. asyncio repeats the address before the reason."""
    why = (error.strerror or str(error)).rpartition(": ")[2]
    return UserError(f"{name} is {host}:{port}, which cannot be bound ({why}); choose another address")


class _StreamProtocol(asyncio.Protocol):
    """The asyncio protocol of one connection."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._session: StreamSession | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        server = self._server
        if len(server.connections) >= server.connections_max:
            server.refused += 1
            transport.abort()
            return
        server.connections.add(self)
        self._session = server.open_session(StreamWriter(transport))
        self._wait(server.login_delay)

    def data_received(self, data: bytes) -> None:
        if self._session is not None:
            self._received = True
            self._session.received(data)

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.writable()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.disconnected()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _wait(self, period: Duration) -> None:
        self._received = False
        self._timer = asyncio.get_running_loop().call_later(period / SECOND, self._check_idle)

    def _check_idle(self) -> None:
        assert self._session is not None
        if not self._session.logged_in:
            self._server.half_open += 1
            self.close()
        elif not self._received:
            self._server.silent += 1
            self.close()
        else:
            self._wait(self._server.silence_max)
