"""A client of a retransmit server's replay port: SoupBinTCP, one login for each range of numbers.

Sequenced messages carry no number: both sides count. A range is complete when as many messages came as it has numbers.
After a disconnection the client logs in again at the next number; when the server stays away, a `UserError` names that
number. No range is ever returned incomplete.
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
SILENCE_SECONDS_MAX: Final = 10.0  # a server sends a heartbeat every second
HEARTBEAT_SECONDS: Final = 1.0
TRIES_MAX: Final = 5  # consecutive tries without a message; a server may be out of connections, or restarting
PAUSE_SECONDS: Final = 0.5  # between two tries
READ_MAX: Final = 256 << 10  # bytes
_RANGE: Final = struct.Struct(">cQ")


class ServerGone(Exception):
    """The server cannot be reached, or closed the stream. A later try may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayClient:
    """A server and the login for it. Sent to executors."""

    address: Address
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def present(self, stripe: str) -> str | None:
        """The present session of a stripe (three characters, as in names of sessions); None where there is none."""
        for time_of_day in ("235959", "000000"):  # the server answers with the session of a message near this time
            accepted = self._answer(f"{stripe}@{time_of_day}", 1)
            if accepted is not None:
                return accepted.session
        return None

    def following(self, session: str) -> int | None:
        """The number after the last released message; None where the server knows no such session."""
        accepted = self._answer(session, 0)
        return None if accepted is None else accepted.number

    def messages(self, session: str, first: int, last: int) -> Iterator[list[bytes]]:
        """The messages with these numbers in order: all of them, or a `UserError`."""
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
                        f"replay {self} closed before message {due} of session {session} ({reason}), and the last "
                        f"wanted message is {last}; check that the server runs, and read again"
                    ) from None
                time.sleep(PAUSE_SECONDS)

    def _answer(self, session: str, number: int) -> soup.LoginAccepted | None:
        """The answer to a login; None where there is no such session."""
        for tries in range(1, TRIES_MAX + 1):
            try:
                with self._connected() as stream:
                    return stream.login(session, number)
            except ServerGone as reason:
                if tries == TRIES_MAX:
                    raise UserError(
                        f"replay {self} does not answer ({reason}); check that a retransmit server runs there"
                    ) from None
                time.sleep(PAUSE_SECONDS)
        raise AssertionError

    def _range(self, session: str, first: int, last: int) -> Iterator[list[bytes]]:
        with self._connected() as stream:
            accepted = stream.login(session, first, last)
            if accepted is None:
                raise ServerGone("unknown session or number")
            if (accepted.session, accepted.number) != (session, first):
                raise UserError(
                    f"replay {self} answers with message {accepted.number} of session {accepted.session}, and message "
                    f"{first} of {session} was requested; is it a retransmit server of fairtape?"
                )
            left = last + 1 - first
            while left:
                messages = stream.messages()[:left]  # the server may send more before it reads the end of the range
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
    def __init__(self, connection: socket.socket, replay: ReplayClient) -> None:
        self._connection = connection
        self._replay = replay
        self._packets = soup.SoupStream(allowed=soup.FROM_SERVER)
        self._early: list[soup.Packet] = []  # received together with the answer to the login
        self._sent_at = time.monotonic()

    def login(self, session: str, number: int, last: int | None = None) -> soup.LoginAccepted | None:
        """The server's acceptance; None where it knows no such session or number."""
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
                            f"replay {self._replay} rejects user {self._replay.user!r}; give the user and password "
                            "of the server"
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
                raise ServerGone("the session ends before it")
        return found

    def _send(self, *packets: soup.Packet) -> None:
        self._sent_at = time.monotonic()
        try:
            self._connection.sendall(b"".join(map(soup.encode, packets)))
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None

    def _received(self) -> list[soup.Packet]:
        """The next packets; none where only a part of a packet came. Sends a heartbeat when one is due."""
        if time.monotonic() >= self._sent_at + HEARTBEAT_SECONDS:
            self._send(soup.ClientHeartbeat())
        try:
            octets = self._connection.recv(READ_MAX)
        except TimeoutError:
            raise ServerGone(f"no data for {SILENCE_SECONDS_MAX:.0f} s") from None
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None
        if not octets:
            raise ServerGone("connection closed")
        try:
            return self._packets.feed(octets)
        except soup.BadSoup as refusal:
            raise UserError(f"replay {self._replay} is not SoupBinTCP ({refusal}); name a replay port") from None
