"""etcd's JSON gateway: one transaction at a time over connections that stay open, to whichever endpoint answers.

A transaction that changes something is sent at most once, for nobody can tell a change that was lost from a change
whose answer was lost: another endpoint is tried only where nothing can have been sent, or where nothing is changed.
"""

import json
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from fairtape.runtime.complaints import Complaint

ENDPOINTS_MAX: Final = 16
RESPONSE_SIZE_MAX: Final = 64 << 20

_TXN: Final = "/v3/kv/txn"  # the same since etcd 3.4
_SCHEME: Final = "http://"

NONSENSE: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading an answer of another shape can raise: another program may listen where etcd was expected."""

Json: TypeAlias = Mapping[str, Any]


class Endpoint(NamedTuple):
    """Where a member of the cluster listens to clients."""

    host: str
    port: int


class Unreachable(Exception):
    """No endpoint gave an answer that makes sense; a transaction that changes something may have been carried out."""


class Gateway:
    """A cluster, seen as one. The endpoint that answered last is asked first."""

    def __init__(self, endpoints: Sequence[Endpoint], *, patience: float) -> None:
        """Each endpoint gets `patience` seconds to answer, however slowly its bytes come."""
        assert 0 < len(endpoints) <= ENDPOINTS_MAX
        self._lines = deque(_Line(endpoint, patience) for endpoint in endpoints)

    def transact(self, transaction: Json, *, only_reads: bool) -> Json:
        """The answer of one endpoint to one transaction."""
        body = json.dumps(transaction).encode()
        for _ in range(len(self._lines)):
            line = self._lines[0]
            try:
                line.open()
            except (OSError, ValueError):  # the second: a name that cannot be one of a host
                self._lines.rotate(-1)
                continue
            try:
                return line.ask(body)
            except (OSError, HTTPException, *NONSENSE):
                self._lines.rotate(-1)
                if not only_reads:
                    raise Unreachable("an endpoint was asked and gave no answer") from None
        raise Unreachable("no endpoint answers")

    def close(self) -> None:
        """Close every connection."""
        for line in self._lines:
            line.close()


class _Line:
    """One endpoint and the connection to it."""

    def __init__(self, endpoint: Endpoint, patience: float) -> None:
        self._connection = HTTPConnection(endpoint.host, endpoint.port, timeout=patience)
        self._patience = patience

    def open(self) -> None:
        """Be connected. Nothing has been sent where this fails."""
        line = self._connection.sock
        if line is not None and _has_ended(line):
            self._connection.close()
        if self._connection.sock is None:
            self._connection.connect()

    def ask(self, body: bytes) -> Json:
        """Send once and hear the answer, or close the connection: what comes later would answer the wrong question."""
        try:
            with self._bounded():
                self._connection.request("POST", _TXN, body, {"Content-Type": "application/json"})
                return _read(self._connection.getresponse())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """A socket's own timeout begins anew with every byte; this one ends all of it."""
        watchdog = threading.Timer(self._patience, _shut_down, (self._connection.sock,))
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()


def _read(response: HTTPResponse) -> Json:
    content = response.read(RESPONSE_SIZE_MAX)
    if response.status != HTTPStatus.OK:
        raise HTTPException(f"status {response.status}")
    if not response.isclosed():
        raise HTTPException("cut short, or too long")
    answer = json.loads(content)
    if not isinstance(answer, dict):
        raise TypeError("no JSON object")
    return answer


def _has_ended(line: socket.socket) -> bool:
    """Whether the other end has hung up, or says something that nobody asked for."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(0))


def _shut_down(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def endpoints_of(place: str) -> tuple[list[Endpoint], str]:
    """The endpoints and the prefix of `http://HOST:PORT[,HOST:PORT…]/PREFIX`."""
    url = f"etcd:{place}"
    hosts, _, prefix = place.removeprefix(_SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not place.startswith(_SCHEME) or not prefix:
        raise Complaint(f"store is {url!r}; give etcd:http://HOST:PORT/PREFIX, several HOST:PORT with commas between")
    endpoints = [_endpoint(host, url) for host in hosts.split(",")]
    if len(endpoints) > ENDPOINTS_MAX:
        raise Complaint(f"store is {url!r}, which has {len(endpoints)} endpoints; give at most {ENDPOINTS_MAX}")
    return endpoints, prefix


def _endpoint(place: str, url: str) -> Endpoint:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or "@" in place:
        raise Complaint(f"store is {url!r}, in which {place!r} is no endpoint; give HOST:PORT, such as 127.0.0.1:2379")
    return Endpoint(host, port)
