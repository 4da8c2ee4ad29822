"""The streams of customers who replay: accepted, read and written without ever waiting for one of them."""

import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import NEVER, SECOND, Duration, Instant
from fairtape.edge.protocol.effects import CloseConnection, EdgeEffect, WriteConnection
from fairtape.edge.protocol.replay import ReplayServer
from fairtape.net.udp import Address

BACKLOG: Final = 128
ACCEPTS_MAX: Final = 64  # in one turn
READ_MAX: Final = 4_096  # bytes of one client in one turn: a client has little to say
KERNEL_BUFFER: Final = 256 << 10  # bytes that the kernel is asked to keep for a client: what lies there is not counted
LINGER_PERIOD: Final[Duration] = 2 * SECOND  # for a client to take its last bytes
PAUSE_PERIOD: Final[Duration] = SECOND // 10  # before asking a system again that had no room for one more


@dataclass(slots=True)
class _Client:
    stream: socket.socket
    number: int
    out: bytearray = field(default_factory=bytearray)
    closes_at: Instant = NEVER  # it is shown the door: at this instant at the latest


class ReplayConnections:
    """The listening socket and the streams of one desk, in a selector."""

    def __init__(self, at: Address, desk: ReplayServer, selector: selectors.BaseSelector) -> None:
        """A `UserError` where nothing can listen there."""
        self.refused = 0  # the system had no room for more
        self._desk = desk
        self._selector = selector
        self._clients: dict[int, _Client] = {}
        self._next = 1
        self._listens_again_at: Instant = NEVER  # NEVER: it listens
        host, port = at
        try:
            self._listener = socket.create_server((host, port), backlog=BACKLOG)
        except OSError as error:
            raise UserError(
                f"replays is {host}:{port}, where nothing can listen ({error.strerror}); choose another address"
            ) from None
        self._listener.settimeout(0)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def waiting_bytes(self) -> int:
        """What waits in this process for clients to take it."""
        return sum(len(client.out) for client in self._clients.values())

    @property
    def address(self) -> Address:
        """Where customers connect."""
        host, port = self._listener.getsockname()
        return host, port

    def carry_out(self, effect: EdgeEffect, now: Instant) -> None:
        """Write to a client, or show it the door."""
        match effect:
            case WriteConnection(connection, octets) if connection in self._clients:
                client = self._clients[connection]
                client.out += octets
                self._flush(client, now)
            case CloseConnection(connection, _) if connection in self._clients:
                client = self._clients[connection]
                client.closes_at = now + LINGER_PERIOD
                self._flush(client, now)

    def wake(self, now: Instant) -> None:
        """Whoever does not even take its last bytes is let go; and the door may be opened again."""
        if self._listens_again_at <= now:
            self._listens_again_at = NEVER
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for client in [each for each in self._clients.values() if each.closes_at <= now]:
            self._drop(client)

    def close(self) -> None:
        """Let go of everybody."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listens_again_at == NEVER:
            self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self, _events: int, now: Instant) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                stream, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # whoever knocks stays at the door: to look at once again would only spin
                self.refused += 1
                self._listens_again_at = now + PAUSE_PERIOD
                self._selector.unregister(self._listener)
                return
            stream.settimeout(0)
            with suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
            client = _Client(stream, self._next)
            self._next += 1
            self._clients[client.number] = client
            self._selector.register(stream, selectors.EVENT_READ, self._heeding(client))
            self._desk.connected(client.number, now)

    def _heeding(self, client: _Client) -> Callable[[int, Instant], None]:
        def heed(events: int, now: Instant) -> None:
            if events & selectors.EVENT_READ:
                self._read(client, now)
            if events & selectors.EVENT_WRITE and client.number in self._clients:
                self._flush(client, now)

        return heed

    def _read(self, client: _Client, now: Instant) -> None:
        try:
            octets = client.stream.recv(READ_MAX)
        except BlockingIOError:
            return
        except OSError:
            octets = b""
        if not octets:
            self._drop(client)
        elif client.closes_at == NEVER:
            self._desk.receive(client.number, octets, now)

    def _flush(self, client: _Client, now: Instant) -> None:
        """Write what the network takes, and wait for the rest."""
        if client.out:
            try:
                sent = client.stream.send(client.out)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(client)
                return
            del client.out[:sent]
            self._desk.flushed(client.number, sent, now)
        if not client.out and client.closes_at < NEVER:
            self._drop(client)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.out else 0)
        key = self._selector.get_key(client.stream)
        if key.events != wanted:
            self._selector.modify(client.stream, wanted, key.data)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.number]
        self._selector.unregister(client.stream)
        client.stream.close()
        self._desk.disconnected(client.number)
