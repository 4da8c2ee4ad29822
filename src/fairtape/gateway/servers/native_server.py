"""The native protocol of a gateway: JSON lines, as the Python client and any line-based program can speak them.

A client logs in and names the last event it received; it then receives every later one in order. Its requests are
numbered from 1 in the session that the server names, so a request replayed on this or another connection is refused
before it is read further. Each request gets one answer.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from fairtape.gateway.core.events import EventKind, OrderEvent
from fairtape.gateway.servers.authenticator import BUSY, TOO_OFTEN, LoginAuthenticator
from fairtape.gateway.servers.native_messages import (
    LINE_MAX,
    BadNativeMessage,
    encode_line,
    event_fields,
    parse_line,
    request_of,
)
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.servers.streams import StreamWriter

REQUESTS: Final = ("order", "cancel", "replace")
SESSION_BYTES: Final = 8
EVENTS_AT_ONCE: Final = 512
NEWEST: Final = -1  # an event number: only events from now on


class NativeServer:
    """The native server of one gateway, and its sessions."""

    def __init__(self, gateway: OrderGateway, authenticator: LoginAuthenticator) -> None:
        self.gateway = gateway
        self.authenticator = authenticator
        self._sessions: set[NativeSession] = set()
        gateway.add_listener(self)

    def open_session(self, writer: StreamWriter) -> "NativeSession":
        session = NativeSession(self, writer)
        self._sessions.add(session)
        return session

    def forget(self, session: "NativeSession") -> None:
        self._sessions.discard(session)

    def on_events(self, events: Sequence[OrderEvent]) -> None:
        voided = [event for event in events if event.kind is EventKind.VOIDED]
        for session in list(self._sessions):
            session.void(voided)
            session.writable()

    def on_break(self) -> None:
        for session in list(self._sessions):
            session.on_break()


class NativeSession:
    """The session of one connection."""

    def __init__(self, server: NativeServer, writer: StreamWriter) -> None:
        self._server = server
        self._writer = writer
        self._buffer = bytearray()
        self._login = ""
        self._session = ""
        self._requests = 0
        self._reported = 0
        self._login_check: asyncio.Task[None] | None = None

    # Called by the connection.

    @property
    def logged_in(self) -> bool:
        return bool(self._login)

    def received(self, octets: bytes) -> None:
        """Handle complete lines. An invalid line is answered with the reason, and closes the connection."""
        self._buffer += octets
        answers: list[dict[str, Any]] = []
        try:
            while self._login_check is None and (end := self._buffer.find(b"\n")) >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                if len(line) > LINE_MAX:
                    _refuse_long_line(len(line))
                if (answer := self._handle(parse_line(line))) is not None:
                    answers.append(answer)
            if len(self._buffer) > LINE_MAX and self._login_check is None:
                _refuse_long_line(len(self._buffer))
        except BadNativeMessage as error:
            answers.append({"is": "closed", "reason": str(error)})
        if answers:
            self._server.gateway.sync()
            self._writer.write(b"".join(map(encode_line, answers)))
            if answers[-1]["is"] == "closed":
                self._writer.close()

    def writable(self) -> None:
        """Report events, while the client reads them."""
        if not self._login:
            return
        blotter = self._server.gateway.core.blotter
        scope = self._server.gateway.accounts.scope(self._login)
        while self._reported < blotter.last and self._writer.can_write:
            lines: list[bytes] = []
            if self._reported < blotter.forgotten:
                lines.append(encode_line({"is": "forgotten", "number": blotter.forgotten}))
                self._reported = blotter.forgotten
            through = blotter.last
            for event in blotter.since(self._reported, scope):
                lines.append(encode_line(event_fields(event)))
                if len(lines) >= EVENTS_AT_ONCE:
                    through = event.number
                    break
            self._reported = through
            self._writer.write(b"".join(lines))

    def disconnected(self) -> None:
        if self._login_check is not None:
            self._login_check.cancel()
        self._server.forget(self)

    # Called by the server.

    def void(self, events: Sequence[OrderEvent]) -> None:
        """Report void trades, which have no event numbers."""
        scope = self._server.gateway.accounts.scope(self._login) if self._login else frozenset[str]()
        for event in events:
            if event.account in scope:
                self._writer.write(encode_line(event_fields(event)))

    def on_break(self) -> None:
        """A Break revoked events: tell the client after which number reporting resumes."""
        if self._login:
            blotter = self._server.gateway.core.blotter
            self._reported = min(self._reported, blotter.last)
            self._writer.write(encode_line({"is": "broken", "era": blotter.era, "number": self._reported}))
            self.writable()

    def _handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        do = message.get("do")
        if do == "login" and not self._login:
            self._writer.pause()
            self._login_check = asyncio.get_running_loop().create_task(self._check_login(message))
            return None
        if do == "ping":
            return {"is": "pong"}
        if do in REQUESTS and self._login:
            return self._handle_request(message)
        raise BadNativeMessage(
            f"do is {do!r}; {'give order, cancel, replace or ping' if self._login else 'log in first'}"
        )

    def _handle_request(self, message: dict[str, Any]) -> dict[str, Any]:
        number = message.get("request")
        if message.get("session") != self._session or number != self._requests + 1:
            raise BadNativeMessage(
                f"request is {number!r} of session {message.get('session')!r}; "
                f"expected {self._requests + 1} of {self._session!r}: it is a replay, or one is missing"
            )
        self._requests += 1
        try:
            request = request_of(message, self._login)
        except BadNativeMessage as error:
            return {"is": "refused", "request": number, "cause": "value", "reason": str(error)}
        answer = self._server.gateway.submit(self._login, request)
        if answer.cause is not None:
            return {"is": "refused", "request": number, "cause": answer.cause.value, "reason": answer.reason}
        return {"is": "accepted", "request": number}

    async def _check_login(self, message: dict[str, Any]) -> None:
        """Accept or refuse a login; lines received meanwhile are handled afterwards."""
        name, secret = message.get("login"), message.get("password")
        era, number = message.get("era", 0), message.get("after", NEWEST)
        reason: str | None = "login and password must be text, era and after whole numbers"
        if isinstance(name, str) and isinstance(secret, str) and type(era) is int and type(number) is int:
            reason = await self._server.authenticator.refusal(name, secret)
        self._login_check = None
        if reason is not None:
            cause = "busy" if reason in (BUSY, TOO_OFTEN) else "login"
            self._writer.write(encode_line({"is": "closed", "cause": cause, "reason": reason}))
            self._writer.close()
            return
        assert isinstance(name, str)
        self._admit(name, era, number)
        self._writer.resume()
        self.received(b"")

    def _admit(self, name: str, era: int, number: int) -> None:
        gateway = self._server.gateway
        blotter = gateway.core.blotter
        self._login, self._session = name, secrets.token_hex(SESSION_BYTES)
        self._reported = blotter.last if number == NEWEST else min(blotter.resume_after(era, number), blotter.last)
        welcome = {
            "is": "welcome",
            "session": self._session,
            "accounts": sorted(gateway.accounts.scope(name)),
            "era": blotter.era,
            "number": self._reported,
        }
        self._writer.write(encode_line(welcome))
        self.writable()


def _refuse_long_line(size: int) -> NoReturn:
    raise BadNativeMessage(f"a line has {size} bytes; at most {LINE_MAX} are allowed")
