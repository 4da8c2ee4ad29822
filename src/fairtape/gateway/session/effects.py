"""Effects of a FIX session: for its driver, and for the application."""

from dataclasses import dataclass
from typing import TypeAlias

from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.formats.fix.codec import FixMessage


@dataclass(frozen=True, slots=True)
class Transmit:
    """Write these bytes, once the store is durable."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection, after what was written to it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """A message for the application. Each number is passed on once, in order."""

    message: FixMessage
    number: int
    repeated: bool  # PossDupFlag: this number may have been sent before, on an earlier connection
    resent: bool  # PossResend: this content may have been sent before, under another number


@dataclass(frozen=True, slots=True)
class MessageRejected:
    """The other side rejected a message of ours: a Reject (3). FIX has no repair for that, so an operator must act."""

    message: FixMessage


@dataclass(frozen=True, slots=True)
class LoggedOn:
    """Both sides have logged on."""


@dataclass(frozen=True, slots=True)
class LoggedOff:
    """The session is disconnected; its numbers continue."""

    reason: str


FixEvent: TypeAlias = Received | MessageRejected | LoggedOn | LoggedOff
FixEffect: TypeAlias = Transmit | Disconnect | FixEvent


@dataclass(frozen=True, slots=True)
class FromClient:
    """An event in the session of one client."""

    client: str  # its CompID
    event: FixEvent


AcceptorEffect: TypeAlias = WriteConnection | CloseConnection | FromClient
