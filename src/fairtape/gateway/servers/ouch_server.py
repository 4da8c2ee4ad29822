"""OUCH 4.2 over SoupBinTCP: a login, requests as unsequenced data, and everything that follows as sequenced data.

What a login was told is numbered from 1 in a session that lasts as long as this process, so a client that comes back
asks for the number it waits for and gets every later message once. A new process begins a new session, with all that
it still knows of the login's orders.

Only the account of the login itself is traded: OUCH has no field for another one.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.formats import ouch
from fairtape.formats import soupbintcp as soup
from fairtape.gateway.core.events import Answer, Cause, EventKind, OrderEvent
from fairtape.gateway.servers.authenticator import Authenticator
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.servers.ouch_orders import (
    NotExpressible,
    cancel_of,
    check_tellable,
    message_of,
    order_of,
    rejected,
    replace_of,
)
from fairtape.gateway.servers.streams import StreamWriter

FROM_CLIENT_MAX: Final = 256  # bytes of a packet: the longest that has a meaning has 51
OUTBOX_MAX: Final = 1 << 16  # messages that are kept for one login
LOGINS_MAX: Final = 10_000  # for whom messages are kept
MESSAGES_AT_ONCE: Final = 512
HEARTBEAT_PERIOD: Final[Duration] = 1 * SECOND
SILENCE_MAX: Final[Duration] = 15 * SECOND
_SESSION_SPAN: Final = 10**10
_UNAUTHORISED: Final = "A"
_NO_SESSION: Final = "S"


class OuchOutbox:
    """The sequenced messages of one login."""

    def __init__(self) -> None:
        self.first = 1  # the number of the first one that is kept
        self.told = 0  # the number of the last event that is in it
        self._messages: deque[bytes] = deque()

    @property
    def following(self) -> int:
        """The number that the next message will have."""
        return self.first + len(self._messages)

    def add(self, message: ouch.Outbound) -> None:
        """One more."""
        self._messages.append(ouch.encode(message))
        if len(self._messages) > OUTBOX_MAX:
            self._messages.popleft()
            self.first += 1

    def since(self, number: int) -> Iterator[bytes]:
        """From a number on, as far as they are kept."""
        for index in range(number - self.first, len(self._messages)):
            yield self._messages[index]


class OuchServer:
    """All conversations of one server."""

    def __init__(self, house: OrderGateway, doorman: Authenticator) -> None:
        self.house = house
        self.doorman = doorman
        self.session = str(house.now() // SECOND % _SESSION_SPAN)
        self._outboxes: dict[str, OuchOutbox] = {}
        self._conversations: set[OuchSession] = set()
        house.listen(self)

    def converse(self, line: StreamWriter) -> "OuchSession":
        """Somebody connected."""
        conversation = OuchSession(self, line)
        self._conversations.add(conversation)
        return conversation

    def forget(self, conversation: "OuchSession") -> None:
        """Somebody is gone."""
        self._conversations.discard(conversation)

    def outbox(self, login: str) -> OuchOutbox | None:
        """The messages of a login, from the beginning on; None where there is no room for one more login."""
        outbox = self._outboxes.get(login)
        if outbox is None and len(self._outboxes) < LOGINS_MAX:
            outbox = self._outboxes[login] = OuchOutbox()
            self._fill(login, outbox)
        return outbox

    def happened(self, events: Sequence[OrderEvent]) -> None:
        """The sequence has proved these."""
        for event in events:
            if event.kind is EventKind.VOIDED and (outbox := self._outboxes.get(event.account)) is not None:
                _put(outbox, event)
        for login, outbox in self._outboxes.items():
            self._fill(login, outbox)
        for conversation in list(self._conversations):
            conversation.writable()

    def broke(self) -> None:
        """Events were taken back. What was told stays told; Broken Trades have said what is void."""
        for outbox in self._outboxes.values():
            outbox.told = min(outbox.told, self.house.gateway.blotter.last)

    def _fill(self, login: str, outbox: OuchOutbox) -> None:
        blotter = self.house.gateway.blotter
        if outbox.told < blotter.last:
            for event in blotter.since(outbox.told, {login}):
                _put(outbox, event)
            outbox.told = blotter.last


class OuchSession:
    """One client."""

    def __init__(self, desk: OuchServer, line: StreamWriter) -> None:
        self._desk = desk
        self._line = line
        self._stream = soup.SoupStream(allowed=soup.FROM_CLIENT, payload_max=FROM_CLIENT_MAX)
        self._login = ""
        self._outbox: OuchOutbox | None = None
        self._number = 0  # of the next sequenced message
        self._held: deque[soup.Packet] = deque()
        self._checking: asyncio.Task[None] | None = None
        self._beating: asyncio.TimerHandle | None = None

    @property
    def welcome(self) -> bool:
        """Whether the client has logged in."""
        return self._outbox is not None

    def heard(self, octets: bytes) -> None:
        """Take packets; whoever breaks the protocol is let go."""
        try:
            self._held.extend(self._stream.feed(octets))
        except soup.BadSoup:
            self._line.close()
            return
        self._take_all()

    def writable(self) -> None:
        """Send what there is, as far as the client reads."""
        if self._outbox is None:
            return
        self._number = max(self._number, self._outbox.first)
        while self._number < self._outbox.following and self._line.can_write:
            packets = []
            for message in self._outbox.since(self._number):
                packets.append(soup.encode(soup.SequencedData(message)))
                if len(packets) >= MESSAGES_AT_ONCE:
                    break
            self._number += len(packets)
            self._line.write(b"".join(packets))

    def ended(self) -> None:
        """The client is gone."""
        if self._checking is not None:
            self._checking.cancel()
        if self._beating is not None:
            self._beating.cancel()
        self._desk.forget(self)

    def _take_all(self) -> None:
        asked = False
        while self._held and self._checking is None:
            packet = self._held.popleft()
            match packet:
                case soup.Debug() | soup.ClientHeartbeat():
                    pass
                case soup.LoginRequest() if not self._login:
                    self._line.pause()
                    self._checking = asyncio.get_running_loop().create_task(self._check(packet))
                case soup.UnsequencedData(message) if self._outbox is not None:
                    self._ask(message, self._outbox)
                    asked = True
                case _:
                    self._line.close()
                    return
        if asked:
            self._desk.house.sync()
            self.writable()

    def _ask(self, message: bytes, outbox: OuchOutbox) -> None:
        """Enter a request. What OUCH cannot say no to is ignored, as it prescribes."""
        now = self._desk.house.now()
        try:
            request = ouch.decode_inbound(message)
        except ouch.BadOuch:
            self._line.close()
            return
        match request:
            case ouch.EnterOrder():
                self._enter(request, outbox, now)
            case ouch.ReplaceOrder():
                self._desk.house.ask(self._login, replace_of(self._login, request))
            case ouch.CancelOrder():
                try:
                    self._desk.house.ask(self._login, cancel_of(self._login, request))
                except NotExpressible:
                    outbox.add(ouch.CancelReject(now % (86_400 * SECOND), request.order_token))

    def _enter(self, request: ouch.EnterOrder, outbox: OuchOutbox, now: Instant) -> None:
        market = self._desk.house.gateway.floor.markets.get(request.stock)
        try:
            if market is not None:
                check_tellable(market.terms)
            answer = self._desk.house.ask(self._login, order_of(self._login, request))
        except NotExpressible:
            answer = Answer(0, Cause.VALUE)
        if answer.cause is not None and answer.cause is not Cause.DUPLICATE:  # a token that was used is ignored
            outbox.add(rejected(request.order_token, answer.cause, now))

    async def _check(self, login: soup.LoginRequest) -> None:
        """Let a client in, or not; what it said meanwhile is heard afterwards."""
        refusal = await self._desk.doorman.refusal(login.username, login.password)
        self._checking = None
        outbox = None if refusal is not None else self._desk.outbox(login.username)
        if outbox is None or login.session not in ("", self._desk.session):
            reason = _UNAUTHORISED if outbox is None else _NO_SESSION
            self._line.write(soup.encode(soup.LoginRejected(reason)))
            self._line.close()
            return
        number = min(login.number or outbox.following, outbox.following)
        self._login, self._outbox, self._number = login.username, outbox, max(number, outbox.first)
        self._line.write(soup.encode(soup.LoginAccepted(self._desk.session, self._number)))
        self._line.resume()
        self._beat()
        self.writable()
        self._take_all()

    def _beat(self) -> None:
        if self._beating is not None:
            self._line.write(soup.encode(soup.ServerHeartbeat()))
        self._beating = asyncio.get_running_loop().call_later(HEARTBEAT_PERIOD / SECOND, self._beat)


def _put(outbox: OuchOutbox, event: OrderEvent) -> None:
    """An event whose names are too long for OUCH is one of an order that came another way."""
    with suppress(ouch.BadOuch):
        if (message := message_of(event)) is not None:
            outbox.add(message)
