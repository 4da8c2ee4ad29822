"""An HTTP client of etcd's JSON gateway: one transaction at a time, over persistent connections, with failover.

A transaction that writes is sent at most once, because a lost request cannot be distinguished from a lost response.
Another endpoint is tried only where nothing can have been sent, or where the transaction only reads. A transaction that
is rejected for lack of a valid login was not carried out, and is sent again after a new login.

Secrets are in files of their own, and files are read when the store is opened: of all machines that share a deployment
file, only those with a reformation server need them.
"""

import json
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from fairtape.core.addresses import find_address
from fairtape.core.errors import UserError

PASSWORD_MAX: Final = 1_024  # bytes
ENDPOINTS_MAX: Final = 16
RESPONSE_SIZE_MAX: Final = 64 << 20

_TXN: Final = "/v3/kv/txn"  # the same since etcd 3.4
_LOGIN: Final = "/v3/auth/authenticate"
_SCHEMES: Final = {"http://": False, "https://": True}
_REJECTED: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_NO_LOGIN: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED)  # the token has expired, or the user is unknown
NO_ANSWER: Final = "no etcd answers; start one there, version 3.4 or newer, or correct http or https in store.url"

BAD_ANSWER: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Raised by reading an unexpected answer: another program may listen at etcd's port."""

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """Certificates and the login for etcd; by default none. The names are those of the deployment file."""

    ca_file: Path | None = None  # the authority of the cluster's certificate; None: those that this machine trusts
    cert_file: Path | None = None  # a client certificate, for a cluster that requires one
    key_file: Path | None = None
    user: str = ""
    password_file: Path | None = None

    @property
    def wants_tls(self) -> bool:
        """Whether it applies only to `https`."""
        return self.ca_file is not None or self.cert_file is not None

    def context(self) -> ssl.SSLContext:
        """The TLS context; a `UserError` names a file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise _unusable("ca_file", self.ca_file, error, "the certificate of an authority") from None
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, password=_no_passphrase)
            except FileNotFoundError as error:
                missing = "key_file" if self.cert_file.exists() else "cert_file"
                raise _unusable(missing, getattr(self, missing), error, "a certificate or its key") from None
            except (OSError, ssl.SSLError, ValueError) as error:
                raise _unusable("cert_file", self.cert_file, error, "a certificate that store.key_file fits") from None
        return context

    def password(self) -> str:
        """The first line of the password file."""
        path = self.password_file
        assert path is not None
        try:
            with path.open("rb") as file:
                lines = file.read(PASSWORD_MAX).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable("password_file", path, error, "a password") from None
        if not lines or not lines[0]:
            raise UserError(
                f"store.password_file is {str(path)!r}, which is empty; write the password in its first line"
            )
        return lines[0]


OPEN: Final = EtcdAccess()  # no certificates and no login


def _no_passphrase() -> str:
    """Never prompt for a passphrase."""
    raise ValueError("the key is encrypted")


def _unusable(field: str, path: Path | None, error: Exception, wanted: str) -> UserError:
    why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    why = getattr(error, "reason", None) or why
    return UserError(f"store.{field} is {str(path)!r}, which cannot be used ({why}); name a file with {wanted}")


class EtcdEndpoint(NamedTuple):
    """The client address of a member of the cluster."""

    host: str
    port: int
    secure: bool = False  # by TLS


class Unreachable(Exception):
    """No endpoint gave a valid answer. A transaction that writes may have been carried out.

    The message says what is wrong with the last endpoint, and the remedy.
    """


class RequestRejected(HTTPException):
    """An endpoint rejected a request without carrying it out."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class EtcdHttpClient:
    """A client of all endpoints of a cluster. The endpoint that answered last is tried first."""

    def __init__(self, endpoints: Sequence[EtcdEndpoint], *, timeout: float, access: EtcdAccess) -> None:
        """Each endpoint has `timeout` seconds for a whole answer, however slowly it arrives."""
        assert 0 < len(endpoints) <= ENDPOINTS_MAX
        self._connections = deque(_Connection(endpoint, timeout, access) for endpoint in endpoints)

    def transact(self, transaction: Json, *, only_reads: bool) -> Json:
        """The answer to one transaction, from the first endpoint that gives one."""
        body = json.dumps(transaction).encode()
        failure: Exception | None = None
        for _ in range(len(self._connections)):
            connection = self._connections[0]
            try:
                connection.open()
            except (OSError, HTTPException, *BAD_ANSWER) as error:  # the last: an impossible host name
                failure = error
                self._connections.rotate(-1)
                continue
            try:
                return connection.transact(body)
            except (OSError, HTTPException, *BAD_ANSWER) as error:
                failure = error
                self._connections.rotate(-1)
                if not only_reads and not isinstance(error, RequestRejected):
                    break
        raise Unreachable(_remedy(failure))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class _Connection:
    """The persistent connection to one endpoint."""

    def __init__(self, endpoint: EtcdEndpoint, timeout: float, access: EtcdAccess) -> None:
        self._connection: HTTPConnection
        if endpoint.secure:
            context = access.context()
            self._connection = HTTPSConnection(endpoint.host, endpoint.port, timeout=timeout, context=context)
        else:
            self._connection = HTTPConnection(endpoint.host, endpoint.port, timeout=timeout)
        self._timeout = timeout
        self._login = {"name": access.user, "password": access.password()} if access.user else None
        self._token: str | None = None  # from the last login; it expires when it is not used

    def open(self) -> None:
        """Connect and log in, if necessary. Where this fails, no transaction has been sent."""
        connection = self._connection
        if connection.sock is not None and _has_ended(connection.sock):
            connection.close()
        if connection.sock is None:
            connection.connect()
        if self._login is not None and self._token is None:
            self._log_in()

    def transact(self, body: bytes) -> Json:
        """Send a transaction, which is carried out at most once; its answer."""
        try:
            return self._ask(_TXN, body)
        except RequestRejected as rejection:
            if self._login is None or rejection.status not in _NO_LOGIN:
                raise
        self._connection.connect()
        self._log_in()
        return self._ask(_TXN, body)

    def _log_in(self) -> None:
        self._token = None
        token = self._ask(_LOGIN, json.dumps(self._login).encode())["token"]
        if not isinstance(token, str):
            raise TypeError("no token")
        self._token = token

    def _ask(self, path: str, body: bytes) -> Json:
        """Send once and read the answer, or close the connection: a late answer would be taken for the next one's."""
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = self._token
        try:
            with self._bounded():
                self._connection.request("POST", path, body, headers)
                return _read(self._connection.getresponse())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Limit the time of a whole exchange; a socket's own timeout restarts with every byte."""
        watchdog = threading.Timer(self._timeout, _shut_down, (self._connection.sock,))
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()


def _read(response: HTTPResponse) -> Json:
    content = response.read(RESPONSE_SIZE_MAX)
    if response.status in _REJECTED:
        raise RequestRejected(response.status, f"status {response.status}")
    if response.status != HTTPStatus.OK:
        raise HTTPException(f"status {response.status}")
    if not response.isclosed():
        raise HTTPException("cut short, or too long")
    answer = json.loads(content)
    if not isinstance(answer, dict):
        raise TypeError("no JSON object")
    return answer


def _has_ended(connection: socket.socket) -> bool:
    """Whether the peer has closed the connection, or sent something without a request."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        # Not the method of an SSL socket, which would unwrap TLS while another thread reads from it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _remedy(error: Exception | None) -> str:
    """What is wrong with an endpoint, and the remedy."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"the certificate is not trusted ({error.verify_message}); name its authority as store.ca_file"
        case ssl.SSLError():
            return f"TLS fails ({error.reason}); correct store.url, or store.cert_file and store.key_file"
        case RequestRejected(status=HTTPStatus.FORBIDDEN):
            return "store.user may not write; grant it a role that reads and writes the keys under the prefix"
        case RequestRejected(status=HTTPStatus.BAD_REQUEST | HTTPStatus.UNAUTHORIZED):
            return "the login is rejected; correct store.url (http or https), store.user or store.password_file"
    return NO_ANSWER


def endpoints_of(place: str) -> tuple[list[EtcdEndpoint], str]:
    """The endpoints and the prefix of `http[s]://HOST:PORT[,HOST:PORT…]/PREFIX`."""
    url = f"etcd:{place}"
    scheme = next((scheme for scheme in _SCHEMES if place.startswith(scheme)), None)
    hosts, _, prefix = place.removeprefix(scheme or "").partition("/")
    prefix = prefix.strip("/")
    if scheme is None or not prefix:
        raise UserError(
            f"store is {url!r}; give etcd:http://HOST:PORT/PREFIX, or https, several HOST:PORT with commas between"
        )
    endpoints = [_endpoint(host, url, secure=_SCHEMES[scheme]) for host in hosts.split(",")]
    if len(endpoints) > ENDPOINTS_MAX:
        raise UserError(f"store is {url!r}, which has {len(endpoints)} endpoints; give at most {ENDPOINTS_MAX}")
    return endpoints, prefix


def _endpoint(place: str, url: str, *, secure: bool) -> EtcdEndpoint:
    address = find_address(place)
    if address is None or any(character in place for character in "@?#"):
        raise UserError(f"store is {url!r}, in which {place!r} is no endpoint; give HOST:PORT, such as 127.0.0.1:2379")
    return EtcdEndpoint(*address, secure)
