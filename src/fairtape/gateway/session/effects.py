"""What a FIX session asks of the world, and what it tells the application."""

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
    """A message for the application. Each number comes once, and in order."""

    message: FixMessage
    number: int
    repeated: bool  # PossDupFlag: the number may have been sent before, to an earlier connection
    resent: bool  # PossResend: the contents may have been sent before, under another number


@dataclass(frozen=True, slots=True)
class MessageRejected:
    """The other side does not take a message of ours: a Reject (3). Nothing in FIX repairs that, so a person should."""

    message: FixMessage


@dataclass(frozen=True, slots=True)
class LoggedOn:
    """Both sides have logged on."""


@dataclass(frozen=True, slots=True)
class LoggedOff:
    """The session is over for now; its numbers go on."""

    reason: str


SessionEvent: TypeAlias = Received | MessageRejected | LoggedOn | LoggedOff
SessionEffect: TypeAlias = Transmit | Disconnect | SessionEvent


@dataclass(frozen=True, slots=True)
class FromClient:
    """What happened in the session of one client."""

    client: str  # its CompID
    event: SessionEvent


AcceptorEffect: TypeAlias = WriteConnection | CloseConnection | FromClient
