"""The native protocol of a gateway: JSON lines, spoken by the Python client and by anything that can write a line.

A client logs in, saying which event it heard last, and gets every later one in its order. It asks with numbers that
count from 1 in the session that the server names, so a captured request that is played again in another connection,
or in the same, is refused before anybody looks at it. Each request gets one answer.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final

from fairtape.gateway.core.events import EventKind, OrderEvent
from fairtape.gateway.servers.authenticator import BUSY, TOO_OFTEN, Authenticator
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
NEWEST: Final = -1  # an event number that says: only what comes


class NativeServer:
    """All conversations of one server."""

    def __init__(self, house: OrderGateway, doorman: Authenticator) -> None:
        self.house = house
        self.doorman = doorman
        self._conversations: set[NativeSession] = set()
        house.listen(self)

    def converse(self, line: StreamWriter) -> "NativeSession":
        """Somebody connected."""
        conversation = NativeSession(self, line)
        self._conversations.add(conversation)
        return conversation

    def forget(self, conversation: "NativeSession") -> None:
        """Somebody is gone."""
        self._conversations.discard(conversation)

    def happened(self, events: Sequence[OrderEvent]) -> None:
        """The sequence has proved these."""
        voided = [event for event in events if event.kind is EventKind.VOIDED]
        for conversation in list(self._conversations):
            conversation.void(voided)
            conversation.writable()

    def broke(self) -> None:
        """A Break took events back."""
        for conversation in list(self._conversations):
            conversation.broke()


class NativeSession:
    """One client."""

    def __init__(self, desk: NativeServer, line: StreamWriter) -> None:
        self._desk = desk
        self._line = line
        self._rest = bytearray()
        self._login = ""
        self._session = ""
        self._requests = 0
        self._told = 0
        self._checking: asyncio.Task[None] | None = None

    # As a server sees it.

    @property
    def welcome(self) -> bool:
        """Whether the client has logged in."""
        return bool(self._login)

    def heard(self, octets: bytes) -> None:
        """Take lines; whoever breaks the protocol hears why, and is let go."""
        self._rest += octets
        answers: list[dict[str, Any]] = []
        try:
            while self._checking is None and (end := self._rest.find(b"\n")) >= 0:
                line = bytes(self._rest[:end])
                del self._rest[: end + 1]
                if len(line) > LINE_MAX:
                    raise BadNativeMessage(f"a line has {len(line)} bytes; at most {LINE_MAX} are allowed")  # noqa: TRY301
                if (answer := self._take(parse_line(line))) is not None:
                    answers.append(answer)
            if len(self._rest) > LINE_MAX and self._checking is None:
                raise BadNativeMessage(f"a line has more than {LINE_MAX} bytes")  # noqa: TRY301
        except BadNativeMessage as error:
            answers.append({"is": "closed", "reason": str(error)})
        if answers:
            self._desk.house.sync()
            self._line.write(b"".join(map(encode_line, answers)))
            if answers[-1]["is"] == "closed":
                self._line.close()

    def writable(self) -> None:
        """Tell what has happened, as far as the client reads."""
        if not self._login:
            return
        blotter = self._desk.house.gateway.blotter
        scope = self._desk.house.accounts.scope(self._login)
        while self._told < blotter.last and self._line.can_write:
            lines: list[bytes] = []
            if self._told < blotter.forgotten:
                lines.append(encode_line({"is": "forgotten", "number": blotter.forgotten}))
                self._told = blotter.forgotten
            through = blotter.last
            for event in blotter.since(self._told, scope):
                lines.append(encode_line(event_fields(event)))
                if len(lines) >= EVENTS_AT_ONCE:
                    through = event.number
                    break
            self._told = through
            self._line.write(b"".join(lines))

    def ended(self) -> None:
        """The client is gone."""
        if self._checking is not None:
            self._checking.cancel()
        self._desk.forget(self)

    # What happens elsewhere.

    def void(self, events: Sequence[OrderEvent]) -> None:
        """Trades that never were."""
        scope = self._desk.house.accounts.scope(self._login) if self._login else frozenset[str]()
        for event in events:
            if event.account in scope:
                self._line.write(encode_line(event_fields(event)))

    def broke(self) -> None:
        """A Break took events back: the client forgets them, too."""
        if self._login:
            blotter = self._desk.house.gateway.blotter
            self._told = min(self._told, blotter.last)
            self._line.write(encode_line({"is": "broken", "era": blotter.era, "number": self._told}))
            self.writable()

    # Inside.

    def _take(self, words: dict[str, Any]) -> dict[str, Any] | None:
        do = words.get("do")
        if do == "login" and not self._login:
            self._line.pause()
            self._checking = asyncio.get_running_loop().create_task(self._check(words))
            return None
        if do == "ping":
            return {"is": "pong"}
        if do in REQUESTS and self._login:
            return self._ask(words)
        raise BadNativeMessage(
            f"do is {do!r}; {'give order, cancel, replace or ping' if self._login else 'log in first'}"
        )

    def _ask(self, words: dict[str, Any]) -> dict[str, Any]:
        number = words.get("request")
        if words.get("session") != self._session or number != self._requests + 1:
            raise BadNativeMessage(
                f"request is {number!r} of session {words.get('session')!r}; "
                f"expected {self._requests + 1} of {self._session!r}: it was played again, or one is missing"
            )
        self._requests += 1
        try:
            request = request_of(words, self._login)
        except BadNativeMessage as error:
            return {"is": "refused", "request": number, "cause": "value", "reason": str(error)}
        answer = self._desk.house.ask(self._login, request)
        if answer.cause is not None:
            return {"is": "refused", "request": number, "cause": answer.cause.value, "reason": answer.reason}
        return {"is": "accepted", "request": number}

    async def _check(self, words: dict[str, Any]) -> None:
        """Let a client in, or not; what it said meanwhile is heard afterwards."""
        name, secret = words.get("login"), words.get("password")
        era, number = words.get("era", 0), words.get("after", NEWEST)
        reason: str | None = "login and password must be text, era and after whole numbers"
        if isinstance(name, str) and isinstance(secret, str) and type(era) is int and type(number) is int:
            reason = await self._desk.doorman.refusal(name, secret)
        self._checking = None
        if reason is not None:
            cause = "busy" if reason in (BUSY, TOO_OFTEN) else "login"
            self._line.write(encode_line({"is": "closed", "cause": cause, "reason": reason}))
            self._line.close()
            return
        assert isinstance(name, str)
        self._admit(name, era, number)
        self._line.resume()
        self.heard(b"")

    def _admit(self, name: str, era: int, number: int) -> None:
        house = self._desk.house
        blotter = house.gateway.blotter
        self._login, self._session = name, secrets.token_hex(SESSION_BYTES)
        self._told = blotter.last if number == NEWEST else min(blotter.resumed(era, number), blotter.last)
        welcome = {
            "is": "welcome",
            "session": self._session,
            "accounts": sorted(house.accounts.scope(name)),
            "era": blotter.era,
            "number": self._told,
        }
        self._line.write(encode_line(welcome))
        self.writable()
