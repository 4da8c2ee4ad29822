"""Customers of a web server on real sockets: well-behaved and misbehaving ones."""

import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from fairtape.tape.serialization import decode_batch
from fairtape.web.broadcast import BroadcastLimits
from fairtape.web.server import Running, ServedSite, running
from unit.web.web_values import NOW, Site, numbers_of, payload_of

PATIENCE = 30.0  # seconds, for a machine that is busy with other things
HANDSHAKE = (
    "GET /v1/ticker?{query} HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@contextmanager
def served(site: Site, limits: BroadcastLimits | None = None) -> Iterator[Running]:
    """A server of this site's journal."""
    with running(ServedSite(directory=site.folder, title="test"), limits=limits) as server:
        await_status(server)
        yield server


@contextmanager
def customer(server: Running, query: str = "") -> Iterator[ClientConnection]:
    """A well-behaved customer."""
    mark = "?" if query else ""
    address = f"ws://127.0.0.1:{server.port}/v1/ticker{mark}{query}"
    with connect(address, compression=None, open_timeout=PATIENCE, max_size=None) as connection:
        yield connection


def receive(connection: ClientConnection) -> list[Any]:
    """The next message: the numbers of its trades, or the object that it is."""
    content = connection.recv(timeout=PATIENCE)
    if isinstance(content, bytes):
        return list(numbers_of(decode_batch(content, NOW)[0]))
    received = json.loads(content)
    return [trade["sequence"] for trade in received["trades"]] if received["kind"] == "trades" else [received]


def receive_through(connection: ClientConnection, last: int) -> list[Any]:
    """Everything up to this number."""
    found: list[Any] = []
    while last not in found:
        found += receive(connection)
    return found


def receive_rest(connection: ClientConnection) -> tuple[list[Any], int]:
    """Everything up to the end, and the close code."""
    found: list[Any] = []
    try:
        while True:
            found += receive(connection)
    except ConnectionClosed as closed:
        return found, 0 if closed.rcvd is None else closed.rcvd.code


def kinds(received: list[Any]) -> list[Any]:
    return [each if isinstance(each, int) else each["kind"] for each in received]


def get(server: Running, path: str) -> tuple[int, bytes]:
    """The status and the body of an HTTP response."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def get_json(server: Running, path: str) -> Any:
    return json.loads(get(server, path)[1])


def await_status(server: Running, **expected: Any) -> dict[str, Any]:
    """The server's status, once it has these values."""
    while True:
        status: dict[str, Any] = get_json(server, "/v1/status")
        if all(status.get(name, status["counts"].get(name)) == value for name, value in expected.items()):
            return status


class SlowCustomer:
    """Reads only on request, with a small receive buffer."""

    def __init__(self, port: int, query: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(("127.0.0.1", port))
        self._socket.sendall(HANDSHAKE.format(query=query).encode())
        self._rest = b""
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._socket.recv(1_024)
        self._rest = self._rest.partition(b"\r\n\r\n")[2]

    def close(self) -> None:
        self._socket.close()

    def receive(self) -> tuple[int, bytes]:
        """The next frame: its opcode and its payload; (8, b"") at the end."""
        while (end := _frame_end(self._rest)) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                return 8, b""
            self._rest += data
        frame, self._rest = self._rest[:end], self._rest[end:]
        return payload_of(frame)

    def hang_up(self, *, reset: bool) -> None:
        """Close the socket without closing the WebSocket, in order or by a reset."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        self._socket.sendall(data)

    def pinged_to_death(self) -> bool:
        """Answer no ping until the connection is closed; whether there was one."""
        opcodes: list[int] = []
        try:
            while not opcodes or opcodes[-1] != 8:
                opcodes.append(self.receive()[0])
        except ConnectionError:
            pass
        return 9 in opcodes

    def receive_through(self, last: int) -> list[Any]:
        """Everything up to this number, or to the end."""
        found: list[Any] = []
        while last not in found[-1_024:]:
            opcode, payload = self.receive()
            if opcode == 8:
                return [*found, {"kind": "closed", "code": int.from_bytes(payload[:2], "big")}]
            if opcode == 9:
                continue
            if opcode == 2:
                found += numbers_of(decode_batch(payload, NOW)[0])
            else:
                received = json.loads(payload)
                found += [t["sequence"] for t in received["trades"]] if received["kind"] == "trades" else [received]
        return found


def _frame_end(data: bytes) -> int | None:
    if len(data) < 2:
        return None
    size, at = data[1], 2
    if size >= 126:
        width = 2 if size == 126 else 8
        if len(data) < 2 + width:
            return None
        size, at = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
    return at + size if len(data) >= at + size else None


def make_site(folder: Path, released: int = 0) -> Site:
    site = Site(folder / "journal")
    if released:
        site.release(released)
    return site
