"""A customer of a retransmit server's replay port: SoupBinTCP, one login for each range of numbers.

Sequenced messages carry no number: both sides count. So a range is complete when as many messages came as it has
numbers, and not before; a server that goes away in the middle is asked again from the number that is due, and where it
stays away, a sentence says at which number. Nothing is ever left out in silence.
"""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from fairtape.core.addresses import Address
from fairtape.core.errors import UserError
from fairtape.formats import soupbintcp as soup

CONNECT_SECONDS_MAX: Final = 5.0
SILENCE_SECONDS_MAX: Final = 10.0  # a server says every second that it lives
HEARTBEAT_SECONDS: Final = 1.0
TRIES_MAX: Final = 5  # in a row that bring nothing; a server may be short of connections, or be started again
PAUSE_SECONDS: Final = 0.5  # between two of them
READ_MAX: Final = 256 << 10  # bytes
_RANGE: Final = struct.Struct(">cQ")


class ServerGone(Exception):
    """The server is away, or ended the stream; it may be back in a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayClient:
    """Who asks whom. Travels to executors."""

    address: Address
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def present(self, stripe: str) -> str | None:
        """The session that a stripe (three characters, as sessions name it) is in; None where there is none."""
        for time_of_day in ("235959", "000000"):  # the server looks for a message near it, and any will do
            accepted = self._answer(f"{stripe}@{time_of_day}", 1)
            if accepted is not None:
                return accepted.session
        return None

    def following(self, session: str) -> int | None:
        """The number behind the last message that was released; None where the server knows no such session."""
        accepted = self._answer(session, 0)
        return None if accepted is None else accepted.number

    def messages(self, session: str, first: int, last: int) -> Iterator[list[bytes]]:
        """The messages with these numbers, in their order, all of them or a `UserError`."""
        due, tries = first, 0
        while due <= last:
            try:
                for messages in self._range(session, due, last):
                    due += len(messages)
                    tries = 0
                    yield messages
            except ServerGone as reason:
                tries += 1
                if tries == TRIES_MAX:
                    raise UserError(
                        f"replay {self} went away before message {due} of session {session} ({reason}), and {last} is "
                        "the last that is wanted; see that the server runs, and read again"
                    ) from None
                time.sleep(PAUSE_SECONDS)

    def _answer(self, session: str, number: int) -> soup.LoginAccepted | None:
        """What a login is answered with; None where there is no such session."""
        for tries in range(1, TRIES_MAX + 1):
            try:
                with self._connected() as stream:
                    return stream.login(session, number)
            except ServerGone as reason:
                if tries == TRIES_MAX:
                    raise UserError(
                        f"replay {self} does not answer ({reason}); see that a retransmit server runs there"
                    ) from None
                time.sleep(PAUSE_SECONDS)
        raise AssertionError

    def _range(self, session: str, first: int, last: int) -> Iterator[list[bytes]]:
        with self._connected() as stream:
            accepted = stream.login(session, first, last)
            if accepted is None:
                raise ServerGone("it knows no such session and number")
            if (accepted.session, accepted.number) != (session, first):
                raise UserError(
                    f"replay {self} answers with message {accepted.number} of session {accepted.session}, and message "
                    f"{first} of {session} was asked for; is it a retransmit server of fairtape?"
                )
            left = last + 1 - first
            while left:
                messages = stream.messages()[:left]  # some may be on their way before the server hears of the end
                left -= len(messages)
                yield messages

    @contextmanager
    def _connected(self) -> "Iterator[_Stream]":
        try:
            connection = socket.create_connection(self.address, CONNECT_SECONDS_MAX)
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None
        with connection:
            connection.settimeout(SILENCE_SECONDS_MAX)
            yield _Stream(connection, self)


class _Stream:
    """One connection."""

    def __init__(self, connection: socket.socket, replay: ReplayClient) -> None:
        self._connection = connection
        self._replay = replay
        self._packets = soup.SoupStream(allowed=soup.FROM_SERVER)
        self._early: list[soup.Packet] = []  # came together with the answer to the login
        self._spoke_at = time.monotonic()

    def login(self, session: str, number: int, last: int | None = None) -> soup.LoginAccepted | None:
        """The server's yes; None where it knows no such session or number."""
        request = soup.LoginRequest(self._replay.user, self._replay.password, session, number)
        self._send(request, *(() if last is None else (soup.UnsequencedData(_RANGE.pack(b"E", last)),)))
        while True:
            packets = self._received()
            for place, packet in enumerate(packets, 1):
                match packet:
                    case soup.LoginAccepted():
                        self._early = packets[place:]
                        return packet
                    case soup.LoginRejected("A"):
                        raise UserError(
                            f"replay {self._replay} does not let user {self._replay.user!r} in; give its user and "
                            "password"
                        )
                    case soup.LoginRejected():
                        return None

    def messages(self) -> list[bytes]:
        """The next messages, at least one."""
        found: list[bytes] = []
        while not found:
            packets, self._early = self._early or self._received(), []
            found = [packet.message for packet in packets if isinstance(packet, soup.SequencedData)]
            if not found and any(isinstance(packet, soup.EndOfSession) for packet in packets):
                raise ServerGone("it says that the session ends before")
        return found

    def _send(self, *packets: soup.Packet) -> None:
        self._spoke_at = time.monotonic()
        try:
            self._connection.sendall(b"".join(map(soup.encode, packets)))
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None

    def _received(self) -> list[soup.Packet]:
        """What comes next; nothing where it is the beginning of a packet. Says that we live, when it is time."""
        if time.monotonic() >= self._spoke_at + HEARTBEAT_SECONDS:
            self._send(soup.ClientHeartbeat())
        try:
            octets = self._connection.recv(READ_MAX)
        except TimeoutError:
            raise ServerGone(f"it was silent for {SILENCE_SECONDS_MAX:.0f} s") from None
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None
        if not octets:
            raise ServerGone("it closed the connection")
        try:
            return self._packets.feed(octets)
        except soup.BadSoup as refusal:
            raise UserError(f"replay {self._replay} speaks no SoupBinTCP ({refusal}); name its replay port") from None
