"""etcd's JSON gateway: one transaction at a time over connections that stay open, to whichever endpoint answers.

A transaction that changes something is carried out at most once, for nobody can tell a change that was lost from a
change whose answer was lost: another endpoint is tried only where nothing can have been sent, or where nothing is
changed. One that is turned away for lack of a valid login was not carried out, and is sent again after a new one.
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

# What a cluster of etcd may want of those who ask it: a certificate, a user and a password; and whom they trust.
#
# Everything secret stands in files of its own, and a file is looked at when the store is opened: of all machines that
# share a deployment file, only those with a reformation server need to have them.

PASSWORD_MAX: Final = 1_024  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """The way into a store of etcd; by default anybody's. The names are those of the deployment file."""

    ca_file: Path | None = None  # who vouches for the cluster; None: the authorities that this machine trusts
    cert_file: Path | None = None  # who we are, to a cluster that wants certificates of its clients
    key_file: Path | None = None
    user: str = ""
    password_file: Path | None = None

    @property
    def wants_tls(self) -> bool:
        """Whether it makes sense only with `https`."""
        return self.ca_file is not None or self.cert_file is not None

    def context(self) -> ssl.SSLContext:
        """What TLS needs; a `UserError` names the file that is no good."""
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
        """The first line of its file."""
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


OPEN: Final = EtcdAccess()  # a store that wants nothing of anybody


def _no_passphrase() -> str:
    """Nobody is there to be asked for one."""
    raise ValueError("the key is encrypted")


def _unusable(field: str, path: Path | None, error: Exception, wanted: str) -> UserError:
    why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    why = getattr(error, "reason", None) or why
    return UserError(f"store.{field} is {str(path)!r}, which cannot be used ({why}); name a file with {wanted}")


ENDPOINTS_MAX: Final = 16
RESPONSE_SIZE_MAX: Final = 64 << 20

_TXN: Final = "/v3/kv/txn"  # the same since etcd 3.4
_LOGIN: Final = "/v3/auth/authenticate"
_SCHEMES: Final = {"http://": False, "https://": True}
_TURNED_AWAY: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_NO_LOGIN: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED)  # what a login gets that is old, or of nobody
NO_ANSWER: Final = "no etcd answers; start one there, version 3.4 or newer, or correct http or https in store.url"

NONSENSE: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading an answer of another shape can raise: another program may listen where etcd was expected."""

Json: TypeAlias = Mapping[str, Any]


class EtcdEndpoint(NamedTuple):
    """Where a member of the cluster listens to clients."""

    host: str
    port: int
    secure: bool = False  # by TLS


class Unreachable(Exception):
    """No endpoint gave an answer that makes sense; a transaction that changes something may have been carried out.

    The message says what is wrong with the last endpoint, and what to do about it.
    """


class RequestRejected(HTTPException):
    """An endpoint carried out nothing, and says so."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class EtcdHttpClient:
    """A cluster, seen as one. The endpoint that answered last is asked first."""

    def __init__(self, endpoints: Sequence[EtcdEndpoint], *, patience: float, access: EtcdAccess) -> None:
        """Each endpoint gets `patience` seconds to answer, however slowly its bytes come."""
        assert 0 < len(endpoints) <= ENDPOINTS_MAX
        self._lines = deque(_Line(endpoint, patience, access) for endpoint in endpoints)

    def transact(self, transaction: Json, *, only_reads: bool) -> Json:
        """The answer of one endpoint to one transaction."""
        body = json.dumps(transaction).encode()
        trouble: Exception | None = None
        for _ in range(len(self._lines)):
            line = self._lines[0]
            try:
                line.open()
            except (OSError, HTTPException, *NONSENSE) as error:  # the last: a name that cannot be one of a host
                trouble = error
                self._lines.rotate(-1)
                continue
            try:
                return line.transact(body)
            except (OSError, HTTPException, *NONSENSE) as error:
                trouble = error
                self._lines.rotate(-1)
                if not only_reads and not isinstance(error, RequestRejected):
                    break
        raise Unreachable(_remedy(trouble))

    def close(self) -> None:
        """Close every connection."""
        for line in self._lines:
            line.close()


class _Line:
    """One endpoint and the connection to it."""

    def __init__(self, endpoint: EtcdEndpoint, patience: float, access: EtcdAccess) -> None:
        self._connection: HTTPConnection
        if endpoint.secure:
            context = access.context()
            self._connection = HTTPSConnection(endpoint.host, endpoint.port, timeout=patience, context=context)
        else:
            self._connection = HTTPConnection(endpoint.host, endpoint.port, timeout=patience)
        self._patience = patience
        self._login = {"name": access.user, "password": access.password()} if access.user else None
        self._token: str | None = None  # that a login gave us; it grows old when it is not used

    def open(self) -> None:
        """Be connected, and known. No transaction has been sent where this fails."""
        line = self._connection.sock
        if line is not None and _has_ended(line):
            self._connection.close()
        if self._connection.sock is None:
            self._connection.connect()
        if self._login is not None and self._token is None:
            self._log_in()

    def transact(self, body: bytes) -> Json:
        """The answer to a transaction, which is carried out at most once."""
        try:
            return self._ask(_TXN, body)
        except RequestRejected as away:
            if self._login is None or away.status not in _NO_LOGIN:
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
        """Send once and hear the answer, or close the connection: what comes later would answer the wrong question."""
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
    if response.status in _TURNED_AWAY:
        raise RequestRejected(response.status, f"status {response.status}")
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
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # that of TLS would take the line from under whoever reads it


def _remedy(trouble: Exception | None) -> str:
    """What is wrong with an endpoint, and what to do about it."""
    match trouble:
        case ssl.SSLCertVerificationError():
            return f"the certificate is not trusted ({trouble.verify_message}); name its authority as store.ca_file"
        case ssl.SSLError():
            return f"TLS fails ({trouble.reason}); correct store.url, or store.cert_file and store.key_file"
        case RequestRejected(status=HTTPStatus.FORBIDDEN):
            return "store.user may not write; grant it a role that reads and writes the keys under the prefix"
        case RequestRejected(status=HTTPStatus.BAD_REQUEST | HTTPStatus.UNAUTHORIZED):
            return "we are turned away; correct store.url (http or https), store.user or store.password_file"
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
