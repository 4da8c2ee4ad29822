"""SoupBinTCP 3.00 and 4.00: logical packets in a stream of bytes, with a login that names the first message.

A packet is a length of two bytes, a type letter, and a payload. Sequenced data carries no number: both sides count from
the number in `LoginAccepted`. Version 4.00 adds one field to the login, the client's timeout; a login without it is of
version 3.00.

Names and passwords are padded on the right; sessions and numbers, which are ascii digits, on the left. Sessions are
accepted with padding on either side, because both occur.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from fairtape.core.errors import FormatError
from fairtape.formats.fixed_layout import Text, is_printable

LENGTH_MAX: Final = (1 << 16) - 1  # of what follows the length: the letter and the payload
PAYLOAD_MAX: Final = LENGTH_MAX - 1
NUMBER_MAX: Final = (1 << 64) - 1  # fits the 20 digits of the field, and a sequence number elsewhere
TIMEOUT_MAX_MS: Final = 99_999

USERNAME: Final = Text(6)
PASSWORD: Final = Text(10)
SESSION: Final = Text(10)
_NUMBER_WIDTH: Final = 20
_LOGIN_SIZES: Final = (46, 51)  # of version 3.00, of version 4.00
_PREFIX: Final = struct.Struct(">H")


class BadSoup(FormatError):
    """Bytes that are no SoupBinTCP packet, or values that cannot be encoded."""


@dataclass(frozen=True, slots=True)
class Debug:
    """Text for humans; both sides ignore it."""

    LETTER: ClassVar[str] = "+"
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class LoginAccepted:
    """The server accepts the login."""

    LETTER: ClassVar[str] = "A"
    session: str
    number: int  # of the next sequenced message

    def __post_init__(self) -> None:
        _check_text("session", SESSION, self.session)
        _check_number("number", self.number, 1, NUMBER_MAX)


@dataclass(frozen=True, slots=True)
class LoginRejected:
    """The server rejects the login."""

    LETTER: ClassVar[str] = "J"
    reason: str  # A: not authorised; S: no such session

    def __post_init__(self) -> None:
        if len(self.reason) != 1 or not is_printable(self.reason):
            raise BadSoup(f"reason is {self.reason!r}; it must be one printable ascii character")


@dataclass(frozen=True, slots=True)
class SequencedData:
    """A message of the session; its number is implied."""

    LETTER: ClassVar[str] = "S"
    message: bytes


@dataclass(frozen=True, slots=True)
class UnsequencedData:
    """A message outside the session's sequence."""

    LETTER: ClassVar[str] = "U"
    message: bytes


@dataclass(frozen=True, slots=True)
class ServerHeartbeat:
    """Sent by the server after a second without other packets."""

    LETTER: ClassVar[str] = "H"


@dataclass(frozen=True, slots=True)
class EndOfSession:
    """The session is over."""

    LETTER: ClassVar[str] = "Z"


@dataclass(frozen=True, slots=True)
class LoginRequest:
    """A client's login, with the first message that it wants."""

    LETTER: ClassVar[str] = "L"
    username: str
    password: str
    session: str = ""  # empty: the current one
    number: int = 1  # of the first sequenced message wanted; 0: only new ones
    timeout_ms: int | None = None  # version 4.00: how long the client may be silent

    def __post_init__(self) -> None:
        _check_text("username", USERNAME, self.username)
        _check_text("password", PASSWORD, self.password)
        _check_text("session", SESSION, self.session)
        _check_number("number", self.number, 0, NUMBER_MAX)
        if self.timeout_ms is not None:
            _check_number("timeout_ms", self.timeout_ms, 0, TIMEOUT_MAX_MS)


@dataclass(frozen=True, slots=True)
class ClientHeartbeat:
    """Sent by the client after a second without other packets."""

    LETTER: ClassVar[str] = "R"


@dataclass(frozen=True, slots=True)
class LogoutRequest:
    """The client logs out."""

    LETTER: ClassVar[str] = "O"


Packet: TypeAlias = (
    Debug
    | LoginAccepted
    | LoginRejected
    | SequencedData
    | UnsequencedData
    | ServerHeartbeat
    | EndOfSession
    | LoginRequest
    | ClientHeartbeat
    | LogoutRequest
)

FROM_SERVER: Final = frozenset("+AJSUHZ")
FROM_CLIENT: Final = frozenset("+LURO")


def _check_text(name: str, kind: Text, value: str) -> None:
    if not kind.takes(value) or value.startswith(" "):
        # A password is not repeated: errors end up in logs.
        found = "not" if kind is PASSWORD else f"{value!r}, which is not"
        raise BadSoup(f"{name} is {found} at most {kind.width} printable ascii characters without blanks at the ends")


def _check_number(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadSoup(f"{name} is {value}; it must be from {least} to {most}")


def encode(packet: Packet) -> bytes:
    """The bytes of a packet, with its length."""
    payload = _payload(packet)
    if len(payload) > PAYLOAD_MAX:
        raise BadSoup(f"payload has {len(payload)} bytes; it must have at most {PAYLOAD_MAX}")
    return _PREFIX.pack(1 + len(payload)) + packet.LETTER.encode("ascii") + payload


def _payload(packet: Packet) -> bytes:
    match packet:
        case Debug(text):
            return text
        case SequencedData(message) | UnsequencedData(message):
            return message
        case LoginAccepted(session, number):
            return f"{session:>10}{number:>20}".encode("ascii")
        case LoginRejected(reason):
            return reason.encode("ascii")
        case LoginRequest(username, password, session, number, timeout_ms):
            timeout = "" if timeout_ms is None else f"{timeout_ms:>5}"
            return f"{username:<6}{password:<10}{session:>10}{number:>20}{timeout}".encode("ascii")
        case _:
            return b""


def decode(letter: str, payload: bytes) -> Packet:
    """The packet with this type letter. Raises `BadSoup` where the payload does not match it."""
    if letter not in _READERS:
        raise BadSoup(f"type is {letter!r}; it must be one of {''.join(_READERS)}")
    return _READERS[letter](payload)


def _empty(packet: Packet) -> Callable[[bytes], Packet]:
    def read(payload: bytes) -> Packet:
        _check_size(packet.LETTER, payload, (0,))
        return packet

    return read


def _login_accepted(payload: bytes) -> Packet:
    _check_size(LoginAccepted.LETTER, payload, (SESSION.width + _NUMBER_WIDTH,))
    text = payload.decode("latin-1")
    return LoginAccepted(text[:10].strip(" "), _digits("number", text[10:]))


def _login_rejected(payload: bytes) -> Packet:
    _check_size(LoginRejected.LETTER, payload, (1,))
    return LoginRejected(payload.decode("latin-1"))


def _login_request(payload: bytes) -> Packet:
    _check_size(LoginRequest.LETTER, payload, _LOGIN_SIZES)
    text = payload.decode("latin-1")
    number = _digits("number", text[26:46])
    timeout_ms = _digits("timeout_ms", text[46:]) if text[46:] else None
    return LoginRequest(text[:6].rstrip(" "), text[6:16].rstrip(" "), text[16:26].strip(" "), number, timeout_ms)


def _check_size(letter: str, payload: bytes, sizes: tuple[int, ...]) -> None:
    if len(payload) not in sizes:
        wanted = " or ".join(map(str, sizes))
        raise BadSoup(f"payload of packet {letter} has {len(payload)} bytes; it must have {wanted}")


def _digits(name: str, padded: str) -> int:
    text = padded.strip(" ")
    if not (text.isascii() and text.isdigit()):
        raise BadSoup(f"{name} is {padded!r}; it must be ascii digits, padded with blanks")
    return int(text)


_READERS: Final[Mapping[str, Callable[[bytes], Packet]]] = MappingProxyType(
    {
        "+": Debug,
        "A": _login_accepted,
        "J": _login_rejected,
        "S": SequencedData,
        "U": UnsequencedData,
        "H": _empty(ServerHeartbeat()),
        "Z": _empty(EndOfSession()),
        "L": _login_request,
        "R": _empty(ClientHeartbeat()),
        "O": _empty(LogoutRequest()),
    }
)


class SoupStream:
    """The packets in one direction of a connection, from chunks of any size.

    `allowed` are the letters of that direction. A length beyond `payload_max` is refused at once, without buffering, so
    at most one packet is kept. After a refusal the start of the next packet is unknown: the connection must be closed,
    and all further bytes are refused.
    """

    def __init__(self, *, allowed: frozenset[str], payload_max: int = PAYLOAD_MAX) -> None:
        self._allowed = allowed
        self._payload_max = payload_max
        self._rest = bytearray()
        self._refusal: str | None = None

    def feed(self, octets: bytes) -> list[Packet]:
        """The packets that these bytes complete."""
        if self._refusal is not None:
            raise BadSoup(self._refusal)
        self._rest += octets
        try:
            return self._packets()
        except BadSoup as refusal:
            self._refusal, self._rest = str(refusal), bytearray()
            raise

    def _packets(self) -> list[Packet]:
        packets: list[Packet] = []
        at = 0
        while (start := at + _PREFIX.size) <= len(self._rest):
            (length,) = _PREFIX.unpack_from(self._rest, at)
            if not 1 <= length <= self._payload_max + 1:
                raise BadSoup(f"length is {length}; it must be from 1 to {self._payload_max + 1}")
            letter = self._rest[start : start + 1].decode("latin-1")
            if letter and letter not in self._allowed:
                raise BadSoup(f"type is {letter!r}; from this side it must be one of {''.join(sorted(self._allowed))}")
            if start + length > len(self._rest):
                break
            at = start + length
            packets.append(decode(letter, bytes(self._rest[start + 1 : at])))
        del self._rest[:at]
        return packets
